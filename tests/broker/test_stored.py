"""Stored messages that are put once more (`broker/stored.py`): quickly or through a draft, the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from roquet.broker import delay as delay_module
from roquet.broker import retry as retry_module
from roquet.broker import sent_back as sent_back_module
from roquet.broker import transactions as transactions_module
from roquet.broker.stored import LIKES, Again, take_apart, take_many_apart
from roquet.broker.writer import Draft
from roquet.speedups import native
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.layout import BODY_AT
from roquet.wire.record import Record, decode_properties

from .whole import Whole, send_fields

SOUND = Record(
    "SCHEDULE_TOPIC_XXXX", 2, b"body", b"UNIQ_KEY\x01U\x02REAL_TOPIC\x01T\x02REAL_QID\x013\x02x\x01\xc3\xa9", flag=7, queue_offset=11,
    physical_offset=1_000, sys_flag=1, born_timestamp=5, born_host=bytes(range(8)), store_timestamp=9, store_host=bytes(range(8, 16)),
    reconsume_times=3, prepared_transaction_offset=4,
)  # fmt: skip


def test_a_record_as_this_broker_writes_it_is_taken_apart() -> None:
    stored = take_apart(SOUND.encode(), 1_000)
    assert stored is not None
    assert (stored.topic, stored.queue_offset, stored.offset, stored.raw) == (SOUND.topic, 11, 1_000, SOUND.properties)
    assert replace(stored.draft(), topic=SOUND.topic, queue_id=2) == Draft.again(SOUND)
    assert stored.draft().text().encode() == SOUND.properties


@pytest.mark.parametrize(
    "properties",
    [
        b"a\x011\x02a\x012", b"a\x011\x02", b"\x02a\x011", b"a\x01", b"a", b"a\x011\x02\x02b\x012", b"a\x01\xff", b"a\x01\0", b"\x01v",
        b"a\x011\x02b",
    ],
)  # fmt: skip
def test_properties_that_would_be_written_otherwise_are_the_drafts(properties: bytes) -> None:
    assert take_apart(replace(SOUND, properties=properties).encode(), 1_000) is None


def test_what_is_no_record_or_another_one_is_not_taken_apart() -> None:
    raw, random = SOUND.encode(), Random(3)
    assert take_apart(raw, 1_001) is None
    assert take_apart(raw + b"x", 1_000) is None
    for size in range(len(raw)):
        assert take_apart(raw[:size], 1_000) is None
    for _ in range(5_000):
        spoiled = bytearray(raw)
        for _ in range(random.choice((1, 2, 4))):
            spoiled[random.randrange(len(raw))] = random.randrange(256)
        stored = take_apart(bytes(spoiled), 1_000)
        if stored is not None:
            record = Record.decode(bytes(spoiled))
            assert replace(stored.draft(), topic=record.topic, queue_id=record.queue_id) == Draft.again(record)


NAMES = b"REAL_TOPIC\x02UNIQ_KEY\x02x"
TEXTS = ("UNIQ_KEY\x01U", "REAL_TOPIC\x01T", "REAL_QID\x013", "x\x01é", "w\x01a\x01b", "KEYS\x01k l", "y\x01" + "z" * 300)
UNIQUES = [f"UNIQ_KEY\x01{value}" for value in ("V", "7", "é", "\x02", "", "\0", "W\x02x\x012")] + ["u\x01V"]
ODD_TEXTS = ("", "x", "x\x01", "\x01v", "UNIQ_KEY\x01V", "a\x01\0")


def some_log(random: Random, *, odd: bool) -> tuple[bytes, int, list[int]]:
    """Bytes of a log with other things between its records, where they begin, and where the records do."""
    start = random.choice((0, 1_000))
    data, places = bytearray(random.randbytes(random.randrange(20))), []
    alike, items, topic = random.random() < 0.5, [""], ""
    for number in range(random.randrange(1, 6)):
        if not number or not alike:
            topic = random.choice(("SCHEDULE_TOPIC_XXXX", "T", "tschüs"))
            items = random.sample(TEXTS, random.randrange(len(TEXTS)))
            items += random.sample(ODD_TEXTS, 1) if odd and random.random() < 0.3 else []
        else:
            unique = random.choice(UNIQUES if odd else UNIQUES[:2])
            items = [unique if item.startswith("UNIQ_KEY") else item for item in items]
        places.append(start + len(data))
        data += replace(
            SOUND, topic=topic, body=random.randbytes(random.choice((0, 5, 200))),
            properties="\x02".join(items).encode(), physical_offset=places[-1], sys_flag=random.choice((0, 1, 8, -16)) if odd else 1,
            queue_offset=random.getrandbits(63), flag=-5, reconsume_times=random.choice((0, 7, -1)), born_timestamp=random.getrandbits(63),
        ).encode() + random.randbytes(random.choice((0, 0, 30)))  # fmt: skip
    if odd:
        for _ in range(random.choice((0, 0, 1, 3))):
            data[random.randrange(len(data))] = random.choice((0, 1, 2, 127, 255, random.randrange(256)))
        data = data[: len(data) - random.choice((0, 0, 0, 1, 40, 150))]
    return bytes(data), start, places


def test_many_are_taken_apart_as_one_is() -> None:
    random = Random(5)
    for _ in range(200):
        data, start, places = some_log(random, odd=False)
        random.shuffle(places)
        found = take_many_apart(memoryview(data), start, places, NAMES)
        assert len(found) == len(places)
        for place, (key, size, queue_offset, sys_flag, reconsumed, properties, kept) in zip(places, found, strict=True):
            record = Record.decode(data[place - start : place - start + size])
            assert (record.physical_offset, record.queue_offset, record.sys_flag) == (place, queue_offset, sys_flag)
            assert (record.reconsume_times, record.properties) == (reconsumed, properties)
            wanted = decode_properties(record.properties)
            assert key.decode() == "\x02".join([record.topic, *[wanted.get(name, "") for name in NAMES.decode().split("\x02")]])
            assert data[place - start :].startswith(kept)
            assert kept[BODY_AT:] == record.body


def test_a_run_is_taken_apart_as_each_of_it_alone() -> None:
    random = Random(9)
    for _ in range(2_000):
        data, start, places = some_log(random, odd=True)
        for names in (NAMES, b"REAL_TOPIC\x02x"):
            alone: list[Again] = []
            for place in places:
                LIKES.clear()
                one = take_many_apart(data, start, [place], names)
                if not one:
                    break
                alone += one
            assert take_many_apart(data, start, places, names) == alone


@pytest.mark.skipif(native is None, reason="the extension is not here")
def test_compiled_and_python_take_the_same_apart() -> None:
    assert native is not None
    random, taken, left = Random(7), 0, 0
    for _ in range(6_000):
        data, start, places = some_log(random, odd=True)
        elsewhere = random.choice((places[0], places[-1] + 1, start + len(data), start - 1, -1, 1 << 40))
        places.insert(random.randrange(len(places) + 1), elsewhere)
        for names in (NAMES, b"", b"x", b"\x02", b"x\x02x\x02x"):
            found = take_many_apart(data, start, places, names)
            assert native.take_many_apart(memoryview(data), start, places, names) == found
        taken, left = taken + len(found), left + len(places) - len(found)
    assert taken > 1_000
    assert left > 1_000


@pytest.mark.skipif(native is None, reason="the extension is not here")
def test_a_record_with_very_many_properties_is_pythons() -> None:
    assert native is not None
    many = replace(SOUND, properties="\x02".join(f"p{n}\x01v" for n in range(33)).encode()).encode()
    assert len(take_many_apart(many, 1_000, [1_000], NAMES)) == 1
    assert native.take_many_apart(many, 1_000, [1_000], NAMES) == []
    for wrong in (("x", 0, [0], b""), (b"", 0, (0,), b""), (b"", 0, ["0"], b""), (b"", 0, [1 << 70], b""), (b"", 0, [0], "x")):
        with pytest.raises((TypeError, OverflowError)):
            native.take_many_apart(*wrong)


def journey(root: Path) -> list[bytes]:
    """Delayed, committed, rolled back and sent back: all files of the log and of the queues that come of it."""
    whole = Whole(root)
    for number in range(20):
        body, kind = b"%d" % number, number % 4
        properties = [f"UNIQ_KEY\x01U{number}", f"TAGS\x01t{number % 3}", f"KEYS\x01k{number} more", "é\x01ü"]
        if kind == 0:
            properties.append(f"DELAY\x01{1 + number % 2}")
        elif kind in (1, 2):
            properties += ["TRAN_MSG\x01true", "PGROUP\x01p"]
        answer = whole.ask(310, send_fields(properties="\x02".join(properties), queue_id=number % 2), body)
        assert answer.code == 0
        offset = str(int(answer.fields["msgId"][16:], 16))
        if kind in (1, 2):
            fields = {
                "producerGroup": "p", "tranStateTableOffset": answer.fields["queueOffset"], "commitLogOffset": offset,
                "commitOrRollback": "8" if kind == 1 else "12", "fromTransactionCheck": "false", "msgId": f"U{number}", "transactionId": "",
            }  # fmt: skip
            assert whole.ask(RequestCode.END_TRANSACTION, fields).code == 0
        elif kind == 3:
            fields = {"offset": offset, "group": "g", "delayLevel": "1", "originTopic": "T"}
            assert whole.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0
    for _ in range(20):
        whole.tick(500)
    delivered = whole.broker.store.queue("T", 0).next + whole.broker.store.queue("T", 1).next
    assert (delivered, whole.broker.store.queue("%RETRY%g", 0).next) == (15, 5)
    whole.close()
    return [path.read_bytes() for part in ("commitlog", "consumequeue") for path in sorted((root / part).rglob("0000*"))]


def test_both_ways_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quickly = journey(tmp_path / "quickly")
    for module in (retry_module, transactions_module):
        monkeypatch.setattr(module, "take_apart", lambda record, offset: None)
    for module in (sent_back_module, transactions_module):
        monkeypatch.setattr(module, "take_from_log", lambda store, window, places, names: [])
    monkeypatch.setattr(delay_module, "apart_for", lambda staging: lambda data, start, places, names: [])
    assert journey(tmp_path / "carefully") == quickly


# Sends that are plain, but go elsewhere first


ODD_SENDS = [
    ["DELAY\x010"], ["DELAY\x0199"], ["DELAY\x01-1"], ["DELAY\x01+1"], ["DELAY\x01 1"], ["DELAY\x01"], ["DELAY\x01003"], ["DELAY\x01١"],
    ["DELAY\x011", "DELAY\x012"], ["DELAY\x011", "a\x011", "a\x012"], ["DELAY\x011", "REAL_TOPIC\x01X"], ["DELAY\x011", "REAL_QID\x017"],
    ["WAIT\x01false", "DELAY\x011"], ["WAIT\x01true", "DELAY\x011"], ["DELAY\x011", "WAIT\x01true", "CLUSTER\x01c"], ["DELAY\x011", ""],
    ["DELAY\x011", "x"], ["DELAY\x011", "x\x01" + "y" * 7_000], ["DELAY\x011", "x\x01" + "y" * 9_000],
    ["DELAY\x011", "x\x01" + "y" * 32_700], ["DELAY\x011", "TRAN_MSG\x01true", "PGROUP\x01p"], ["DELAY\x011", "TIMER_DELAY_SEC\x015"],
    ["DELAY\x011", "x\x01\0"], ["TRAN_MSG\x01true"], ["TRAN_MSG\x01True"], ["TRAN_MSG\x01false"],
    ["TRAN_MSG\x01true", "TRAN_PREPARED_QUEUE_OFFSET\x010"], ["TRAN_MSG\x01true", "CHECK_IMMUNITY_TIME_IN_SECONDS\x015"],
    ["TRAN_MSG\x01true", "TRAN_MSG\x01false"], ["TRAN_MSG\x01true", "KEYS\x01a b"], ["TRAN_MSG\x01true", "TAGS\x01t", "é\x01ü"],
    ["TRAN_MSG\x01true", "x\x01" + "y" * 32_600], ["UNIQ_KEY\x01U", "TRAN_MSG\x01true", "UNIQ_KEY\x01V"],
]  # fmt: skip


def sends(root: Path, *, plain: bool) -> tuple[list[bytes], list[object]]:
    """All files, and all answers."""
    whole = Whole(root)
    assert whole.ask(310, send_fields("%RETRY%g"), b"makes the topics").code == whole.ask(310, send_fields(), b"").code == 0
    taken = whole.broker.sender.plain
    if not plain:
        taken.diversions.clear()
    answers: list[object] = []
    for number, properties in enumerate(ODD_SENDS):
        for more in ({}, {"f": "4"}, {"f": "1"}, {"j": "2"}, {"b": "%RETRY%g"}, {"e": "3"}):
            for form in (False, True):
                fields = send_fields(properties="\x02".join(properties)) | more
                whole.frames(Command(310, fields, b"%d" % number, opaque=number, binary=form))
                (answer,) = whole.peer.take()
                answers.append((answer.code, answer.remark, answer.fields, answer.binary, answer.opaque))
        whole.tick(10)
    whole.close()
    return [path.read_bytes() for part in ("commitlog", "consumequeue") for path in sorted((root / part).rglob("0000*"))], answers


def test_diverted_sends_are_the_same_by_the_short_way(tmp_path: Path) -> None:
    quickly = sends(tmp_path / "plain", plain=True)
    carefully = sends(tmp_path / "accepted", plain=False)
    assert quickly[1] == carefully[1]
    assert quickly[0] == carefully[0]


def test_delayed_and_prepared_sends_take_the_short_way(tmp_path: Path) -> None:
    whole = Whole(tmp_path / "store")
    assert whole.ask(310, send_fields(), b"makes the topic").code == 0
    before = whole.broker.sender.general
    assert whole.ask(310, send_fields(properties="UNIQ_KEY\x01U\x02WAIT\x01true\x02DELAY\x013"), b"delayed").code == 0
    assert whole.ask(310, send_fields(properties="UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01p", f="4"), b"half").code == 0
    assert whole.broker.sender.general == before
    assert [whole.broker.store.queue(name, at).next for name, at in (("SCHEDULE_TOPIC_XXXX", 2), ("RMQ_SYS_TRANS_HALF_TOPIC", 0))] == [1, 1]
    whole.close()


def test_a_batch_that_says_it_is_prepared_is_stored_as_any_other(tmp_path: Path) -> None:
    whole = Whole(tmp_path / "store")
    assert whole.ask(310, send_fields(), b"makes the topic").code == 0
    message = b"one"
    part = (22 + len(message)).to_bytes(4, "big") + bytes(12) + len(message).to_bytes(4, "big") + message + bytes(2)
    assert whole.ask(320, send_fields(properties="WAIT\x01true", m="true", f="4"), part * 3).code == 0
    queue, store = whole.broker.store.queue("T", 0), whole.broker.store
    entries = [entry for entry in map(queue.entry, range(1, 4)) if entry is not None]
    assert [Record.decode(store.record_at(place)).sys_flag for place, _, _ in entries] == [0, 0, 0], "else recovery would not queue them"
    whole.close()
