"""Entries as columns: whatever stands in them, the outcome is that of one look after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roquet.store import entry_log, ledger_columns
from roquet.store.entry_log import EntryLog
from roquet.store.ledger import DiskLedger
from roquet.testing.disk import SimDisk
from roquet.wire.ledger_entry import Misplaced
from tests.store.test_ledger import HEAD, lead, opened

FILE = 32_768
SIZES = st.lists(st.integers(0, 120), min_size=13, max_size=60)


def leader(sizes: list[int], term: int = 1) -> DiskLedger:
    log, ledger, _ = opened(SimDisk(), size=FILE)
    lead(log, *(b"b" * size for size in sizes), term=term)
    ledger.log.newest = None  # as after a restart: what was written last is read from the files as all else
    return ledger


def one_by_one(work: Callable[[], object]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_columns, "MANY", 1 << 30)
        patch.setattr(entry_log, "units_of_run", lambda *_: None)
        return outcome(work)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except (LookupError, Misplaced) as error:
        return type(error)


def files_of(log: EntryLog) -> tuple[bytes, bytes, int, int, int, int]:
    data = b"".join(log.segments.read(base, FILE) for base in log.segments.bases)
    return data, log.index.units(0, 1 << 20), log.begin, log.last, log.last_term, log.written


class Counted:
    """How often many were decided about at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        for module, name in ((ledger_columns, "_sound"), (entry_log, "units_of_run")):
            patch.setattr(module, name, self.counting(getattr(module, name)))

    def counting(self, real: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object) -> object:
            found = real(*given)
            self.runs += found is not None
            return found

        return counted


def test_many_sound_entries_are_read_and_taken_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    ledger = leader([50] * 40)
    count, data = ledger.read_raw(0, 1 << 20, 100)
    assert (count, counted.runs) == (40, 1)
    follower = opened(SimDisk(), size=FILE)
    second = ledger.place_of(1)[0]
    follower.ledger.append_raw(data[:second])
    follower.ledger.append_raw(data[second:])
    assert counted.runs == 3
    assert files_of(follower.log) == files_of(ledger.log)


def test_what_a_leader_wrote_last_is_given_to_followers_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    ledger = leader([50] * 20)
    lead(ledger.log, *[b"new"] * 30)
    newest = ledger.read_raw(20, 1 << 20, 100)
    assert (newest[0], counted.runs) == (30, 0)
    for first, max_bytes, max_entries in ((20, 1 << 20, 29), (20, len(newest[1]) - 1, 100), (21, 1 << 20, 100), (19, 1 << 20, 100)):
        assert ledger.read_raw(first, max_bytes, max_entries) == one_by_one(partial(ledger._read_raw, first, max_bytes, max_entries))
    ledger.log.newest = None
    assert ledger._read_raw(20, 1 << 20, 100) == newest, "the same bytes as in the files"
    lead(ledger.log, *[b"newer"] * 15)
    ledger.log.cut_behind(49, 1, sum(ledger.place_of(49)))
    assert ledger.log.newest is None
    ledger.append_raw(newest[1][:0])
    with pytest.raises(LookupError):
        ledger.read_raw(50, 1 << 20, 100)


def test_a_second_follower_costs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    ledger = leader([50] * 40)
    first = ledger.read_raw(0, 1 << 20, 100)
    assert ledger.read_raw(0, 1 << 20, 100) == first
    assert counted.runs == 1
    lead(ledger.log, b"one more")
    assert ledger.read_raw(0, 1 << 20, 100)[0] == 41
    ledger.log.cut_behind(20, 1, sum(ledger.place_of(20)))
    lead(ledger.log, *[b"other"] * 20, term=2)  # as many as before
    assert ledger.read_raw(0, 1 << 20, 100)[1].count(b"other") == 20, "not what stood there before the cut"


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, entry=st.integers(0, 59), byte=st.integers(0, HEAD + 35), bit=st.integers(0, 7), cut=st.integers(1, 200))
def test_a_follower_takes_or_refuses_the_same(sizes: list[int], entry: int, byte: int, bit: int, cut: int) -> None:
    ledger = leader(sizes)
    (_, data), (_, first) = ledger.read_raw(1, 1 << 20, 100), ledger.read_raw(0, 1, 1)
    spoiled = bytearray(data)
    spoiled[ledger.place_of(1 + entry % (len(sizes) - 1))[0] - len(first) + byte] ^= 1 << bit  # in a head, or in its record's front
    for given_data in (data, bytes(spoiled), data[:-cut]):
        members = [opened(SimDisk(), size=FILE) for _ in range(2)]
        for member in members:
            member.ledger.append_raw(first)
        columns = outcome(lambda: members[0].ledger.append_raw(given_data))  # noqa: B023 - called at once
        assert columns == one_by_one(lambda: members[1].ledger.append_raw(given_data))  # noqa: B023
        assert files_of(members[0].log) == files_of(members[1].log)


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES, entry=st.integers(0, 59), byte=st.integers(0, HEAD + 35), bit=st.integers(0, 7), first=st.integers(0, 11),
    bytes_max=st.integers(0, 9_000), most=st.integers(1, 70),
)  # fmt: skip
@example(sizes=[0] * 13, entry=0, byte=15, bit=7, first=0, bytes_max=0, most=1)  # an entry shorter than its head, as the index has it
def test_a_leader_reads_the_same(sizes: list[int], entry: int, byte: int, bit: int, first: int, bytes_max: int, most: int) -> None:
    sound, spoiled_data, spoiled_unit = leader(sizes), leader(sizes), leader(sizes)
    number = entry % len(sizes)
    place = spoiled_data.place_of(number)[0] + byte
    spoiled_data.log.segments.file(0).write(place, bytes([spoiled_data.log.segments.read(place, 1)[0] ^ 1 << bit]))
    spoiled_unit.log.index.recent[number * 32 + byte % 32] ^= 1 << bit
    for ledger in (sound, spoiled_data, spoiled_unit):
        columns = outcome(lambda: ledger._read_raw(first, bytes_max, most))  # noqa: B023 - called at once
        assert columns == one_by_one(lambda: ledger._read_raw(first, bytes_max, most))  # noqa: B023
