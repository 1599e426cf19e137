"""DLedger's log by itself: entries by index, their heads and units, what a member takes and takes back, crashes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.errors import Damaged, Unstorable
from roquet.speedups import native
from roquet.store.disk import Disk, RealDisk, blocking
from roquet.store.entry_log import EntryLog
from roquet.store.ledger import DiskLedger
from roquet.store.ledger_chain import Chain, ChainReader
from roquet.store.ledger_columns import units_of_run
from roquet.store.ledger_documents import LedgerCheckpoint, TermFile, Told
from roquet.store.ledger_heads import fill_heads
from roquet.store.ledger_index import UNIT, LedgerIndex
from roquet.store.ledger_segments import LedgerSegments
from roquet.store.segments import OpenFiles, Segments
from roquet.testing.disk import PowerLost, SimDisk
from roquet.wire.layout import FRONT, LEDGER_ENTRY_MAX, LEDGER_HEAD, MAGIC_V1
from roquet.wire.ledger_entry import Entry, Misplaced

FORMS = [pytest.param(fill_heads, id="python")] + ([pytest.param(native.fill_heads, id="compiled")] if native else [])
ROOT = "/ledger"
FILE = 2_048
INDEX_FILE = 8 * UNIT
HEAD = LEDGER_HEAD.size


def record(place: int, number: int, body: bytes) -> bytes:
    back = b"\x01T\x00\x00"
    size = FRONT.size + len(body) + len(back)
    crc = crc32(body) & 0x7FFFFFFF
    return FRONT.pack(size, MAGIC_V1, crc, 0, 0, number, place, 0, 1, bytes(8), 1, bytes(8), 0, 0, len(body)) + body + back


def made(disk: Disk, root: str = ROOT, *, sync_flush: bool = False, size: int = FILE, index_size: int = INDEX_FILE) -> EntryLog:
    files = OpenFiles(disk)
    segments = LedgerSegments(files, f"{root}/data", size, f"{root}/commitlog")
    return EntryLog(segments, LedgerIndex(Segments(files, f"{root}/index", index_size)), sync_flush=sync_flush)


class Opened(NamedTuple):
    log: EntryLog
    ledger: DiskLedger
    chain: Chain


def opened(
    disk: Disk, root: str = ROOT, *, committed: int = -1, anew_at: int = -1, vouched: int = 0, tidy: bool = False, size: int = FILE
) -> Opened:
    log = made(disk, root, size=size)
    log.segments.load(crashed=True)
    told = Told(committed, anew_at)
    chain = ChainReader(log.segments, log.index, told, vouched=vouched, tidy=tidy, check_crc=True).read(crashed=True)
    log.found(chain.begin, chain.last, chain.last_term, chain.committed, chain.committed_end)
    log.start_at(chain.end)
    return Opened(log, DiskLedger(log), chain)


def stage(log: EntryLog, body: bytes = b"hello", number: int = 0) -> int:
    """As a leader does."""
    size = len(record(0, 0, body))
    place = log.reserve(HEAD + size) + HEAD
    log.staged.append(log.lead)
    log.staged.append(record(place, number, body))
    return place


def lead(log: EntryLog, *bodies: bytes, term: int | None = None) -> None:
    if term is not None:
        log.term = term
    for body in bodies:
        stage(log, body)
    log.commit()


def sync(log: EntryLog) -> None:
    target, work = log.syncer()
    work()
    log.note_flushed(target)


def all_of(ledger: DiskLedger) -> list[Entry]:
    found: list[Entry] = []
    at = ledger.begin
    while 0 <= at <= ledger.end:
        found += blocking(ledger.read, at, 1 << 30, 1 << 30)
        at = found[-1].index + 1
    return found


def agree(log: EntryLog) -> list[Entry]:
    """Index and data tell of the same entries, each in its place."""
    ledger, at = DiskLedger(log), -1
    entries = all_of(ledger)
    assert [entry.index for entry in entries] == list(range(log.begin, log.last + 1)) if log.begin >= 0 else not entries
    for entry in entries:
        assert blocking(ledger.place_of, entry.index) == (entry.pos, entry.size)
        assert blocking(ledger.term_of, entry.index) == entry.term
        assert at < 0 or entry.pos == log.place_behind(at, entry.size)
        assert entry.body == record(entry.pos + HEAD, read_number(entry), read_body(entry))
        at = entry.pos + entry.size
    return entries


def read_body(entry: Entry) -> bytes:
    size = int.from_bytes(entry.body[FRONT.size - 4 : FRONT.size], "big")
    return entry.body[FRONT.size : FRONT.size + size]


def read_number(entry: Entry) -> int:
    return int.from_bytes(entry.body[20:28], "big")


class TestALeader:
    def test_gives_each_record_a_head_and_a_unit_as_dledger_does(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"first", b"second", term=3)
        lead(log, b"third", term=4)
        first, second, third = all_of(ledger)
        size = HEAD + len(record(0, 0, b"first"))
        assert first == Entry(1, size, 0, 3, 0, 0, 0, 0, record(HEAD, 0, b"first"))
        assert (second.index, second.pos, second.term) == (1, size, 3)
        assert (third.index, third.term, third.pos) == (2, 4, second.pos + second.size)
        raw = log.index.segments.read(0, 3 * UNIT)
        assert raw[:UNIT] == struct.pack(">iqiqq", 1, 0, size, 0, 3)
        assert raw[2 * UNIT :] == struct.pack(">iqiqq", 1, third.pos, third.size, 2, 4)
        assert (ledger.begin, ledger.end, ledger.end_term, ledger.end_pos) == (0, 2, 4, log.written)

    def test_closes_a_file_with_a_blank_when_8_bytes_would_not_stay_free(self) -> None:
        log, ledger, _ = opened(SimDisk())
        fits = FILE - HEAD - len(record(0, 0, b"")) - 8
        lead(log, b"x" * (fits + 1 - 500), b"y" * 200)
        lead(log, b"z" * 300)
        assert ledger.place_of(2)[0] == FILE
        end = sum(ledger.place_of(1))
        assert log.segments.read(end, 8) == struct.pack(">ii", -1, FILE - end)
        again, _, _ = opened(SimDisk(), "/other")
        lead(again, b"x" * fits)
        assert again.written == FILE - 8

    @pytest.mark.parametrize("form", FORMS)
    @given(sizes=st.lists(st.integers(0, 200), max_size=30), index=st.integers(0, 1 << 40), term=st.integers(0, 1 << 40))
    def test_fills_heads_alike_one_or_many_at_a_time(self, form: Any, sizes: list[int], index: int, term: int) -> None:
        pieces = [bytes(HEAD) + record(0, 0, b"b" * size) for size in sizes]
        blank = struct.pack(">ii", -1, 77)
        whole, units = form(b"".join(pieces) + blank, 1_000, index, term)
        apart, apart_units = b"", b""
        for number, piece in enumerate(pieces):
            one, unit = form(piece, 1_000 + len(apart), index + number, term)
            apart, apart_units = apart + one, apart_units + unit
        assert (whole, units) == (apart + blank, apart_units)
        assert units_of_run(apart, index, 1_000, term) in (None, units), "no run where it is short, or its records do not say their places"

    @given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(bytes(HEAD).__add__)), cut=st.integers(0, 400))
    def test_fills_heads_of_anything_alike_in_both_forms(self, data: bytes, cut: int) -> None:
        def outcome(form: Any, given: bytes) -> object:
            try:
                return form(given, 5, 6, 7)
            except ValueError as error:
                return str(error)

        whole = bytes(HEAD) + record(0, 0, b"b" * 99)
        for given_data in (data, whole + data, (whole * 2)[:cut] + data, (whole * 2)[:-cut]):
            assert len({outcome(form.values[0], given_data) for form in FORMS}) == 1

    def test_refuses_an_entry_that_a_java_member_could_not_take(self) -> None:
        log, _, _ = opened(SimDisk(), size=3 * LEDGER_ENTRY_MAX)
        with pytest.raises(Unstorable, match="a member of a DLedger group takes 4194304"):
            log.reserve(LEDGER_ENTRY_MAX + 1)
        assert log.reserve(LEDGER_ENTRY_MAX) == 0
        assert not log.has_room(LEDGER_ENTRY_MAX + 1)

    @pytest.mark.parametrize("where", ["data", "index"])
    def test_whose_write_failed_has_appended_nothing(self, where: str) -> None:
        disk = SimDisk()
        log, ledger, _ = opened(disk)
        lead(log, b"first")
        before = log.written
        disk.fail("write", 28, where=f"/{where}/", part=0.5)
        stage(log, b"second")
        with pytest.raises(OSError, match=where):
            log.commit()
        assert (log.written, log.end, ledger.end) == (before, before, 0)
        lead(log, b"third")
        assert [read_body(entry) for entry in agree(log)] == [b"first", b"third"]
        assert [read_body(entry) for entry in agree(opened(disk).log)] == [b"first", b"third"]

    def test_an_index_that_has_no_room_for_a_file_appends_nothing(self) -> None:
        disk = SimDisk()
        log, ledger, _ = opened(disk)
        lead(log, *[b"m"] * 8)
        disk.fail("open", 28, where="/index/")
        stage(log, b"ninth")
        with pytest.raises(OSError, match="index"):
            log.commit()
        assert ledger.end == 7
        lead(log, b"tenth")
        assert read_body(agree(log)[8]) == b"tenth"


class TestMarks:
    def test_what_is_committed_is_safe_and_what_is_flushed_too_is_durable(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"first", b"second")
        assert (log.safe, log.durable, ledger.committed) == (0, 0, -1)
        ledger.note_committed(0)
        assert (log.safe, log.durable) == (sum(ledger.place_of(0)), 0)
        sync(log)
        assert (log.durable, ledger.flushed_index) == (log.safe, 1)
        ledger.note_committed(9)
        assert (log.safe, log.durable, ledger.committed) == (log.written, log.written, 1)
        ledger.note_committed(0)
        assert ledger.committed == 1, "it never goes back"

    def test_who_waits_is_woken_when_its_entry_is_committed_or_taken_back(self) -> None:
        log, ledger, _ = opened(SimDisk())
        heard: list[tuple[str, bool]] = []
        for name in ("first", "second", "third"):
            lead(log, name.encode())
            log.when_safe(log.written, 1_000, lambda reached, name=name: heard.append((name, reached)))  # type: ignore[misc]
        ledger.note_committed(0)
        assert heard == [("first", True)]
        ledger.truncate(all_of(ledger)[1])
        assert heard == [("first", True), ("third", False)]

    def test_a_flush_under_way_does_not_vouch_for_what_replaces_what_it_flushed(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"first", b"second", term=1)
        target, work = log.syncer()
        other = all_of(ledger)[1]._replace(term=2)
        ledger.truncate(other)
        work()
        log.note_flushed(target)
        assert (ledger.flushed_index, log.flushed) == (0, other.pos)
        sync(log)
        assert (ledger.flushed_index, log.flushed) == (1, log.written)


def follower_of(log: EntryLog, disk: Disk | None = None) -> DiskLedger:
    other = opened(disk or SimDisk()).ledger
    other.append(all_of(DiskLedger(log)))
    return other


class TestAFollower:
    def test_has_the_same_bytes_as_its_leader(self) -> None:
        log, ledger, _ = opened(SimDisk())
        for size in range(0, 700, 35):
            lead(log, b"x" * size)
        one, other = opened(SimDisk()).ledger, opened(SimDisk()).ledger
        for entry in all_of(ledger):
            one.append([entry])
        at = 0
        while at <= ledger.end:
            count, data = ledger.read_raw(at, 1_000, 4)
            assert other.append_raw(data) == at + count - 1
            at += count
        for member in (one, other):
            for mine, theirs in ((member.log.segments, log.segments), (member.log.index.segments, log.index.segments)):
                assert mine.bases == theirs.bases
                for base in theirs.bases:
                    assert mine.read(base, theirs.size) == theirs.read(base, theirs.size)
            assert (member.end, member.end_pos, member.begin) == (ledger.end, ledger.end_pos, 0)

    @pytest.mark.parametrize(
        "change",
        [
            {"index": 3},
            {"index": 1},
            {"pos": 1},
            {"term": 0},
            {"magic": 2},
            {"size": 100},
            {"body": b"no record"},
            {"body": record(7, 0, b"of another place")},
        ],
    )
    def test_takes_nothing_that_does_not_follow(self, change: dict[str, Any]) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"first", b"second", b"third", b"fourth", term=1)
        entries = all_of(ledger)
        mine = opened(SimDisk()).ledger
        mine.append(entries[:2])
        before = mine.log.segments.read(0, FILE)
        with pytest.raises(Misplaced):
            mine.append([entries[2]._replace(**change), entries[3]])
        assert mine.end == 1
        assert mine.log.segments.read(0, FILE) == before, "nothing was written"
        with pytest.raises(Misplaced):
            mine.append([entries[2], entries[3]._replace(**{**change, **({"index": 5} if change == {"index": 3} else {})})])
        assert mine.end == 1, "all or nothing"
        mine.append(entries[2:])
        assert agree(mine.log) == entries

    def test_takes_no_half_entries(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"first", b"second")
        _, data = ledger.read_raw(0, 10_000, 10)
        mine = opened(SimDisk()).ledger
        for cut in (1, HEAD - 1, HEAD, HEAD + 5, len(data) - 1):
            with pytest.raises(Misplaced):
                mine.append_raw(data[:cut])
        assert mine.end == -1


class TestTruncating:
    def test_cuts_behind_an_entry_that_is_held(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, *[b"m%d" % n * 30 for n in range(40)], term=1)
        entries = all_of(ledger)
        assert len(log.segments.bases) > 3
        ledger.truncate(entries[5])
        assert agree(log) == entries[:6]
        assert not log.segments.read(log.written, FILE).strip(b"\0"), "nothing is left that could count again"
        lead(log, b"new", term=2)
        assert read_body(agree(log)[-1]) == b"new"

    def test_replaces_an_entry_that_differs(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a", b"b", b"c", term=1)
        place = ledger.place_of(1)[0]
        body = record(place + HEAD, 0, b"another")
        ledger.truncate(Entry(1, HEAD + len(body), 1, 2, place, 0, 0, 0, body))
        assert [(read_body(entry), entry.term) for entry in agree(log)] == [(b"a", 1), (b"another", 2)]

    def test_replaces_the_only_entry(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a", term=1)
        body = record(HEAD, 0, b"another")
        ledger.truncate(Entry(1, HEAD + len(body), 0, 2, 0, 0, 0, 0, body))
        assert [read_body(entry) for entry in agree(log)] == [b"another"]

    @pytest.mark.parametrize(("held", "sent"), [(1_000, 5), (5, 1_000)])
    def test_replaces_an_entry_by_one_that_stands_in_another_file(self, held: int, sent: int) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a" * 1_200, b"b" * held, b"c", term=1)
        theirs = opened(SimDisk()).log
        lead(theirs, b"a" * 1_200, term=1)
        lead(theirs, b"d" * sent, term=2)
        other = all_of(DiskLedger(theirs))
        assert other[1].pos != ledger.place_of(1)[0]
        ledger.truncate(other[1])
        assert agree(log) == other
        assert [log.segments.read(base, FILE) for base in log.segments.bases] == [
            theirs.segments.read(base, FILE) for base in theirs.segments.bases
        ]

    def test_refuses_an_entry_that_members_with_other_files_placed(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a", b"b", term=1)
        ledger.note_committed(0)
        body = record(500 + HEAD, 0, b"c")
        with pytest.raises(Misplaced, match="mappedFileSizeCommitLog"):
            ledger.truncate(Entry(1, HEAD + len(body), 1, 2, 500, 0, 0, 0, body))
        assert ledger.end == 1

    @pytest.mark.parametrize("pos", [0, 3 * FILE, 3 * FILE + 500])
    @pytest.mark.parametrize("held", [0, 3])
    def test_installs_an_entry_that_follows_nothing(self, pos: int, held: int) -> None:
        disk = SimDisk()
        log, ledger, _ = opened(disk)
        anew: list[int] = []
        log.on_anew = anew.append
        lead(log, *[b"old"] * held)
        body = record(pos + HEAD, 7, b"installed")
        entry = Entry(1, HEAD + len(body), 100, 2, pos, 0, 0, 0, body)
        ledger.truncate(entry)
        assert agree(log) == [entry]
        assert (ledger.begin, ledger.end, ledger.end_term, log.start) == (100, 100, 2, pos - pos % FILE)
        lead(log, b"more", term=2)
        ledger.note_committed(99)
        assert ledger.committed == -1, "an entry that is not held says nothing"
        ledger.note_committed(101)
        assert log.safe == log.written
        assert anew == [pos]
        again = opened(disk, anew_at=pos)
        assert agree(again.log) == agree(log)
        assert (again.chain.begin, again.chain.begin_pos, again.chain.last) == (100, pos, 101)

    def test_e7_takes_nothing_back_that_is_committed(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a", b"b", b"c", term=1)
        ledger.note_committed(1)
        with pytest.raises(Misplaced, match="1 is committed"):
            ledger.truncate(all_of(ledger)[0])
        assert ledger.end == 2
        ledger.truncate(all_of(ledger)[1])
        assert (ledger.end, ledger.committed) == (1, 1)

    def test_e7_a_ledger_that_begins_anew_has_nothing_committed(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a", b"b", b"c", term=1)
        ledger.note_committed(2)
        body = record(HEAD, 7, b"installed")
        ledger.truncate(Entry(1, HEAD + len(body), 100, 2, 0, 0, 0, 0, body))
        assert (ledger.committed, log.safe, log.durable) == (-1, 0, 0)
        ledger.note_committed(100)
        assert log.safe == log.written

    def test_what_is_derived_is_told_before_anything_goes(self) -> None:
        log, ledger, _ = opened(SimDisk())
        lead(log, b"a", b"b", b"c")
        told: list[tuple[int, int]] = []
        log.on_cut = lambda to: told.append((to, log.last))
        ledger.truncate(all_of(ledger)[0])
        assert told == [(sum(ledger.place_of(0)), 2)]


def spoil(log: EntryLog, at: int, data: bytes) -> None:
    base = log.segments.base_of(at)
    assert base is not None
    log.segments.file(base).write(at - base, data)


class TestOpening:
    def filled(self, disk: SimDisk, count: int = 40) -> list[Entry]:
        log, ledger, _ = opened(disk)
        for number in range(count):
            lead(log, b"m%d" % number * 20, term=1 + number // 15)
        sync(log)
        return all_of(ledger)

    def test_finds_all_with_the_marks_it_had(self) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log, ledger, chain = opened(disk, committed=30)
        assert agree(log) == entries
        assert (ledger.end, ledger.end_term, ledger.committed) == (39, 3, 30)
        assert log.safe == log.durable == entries[30].pos + entries[30].size
        assert chain.checked_from == entries[30].pos, "no more is read than is in doubt"

    def test_what_our_last_run_had_on_disk_and_committed_counts_though_the_checkpoint_is_older(self) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log, _, chain = opened(disk, committed=10, vouched=entries[20].pos)
        assert (chain.committed, log.safe) == (19, entries[20].pos) or (chain.committed, log.safe) == (
            19,
            entries[19].pos + entries[19].size,
        )

    def test_e7_no_more_is_committed_than_there_is(self) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log, ledger, chain = opened(disk, committed=1_000)
        assert (ledger.committed, log.safe) == (39, entries[39].pos + entries[39].size)
        assert "entry 1000 was committed" in chain.lost

    @pytest.mark.parametrize("what", ["removed", "zeros", "short", "another"])
    def test_makes_a_damaged_index_again_from_the_data(self, what: str) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log = made(disk)
        log.index.segments.load()
        path = log.index.segments.path(INDEX_FILE)
        if what == "removed":
            for name in disk.list(f"{ROOT}/index"):
                disk.remove(f"{ROOT}/index/{name}")
        elif what == "short":
            disk.open(path).truncate(17)
        else:
            disk.open(path).write(0, bytes(INDEX_FILE) if what == "zeros" else b"\xff" * INDEX_FILE)
        found = opened(disk)
        assert agree(found.log) == entries

    @pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 44])
    def test_makes_a_damaged_head_again_where_the_log_was_on_disk_once(self, at: int) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log = opened(disk).log
        spoil(log, entries[12].pos + at, b"\x55\x55\x55\x55")
        assert agree(opened(disk, vouched=entries[20].pos).log) == entries

    @pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 44, HEAD, HEAD + 4, HEAD + FRONT.size + 3])
    def test_ends_where_a_power_loss_tore_an_entry_though_whole_ones_follow(self, at: int) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log = opened(disk).log
        spoil(log, entries[30].pos + at, b"\x55\x55\x55\x55")
        found = opened(disk, vouched=entries[20].pos)
        assert agree(found.log) == entries[:30]

    def test_looks_at_all_that_may_be_torn_however_many_files_that_are(self) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log = opened(disk).log
        assert len(log.segments.bases) == 4
        spoil(log, entries[2].pos + HEAD + FRONT.size + 3, b"\x55")
        assert agree(opened(disk).log) == entries[:2]

    def test_a_body_that_rotted_where_it_was_on_disk_stays_an_entry(self) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log = opened(disk).log
        spoil(log, entries[12].pos + HEAD + FRONT.size + 3, b"\x55")
        found = opened(disk, vouched=entries[20].pos)
        assert found.ledger.end == 39
        assert found.log.last_term == 3

    def test_data_whose_first_file_is_gone_begins_with_the_next(self) -> None:
        disk = SimDisk()
        entries = self.filled(disk)
        log = opened(disk).log
        disk.remove(log.segments.path(0))
        assert opened(disk).ledger.end == -1, "a power loss may take the first file and leave the second"
        entries = self.filled(disk := SimDisk())
        disk.remove(log.segments.path(0))
        found = opened(disk, committed=30)
        kept = [entry for entry in entries if entry.pos >= FILE]
        assert agree(found.log) == kept
        assert found.chain.begin == kept[0].index

    def test_an_entry_that_was_taken_back_does_not_return(self) -> None:
        disk = SimDisk()
        log, ledger, _ = opened(disk)
        lead(log, *[b"m"] * 10, term=1)
        ledger.truncate(all_of(ledger)[3])
        disk.kill()
        assert opened(disk).ledger.end == 3


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "batch", "term", "commit", "cut", "replace", "sync", "kill", "crash"]), st.integers(0, 300)),
    max_size=40,
)


class TestAnything:
    @settings(max_examples=200)
    @given(steps=STEPS, seed=st.integers(0, 1 << 32))
    def test_may_happen_and_index_and_data_agree_and_nothing_on_disk_is_lost(self, steps: list[Step], seed: int) -> None:
        """Bodies are numbered, so that an entry tells which it is."""
        disk = SimDisk(seed=seed)
        for part in ("data", "index"):
            disk.make_dir(f"{ROOT}/{part}")
        disk.sync_dir("/")
        disk.sync_dir(ROOT)
        log, ledger, _ = opened(disk)
        held: list[tuple[int, bytes]] = []  # (term, body) as the model has it
        synced = 0  # entries that were on disk since they were last changed
        committed = -1
        number = 0

        for what, amount in steps:
            if what in ("put", "batch"):
                count = 1 if what == "put" else 1 + amount % 20
                bodies = [b"%d " % (number + n) + b"x" * amount for n in range(count)]
                number += count
                lead(log, *bodies)
                held += [(log.term, body) for body in bodies]
            elif what == "term":
                log.term += 1
            elif what == "commit" and held:
                ledger.note_committed(amount % len(held))
                committed = max(committed, amount % len(held))
            elif what in ("cut", "replace") and len(held) > committed + 1:
                at = committed + 1 + amount % (len(held) - committed - 1)
                entry = blocking(ledger.read, at, 0, 1)[0]
                if what == "replace":
                    number += 1
                    log.term += 1
                    text = b"%d " % number + b"y" * (amount * 7 % 300)
                    size = HEAD + len(record(0, 0, text))
                    pos = log.place_behind(sum(ledger.place_of(at - 1)) if at else 0, size)
                    entry = Entry(1, size, at, log.term, pos, 0, 0, 0, record(pos + HEAD, 0, text))
                    held[at] = (log.term, text)
                    synced = min(synced, at)
                ledger.truncate(entry)
                del held[at + 1 :]
                synced = min(synced, at + 1)
            elif what == "sync":
                sync(log)
                synced = len(held)
                assert ledger.flushed_index == synced - 1
            elif what in ("kill", "crash"):
                sure = min(synced, committed + 1)
                told = sure - 1
                vouched = sum(ledger.place_of(told)) if told >= 0 else 0
                if what == "kill":
                    disk.kill()
                else:
                    disk.crash()
                term = log.term
                log, ledger, _ = opened(disk, committed=told, vouched=vouched)
                log.term = term
                assert ledger.end >= (synced if what == "crash" else len(held)) - 1
                found = agree(log)
                held = [(one, body) for (one, body) in [(entry.term, read_body(entry)) for entry in found]]
                committed, synced = ledger.committed, min(synced, len(held))
                assert committed >= told
                sync_all(log, disk)
                synced = len(held)
            assert [(entry.term, read_body(entry)) for entry in agree(log)] == held


def sync_all(log: EntryLog, disk: SimDisk) -> None:
    """As opening a store does: what was read back is written again and synced before anything builds on it."""
    for base in log.segments.bases:
        file = log.segments.file(base)
        stop = min(log.written - base, FILE)
        if stop > 0:
            file.write(0, file.read(0, stop))
            file.truncate(stop)
            file.truncate(FILE)
        file.sync()
    disk.sync_dir(f"{ROOT}/data")
    log.index.syncer(0)()
    disk.sync_dir(ROOT)


class TestTerms:
    def test_e5_a_vote_is_on_disk_when_it_is_saved(self) -> None:
        for number in range(40):
            disk = SimDisk(seed=number)
            disk.make_dir(ROOT)
            disk.sync_dir("/")
            file = TermFile(disk, ROOT)
            file.save(1, "n1")
            file.save(2, "")
            disk.power_off_after(1 + number % 8)
            try:
                file.save(2, "n2")
                saved = True
            except PowerLost:
                saved = False
            disk.stay_on()
            disk.crash()
            found = TermFile(disk, ROOT).load()
            assert found == (2, "n2") if saved else found in ((2, ""), (2, "n2"))

    def test_reads_what_java_wrote_in_any_order(self, tmp_path: Path) -> None:
        (tmp_path / "currterm").write_bytes(b"#a comment\n\ncurrTerm=4\nvoteLeader = n2\n")
        assert TermFile(RealDisk(), str(tmp_path)).load() == (4, "n2")
        TermFile(RealDisk(), str(tmp_path)).save(5, "")
        assert (tmp_path / "currterm").read_bytes() == b"voteLeader=\ncurrTerm=5\n"
        assert TermFile(RealDisk(), str(tmp_path / "none")).load() == (0, "")

    def test_e5_a_vote_that_cannot_be_read_is_not_taken_for_none(self, tmp_path: Path) -> None:
        file = TermFile(RealDisk(), str(tmp_path))
        file.save(4, "")
        file.save(4, "n2")
        (tmp_path / "currterm").write_bytes(b"\0" * 25)
        with pytest.raises(Damaged, match="two members could lead in one term"):
            TermFile(RealDisk(), str(tmp_path)).load()

    def test_a_checkpoint_that_cannot_be_read_tells_nothing(self, tmp_path: Path) -> None:
        checkpoint = LedgerCheckpoint(RealDisk(), str(tmp_path))
        assert checkpoint.load() == Told(-1, -1)
        (tmp_path / "checkpoint").write_bytes(b"committedIndex=34\nendIndex=34\n")
        assert checkpoint.load() == Told(34, -1)
        checkpoint.save(Told(34), 35)
        assert (tmp_path / "checkpoint").read_bytes() == b"committedIndex=34\nendIndex=35\n"
        checkpoint.save(Told(36, 500), 37)
        assert checkpoint.load() == Told(36, 500)
        (tmp_path / "checkpoint").write_bytes(b"committedIndex=x")
        (tmp_path / "checkpoint.bak").unlink()
        assert checkpoint.load() == Told(-1, -1)
