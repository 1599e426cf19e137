"""A slave follows its master: log, queues, topics, groups and progress."""

from __future__ import annotations

import base64
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.ha.stream import REPORT, TRANSFER
from roquet.message import Property
from roquet.store.disk import blocking
from roquet.testing import WholeBroker
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import SCHEDULE_TOPIC

from .pairs import MASTER, Pair
from .streams import FakeStream
from .test_master import recorded
from .test_roles import SEND, a_slave, log_of, send


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def _send(opaque: int) -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, dict(SEND), b"x", opaque=opaque)


def entries(broker: WholeBroker) -> dict[tuple[str, int], list[tuple[int, int, int] | None]]:
    return {
        key: [blocking(queue.entry, number) for number in range(queue.first, queue.visible)]
        for key, queue in broker.broker.store.queues.items()
        if queue.visible
    }


# The recording


def test_recorded_transfers_get_the_recorded_reports(tmp_path: Path) -> None:
    slave = WholeBroker(tmp_path, broker_role="SLAVE", broker_id=1, mapped_file_size_commit_log=65_536)
    copying = slave.broker.copying
    stream = FakeStream()
    reports: list[bytes] = []
    phases = ("connect-empty", "transfer", "idle", "partial", "reconnect")
    for row in recorded(*phases):
        if row["way"] == "connect" and row["to"] == "master-ha":
            stream = FakeStream()
            copying._begin(stream)
            stream.take()  # ours is the first to speak
        elif row["way"] == "close" and row["to"] == "master-ha":
            copying.lost(stream, "closed")
        elif row["way"] in ("transfer", "heartbeat"):
            copying.received(stream, bytes.fromhex(row["hex"]) + base64.b64decode(row["body_b64"]))
            assert not stream.closed, stream.reason
            said = stream.take()
            reports += [said] if said else []
    expected = [bytes.fromhex(row["hex"]) for row in recorded(*phases) if row["way"] == "report"]
    # The first, and those that repeat what was said, are brought by time alone.
    assert reports == list(dict.fromkeys(expected[1:]))
    store = slave.broker.store
    slave.tick()
    assert store.applier.applied == store.log.written == 6_608
    assert store.applier.damaged == 0
    assert store.queue("T1", 0).visible + store.queue("T1", 1).visible + store.queue("T1", 2).visible + store.queue("T1", 3).visible > 5
    slave.close()


def test_a_heartbeat_moves_an_empty_slave_to_the_master_s_last_file(tmp_path: Path) -> None:
    slave = WholeBroker(tmp_path, broker_role="SLAVE", broker_id=1, mapped_file_size_commit_log=65_536)
    stream = FakeStream()
    slave.broker.copying._begin(stream)
    assert stream.take() == REPORT.pack(0)
    slave.broker.copying.received(stream, TRANSFER.pack(131_072, 0))
    assert stream.take() == REPORT.pack(131_072)
    assert (slave.broker.store.log.start, slave.broker.store.log.written) == (131_072, 131_072)
    slave.close()


# Following


def test_a_slave_s_log_and_queues_are_the_master_s(pair: Pair) -> None:
    pair.settle()
    for number in range(200):
        send(pair.master, b"%d" % number * 60, f"TAGS\x01{number % 3}\x02KEYS\x01k{number}")
        if number % 20 == 0:
            pair.settle(2)
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)
    assert pair.slave.broker.copying.doing == "copying"


def test_an_empty_slave_gets_all_from_a_roquet_master_from_the_oldest_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for number in range(300):
        send(pair.master, b"%d" % number * 60)
    assert len(pair.master.broker.store.log.segments.bases) > 3
    pair.settle()
    assert pair.same
    pair.stop(pair.slave)
    pair.master.broker.store.log.segments.drop_first()
    pair.start_slave("s2")
    pair.settle()
    assert pair.same
    assert pair.slave.broker.store.log.start == 16_384
    assert pair.slave.broker.store.queue("T", 0).first > 0
    pair.close()


def test_a_slave_goes_on_after_a_broken_connection_a_stop_and_a_kill(pair: Pair) -> None:
    for number in range(100):
        send(pair.master, b"%d" % number * 60)
        if number == 20:
            pair.settle(10)
            pair.wire.cut()
        elif number == 40:
            pair.settle(10)
            pair.stop(pair.slave)
            pair.start_slave()
        elif number == 60:
            pair.settle(10)
            pair.kill(pair.slave)
            pair.start_slave()
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)
    assert not (pair.root / "s" / "lost").exists()


def test_a_slave_reports_at_least_every_five_seconds_and_leaves_a_silent_master(pair: Pair) -> None:
    pair.settle(5)
    link = pair.slave.broker.copying.link
    assert link is not None
    link.stream.take()  # type: ignore[attr-defined]
    pair.slave.tick(5_100)
    assert link.stream.take() == REPORT.pack(0)  # type: ignore[attr-defined]
    for _ in range(4):
        pair.slave.tick(5_100)
    assert link.stream.closed
    pair.settle()
    assert pair.slave.broker.copying.doing == "copying"


def test_a_slave_whose_files_have_another_size_is_told_so_and_copies_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    send(pair.master)
    pair.stop(pair.slave)
    pair.start_slave("s2", mapped_file_size_commit_log=32_768)
    pair.settle()
    assert pair.slave.broker.store.log.written == 0
    assert any("mappedFileSizeCommitLog=16384" in notice.text for notice in pair.slave.broker.notices.list())
    pair.close()


def test_what_the_master_sends_from_another_place_is_not_appended(pair: Pair) -> None:
    send(pair.master)
    pair.settle()
    link = pair.slave.broker.copying.link
    assert link is not None
    end = pair.slave.broker.store.log.written
    pair.slave.broker.copying.received(link.stream, TRANSFER.pack(end + 1, 3) + b"abc")
    assert link.stream.closed
    assert pair.slave.broker.store.log.written == end


def test_a_sync_pair_acknowledges_what_both_have(tmp_path: Path) -> None:
    pair = Pair(tmp_path, broker_role="SYNC_MASTER")
    pair.settle()
    pair.master.frames(*[_send(number) for number in range(1, 6)])
    assert not pair.master.peer.take()
    pair.wire.carry()
    assert [answer.code for answer in pair.master.peer.take()] == [0] * 5
    assert pair.same
    pair.close()


def test_a_slave_with_sync_flush_confirms_what_is_on_its_disk(tmp_path: Path) -> None:
    pair = Pair(tmp_path, broker_role="SYNC_MASTER")
    pair.stop(pair.slave)
    pair.start_slave("s2", flush_disk_type="SYNC_FLUSH")
    pair.settle()
    pair.slave.background.hold = True
    pair.master.frames(_send(1))
    pair.wire.carry()
    assert not pair.master.peer.take()
    pair.slave.background.release()
    pair.slave.tick(1)
    pair.wire.carry()
    assert [answer.code for answer in pair.master.peer.take()] == [0]
    pair.slave.background.hold = False
    pair.slave.background.release()
    pair.close()


# Topics, groups and progress


def test_topics_groups_progress_and_delay_cursors_are_copied_after_three_seconds_and_every_ten(pair: Pair) -> None:
    send(pair.master)
    master, slave = pair.master.broker, pair.slave.broker
    master.groups.find("G")
    master.offsets.commit("G", "T", 0, 1)
    send(pair.master, b"later", f"{Property.DELAY}\x011")
    pair.settle(40)
    assert RequestCode.GET_ALL_TOPIC_CONFIG not in pair.caller.asked
    pair.settle(40)
    asked = [code for code in pair.caller.asked if code != RequestCode.LOG_PIECE]
    assert asked == [21, 43, 45, 201]
    assert slave.topics.get("T") == master.topics.get("T")
    assert slave.topics.data_version == master.topics.data_version
    assert "G" in slave.groups
    assert slave.offsets.find("G", "T", 0) == 1
    assert slave.delays.offsets == {1: 1}
    assert (pair.root / "s" / "config" / "delayOffset.json").exists()
    master.topics.ensure("Later")
    pair.settle(210)
    assert slave.topics.get("Later") is not None
    assert [code for code in pair.caller.asked if code != RequestCode.LOG_PIECE] == [21, 43, 45, 201] * 2


def test_a_topic_that_the_master_has_no_more_is_gone_on_the_slave_too(pair: Pair) -> None:
    pair.master.broker.topics.ensure("Gone")
    pair.settle(80)
    assert pair.slave.broker.topics.get("Gone") is not None
    pair.master.broker.topics.delete("Gone")
    pair.settle(210)
    assert pair.slave.broker.topics.get("Gone") is None


def test_topics_of_a_master_that_came_back_as_a_slave_are_not_taken(pair: Pair) -> None:
    """Found by the simulation of whole groups (seed 164): its table was an old one, and a topic that held messages was forgotten."""
    pair.slave.broker.topics.ensure("Newer")
    pair.master.broker.become_slave(1)
    pair.settle(80)
    assert pair.slave.broker.topics.get("Newer") is not None
    pair.master.broker.become_master("ASYNC_MASTER")
    pair.settle(210)
    assert pair.slave.broker.topics.get("Newer") is None


def test_a_log_is_not_cut_back_while_queues_are_synced_and_a_sync_that_began_before_vouches_for_nothing(pair: Pair) -> None:
    """Found by the simulation of sync pairs (seed 38): entries that came anew were taken for those that the manifest spoke of."""
    for _ in range(5):
        send(pair.master)
    pair.settle()
    store = pair.slave.broker.store
    pair.slave.background.hold = True
    store.derived.sync_due_ms = 0
    store.derived.tick(pair.clock.ms)  # it waits for the flush of the log
    store.applier.cut_back(0)
    pair.slave.background.hold = False
    pair.slave.background.release()
    assert not store.derived.busy
    assert store.derived.checkpointed <= 0
    store.derived.busy = True
    with pytest.raises(BlockingIOError, match="tried again"):
        store.cut_back(0)
    store.derived.busy = False


def promoted(pair: Pair) -> WholeBroker:
    pair.kill(pair.master)
    pair.slave.tick(50)
    pair.slave.broker.become_master("ASYNC_MASTER")
    return pair.slave


def test_a_topic_that_the_old_master_made_and_did_not_tell_of_is_there_when_it_holds_messages(pair: Pair) -> None:
    send(pair.master, b"one", topic="Made", queue_id=2)
    pair.settle()
    made = promoted(pair).broker.topics.get("Made")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 6)


def read_queues(whole: WholeBroker, topic: str) -> int:
    known = whole.broker.topics.get(topic)
    assert known is not None
    return known.read_queue_nums


def send_without_a_tick_of_the_slave(pair: Pair, topic: str, queue_id: int) -> None:
    """Its bytes have come, and nothing has looked at them."""
    send(pair.master, b"one", topic=topic, queue_id=queue_id)
    pair.master.broker.tick(pair.clock.ms)
    pair.wire.carry()


@pytest.mark.parametrize("known", [0, 2])
def test_a_slave_makes_the_topic_of_a_new_queue_at_once_and_keeps_it_when_it_is_restarted_as_the_master(pair: Pair, known: int) -> None:
    """Found by the simulation of whole groups: what was acknowledged stood in a queue that no consumer was told of."""
    if known:
        pair.slave.broker.topics.ensure("Made", known)
    send(pair.master, b"one", topic="Made", queue_id=3)
    pair.settle(10)
    assert read_queues(pair.slave, "Made") == 4
    pair.stop(pair.master)
    pair.stop(pair.slave)
    assert read_queues(pair.start_master("s"), "Made") == 4


@pytest.mark.parametrize("known", [0, 2])
def test_a_slave_that_is_stopped_before_its_next_tick_keeps_the_topic_of_a_new_queue_too(pair: Pair, known: int) -> None:
    """Found by the simulation of whole groups, seed 4602."""
    pair.settle(10)
    if known:
        pair.slave.broker.topics.ensure("Made", known)
    send_without_a_tick_of_the_slave(pair, "Made", queue_id=3)
    assert pair.same
    pair.slave.broker.close()
    assert not pair.slave.broker.saving, "a stop waits for what is being written before it, and begins nothing"
    pair.stop(pair.slave)
    pair.stop(pair.master)
    assert read_queues(pair.start_master("s"), "Made") == 4


def test_a_slave_that_is_killed_after_a_checkpoint_knows_the_topic_of_every_queue_before_it(pair: Pair) -> None:
    """Found by the simulation of whole groups, seed 161: the table of topics was saved a second ago, and its next save still waited."""
    pair.settle(10)
    pair.slave.broker.topics.ensure("Made", 2)
    send(pair.master, b"one", topic="Made", queue_id=3)
    pair.settle(4)
    assert pair.slave.broker.topics.saving.unsaved, "the second save waits"
    derived = pair.slave.broker.store.derived
    derived.sync_due_ms = 0
    pair.settle(2)
    pair.kill(pair.slave)
    pair.stop(pair.master)
    assert read_queues(pair.start_master("s"), "Made") == 4


def test_a_slave_makes_the_topics_of_new_queues_before_a_checkpoint_though_its_tick_has_not_come(pair: Pair) -> None:
    pair.settle(10)
    pair.slave.broker.topics.ensure("Made", 2)
    send_without_a_tick_of_the_slave(pair, "Made", queue_id=3)
    pair.slave.broker.store.applier.advance()  # a tick that is broken off before the part that copies
    told: list[Exception | None] = []
    pair.slave.broker.store.derived.before_vouching(told.append)
    assert read_queues(pair.slave, "Made") == 4
    assert told == [None]
    assert not pair.slave.broker.topics.saving.unsaved


def test_tables_are_saved_at_a_stop_whatever_goes_wrong_with_what_came_last(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.settle(10)
    pair.slave.broker.topics.ensure("Made", 2)
    monkeypatch.setattr(pair.slave.broker.copying, "finish", lambda: 1 // 0)
    pair.stop(pair.slave)
    assert pair.start_slave().broker.topics.get("Made") is not None


def test_a_slave_that_copies_all_anew_widens_a_topic_once_and_warns_of_no_hidden_messages(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen in a chaos run: a warning a queue that others were hidden, until they were not."""
    for queue_id in range(4):
        send(pair.master, b"one", topic="Made", queue_id=queue_id)
    pair.settle(10)
    assert read_queues(pair.slave, "Made") == 4
    assert "no longer reach" not in caplog.text


def test_queues_that_the_old_master_added_and_did_not_tell_of_are_read_when_they_hold_messages(pair: Pair) -> None:
    pair.slave.broker.topics.ensure("Made", 2)
    send(pair.master, b"one", topic="Made", queue_id=3)
    pair.settle()
    made = promoted(pair).broker.topics.get("Made")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums) == (4, 4)


def test_a_topic_that_the_old_master_had_no_more_stays_gone(pair: Pair) -> None:
    send(pair.master, b"one", topic="Gone")
    pair.settle(100)
    assert pair.slave.broker.topics.get("Gone") is not None
    pair.master.broker.topics.delete("Gone")
    pair.settle(300)
    assert pair.slave.broker.topics.get("Gone") is None
    assert promoted(pair).broker.topics.get("Gone") is None


def test_e13_a_master_that_comes_back_with_less_progress_sets_no_group_back(pair: Pair) -> None:
    for _ in range(10):
        send(pair.master)
    pair.settle(80)
    pair.slave.broker.offsets.commit("G", "T", 0, 9)
    pair.master.broker.offsets.commit("G", "T", 0, 4)
    pair.settle(210)
    assert pair.slave.broker.offsets.find("G", "T", 0) == 9
    pair.master.broker.offsets.commit("G", "T", 0, 10)
    pair.settle(210)
    assert pair.slave.broker.offsets.find("G", "T", 0) == 10


def test_e13_what_consumers_told_the_slave_while_the_master_was_away_reaches_the_master(pair: Pair) -> None:
    for _ in range(10):
        send(pair.master)
    pair.master.broker.offsets.commit("G", "T", 0, 4)
    pair.settle(80)
    pair.kill(pair.master)
    update = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "8"}
    assert pair.slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update).code == 0
    for _ in range(250):
        pair.slave.tick(50)
        pair.caller.run()
    pair.start_master()
    pair.settle(250)
    assert pair.master.broker.offsets.find("G", "T", 0) == 8
    told = len(pair.caller.oneways)
    pair.settle(420)
    assert len(pair.caller.oneways) == told  # once it knows, it is not told again


# The master is gone


def test_a_slave_serves_reads_offsets_and_queries_when_its_master_is_gone(pair: Pair) -> None:
    for number in range(5):
        send(pair.master, b"m%d" % number, f"KEYS\x01k{number}")
    pair.settle(80)
    pair.kill(pair.master)
    slave = pair.slave
    for _ in range(100):
        slave.tick(50)
        pair.caller.run()
    queue = {"topic": "T", "queueId": "0"}
    assert slave.ask(RequestCode.GET_MAX_OFFSET, queue).fields["offset"] == "5"
    assert slave.ask(RequestCode.GET_MIN_OFFSET, queue).fields["offset"] == "0"
    pull = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    assert slave.ask(RequestCode.PULL_MESSAGE, pull).code == 0
    found = slave.ask(
        RequestCode.QUERY_MESSAGE, {"topic": "T", "key": "k3", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    )
    assert b"m3" in found.body
    assert slave.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}).body == log_of(slave)[: int.from_bytes(log_of(slave)[:4], "big")]
    assert send(slave).code == ResponseCode.SERVICE_NOT_AVAILABLE
    pair.start_master()
    pair.settle()
    assert slave.broker.copying.doing == "copying"


def test_a_slave_that_is_started_as_master_goes_on_where_the_log_ends(pair: Pair) -> None:
    for _ in range(5):
        send(pair.master)
    send(pair.master, b"later", f"{Property.DELAY}\x011\x02{Property.UNIQUE_KEY}\x01u1")
    for _ in range(4):
        pair.master.tick(500)
    pair.settle(80)
    delivered = pair.master.broker.store.queue("T", 0).visible
    assert delivered == 6
    pair.stop(pair.slave)
    promoted = pair.start_master("s")
    try:
        assert send(promoted).fields["queueOffset"] == "6"
        for _ in range(10):
            promoted.tick(500)
        assert promoted.broker.store.queue("T", 0).visible == 7  # the delayed one is not delivered again
        assert promoted.broker.store.queue(SCHEDULE_TOPIC, 0).visible == 1
    finally:
        pair.slave = promoted


def test_who_the_master_is_a_name_server_tells(tmp_path: Path) -> None:
    slave = a_slave(tmp_path)
    slave.broker.registration.on_master(MASTER, "127.0.0.1:10912")
    assert (slave.broker.copying.master, slave.broker.copying.ha_master) == (MASTER, "127.0.0.1:10912")
    slave.close()


def test_a_slave_keeps_what_its_master_keeps_while_they_are_connected(pair: Pair) -> None:
    for number in range(300):
        send(pair.master, b"%d" % number * 60)
    pair.settle(80)
    slave = pair.slave.broker.store
    assert not slave.may_drop(16_384)
    pair.master.broker.store.log.segments.drop_first()
    pair.settle(210)
    assert slave.may_drop(16_384)
    assert not slave.may_drop(32_768)
    pair.wire.cut()
    assert slave.may_drop(32_768)


def test_a_slave_whose_store_has_failed_copies_no_more(pair: Pair) -> None:
    send(pair.master)
    pair.settle()
    pair.slave.broker.store.trouble.fail("fsync of the log failed: it is a test")
    pair.settle()
    send(pair.master)
    pair.settle()
    assert pair.slave.broker.copying.link is None
    assert pair.slave.broker.store.log.written < pair.master.broker.store.log.written


def test_a_slave_whose_disk_is_full_copies_on_when_there_is_room(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    send(pair.master)
    pair.settle()
    log = pair.slave.broker.store.log
    with monkeypatch.context() as patch:

        def full(data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(log, "append_raw", full)
        send(pair.master)
        pair.settle()
        assert pair.slave.broker.copying.link is None
        assert log.written < pair.master.broker.store.log.written
    pair.settle(300)
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)


def test_a_slave_that_is_left_alone_by_a_master_that_refuses_it_tries_again_and_again(pair: Pair) -> None:
    send(pair.master)
    pair.settle()
    pair.wire.cut()
    pair.wire.up = False
    dialed = len(pair.wire.dialed)
    pair.settle(200)  # ten seconds
    assert 5 <= len(pair.wire.dialed) - dialed <= 12
    pair.wire.up = True
    pair.settle()
    assert pair.slave.broker.copying.doing == "copying"
