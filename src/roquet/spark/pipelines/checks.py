"""What is compared when a store is verified: each piece of the log with the entries it should have, each queue, each index file.

The log is the truth. From its side: has every record its entries? From the other: does every entry belong to a record? The
second needs no search, it is a count: an entry that matched a record is counted, and a queue that has more entries than
matched is looked at entry by entry. What a normal life leaves behind is a remark and no problem (`REMARKS`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from roquet.spark.pipelines import store_files as files
from roquet.store import derive, index
from roquet.store.index import chain
from roquet.store.scan import parse
from roquet.store.segments import file_name
from roquet.wire.columns import INDEX_ENTRIES
from roquet.wire.layout import BLANK_LENGTH

SHOWN = 10
"""Places kept of each kind of problem."""

PROBLEMS = {
    "log file missing": "the row of log files has a gap",
    "record damaged": "bytes in the log that should be a record and are none; messages are lost",
    "queue entry missing": "a record that its queue does not lead to: consumers never see it",
    "queue entry wrong": "an entry whose place, size or tag is not its record's",
    "queue entry surplus": "an entry that leads to no record of its queue",
    "queue file wrong": "a queue file of another length, or one missing in the row",
    "queue hole": "an entry that is empty, with entries behind it",
    "index entry missing": "a key that a query by key does not find",
    "index entry surplus": "an index entry that leads to no record with that key",
    "index chain wrong": "an index file whose slots or chains do not fit its entries",
    "index file wrong": "an index file whose length or header is not possible",
}
REMARKS = {
    "below the log": "queue entries whose records went with old log files",
    "not derived yet": "records at the end of a running or killed store that have no entry yet; its broker adds them",
    "unfinished end": "bytes behind the last whole record of a killed store; its broker cuts them off",
    "ahead of the log": "entries of a running store for records that came after the log was read",
    "replaced": "records whose queue was deleted and began again at a lower offset",
    "deleted topic": "records of topics that do not exist any more",
    "not queued": "prepared and rolled back transactional messages, which no consumer sees",
    "expired meanwhile": "pieces of log files that a running broker removed before they were read",
    "repeated key": "keys that a broker indexed twice while it recovered",
}


@dataclass(slots=True)
class Findings:
    """What one task found. Adds up."""

    counts: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def problem(self, kind: str, place: str, count: int = 1) -> None:
        self.problems[kind] += count
        places = self.places.setdefault(kind, [])
        if len(places) < SHOWN:
            places.append(place)

    def each(self, kind: str, wrong: derive.Bits, place: Callable[[int], str]) -> None:
        """One problem for each that is set; only the first are worded."""
        numbers = np.flatnonzero(wrong)
        for number in numbers[:SHOWN].tolist():
            self.problem(kind, place(number))
        self.problems[kind] += max(0, len(numbers) - SHOWN)

    def add(self, other: Findings) -> None:
        self.counts += other.counts
        self.remarks += other.remarks
        self.problems += other.problems
        for kind, places in other.places.items():
            mine = self.places.setdefault(kind, [])
            mine += places[: SHOWN - len(mine)]


# The log's side


def records_are_queued(layout: files.Layout, records: derive.RecordColumns, findings: Findings) -> dict[tuple[str, int], int]:
    """How many records of each queue have the entry they should have."""
    tags = derive.queue_tags(records, layout.delays_ms)
    return {
        queue: _have_their_entries(layout, queue, records, numbers, tags[numbers], findings) for queue, numbers in by_queue(records).items()
    }


def _have_their_entries(
    layout: files.Layout,
    queue: tuple[str, int],
    records: derive.RecordColumns,
    numbers: derive.Longs,
    tags: derive.Longs,
    findings: Findings,
) -> int:
    topic, queue_id = queue
    found = files.QueueFiles(f"{layout.root}/consumequeue", topic, queue_id, layout.queue_file)
    offsets, positions = records.queue_offsets[numbers], records.offsets[numbers]
    entries = found.at(offsets)
    there, size = entries["offset"], entries["size"]
    same = (there == positions) & (size == records.sizes[numbers]) & (entries["tag"] == tags)
    if same.all():
        return len(numbers)
    empty, beyond = (size == 0) | (size == BLANK_LENGTH), offsets >= found.next
    deleted = ~same & ((positions < layout.deleted.get(topic, 0)) | (empty & (not found.bases and layout.is_deleted(topic))))
    newer = np.where(empty, beyond & (positions < found.last_position), there > positions)
    replaced = ~same & ~deleted & newer  # if the newer one is no record, the count of this queue shows it
    waiting = ~same & ~deleted & ~replaced & empty & beyond & (not layout.finished)
    findings.remarks["deleted topic"] += int(np.count_nonzero(deleted))
    findings.remarks["replaced"] += int(np.count_nonzero(replaced))
    findings.remarks["not derived yet"] += int(np.count_nonzero(waiting))

    def place(number: int) -> str:
        return f"{topic}/{queue_id} offset {offsets[number]}, record at {positions[number]}"

    findings.each("queue entry missing", ~same & ~deleted & ~replaced & ~waiting & empty, place)
    findings.each(
        "queue entry wrong",
        ~same & ~deleted & ~replaced & ~empty,
        lambda number: f"{place(number)}: the entry says {there[number]}, {size[number]} bytes, tag {entries['tag'][number]}",
    )
    return int(np.count_nonzero(same))


def by_queue(records: derive.RecordColumns) -> dict[tuple[str, int], derive.Longs]:
    """The numbers of the queued records of each queue, in the order of the log."""
    numbers = np.flatnonzero(records.queued)
    keys = records.topic_of[numbers].astype(np.int64) << 32 | records.queue_ids[numbers]
    order = keys.argsort(kind="stable")
    ranked = keys[order]
    cuts = np.flatnonzero(np.diff(ranked)) + 1
    groups = np.split(numbers[order], cuts) if len(order) else []
    return {(records.topics[records.topic_of[group[0]]], int(records.queue_ids[group[0]])): group for group in groups}


def records_are_indexed(layout: files.Layout, scan: files.Scan, start: int, stop: int, findings: Findings) -> None:
    """The keys of the records in [start, stop) against the entries that lead there."""
    records = scan.records
    owners, hashes = derive.key_entries(records)
    offsets = records.offsets[owners]
    findings.counts["keys"] += len(owners)
    tables = files.index_tables(layout)
    spans = [(table, *table.between(start, stop)) for table in tables]
    entries = np.concatenate([table.entries[low:high] for table, low, high in spans] or [np.zeros(0, dtype=INDEX_ENTRIES)])
    begins = np.concatenate([np.full(high - low, table.begin_ms) for table, low, high in spans] or [np.zeros(0, dtype=np.int64)])
    findings.counts["index entries"] += len(entries)
    if scan.bad:  # reported already; their entries are not to blame
        kept = ~np.isin(entries["offset"], [at for at, _ in scan.bad])
        entries, begins = entries[kept], begins[kept]
    if len(entries) == len(owners) and (entries["hash"] == hashes).all() and (entries["offset"] == offsets).all():
        seconds = ((records.store_ms[owners] - begins) // 1000).clip(0, 0x7FFFFFFF)
        findings.each(
            "index entry surplus",
            entries["seconds"] != seconds,
            lambda number: f"entry of the record at {offsets[number]}: its time is not the record's",
        )
        return
    wanted = _pairs(hashes, offsets)
    there = _pairs(entries["hash"], entries["offset"])
    last = max((table.end_offset for table in tables), default=-1)
    lacking, known = ~np.isin(wanted, there), np.isin(there, wanted)
    waiting = lacking & (offsets > last) & (not layout.finished)
    findings.remarks["not derived yet"] += int(np.count_nonzero(waiting))
    findings.remarks["repeated key"] += max(0, int(np.count_nonzero(known)) - int(np.count_nonzero(~lacking)))
    findings.each(
        "index entry missing", lacking & ~waiting, lambda number: f"a key (hash {hashes[number]}) of the record at {offsets[number]}"
    )
    findings.each("index entry surplus", ~known, lambda number: "hash {} to log offset {}".format(*there[number]))


PAIR = np.dtype([("hash", "i4"), ("offset", "i8")])


def _pairs(hashes: derive.Ints, offsets: derive.Longs) -> npt.NDArray[Any]:
    pairs = np.empty(len(hashes), dtype=PAIR)
    pairs["hash"], pairs["offset"] = hashes, offsets
    return pairs


# The other side


def queue_is_whole(layout: files.Layout, topic: str, queue_id: int, matched: int, log_end: int) -> Findings:
    """All entries of one queue. `matched`: how many of them the log confirmed."""
    findings = Findings()
    name = f"{topic}/{queue_id}"
    found = files.QueueFiles(f"{layout.root}/consumequeue", topic, queue_id, layout.queue_file)
    for odd in found.odd:
        size = os.path.getsize(f"{found.path}/{odd}")
        if size or layout.finished:
            findings.problem("queue file wrong", f"{name} file {odd} has {size} bytes, not {layout.queue_file}")
    findings.counts["queues"] += 1
    for number, base in enumerate(found.bases):
        if number and base != found.bases[number - 1] + found.count:
            findings.problem("queue file wrong", f"{name}: the file before offset {base} is missing")
    in_log = sum(_entries_in_log(layout, found, base, log_end, findings) for base in found.bases)
    if in_log != matched:
        _look_at_each(layout, found, topic, queue_id, log_end, findings)
    return findings


def _entries_in_log(layout: files.Layout, found: files.QueueFiles, base: int, log_end: int, findings: Findings) -> int:
    """How many entries of this file should lead to a record."""
    name = "/".join(found.path.split("/")[-2:])
    entries = found.entries(base)[: max(0, found.next - base)]
    positions, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    filled = (sizes != 0) & (sizes != BLANK_LENGTH)
    hole = ~filled
    if base == found.first:  # blanks stand before the first entry of a queue that starts in the middle of its file
        first = int(np.argmax(filled)) if filled.any() else len(filled)
        hole[:first] = sizes[:first] == 0
    old, ahead = filled & (positions < layout.start), filled & (positions >= log_end)
    findings.counts["queue entries"] += int(np.count_nonzero(filled))
    findings.remarks["below the log"] += int(np.count_nonzero(old))
    findings.each("queue hole", hole, lambda at: f"{name} offset {base + at}")
    if layout.finished:
        findings.each("queue entry surplus", ahead, lambda at: f"{name} offset {base + at} leads behind the log's end {log_end}")
    else:
        findings.remarks["ahead of the log"] += int(np.count_nonzero(ahead))
    return int(np.count_nonzero(filled & ~old & ~ahead))


def _look_at_each(layout: files.Layout, found: files.QueueFiles, topic: str, queue_id: int, log_end: int, findings: Findings) -> None:
    """Some entry leads nowhere: which?"""
    for base in found.bases:
        entries = found.entries(base)[: max(0, found.next - base)]
        for at, (position, size, _) in enumerate(entries.tolist()):
            if size in (0, BLANK_LENGTH) or not layout.start <= position < log_end:
                continue
            why = _leads_astray(layout, position, size, topic, queue_id, base + at)
            if why:
                findings.problem("queue entry surplus", f"{topic}/{queue_id} offset {base + at} leads to {position}: {why}")


def _leads_astray(layout: files.Layout, position: int, size: int, topic: str, queue_id: int, offset: int) -> str:
    base = position - position % layout.segment
    if base not in layout.bases or size < 0 or position + size > base + layout.segment:
        return "no log file holds that"
    with open(f"{layout.log}/{file_name(base)}", "rb") as file:
        file.seek(position - base)
        found = parse(file.read(size), position, check_crc=False)
    if found is None:
        return f"no record of {size} bytes is there"
    if (found.topic, found.queue_id, found.queue_offset) != (topic, queue_id, offset):
        return f"the record there is {found.topic}/{found.queue_id} offset {found.queue_offset}"
    return ""


def index_file_is_whole(layout: files.Layout, name: str) -> Findings:
    """Header, slots and chains of one index file, made again from its entries."""
    findings = Findings()
    findings.counts["index files"] += 1
    table = next((one for one in files.index_tables(layout) if one.name == name), None)
    if table is None:
        size = os.path.getsize(f"{layout.root}/index/{name}")
        if size or layout.finished:
            shape = f"{layout.slots} slots and {layout.entries} entries"
            findings.problem("index file wrong", f"{name} has {size} bytes, which {shape} do not make")
        return findings
    slots = np.zeros(layout.slots, dtype=np.int32)
    last = 0
    for low in range(1, table.number, index.CHUNK):
        entries = table.entries[low : min(low + index.CHUNK, table.number)]
        offsets = entries["offset"].astype(np.int64)
        falling = np.flatnonzero(np.diff(offsets, prepend=last) < 0)
        if len(falling):
            findings.problem("index chain wrong", f"{name} entry {low + falling[0]}: its log offset falls", len(falling))
        last = int(offsets[-1])
        before, changed, newest, _ = chain(slots, entries["hash"].astype(np.int32) % np.int32(layout.slots), low)
        wrong = np.flatnonzero(before != entries["before"])
        if len(wrong):
            findings.problem("index chain wrong", f"{name} entry {low + wrong[0]}: follows the wrong entry", len(wrong))
        slots[changed] = newest
    stored = table.slots.astype(np.int32)
    if not layout.finished:  # a write that was not counted yet
        stored = np.where(stored >= table.number, slots, stored)
    findings.each(
        "index chain wrong", stored != slots, lambda at: f"{name} slot {at}: leads to entry {stored[at]}, should lead to {slots[at]}"
    )
    if table.number > 1:
        stop = layout.bases[-1] + layout.segment if layout.bases else 0
        behind = table.entries["offset"][1 : table.number] >= stop
        if layout.finished:
            where = f"behind the log's files, which end at {stop}"
            findings.each("index entry surplus", behind, lambda number: f"{name} entry {number + 1} leads {where}")
        else:
            findings.remarks["ahead of the log"] += int(np.count_nonzero(behind))
        ends = int(table.entries["offset"][1]), last
        if (table.begin_offset, table.end_offset) != ends:
            claimed = f"{table.begin_offset} to {table.end_offset}"
            findings.problem("index file wrong", f"{name}: its header says log offsets {claimed}, its entries {ends[0]} to {ends[1]}")
        used = int(np.count_nonzero(slots))
        if table.slots_used not in (used, table.number - 1):  # the oldest versions counted every entry
            findings.problem("index file wrong", f"{name}: its header counts {table.slots_used} slots, {used} are used")
    return findings


def total(all_of_them: Sequence[Findings]) -> Findings:
    found = Findings()
    for one in all_of_them:
        found.add(one)
    return found
