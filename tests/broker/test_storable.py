"""What would not survive a restart is refused at the door, whatever the path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roquet.errors import InvalidMessage, Unstorable
from roquet.message import Message
from roquet.store.scan import parse
from roquet.store.storable import check_place, check_properties
from roquet.testing import FakePeer
from roquet.testing.disk import SimDisk
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.layout import MAGIC_V1
from roquet.wire.record import Record, decode_records, encode_properties

from .whole import Whole, long_names, pull_fields, send_fields

V2 = RequestCode.SEND_MESSAGE_V2
CLUSTER = len("\x02CLUSTER\x01DefaultCluster")
LIMIT = 32_767


def started(disk: SimDisk) -> Whole:
    return Whole(Path("/store"), disk, mapped_file_size_commit_log=1 << 18)


def ask(whole: Whole, command: Command) -> Command | None:
    """The answer, None when the connection was closed instead."""
    peer = FakePeer()
    whole.broker.receive(peer, Framer().feed(command.encode()))
    answers = [answer for answer in peer.take() if answer.is_response]
    return answers[-1] if answers else None


def bodies(whole: Whole, topic: str, queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, queue_id, len(found), suspendTimeoutMillis="0"))
        if answer.code:
            return found
        found += [record.body for record in decode_records(answer.body)]


# The ways in: each sends a body with these properties to queue 0 of T, and says whether that was taken.


def hot(properties: str, body: bytes) -> Command:
    return Command(V2, send_fields(properties=properties), body, opaque=1)


def slow(properties: str, body: bytes) -> Command:
    return Command(RequestCode.SEND_MESSAGE, long_names(send_fields(properties=properties)), body, opaque=1)


def binary(properties: str, body: bytes) -> Command:
    command = hot(properties, body)
    command.binary = True
    return command


def batch_row(properties: str, body: bytes) -> Command:
    raw = properties.encode()[:LIMIT]
    return Command(V2, send_fields(m="true", properties="WAIT\x01true"), join_batch([(0, body, raw), (0, body, b"")]), opaque=1)


def batch_rows(properties: str, body: bytes) -> Command:
    raw = properties.encode()[:600]
    return Command(V2, send_fields(m="true", properties="WAIT\x01true"), join_batch([(0, body, raw)] * 60), opaque=1)


def batch_header(properties: str, body: bytes) -> Command:
    return Command(V2, send_fields(m="true", properties=properties), join_batch([(0, body, b"p\x01own")]), opaque=1)


def long_batch_header(properties: str, body: bytes) -> Command:
    return Command(V2, send_fields(m="true", properties=properties), join_batch([(0, body, b"p\x01own")] * 60), opaque=1)


def slow_batch_header(properties: str, body: bytes) -> Command:
    fields = long_names(send_fields(m="true", properties=properties))
    return Command(RequestCode.SEND_MESSAGE, fields, join_batch([(0, body, b"p\x01own")]), opaque=1)


def reply(properties: str, body: bytes) -> Command:
    return Command(RequestCode.SEND_REPLY_MESSAGE_V2, send_fields(properties=properties), body, opaque=1)


def delayed(properties: str, body: bytes) -> Command:
    return hot(f"{properties}\x02DELAY\x011", body)


def timed(properties: str, body: bytes) -> Command:
    return hot(f"{properties}\x02TIMER_DELAY_MS\x01900", body)


def prepared(properties: str, body: bytes) -> Command:
    return hot(f"{properties}\x02TRAN_MSG\x01true\x02PGROUP\x01g", body)


WAYS: list[Callable[[str, bytes], Command]] = [
    hot, slow, binary, batch_row, batch_rows, batch_header, long_batch_header, slow_batch_header, reply, delayed, timed, prepared,
]  # fmt: skip
ZEROS = ["a\0b\x01c\x02", "UNIQ_KEY\x01a\0b", "a\x01b\0", "\0", "KEYS\x01k\0", "TAGS\x01\0", "x\x01y\x02\0\x01z"]


@pytest.mark.parametrize("properties", ZEROS, ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_a_zero_in_a_name_a_value_or_a_key_is_refused_and_the_next_restart_finds_everything(
    way: Callable[[str, bytes], Command], properties: str
) -> None:
    disk = SimDisk()
    whole = started(disk)
    assert whole.ask(V2, send_fields("T"), b"before").code == 0
    answer = ask(whole, way(properties, b"odd"))
    assert answer is not None
    dropped = way is not reply and not ("\x01" in properties and properties.partition("\x01")[2].strip("\x02"))
    if answer.code == 0:
        # What has no value, or no sign between name and value, is not stored at all on most ways: then nothing is wrong with it.
        assert dropped
    else:
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
        assert "zero character" in (answer.remark or "")
    for number in range(20):
        assert whole.ask(V2, send_fields("Other"), b"%d" % number).code == 0
    for crash in (True, False):
        if crash:
            disk.kill()
        else:
            whole.close()
        whole = started(disk)
        assert bodies(whole, "Other") == [b"%d" % number for number in range(20)]
        assert bodies(whole, "T")[0] == b"before"


TEXTS = st.text(
    st.one_of(st.sampled_from("\x01\x02\0=aT\u00e9\U0001f600 "), st.characters(codec="utf-8", max_codepoint=0x2FF)), max_size=40
)
NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "CLUSTER", "REAL_TOPIC", "REAL_QID", "", "a", "RETRY_TOPIC"])
NAMED = st.lists(st.tuples(NAMES, TEXTS), max_size=4).map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs))
LONG = st.integers(LIMIT - CLUSTER - 400, LIMIT + 10).map(lambda size: "k\x01" + "v" * (size - 2))
PROPERTIES = st.one_of(TEXTS, NAMED, NAMED, LONG)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(WAYS), PROPERTIES), min_size=1, max_size=8), st.booleans())
@example([(prepared, "a\x01b\x01c")], True)
@example([(timed, "k\x01" + "v" * (LIMIT - 140))], True)
def test_whatever_was_taken_is_there_after_a_restart(sends: list[tuple[Callable[[str, bytes], Command], str]], crash: bool) -> None:
    disk = SimDisk()
    whole = started(disk)
    expected: dict[str, int] = {}
    for number, (way, properties) in enumerate(sends):
        answer = ask(whole, way(properties, b"m%d" % number))
        if answer is not None and (answer.code == 0 or (way is reply and answer.fields.get("msgId", "0") != "0")):
            copies = 2 if way is batch_row else 60 if way in (batch_rows, long_batch_header) else 1
            expected[f"m{number}"] = copies
        assert whole.ask(V2, send_fields("Other"), b"o%d" % number).code == 0
    end_transactions(whole)
    for _ in range(40):
        whole.tick(100)  # delayed and timed ones are delivered
    if crash:
        disk.kill()
    else:
        whole.close()
    whole = started(disk)
    for _ in range(40):
        whole.tick(100)
    assert bodies(whole, "Other") == [b"o%d" % number for number in range(len(sends))]
    found: dict[str, int] = {}
    for body in bodies(whole, "T"):
        found[body.decode()] = found.get(body.decode(), 0) + 1
    assert found == expected


def end_transactions(whole: Whole) -> None:
    """Commit every prepared message."""
    queue = whole.broker.store.find_queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    for offset in range(0 if queue is None else queue.next):
        assert queue is not None
        entry = queue.entry(offset)
        assert entry is not None
        end = {
            "producerGroup": "g", "tranStateTableOffset": str(offset), "commitLogOffset": str(entry[0]), "commitOrRollback": "8",
            "msgId": "U",
        }  # fmt: skip
        assert whole.ask(RequestCode.END_TRANSACTION, end).code == 0


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | TEXTS.map(str.encode), st.text(min_size=1, max_size=130), st.integers(-3, 70_000))
@example(b"KEYS\x01k\0", "T", 0)
@example(b"", "..", 0)
@example(b"", "a/b", 0)
@example(b"", "T", 65_536)
def test_what_is_called_storable_is_what_recovery_reads_back(properties: bytes, topic: str, queue_id: int) -> None:
    storable = True
    try:
        check_properties(properties)
        check_place(topic, queue_id)
    except Unstorable:
        storable = False
    try:
        raw = Record(topic, queue_id, b"body", properties, magic=MAGIC_V1).encode()
    except (ValueError, UnicodeEncodeError):
        assert not storable
        return
    assert not storable or parse(raw, 0) is not None


def test_a_message_whose_record_no_log_file_holds_is_refused_with_a_sentence() -> None:
    whole = started(SimDisk())
    answer = whole.ask(V2, send_fields("T"), b"x" * (1 << 18))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "mappedFileSizeCommitLog" in (answer.remark or "")
    assert not whole.peer.closed
    assert whole.ask(V2, send_fields("T"), b"small").code == 0


def test_a_prepared_message_with_a_separator_in_a_value_does_not_stop_the_asking_about_others() -> None:
    whole = started(SimDisk())
    for number, odd in enumerate(("a\x01b\x01c", "a\x01b")):
        properties = f"{odd}\x02UNIQ_KEY\x01U{number}\x02TRAN_MSG\x01true\x02PGROUP\x01g"
        answer = ask(whole, Command(V2, send_fields(properties=properties, g=str(whole.clock.ms)), b"%d" % number, opaque=1))
        assert answer is not None
        assert answer.code == 0
    producer = FakePeer()
    heart = {"clientID": "p", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}
    whole.broker.receive(producer, Framer().feed(Command(RequestCode.HEART_BEAT, {}, orjson.dumps(heart), opaque=3).encode()))
    for _ in range(100):
        whole.tick(1_000)
    asked = {command.fields.get("transactionId") for command in producer.take() if command.code == RequestCode.CHECK_TRANSACTION_STATE}
    assert asked == {"U0", "U1"}


@pytest.mark.parametrize("topic", ["", "../../etc", "a/b", "x" * 128, "é", "a\0"])
def test_a_timer_for_a_place_that_cannot_be_is_left_out_and_the_next_one_fires(topic: str) -> None:
    """The directory may be another broker's, or damaged."""
    disk = SimDisk()
    whole = started(disk)
    assert whole.ask(V2, send_fields(properties="TIMER_DELAY_MS\x011000\x02UNIQ_KEY\x01a"), b"bad").code == 0
    assert whole.ask(V2, send_fields(properties="TIMER_DELAY_MS\x011100\x02UNIQ_KEY\x01b"), b"good").code == 0
    real = whole.broker.timers.reader.read

    def forged(rows: Any, **more: Any) -> Any:
        found = real(rows, **more)
        for _, record in found:
            if record is not None and record.body == b"bad":
                record.properties = record.properties.replace(b"REAL_TOPIC\x01T", b"REAL_TOPIC\x01" + topic.encode())
        return found

    whole.broker.timers.reader.read = forged  # type: ignore[method-assign]
    for _ in range(60):
        whole.tick(100)
    assert bodies(whole, "T") == [b"good"]
    assert whole.broker.topics.get(topic) is None


@pytest.mark.parametrize("properties", [{"a\0": "b"}, {"a": "\0"}, {"a": "\ud800"}, {"UNIQ_KEY": "\0"}])
def test_the_client_refuses_what_no_broker_can_store(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage, match="cannot be stored"):
        encode_properties(Message("T", b"x", properties=properties).properties)
