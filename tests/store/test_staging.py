"""All ways into the log make the same records, wherever the log wants them to stand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from roquet.errors import StoreUnavailable
from roquet.store.alike import Alike
from roquet.store.batch import Batch, Portion
from roquet.store.disk import Disk
from roquet.store.fanout import index_keys, queue_tag
from roquet.store.index import KeyIndex
from roquet.store.log import CommitLog
from roquet.store.queue import ConsumeQueue, unpack_entry
from roquet.store.segments import OpenFiles, Segments
from roquet.store.staging import Staging
from roquet.store.texts import Texts
from roquet.testing.clock import ManualClock
from roquet.testing.disk import SimDisk
from roquet.wire.batch import join_batch
from roquet.wire.columns import batch_columns
from roquet.wire.layout import FRONT, FRONTS, HOST_V6, HOSTS_V6, RECORD_FIXED
from roquet.wire.record import Record

HOST = bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big")
MESSAGES = [(n, b"body %d" % n, b"TAGS\x01a\x02UNIQ_KEY\x01U%d" % n) for n in range(60)]


class Place:
    def __init__(self, lead: bytes, disk: Disk | None = None) -> None:
        files = OpenFiles(disk or SimDisk())
        self.log = CommitLog(Segments(files, "/log", 1 << 16), lead=lead)
        self.log.start_at(0)
        self.queue = ConsumeQueue("T", 3, Segments(files, "/queue", 6_000))
        index = KeyIndex(files.disk, "/index", slots_max=100, entries_max=1_000, clock=ManualClock())
        self.staging = Staging(self.log, index, [], 1_700_000_000_000, lambda error: StoreUnavailable(str(error)))

    def records(self) -> list[Record]:
        """Read through the queue's entries, as a consumer would."""
        self.log.commit()
        found = []
        for at in range(self.queue.next):
            entry = unpack_entry(bytes(self.queue.tail[at * 20 : at * 20 + 20]))
            assert entry is not None
            lead = self.log.lead
            assert self.log.read(entry[0] - len(lead), len(lead)) == lead
            record = Record.decode(self.log.read(entry[0], entry[1]))
            assert (record.physical_offset, record.queue_offset, record.size) == (entry[0], at, entry[1])
            found.append(record)
        return found


def one_by_one(place: Place) -> None:
    for flag, body, properties in MESSAGES:
        place.staging.put(place.queue, body, properties.decode(), sys_flag=0, flag=flag, born_ms=5, born_host=HOST)


def some(place: Place) -> None:
    place.staging.put_batch(
        place.queue,
        [
            (flag, body, properties, queue_tag("T", properties.decode(), 0, []), index_keys(properties.decode()))
            for flag, body, properties in MESSAGES
        ],
        0, 5, HOST,
    )  # fmt: skip


def of_a_read(place: Place) -> None:
    texts = [properties.decode() for _, _, properties in MESSAGES]
    rows = [
        (place.queue, body, properties, queue_tag("T", text, 0, []), index_keys(text), 0, flag, 5)
        for (flag, body, properties), text in zip(MESSAGES, texts, strict=True)
    ]
    placed = place.staging.put_sends(rows, HOST)
    assert [queue_offset for _, queue_offset in placed] == list(range(place.queue.next - len(MESSAGES), place.queue.next))


def many(place: Place) -> None:
    columns = batch_columns(join_batch(MESSAGES))
    assert columns is not None
    portions = [Portion(place.queue, len(columns), 0, 5)]
    assert place.staging.put_columns(portions, Batch.of(columns, Texts.of(columns.properties), b""), HOST) is not None


def as_rows(place: Place) -> None:
    place.staging.native = None
    host = place.staging.store_host
    fronts = [FRONT.pack(0, 0, 0, 0, flag, 0, 0, 0, 5, HOST, 0, host, 0, 0, 0) for flag, _, _ in MESSAGES]
    place.staging.put_rows(
        [(place.queue, properties, None, 0, 0, 0, front + body) for front, (_, body, properties) in zip(fronts, MESSAGES, strict=True)]
    )


def as_alike(place: Place) -> None:
    """They are, but for flags and the lengths of keys: so each alone."""
    for message in MESSAGES:
        batch = Alike.of(join_batch([message]))
        assert batch is not None
        assert place.staging.put_columns([Portion(place.queue, 1, 0, 5)], batch, HOST) is not None


@pytest.mark.parametrize("lead", [b"", b"L" * 48], ids=["no lead", "a lead of 48 bytes"])
def test_all_ways_make_the_same_records(lead: bytes) -> None:
    contents, pending = [], []
    for way in (one_by_one, of_a_read, some, many, as_rows, as_alike):
        place = Place(lead)
        way(place)
        pending.append(list(place.staging.index.pending))
        records = place.records()
        assert [(record.flag, record.body, record.properties) for record in records] == MESSAGES
        contents.append(place.log.read(0, place.log.written))
    assert len(set(contents)) == 1
    assert pending[0] == pending[1] == pending[2]  # as columns they are hashed already
    assert len(contents[0]) == sum(record.size + len(lead) for record in records)


@pytest.mark.parametrize("way", [one_by_one, of_a_read, some, many, as_rows, as_alike])
@pytest.mark.parametrize("lead", [b"", b"L" * 48], ids=["no lead", "a lead of 48 bytes"])
def test_what_is_undone_leaves_nothing(way: Callable[[Place], None], lead: bytes) -> None:
    place = Place(lead)
    one_by_one(place)
    place.log.commit()
    place.staging.staged = []
    end, entries = place.log.end, bytes(place.queue.tail)
    way(place)
    assert place.log.end > end
    place.staging.undo()
    assert (place.log.end, bytes(place.queue.tail), place.queue.next) == (end, entries, len(MESSAGES))


@pytest.mark.parametrize("lead", [b"", b"L" * 48], ids=["no lead", "a lead of 48 bytes"])
def test_rows_go_into_the_log_one_by_one_as_together(lead: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those with long hosts, that are in no queue or that are not indexed, and where a file ends."""
    random, contents = Random(3), []
    rows = []
    for number in range(1_000):
        hosts = random.choice((0, 0, 0, 0, HOSTS_V6))
        host = bytes(HOST_V6 if hosts else len(HOST))
        kept = FRONTS[hosts].pack(0, 0, 0, 0, -number, 0, 0, hosts, number, host, 0, host, 0, 0, 0) + random.randbytes(
            random.randrange(100)
        )
        text = random.choice((b"", b"TAGS\x01a", b"UNIQ_KEY\x01U%d" % number, b"KEYS\x01a b\x02UNIQ_KEY\x01\xff", b"XKEYS\x01a"))
        rows.append((text, random.choice((None, 7, -1)), random.choice((0, 4, 8, 12)), random.randrange(3), random.getrandbits(40), kept))
    runs = [random.randrange(1, 40) for _ in range(100)]
    for together in (True, False):
        place, at = Place(lead), 0
        place.staging.native = None
        if not together:
            monkeypatch.setattr(place.staging, "_put_behind_each_other", lambda rows: False)
        for run in runs:
            place.staging.put_rows([(place.queue, *row) for row in rows[at : at + run]])
            at += run
        staged = [changed[1:] for changed in place.staging.staged]
        place.log.commit()
        contents.append((place.log.read(0, 1 << 16), place.log.written, bytes(place.queue.tail), place.staging.index.pending, staged))
    assert contents[0] == contents[1]
    assert contents[0][1] > 1 << 16


def test_a_row_that_no_record_can_hold_leaves_nothing_of_those_before_it() -> None:
    place = Place(b"")
    place.staging.native = None
    kept = FRONT.pack(0, 0, 0, 0, 0, 0, 0, 0, 5, HOST, 0, HOST, 0, 0, 0) + b"body"
    with pytest.raises(struct.error):
        place.staging.put_rows([(place.queue, b"UNIQ_KEY\x01U", None, 0, reconsumed, 0, kept) for reconsumed in (0, 1 << 40)])
    assert (place.log.end, place.queue.next, bytes(place.queue.tail), place.staging.index.pending) == (0, 0, b"", [])
    one_by_one(place)
    assert len(place.records()) == len(MESSAGES)


def test_a_number_that_no_record_can_hold_leaves_no_hole() -> None:
    place = Place(b"L" * 48)
    with pytest.raises(struct.error, match="requires"):
        place.staging.put(place.queue, b"", "", sys_flag=0, flag=1 << 40, born_ms=5, born_host=HOST)
    assert place.log.end == 0
    one_by_one(place)
    assert len(place.records()) == len(MESSAGES)


LONG_HOST = bytes(range(16)) + (10911).to_bytes(4, "big")


@pytest.mark.parametrize("born_host", [HOST, LONG_HOST])
@pytest.mark.parametrize("store_host", [HOST, LONG_HOST])
def test_sends_of_a_read_are_put_as_one_by_one_whatever_the_addresses_are(born_host: bytes, store_host: bytes) -> None:
    together, alone = Place(b""), Place(b"")
    together.staging.store_host = alone.staging.store_host = store_host
    placed = together.staging.put_sends([(together.queue, b"body", b"a\x01b", 7, ("k", ""), 1, -2, 5)], born_host)
    assert placed == [alone.staging.put_derived(alone.queue, b"body", b"a\x01b", 7, ("k", ""), 1, -2, 5, born_host)]
    assert together.records() == alone.records()
    assert together.queue.tail == alone.queue.tail
    assert together.log.read(0, together.log.written) == alone.log.read(0, alone.log.written)
    assert together.staging.index.pending == alone.staging.index.pending


@pytest.mark.parametrize(
    ("body", "properties"), [(b"x" * 65_400, b""), (b"", b"a\x01" + b"b" * 32_766), (b"", b"a\x01\0")], ids=["no room", "too long", "zero"]
)
def test_sends_of_a_read_are_put_up_to_the_first_that_needs_a_closer_look(body: bytes, properties: bytes) -> None:
    place = Place(b"L" * 48)
    rows = [(place.queue, one, text, 0, (), 0, 0, 5) for one, text in ((b"first", b""), (body, properties), (b"third", b""))]
    assert place.staging.put_sends(rows, HOST) == [(48, 0)]
    assert [record.body for record in place.records()] == [b"first"]


def test_the_room_of_a_file_is_used_up_to_its_end_in_either_way() -> None:
    for size in range(65_200, 65_500):
        together, alone = Place(b""), Place(b"")
        fits = bool(together.staging.put_sends([(together.queue, b"x" * size, b"", 0, (), 0, 0, 5)], HOST))
        assert fits == alone.log.has_room(RECORD_FIXED + size + len(alone.queue.topic_field))


def test_a_send_that_no_record_can_hold_leaves_those_before_it_to_be_undone() -> None:
    place = Place(b"L" * 48)
    rows = [(place.queue, b"", b"", 0, ("k",), 0, flag, 5) for flag in (1, 1 << 40)]
    with pytest.raises(struct.error, match="requires"):
        place.staging.put_sends(rows, HOST)
    place.staging.undo(0)
    assert (place.log.end, place.queue.next, place.staging.index.pending) == (0, 0, [])
    one_by_one(place)
    assert len(place.records()) == len(MESSAGES)
