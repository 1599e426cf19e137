"""A disk that fails in the middle of a read: who sent what gets the answer, the others nothing, and the store goes on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.broker import core
from roquet.store.disk import Cold
from roquet.store.log import CommitLog
from roquet.testing import FakePeer
from roquet.testing.disk import SimDisk
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.frame import Framer
from roquet.wire.names import HALF_TOPIC, OP_HALF_TOPIC
from roquet.wire.record import decode_records
from tests.store.test_file_shortage import ShortDisk

from .whole import Whole, pull_fields, send_fields

V2 = RequestCode.SEND_MESSAGE_V2
LOG = "/commitlog/"
FILE = 65_536
FAULTS = [(number, operation) for number in (errno.EMFILE, errno.ENOSPC, errno.EIO) for operation in ("open", "truncate")]


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def whole(disk: SimDisk) -> Whole:
    return started(disk)


def started(disk: SimDisk, **more: Any) -> Whole:
    whole = Whole(Path("/store"), disk, mapped_file_size_commit_log=FILE, **more)
    return whole


def made(whole: Whole, *topics: str) -> None:
    for topic in topics:
        answer = whole.ask(V2, send_fields(topic), b"first")
        assert answer.code == 0


def frames(whole: Whole, peer: FakePeer, *commands: Command) -> list[Command]:
    whole.broker.receive(peer, Framer().feed(b"".join(command.encode() for command in commands)))
    return peer.take()


def send(opaque: int, topic: str = "T", body: bytes = b"x" * 20_000) -> Command:
    return Command(V2, send_fields(topic), body, opaque=opaque)


def bodies(whole: Whole, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, queue_id, len(found), suspendTimeoutMillis="0"))
        if answer.code != 0:
            assert answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED), answer
            return found
        records = decode_records(answer.body)
        assert [record.queue_offset for record in records] == list(range(len(found), len(found) + len(records)))
        found += [record.body for record in records]


def again(disk: SimDisk, **more: Any) -> Whole:
    """The process is killed, and started again."""
    disk.kill()
    return started(disk, **more)


class TestTheLogCannotRoll:
    @pytest.mark.parametrize(("number", "operation"), FAULTS)
    def test_each_send_of_the_read_is_answered_to_its_sender_and_to_nobody_else(
        self, whole: Whole, disk: SimDisk, number: int, operation: str
    ) -> None:
        made(whole, "T")
        alice, bob = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
        disk.fail(operation, number, LOG, times=1_000)
        answers = frames(whole, alice, *[send(opaque) for opaque in range(100, 106)])
        codes = {answer.opaque: answer.code for answer in answers}
        assert codes == {100: 0, 101: 0, 102: 0, 103: 14, 104: 14, 105: 14}
        assert [answer.opaque for answer in frames(whole, bob, Command(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=7))] == [7]
        assert bodies(whole) == [b"first"] + 3 * [b"x" * 20_000]
        disk.faults.clear()
        for _ in range(40):
            whole.tick(500)  # the pause ends, and retention finds that there is room
        assert [answer.code for answer in frames(whole, alice, send(200, body=b"y" * 20_000))] == [0]
        expected = [b"first"] + 3 * [b"x" * 20_000] + [b"y" * 20_000]
        assert bodies(whole) == expected
        assert bodies(again(disk)) == expected

    def test_a_small_message_that_still_fits_the_file_is_taken(self, whole: Whole, disk: SimDisk) -> None:
        made(whole, "T")
        disk.fail("open", errno.EMFILE, LOG, times=1_000)
        answers = frames(whole, FakePeer(), *[send(opaque) for opaque in range(3)], send(3), send(4, body=b"small"))
        assert {answer.opaque: answer.code for answer in answers} == {0: 0, 1: 0, 2: 0, 3: 14, 4: 0}
        assert bodies(whole)[-1] == b"small"

    def test_too_many_open_files_are_a_pause_and_the_store_has_not_failed(self, whole: Whole, disk: SimDisk) -> None:
        made(whole, "T")
        disk.fail("open", errno.EMFILE, LOG)
        answers = frames(whole, FakePeer(), *[send(opaque) for opaque in range(4)])
        assert answers[-1].code == 0 or "Too many open files" in (answers[-1].remark or "")
        assert whole.broker.store.trouble.failed == ""
        for _ in range(30):
            whole.tick(50)
        assert whole.broker.store.trouble.refuse_writes() == ""
        assert whole.ask(V2, send_fields(), b"z" * 20_000).code == 0

    def test_a_batch_that_spans_two_files_is_stored_whole_or_not_at_all(self, whole: Whole, disk: SimDisk) -> None:
        made(whole, "T")
        batch = join_batch([(0, b"b" * 10_000, b"UNIQ_KEY\x01b%d" % number) for number in range(10)])
        disk.fail("open", errno.EMFILE, LOG, times=1_000)
        answer = whole.ask(V2, send_fields(m="true", i="WAIT\x01true"), batch)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bodies(whole) == [b"first"]
        disk.faults.clear()
        for _ in range(30):
            whole.tick(50)
        assert whole.ask(V2, send_fields(m="true", i="WAIT\x01true"), batch).code == 0
        assert bodies(whole) == [b"first"] + 10 * [b"b" * 10_000]
        assert bodies(again(disk)) == [b"first"] + 10 * [b"b" * 10_000]

    def test_an_event_of_the_brokers_own_that_has_no_room_leaves_the_pull_its_answer(self, whole: Whole, disk: SimDisk) -> None:
        made(whole, "T")
        assert [answer.code for answer in frames(whole, FakePeer(), *[send(n, body=b"x" * 21_600) for n in range(3)])] == [0, 0, 0]
        disk.fail("open", errno.EMFILE, LOG, times=1_000)
        answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 0, 99))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED


class TestAMistakeInTheMiddleOfARead:
    def test_refuses_what_came_with_it_and_concerns_nobody_else(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        made(whole, "T")
        store, put, put_together = whole.broker.store, whole.broker.store.put_derived, whole.broker.store.put_sends

        def poisoned_together(sends: Any, host: bytes) -> Any:
            placed = put_together(sends, host)
            if any(body == b"poison" for _, body, *_ in sends):
                raise MemoryError("none left")
            return placed

        def poisoned(queue: Any, body: bytes, *rest: Any) -> Any:
            placed = put(queue, body, *rest)
            if body == b"poison":
                raise MemoryError("none left")
            return placed

        monkeypatch.setattr(store, "put_derived", poisoned)
        monkeypatch.setattr(store, "put_sends", poisoned_together)
        whole.broker.sender.plain.native = None  # which does not come by there
        alice, bob = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
        answers = frames(whole, alice, send(1, body=b"a"), send(2, body=b"poison"), send(3, body=b"c"))
        assert {answer.opaque: answer.code for answer in answers} == {1: 1, 2: 1, 3: 0}
        assert [(answer.opaque, answer.code) for answer in frames(whole, bob, send(9, body=b"bob"))] == [(9, 0)]
        assert not alice.take()
        assert bodies(whole) == [b"first", b"c", b"bob"]

    def test_in_a_handler_undoes_what_the_handler_staged_and_nothing_else(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        made(whole, "T")
        broker = whole.broker

        def half_done(peer: Any, command: Command) -> Command:
            broker.store.put(broker.store.queue("T", 0), b"half", "", sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
            raise ZeroDivisionError

        monkeypatch.setitem(broker.table, RequestCode.GET_BROKER_RUNTIME_INFO, half_done)
        answers = frames(whole, FakePeer(), send(1, body=b"a"), Command(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=2), send(3, body=b"c"))
        assert {answer.opaque: answer.code for answer in answers} == {1: 0, 2: 1, 3: 0}
        assert bodies(whole) == [b"first", b"a", b"c"]

    def test_that_a_cold_read_interrupts_after_staging_is_staged_once(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        made(whole, "T")
        broker, tries = whole.broker, [1]

        def cold_once(peer: Any, command: Command) -> Command:
            broker.store.put(broker.store.queue("T", 0), b"once", "", sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
            if tries:
                tries.pop()
                raise Cold(lambda: None)
            return command.reply()

        monkeypatch.setitem(broker.table, RequestCode.GET_BROKER_RUNTIME_INFO, cold_once)
        assert whole.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
        assert bodies(whole) == [b"first", b"once"]

    def test_of_a_part_in_its_tick_leaves_nothing_staged_for_the_next_sender(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        made(whole, "T")
        broker = whole.broker

        def tick(now_ms: int) -> None:
            broker.store.put(broker.store.queue("T", 0), b"half", "", sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
            raise ZeroDivisionError

        monkeypatch.setattr(broker.transactions, "tick", tick)
        whole.tick(50)
        assert broker.store.log.end == broker.store.log.written
        assert bodies(whole) == [b"first"]


class TestUndo:
    def test_a_tail_is_never_written_beyond_what_is_committed(self, whole: Whole, disk: SimDisk) -> None:
        """A part stages, the store writes tails in the same tick, and the commit fails."""
        made(whole, "T")
        store = whole.broker.store
        queue = store.queue("T", 0)
        store.put(queue, b"staged", "KEYS\x01k", sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
        store.tails.write()
        store.derived.settle()
        assert queue.tail_start <= 1
        disk.full = True
        disk.fail("write", errno.ENOSPC, LOG)
        with pytest.raises(Exception, match="full"):
            store.commit()
        disk.full = False
        assert (queue.next, queue.tail_start + len(queue.tail) // 20) == (1, 1)
        assert store.index.waiting == 0
        store.trouble.full = ""
        for number in range(3):
            assert whole.ask(V2, send_fields(), b"%d" % number).code == 0
        whole.tick(2_000)
        assert bodies(whole) == [b"first", b"0", b"1", b"2"]
        assert bodies(again(disk)) == [b"first", b"0", b"1", b"2"]

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 1.0])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
    def test_what_was_refused_because_its_write_failed_never_counts(self, disk: SimDisk, whole: Whole, part: float, number: int) -> None:
        """Part of a failed write may stand in the file: whole records, which begin where a later record ends."""
        made(whole, "T")
        disk.fail("write", number, LOG, part=part)
        answers = frames(whole, FakePeer(), *[send(n, body=b"refused %d" % n) for n in range(5)])
        assert {answer.code for answer in answers} == {14}
        assert bodies(whole) == [b"first"]
        if number == errno.ENOSPC:
            whole.broker.store.trouble.full = ""
            assert whole.ask(V2, send_fields(), b"refused 9").code == 0  # as long as each of those
            assert bodies(again(disk)) == [b"first", b"refused 9"]
        else:
            assert "writing the log failed" in whole.broker.store.trouble.failed
            assert bodies(again(disk)) == [b"first"]

    def test_a_commit_whose_op_record_has_no_room_commits_nothing(self, whole: Whole, disk: SimDisk) -> None:
        made(whole, "T", "F")
        prepared = whole.ask(V2, send_fields(properties="UNIQ_KEY\x01U2\x02TRAN_MSG\x01true\x02PGROUP\x01g"), b"deal")
        assert prepared.code == 0
        whole.tick(50)
        store = whole.broker.store
        queue = store.find_queue(HALF_TOPIC, 0)
        assert queue is not None
        entry = queue.entry(0)
        assert entry is not None
        # Fill the file so that the committed message fits and its op record does not.
        left = FILE - store.log.end % FILE
        record = entry[1] - 26 + 8  # about as long as the half message
        filler = left - record - 8 - 60 - (90 + 2 + len("CLUSTER\x01DefaultCluster") + len("UNIQ_KEY\x01U1\x02"))
        assert whole.ask(V2, send_fields("F"), b"f" * filler).code == 0
        disk.fail("open", errno.EMFILE, LOG, times=1_000)
        end = {"producerGroup": "g", "tranStateTableOffset": "0", "commitLogOffset": str(entry[0]), "commitOrRollback": "8", "msgId": "U2"}
        answer = whole.ask(RequestCode.END_TRANSACTION, end)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bodies(whole) == [b"first"]
        assert store.find_queue(OP_HALF_TOPIC, 0) is None or store.queue(OP_HALF_TOPIC, 0).next == 0
        disk.faults.clear()
        for _ in range(30):
            whole.tick(50)
        assert whole.ask(RequestCode.END_TRANSACTION, end).code == 0
        whole.tick(50)
        assert bodies(whole) == [b"first", b"deal"]
        assert whole.ask(RequestCode.END_TRANSACTION, end).code == ResponseCode.SYSTEM_ERROR
        assert bodies(again(disk)) == [b"first", b"deal"]

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOSPC])
    def test_delayed_and_timed_messages_wait_until_the_log_can_roll(self, whole: Whole, disk: SimDisk, number: int) -> None:
        made(whole, "T")
        assert whole.ask(V2, send_fields(properties="DELAY\x011\x02UNIQ_KEY\x01d"), b"d" * 30_000).code == 0
        assert whole.ask(V2, send_fields(properties="TIMER_DELAY_MS\x011000\x02UNIQ_KEY\x01t"), b"t" * 30_000).code == 0
        disk.fail("open", number, LOG, times=10_000)
        for _ in range(60):
            whole.tick(100)
        assert bodies(whole) == [b"first"]
        disk.faults.clear()
        for _ in range(300):
            whole.tick(100)
        assert sorted(bodies(whole)) == [b"d" * 30_000, b"first", b"t" * 30_000]
        assert sorted(bodies(again(disk))) == [b"d" * 30_000, b"first", b"t" * 30_000]


# Everything above, in any order: a failure of any operation anywhere, against a plain model.

STEPS: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("send"), st.lists(st.tuples(st.integers(0, 1), st.sampled_from([10, 3_000, 20_000])), min_size=1, max_size=6)),
    st.tuples(st.just("batch"), st.lists(st.sampled_from([10, 3_000, 9_000]), min_size=1, max_size=60)),
    st.tuples(st.just("moved"), st.just([])),  # a pull beyond the end: the broker stores an event of its own
    st.tuples(st.just("tick"), st.lists(st.sampled_from([50, 1_100, 11_000]), min_size=1, max_size=2)),
)
TROUBLE = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from(["open", "write", "truncate", "make_dir"]),
        st.sampled_from([errno.EMFILE, errno.ENOSPC, errno.EIO]),
        st.sampled_from([LOG, LOG, "/consumequeue/", "/index/", ""]),
        st.integers(0, 3),
        st.sampled_from([1, 1, 50]),
        st.sampled_from([0.0, 0.5, 1.0]),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(STEPS, TROUBLE), min_size=1, max_size=12), st.booleans())
def test_what_was_acknowledged_is_there_once_and_what_was_refused_is_not(steps: list[Any], clean: bool) -> None:
    disk = SimDisk()
    whole = started(disk)
    made(whole, "T")
    model: dict[int, list[bytes]] = {0: [b"first"], 1: []}
    count = 0
    for (kind, sizes), trouble in steps:
        if trouble is not None:
            operation, number, where, after, times, part = trouble
            disk.fail(operation, number, where, after=after, times=times, part=part if operation == "write" else 0.0)
        peer = FakePeer("127.0.0.1:1")
        if kind == "send":
            sent: dict[int, tuple[int, bytes]] = {}
            for queue_id, size in sizes:
                count += 1
                sent[count] = (queue_id, (b"%d " % count).ljust(size, b"x"))
            commands = [Command(V2, send_fields("T", queue_id), body, opaque=number) for number, (queue_id, body) in sent.items()]
            answers = {answer.opaque: answer.code for answer in frames(whole, peer, *commands)}
            assert answers.keys() == sent.keys()
            for number, (queue_id, body) in sent.items():
                if answers[number] == 0:
                    model[queue_id].append(body)
        elif kind == "batch":
            count += 1
            rows = [(b"%d.%d " % (count, row)).ljust(size, b"y") for row, size in enumerate(sizes)]
            fields = send_fields("T", 1, m="true", properties="WAIT\x01true")
            body = join_batch([(0, row, b"UNIQ_KEY\x01%d" % count) for row in rows])
            (answer,) = frames(whole, peer, Command(V2, fields, body, opaque=1))
            if answer.code == 0:
                model[1] += rows
        elif kind == "moved":
            (answer,) = frames(whole, peer, Command(RequestCode.PULL_MESSAGE, pull_fields("T", 0, 9_999), opaque=1))
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        else:
            for ms in sizes:
                whole.tick(ms)
        disk.faults.clear()
        assert not peer.take()
        assert whole.broker.store.log.end == whole.broker.store.log.written
        for queue_id in model:
            assert bodies(whole, "T", queue_id) == model[queue_id]
    if clean and not whole.broker.store.trouble.failed:
        whole.close()
    log = whole.broker.store.log
    assert isinstance(log, CommitLog)
    failed = whole.broker.store.trouble.failed or log.soiled
    whole = again(disk)
    for queue_id in model:
        found = bodies(whole, "T", queue_id)
        assert found[: len(model[queue_id])] == model[queue_id]
        assert failed or found == model[queue_id]  # a disk that takes no more writes may keep what was refused
        model[queue_id] = found
    for _ in range(30):
        whole.tick(500)
    assert whole.ask(V2, send_fields("T", 1), b"last").code == 0
    assert bodies(whole, "T", 1) == [*model[1], b"last"]


def test_an_answer_without_a_batch_of_frames_is_a_mistake(whole: Whole) -> None:
    with pytest.raises(RuntimeError, match="no batch of frames"):
        whole.broker.sender.answer_when_stored(Command(V2, flag=ONEWAY))


def test_a_tick_without_a_free_descriptor_waits_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = ShortDisk()
    whole = Whole(tmp_path / "store", disk, flush_disk_type="SYNC_FLUSH")
    made(whole, "T")
    assert whole.ask(RequestCode.SEND_MESSAGE_V2, send_fields("T", properties="DELAY\x011"), b"later").code == 0
    whole.tick(500)  # its entry is in its queue's file now
    whole.broker.store.files._files.clear()  # as if many others had been used since
    disk.short = True
    for _ in range(30):
        whole.tick(100)
    assert not [line for line in caplog.messages if line.startswith("! tick")]
    assert [line for line in caplog.messages if "too few file descriptors" in line]
    disk.short = False
    for _ in range(30):
        whole.tick(100)
    assert bodies(whole) == [b"first", b"later"]
    whole.close()


def test_a_header_that_cannot_even_be_read_again_is_no_endless_loop(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should reading a header fail in a way that nobody foresaw, the mistake leaves the core, which closes the connection."""
    made(whole, "T")

    def fail(*arguments: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(core, "decode", fail)
    monkeypatch.setattr(core, "command_of", fail)
    with pytest.raises(MemoryError):
        whole.broker.receive(FakePeer(), Framer().feed(send(1, body=b"a").encode() + Command(RequestCode.HEART_BEAT, opaque=2).encode()))
    assert [(answer.opaque, answer.code) for answer in frames(whole, FakePeer(), send(9, body=b"later"))] == [(9, 0)]
