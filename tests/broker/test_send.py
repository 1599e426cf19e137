"""Sends: what is stored, what is answered, what is refused; and that the hot path and the careful one agree."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roquet.broker import batches as batches_module
from roquet.message import Property
from roquet.store.alike import Alike
from roquet.store.disk import RealFile
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.record import Record, decode_records

from .whole import Whole, long_names, send_fields


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store")
    yield made
    made.close()


def stored(whole: Whole, topic: str = "T", queue_id: int = 0) -> list[Record]:
    queue = whole.broker.store.queue(topic, queue_id)
    found = []
    for offset in range(queue.first, queue.visible):
        entry = queue.entry(offset)
        assert entry is not None
        found += decode_records(whole.broker.store.record_at(entry[0]))
    return found


def create(whole: Whole, topic: str, read: int = 4, write: int = 4, perm: int = 6, *, order: bool = False) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(read), "writeQueueNums": str(write), "perm": str(perm),
        "topicFilterType": "SINGLE_TAG", "order": str(order).lower(),
    }  # fmt: skip
    assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0


class TestASend:
    def test_is_answered_with_its_place(self, whole: Whole) -> None:
        create(whole, "T")
        answer = whole.ask(310, send_fields(queue_id=2), b"hello")
        assert answer.code == 0
        assert answer.fields == {
            "msgId": "7F00000100002A9F0000000000000000",
            "queueId": "2",
            "queueOffset": "0",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert whole.ask(310, send_fields(queue_id=2), b"hello").fields["queueOffset"] == "1"

    def test_is_stored_with_the_cluster_and_without_wait(self, whole: Whole) -> None:
        whole.ask(310, send_fields(properties="WAIT\x01true\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02TAGS\x01a"), b"hello")
        (record,) = stored(whole)
        assert record.properties == b"KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02TAGS\x01a\x02CLUSTER\x01DefaultCluster"
        for key in ("k1", "k2", "U1"):
            assert len(whole.broker.store.query("T", key, 8, 0, 1 << 60)[0]) == 1

    def test_makes_a_topic_in_the_image_of_the_default_topic(self, whole: Whole) -> None:
        assert whole.ask(310, send_fields(topic="Fresh"), b"hello").code == 0
        topic = whole.broker.topics.get("Fresh")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (4, 4, 6)
        registered = [command for _, command, _ in whole.caller.calls if command.code == RequestCode.REGISTER_BROKER]
        assert not registered or b"Fresh" in registered[-1].body

    def test_with_a_negative_queue_goes_to_any(self, whole: Whole) -> None:
        assert 0 <= int(whole.ask(310, send_fields(queue_id=-1), b"hello").fields["queueId"]) < 4

    def test_is_not_answered_when_oneway(self, whole: Whole) -> None:
        whole.frames(Command(310, send_fields(), b"hello", flag=ONEWAY))
        assert whole.peer.take() == []
        assert len(stored(whole)) == 1

    def test_in_one_read_with_others_makes_one_write(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        create(whole, "T")
        writes: list[int] = []
        write = RealFile.write

        def counted(self: RealFile, offset: int, data: bytes) -> None:
            writes.append(len(data))
            write(self, offset, data)

        monkeypatch.setattr(RealFile, "write", counted)
        whole.frames(*(Command(310, send_fields(), b"%d" % n, opaque=n) for n in range(64)))
        assert len(writes) == 1
        assert [answer.opaque for answer in whole.peer.take()] == list(range(64))
        assert [record.body for record in stored(whole)] == [b"%d" % n for n in range(64)]

    def test_from_clients_that_send_numbers_is_taken(self, whole: Whole) -> None:
        """Node and C++ write JSON numbers and booleans into the header."""
        import orjson

        fields: dict[str, Any] = dict(send_fields())
        fields |= {"d": 4, "e": 1, "f": 0, "h": 0, "k": False, "m": False}
        head = orjson.dumps({"code": 310, "extFields": fields, "flag": 0, "language": "CPP", "opaque": 5, "version": 333, "remark": ""})
        whole.broker.receive(whole.peer, [(0, head, b"hello")])
        (answer,) = whole.peer.take()
        assert (answer.code, answer.fields["queueId"]) == (0, "1")

    def test_in_the_binary_form_is_answered_in_it(self, whole: Whole) -> None:
        answer = whole.ask(310, send_fields(), b"hello", binary=True)
        assert answer.code == 0
        assert answer.binary
        assert answer.fields["queueOffset"] == "0"

    def test_by_ipv6_keeps_the_whole_address(self, whole: Whole) -> None:
        whole.peer.host = bytes(range(16)) + bytes(4)
        whole.ask(310, send_fields(), b"hello")
        (record,) = stored(whole)
        assert record.born_host == bytes(range(16)) + bytes(4)
        assert record.sys_flag & 0x10


class TestABatch:
    PARTS: ClassVar = [(n, b"body %d" % n, f"KEYS\x01k{n}\x02WAIT\x01true".encode()) for n in range(3)]

    @pytest.mark.parametrize("code", [320, 310])
    def test_is_stored_message_by_message(self, whole: Whole, code: int) -> None:
        answer = whole.ask(code, send_fields(m="true", properties="WAIT\x01true"), join_batch(self.PARTS))
        assert answer.code == 0
        assert answer.fields["queueOffset"] == "0"
        assert len(answer.fields["msgId"].split(",")) == 3
        assert [(record.flag, record.body) for record in stored(whole)] == [(n, b"body %d" % n) for n in range(3)]
        assert len(whole.broker.store.query("T", "k2", 8, 0, 1 << 60)[0]) == 1

    def test_that_lies_is_refused_whole(self, whole: Whole) -> None:
        body = join_batch(self.PARTS)
        answer = whole.ask(320, send_fields(m="true"), body[:-3])
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert stored(whole) == []


class TestIsRefused:
    @pytest.mark.parametrize("name", ["../x", "a/b", "x" * 300, "", "a b", "topic\n"])
    def test_a_name_that_no_topic_may_have(self, whole: Whole, name: str) -> None:
        answer = whole.ask(310, send_fields(topic=name), b"hello")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
        assert not (whole.root.parent / "x").exists()

    def test_a_topic_that_the_broker_alone_writes_to(self, whole: Whole) -> None:
        answer = whole.ask(310, send_fields(topic="SCHEDULE_TOPIC_XXXX"), b"hello")
        assert (answer.code, answer.remark) == (16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.")

    def test_a_topic_without_write_permission(self, whole: Whole) -> None:
        create(whole, "ReadOnly", perm=4)
        assert whole.ask(310, send_fields(topic="ReadOnly"), b"hello").code == ResponseCode.NO_PERMISSION

    @pytest.mark.parametrize("at_run_time", [True, False])
    def test_ordered_topics_and_no_others_when_the_broker_may_not_be_written_to(self, tmp_path: Path, at_run_time: bool) -> None:
        """As upstream: producers of ordered topics wait, the others learn from the route that they should go elsewhere."""
        whole = Whole(tmp_path / "store", broker_permission=6 if at_run_time else 4)
        create(whole, "Plain")
        create(whole, "Ordered", order=True)
        if at_run_time:
            assert whole.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4").code == 0
        for topic, code in (("Plain", 0), ("New", 0), ("Ordered", ResponseCode.NO_PERMISSION)):
            assert whole.ask(310, send_fields(topic), b"hello").code == code
            assert whole.ask(10, long_names(send_fields(topic)), b"hello").code == code
            assert whole.ask(320, send_fields(topic, m="true"), join_batch([(0, b"hello", b"")])).code == code
        assert "forbidden" in str(whole.ask(310, send_fields("Ordered"), b"hello").remark)
        create(whole, "Plain", order=True)
        assert whole.ask(310, send_fields("Plain"), b"hello").code == ResponseCode.NO_PERMISSION
        assert whole.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6").code == 0
        assert whole.ask(310, send_fields("Ordered"), b"hello").code == 0
        whole.close()

    def test_an_unknown_topic_without_automatic_creation(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "strict", auto_create_topic_enable=False)
        answer = whole.ask(310, send_fields(topic="Nobody"), b"hello")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "topic[Nobody] not exist, apply first please!" in str(answer.remark)
        whole.close()

    @pytest.mark.parametrize("size", [5_000, 3_990])
    def test_a_message_that_no_log_file_can_hold(self, tmp_path: Path, size: int) -> None:
        whole = Whole(tmp_path / "tiny", mapped_file_size_commit_log=4_096)
        assert whole.ask(310, send_fields(), b"first").code == 0
        answer = whole.ask(310, send_fields(), bytes(size))
        assert (answer.code, "raise mappedFileSizeCommitLog" in str(answer.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        batch = whole.ask(320, send_fields(m="true"), join_batch([(0, bytes(size), b"")]))
        assert batch.code == ResponseCode.MESSAGE_ILLEGAL
        assert whole.ask(310, send_fields(), b"after").code == 0
        assert [record.body for record in stored(whole)] == [b"first", b"after"]
        whole.close()

    def test_a_queue_that_is_not_there(self, whole: Whole) -> None:
        create(whole, "T", read=2, write=2)
        answer = whole.ask(310, send_fields(queue_id=2), b"hello")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "request queueId[2] is illegal" in str(answer.remark)

    def test_a_body_above_the_limit_with_both_numbers(self, whole: Whole) -> None:
        answer = whole.ask(310, send_fields(), bytes(4 * 1024 * 1024 + 1))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "4194305" in str(answer.remark)
        assert "4194304" in str(answer.remark)

    def test_properties_above_the_limit(self, whole: Whole) -> None:
        assert whole.ask(310, send_fields(properties="a\x01" + "x" * 33_000), b"hello").code == ResponseCode.MESSAGE_ILLEGAL

    def test_a_missing_field_with_its_name(self, whole: Whole) -> None:
        fields = send_fields()
        del fields["e"]
        answer = whole.ask(310, fields, b"hello")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "null" in str(answer.remark)

    @pytest.mark.parametrize("special", ["INNER_MULTI_DISPATCH\x01a,b"])
    def test_what_this_version_does_not_do(self, whole: Whole, special: str) -> None:
        """Delivering it at once, or twice, would be worse than saying no."""
        create(whole, "T")
        answer = whole.ask(310, send_fields(properties=f"UNIQ_KEY\x01U\x02{special}"), b"hello")
        assert answer.code != 0
        assert "not yet" in str(answer.remark)
        assert stored(whole) == []


class TestAFullDisk:
    def test_is_an_answer_and_the_broker_goes_on(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        create(whole, "T")
        whole.ask(310, send_fields(), b"before")
        pwrite = os.pwrite

        def full(fd: int, data: Any, offset: int) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr("roquet.store.disk.pwrite", full)
        whole.frames(*(Command(310, send_fields(), b"lost", opaque=n) for n in range(3)))
        answers = whole.peer.take()
        assert [(answer.code, answer.opaque) for answer in answers] == [(14, 0), (14, 1), (14, 2)]
        assert "full" in str(answers[0].remark)
        assert whole.ask(310, send_fields(), b"lost").code == 14
        assert whole.ask(10, long_names(send_fields()), b"lost").code == 14
        assert whole.broker.admin.runtime_table()["putMessageFailedTimes"] == "5"
        monkeypatch.setattr("roquet.store.disk.pwrite", pwrite)
        whole.tick(20_000)
        assert whole.ask(310, send_fields(), b"after").fields["queueOffset"] == "1"
        assert [record.body for record in stored(whole)] == [b"before", b"after"]


class TestUnderSyncFlush:
    @pytest.fixture
    def sync(self, tmp_path: Path) -> Iterator[Whole]:
        made = Whole(tmp_path / "sync", flush_disk_type="SYNC_FLUSH")
        create(made, "T")
        yield made
        made.background.hold = False
        made.background.release()
        made.close()

    def test_a_send_is_answered_after_the_fsync(self, sync: Whole) -> None:
        sync.background.hold = True
        sync.frames(Command(310, send_fields(), b"hello", opaque=9))
        assert sync.peer.take() == []
        assert stored(sync) == []
        sync.background.release()
        assert [(answer.code, answer.opaque) for answer in sync.peer.take()] == [(0, 9)]
        assert len(stored(sync)) == 1

    def test_a_send_that_asked_not_to_wait_is_answered_at_once(self, sync: Whole) -> None:
        sync.background.hold = True
        assert sync.ask(310, send_fields(properties="WAIT\x01false"), b"hello").code == 0

    def test_a_late_fsync_is_flush_disk_timeout_with_the_message_s_place(self, sync: Whole) -> None:
        sync.background.hold = True
        sync.frames(Command(310, send_fields(), b"hello", opaque=9))
        sync.tick(5_001)
        (answer,) = sync.peer.take()
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.fields["queueOffset"] == "0"

    @pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SYSTEM_ERROR])
    def test_what_is_not_safe_says_where_it_is_as_success_does_or_nothing_of_it(
        self, sync: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        """Whatever the form, alone, in a run and in a batch. Without a place it is what a group without a majority says."""
        batch = join_batch([(0, b"x", b"KEYS\x01k"), (0, b"y", b"")])
        commands = [Command(310, send_fields(queue_id=n % 4), b"hello", opaque=n - 5, binary=n % 2 == 1) for n in range(10)]
        commands += [
            Command(10, long_names(send_fields()), b"hello", opaque=1 << 30),
            Command(310, send_fields(), b"x", opaque=7, flag=ONEWAY),
        ]
        commands += [Command(320, send_fields(m="true"), batch, opaque=70 + n, binary=n == 1) for n in range(2)]
        commands += [Command(310, send_fields(properties="DELAY\x011"), b"later", opaque=80, binary=True)]
        monkeypatch.setattr(sync.broker.sender, "_not_safe", lambda target: (code, 'not "safe" yet'))
        sync.background.hold = True
        sync.frames(*commands)
        assert sync.peer.take() == []
        sync.tick(5_001)
        answers = sync.peer.take()

        safe = Whole(tmp_path / "safe")
        create(safe, "T")
        safe.frames(*commands)
        expected = safe.peer.take()
        safe.close()
        assert sorted(answer.opaque for answer in expected if answer.code == 0) == [*range(-5, 5), 70, 71, 80, 1 << 30]
        for answer in expected:
            answer.code, answer.remark = code, 'not "safe" yet'
            if code == ResponseCode.SYSTEM_ERROR:
                answer.fields = {}
        assert answers == expected

    def test_a_failed_fsync_is_never_success(self, sync: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: RealFile) -> None:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(RealFile, "sync", fail)
        assert sync.ask(310, send_fields(), b"hello").code == ResponseCode.FLUSH_DISK_TIMEOUT
        answer = sync.ask(310, send_fields(), b"hello")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "fsync" in str(answer.remark)


# One message, spelled plainly, goes through `take`; the same with long names goes through `accept`.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), min_size=1, max_size=8)
KNOWN = [value for name, value in vars(Property).items() if name.isupper()]
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "中", "WAIT"]) | texts | st.sampled_from(sorted(KNOWN))
properties = st.dictionaries(names, texts, max_size=6)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(properties, st.binary(max_size=40), st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([0, 1, 4, 0x301]))
@example({"CLUSTER": "mine"}, b"", 0, 0)
def test_the_hot_path_stores_and_answers_what_the_careful_path_does(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str], body: bytes, flag: int, sys_flag: int
) -> None:
    results = []
    for careful in (False, True):
        whole = Whole(tmp_path_factory.mktemp("agree"))
        create(whole, "T")
        if careful:
            whole.broker.sender.plain.take = lambda peer, frames, at: (at, None)  # type: ignore[method-assign]
        if "WAIT" in values:
            values = values | {"WAIT": "true"}
        text = "\x02".join(f"{name}\x01{value}" for name, value in values.items())
        fields = send_fields(properties=text, h=str(flag), f=str(sys_flag))
        answer = whole.ask(310, fields, body)
        whole.broker.store.index.settle()
        hashes = [whole.broker.store.query("T", word, 9, 0, 1 << 60)[0] for value in values.values() for word in value.split(" ") if word]
        entry = whole.broker.store.queue("T", 0).entry(0)
        results.append((answer.code, answer.fields, stored(whole), hashes, entry))
        whole.close()
    assert results[0] == results[1]


def test_a_batch_s_own_properties_are_added_to_each_message_but_a_message_keeps_its_own_id(whole: Whole) -> None:
    parts = [(0, b"x", b"KEYS\x01k\x02UNIQ_KEY\x01U1"), (0, b"y", b"")]
    whole.ask(320, send_fields(m="true", properties="color\x01red\x02WAIT\x01true\x02UNIQ_KEY\x01B"), join_batch(parts))
    first, second = stored(whole)
    assert first.properties == b"KEYS\x01k\x02UNIQ_KEY\x01U1\x02color\x01red\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster"
    assert second.properties == b"color\x01red\x02WAIT\x01true\x02UNIQ_KEY\x01B\x02CLUSTER\x01DefaultCluster"
    assert [len(whole.broker.store.query("T", key, 8, 0, 1 << 60)[0]) for key in ("U1", "B", "k")] == [1, 1, 1]


@pytest.mark.parametrize("hold", [False, True], ids=["safe", "not safe"])
def test_a_region_that_json_writes_in_another_way_is_answered_as_it_is(tmp_path: Path, hold: bool) -> None:
    region = 'a"b\\c%d\u7ecf}'
    whole = Whole(tmp_path / "store", region_id=region, flush_disk_type="SYNC_FLUSH")
    create(whole, "T")
    whole.background.hold = hold
    whole.frames(*[Command(code, send_fields(), b"x", opaque=code, binary=binary) for code in (310, 320) for binary in (False, True)])
    whole.tick(5_001)
    assert [answer.fields["MSG_REGION"] for answer in whole.peer.take()] == [region] * 4
    whole.background.hold = False
    whole.background.release()
    whole.close()


def test_a_batch_cannot_be_delayed_as_a_whole(whole: Whole) -> None:
    answer = whole.ask(320, send_fields(m="true", properties="DELAY\x011"), join_batch([(0, b"x", b"")]))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(whole) == []


@pytest.mark.parametrize("count", [1, 100])
def test_a_batch_that_calls_itself_prepared_is_stored_as_an_ordinary_one(whole: Whole, count: int) -> None:
    """Stored as it says it would have no place in a queue: acknowledged, and gone with the next recovery."""
    create(whole, "T")
    answer = whole.ask(320, send_fields(m="true", f="4", properties="WAIT\x01true"), join_batch([(0, b"x", b"")] * count))
    assert answer.code == 0
    queue = whole.broker.store.queue("T", 0)
    assert queue.visible == count
    flags = [record.sys_flag for record in decode_records(whole.broker.store.log.read(0, whole.broker.store.log.written))]
    assert flags == [0] * count


def test_properties_that_end_with_a_separator_take_the_hot_path_too(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """5.x clients write it, and a send of theirs must not cost more than one of 4.x."""
    create(whole, "T")
    monkeypatch.setattr(whole.broker.sender, "accept", None)
    assert whole.ask(310, send_fields(properties="UNIQ_KEY\x01U1\x02WAIT\x01true\x02"), b"x").code == 0
    batch = join_batch([(0, b"y", b"UNIQ_KEY\x01U2\x02WAIT\x01true\x02")])
    assert whole.ask(320, send_fields(m="true", properties="UNIQ_KEY\x01B\x02WAIT\x01true\x02"), batch).code == 0
    first, second = stored(whole)
    assert first.properties == b"UNIQ_KEY\x01U1\x02CLUSTER\x01DefaultCluster"
    assert second.properties == b"UNIQ_KEY\x01U2\x02WAIT\x01true\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster"


# A batch of many goes through columns; the same, told that it is not many, message by message.
batch_texts = (
    properties.map(lambda values: "\x02".join(f"{name}\x01{value}" for name, value in values.items()))
    | st.sampled_from(
        ["", "TAGS\x01a\x02KEYS\x01k1  k2\x02UNIQ_KEY\x01U1\x02", "a\x02b\x01", "KEYS\x01\x02UNIQ_KEY\x01", "DELAY\x010", "MYDELAY\x011"]
    )
).map(str.encode)
different = st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=60), batch_texts), min_size=1, max_size=6)
"""Mostly sound; what is spoiled comes from `spoil`."""
alike_texts = st.sampled_from(
    [
        "UNIQ_KEY\x01%s\x02WAIT\x01true", "UNIQ_KEY\x01%s\x02", "TAGS\x01a\x02UNIQ_KEY\x01%s",
        "MYTAGS\x01a\x02é\x01ü\x02UNIQ_KEY\x01%s\x02b",
        "UNIQ_KEY\x01a\x02UNIQ_KEY\x01%s", "MYUNIQ_KEY\x01%s", "MYUNIQ_KEY\x01a\x02UNIQ_KEY\x01%s", "UNIQ_KEY\x01%s\x02KEYS\x01k",
        "DELAY\x010\x02UNIQ_KEY\x01%s", "TAGS\x01a\x02TAGS\x01\x02UNIQ_KEY\x01%s\x02a\x01",
    ]
)  # fmt: skip
short_keys = st.text("aB0 -", min_size=3, max_size=3) | st.sampled_from(["é0", "a\x02b", "\x02ab", "ab\x02", "a\0b", "a\x01b", "", "ab"])


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[int, bytes, bytes]]:
    """Messages that differ in bodies and unique keys, and sometimes one of them in something else."""
    text, flag, size = draw(alike_texts), draw(st.integers(-3, 3)), draw(st.sampled_from([3, 3, 3, 0]))
    bodies = st.binary(min_size=size, max_size=size)
    messages = [(flag, draw(bodies), (text % draw(short_keys)).encode()) for _ in range(draw(st.integers(1, 6)))]
    if draw(st.booleans()):
        other = (draw(st.sampled_from([flag, 7])), draw(bodies), (draw(st.just(text) | alike_texts) % draw(short_keys)).encode())
        messages.insert(draw(st.integers(0, len(messages))), other)
    return messages


batches = different | alike()
ways = {"alike": (0, 0), "columns": (0, 1 << 30), "one by one": (1 << 30, 1 << 30)}
spoil = st.sampled_from(
    [None, None, None, (0, b"x", b"a\0"), (0, b"x", b"TAGS\x01\xff"), (0, b"x", b"DELAY\x011"), (0, b"", b"a\x01" + b"v" * 32_760)]
)
whole_texts = st.sampled_from(
    [
        "WAIT\x01true",
        "",
        "UNIQ_KEY\x01B\x02WAIT\x01true\x02",
        "TAGS\x01whole",
        "KEYS\x01w\x02color\x01red",
        "color\x01red\x02",
        "WAIT\x01false",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(batches, min_size=1, max_size=3), spoil, whole_texts, st.booleans(), st.booleans())
def test_a_batch_in_columns_is_stored_and_answered_as_one_message_after_another(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[list[tuple[int, bytes, bytes]]],
    bad: tuple[int, bytes, bytes] | None,
    whole_text: str,
    ends: bool,
    careful: bool,
) -> None:
    results = []
    for many, many_alike in ways.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches_module, "MANY", many)
            patch.setattr(batches_module, "ALIKE", many_alike)
            # With 5.x every message ends with a separator; and small files, so that some batch meets the end of one.
            whole = Whole(tmp_path_factory.mktemp("agree"), mapped_file_size_commit_log=40_000)
            whole.broker.sender.plain.native = None  # it would take them all, and know nothing of columns
            if careful:
                whole.broker.sender.plain.take = lambda peer, frames, at: (at, None)  # type: ignore[method-assign]
            create(whole, "T")
            answers = []
            for number, parts in enumerate(sent):
                told = [(flag, body, text + b"\x02" if ends and text else text) for flag, body, text in parts]
                told += [bad] if bad and number == 0 else []
                fields = send_fields(m="true", properties=whole_text, queue_id=number % 2)
                answers.append(whole.ask(320, fields, join_batch(told)))
                whole.ask(310, send_fields(properties="UNIQ_KEY\x01S\x02KEYS\x01k1"), b"single")
            store = whole.broker.store
            tails = [bytes(store.queue("T", number).tail) for number in range(2)]
            end = store.log.end
            whole.close()
        log = b"".join(path.read_bytes() for path in sorted((whole.root / "commitlog").iterdir()))
        index = [path.read_bytes() for path in sorted((whole.root / "index").iterdir())]
        results.append(([(answer.code, answer.remark, answer.fields) for answer in answers], tails, end, log, index))
    assert results[0] == results[1] == results[2]


# Batch requests of one read are columns together; the same one in a read is columns of its own, or goes message by message.
lies = st.sampled_from([None, None, b"", b"\0", b"\0\0\0\x30" + bytes(18), bytes(30)])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(batches, whole_texts, st.integers(0, 2), st.booleans(), st.sampled_from("TTTU"), lies), min_size=2, max_size=7),
    st.sampled_from([0, 8]),
)
def test_batches_of_one_read_are_stored_and_answered_as_one_after_another(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[Any, str, int, bool, str, bytes | None]], many: int
) -> None:
    requests = []
    for number, (parts, text, queue_id, binary, topic, lie) in enumerate(sent):
        body = join_batch(parts) if lie is None else (join_batch(parts) + lie if lie else b"")
        fields = send_fields(topic, queue_id, text, m="true", g=str(1_794_732_520_853 + number))
        requests.append(Command(320, fields, body, opaque=number, binary=binary))
    results = []
    for together in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches_module, "MANY", many)
            patch.setattr(batches_module, "ALIKE", many)
            whole = Whole(tmp_path_factory.mktemp("agree"), mapped_file_size_commit_log=40_000)
            whole.broker.sender.plain.native = None
            create(whole, "T")
            create(whole, "U")
            for group in [requests] if together else [[request] for request in requests]:
                whole.frames(*group)
            answers = sorted(
                (answer.opaque, answer.code, str(answer.remark), sorted(answer.fields.items())) for answer in whole.peer.take()
            )
            tails = {key: bytes(queue.tail) for key, queue in whole.broker.store.queues.items() if queue.tail}
            whole.close()
        log = b"".join(path.read_bytes() for path in sorted((whole.root / "commitlog").iterdir()))
        index = [path.read_bytes() for path in sorted((whole.root / "index").iterdir())]
        results.append((answers, tails, log, index))
    assert results[0] == results[1]


def test_a_mistake_at_the_second_batch_of_a_read_is_answered_once_to_everyone_before_it(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(whole, "T")
    whole.broker.sender.plain.native = None
    real, calls = whole.broker.store.put_batch, []

    def faulty(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("on purpose")
        return real(*arguments)

    monkeypatch.setattr(whole.broker.store, "put_batch", faulty)
    batch, fields = join_batch([(0, b"x", b"")]), send_fields(m="true", properties="WAIT\x01true")
    whole.frames(*(Command(320, fields, batch, opaque=number) for number in range(4)))
    answers = [(answer.opaque, answer.code) for answer in whole.peer.take()]
    assert answers == [(number, 0 if number > 1 else ResponseCode.SYSTEM_ERROR) for number in range(4)]
    assert whole.broker.store.queue("T", 0).next == 2


def test_eight_requests_of_32_messages_are_columns_together(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    create(whole, "T")
    whole.broker.sender.plain.native = None
    real, calls = whole.broker.store.put_columns, []

    def counted(portions: Any, batch: Any, host: bytes) -> Any:
        calls.append([portion.messages for portion in portions])
        return real(portions, batch, host)

    monkeypatch.setattr(whole.broker.store, "put_columns", counted)
    parts = [(0, b"body", f"UNIQ_KEY\x01U{n}\x02WAIT\x01true".encode()) for n in range(32)]
    fields = [send_fields(m="true", properties="WAIT\x01true", queue_id=number % 4) for number in range(8)]
    whole.frames(*(Command(320, one, join_batch(parts), opaque=number) for number, one in enumerate(fields)))
    assert calls == [[32] * 8]
    assert [answer.fields["queueOffset"] for answer in whole.peer.take()] == ["0"] * 4 + ["32"] * 4


@pytest.mark.parametrize("end", ["", "\x02"], ids=["4.x", "5.x"])
@pytest.mark.parametrize("tags", ["", "\x02TAGS\x01a"], ids=["no tag", "a tag"])
@pytest.mark.parametrize("requests", [1, 3])
def test_what_java_sends_in_batches_is_alike(whole: Whole, monkeypatch: pytest.MonkeyPatch, end: str, tags: str, requests: int) -> None:
    """As its BatchProducer does, some of whose requests come with a read: then they are cheapest."""
    create(whole, "T")
    whole.broker.sender.plain.native = None
    real, calls = whole.broker.store.put_columns, []

    def counted(portions: Any, batch: Any, host: bytes) -> Any:
        calls.append((type(batch), len(portions)))
        return real(portions, batch, host)

    monkeypatch.setattr(whole.broker.store, "put_columns", counted)
    parts = [(0, b"body %02d" % n, f"UNIQ_KEY\x01{n:032X}\x02WAIT\x01true{tags}{end}".encode()) for n in range(32)]
    unique = "UNIQ_KEY\x01B%d\x02" if end else ""
    asked = [send_fields(m="true", properties=f"{unique and unique % n}WAIT\x01true{end}", queue_id=n % 4) for n in range(requests)]
    whole.frames(*(Command(320, one, join_batch(parts), opaque=number) for number, one in enumerate(asked)))
    assert calls == [(Alike, requests)]
    assert [record.body for record in stored(whole)] == [body for _, body, _ in parts]
    assert len(whole.broker.store.query("T", f"{7:032X}", 200, 0, 1 << 60)[0]) == requests


@pytest.mark.parametrize("hot", [True, False], ids=["in time", "when the broker is behind"])
@pytest.mark.parametrize("whole_text", ["WAIT\x01true", "UNIQ_KEY\x01B\x02WAIT\x01true\x02"])
def test_a_batch_of_many_takes_the_path_of_columns_from_clients_of_both_lines(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, whole_text: str, hot: bool
) -> None:
    create(whole, "T")
    monkeypatch.setattr(whole.broker.store, "put_batch", None)
    if not hot:
        monkeypatch.setattr(whole.broker.admission, "lets_plain_in", bool)
    end = "\x02" if whole_text.endswith("\x02") else ""
    parts = [
        (0, b"body %d" % n, f"TAGS\x01t{n % 3}\x02KEYS\x01k{n} all\x02UNIQ_KEY\x01U{n}\x02WAIT\x01true{end}".encode()) for n in range(100)
    ]
    answer = whole.ask(320, send_fields(m="true", properties=whole_text), join_batch(parts))
    assert answer.code == 0
    assert [record.body for record in stored(whole)] == [body for _, body, _ in parts]
    assert answer.fields["msgId"].split(",") == [f"7F00000100002A9F{record.physical_offset:016X}" for record in stored(whole)]
    assert len(whole.broker.store.query("T", "all", 200, 0, 1 << 60)[0]) == 100
    assert len(whole.broker.store.query("T", "U7", 200, 0, 1 << 60)[0]) == 1


def test_a_batch_of_many_that_the_full_disk_does_not_take_leaves_nothing_behind(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    create(whole, "T")
    whole.ask(310, send_fields(), b"before")
    parts = [(0, b"lost %d" % n, b"UNIQ_KEY\x01U%d" % n) for n in range(100)]

    def full(fd: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("roquet.store.disk.pwrite", full)
        assert whole.ask(320, send_fields(m="true", properties="WAIT\x01true"), join_batch(parts)).code == 14
    whole.tick(20_000)
    assert whole.ask(310, send_fields(), b"after").fields["queueOffset"] == "1"
    assert [record.body for record in stored(whole)] == [b"before", b"after"]
    assert whole.broker.store.query("T", "U7", 9, 0, 1 << 60)[0] == []
