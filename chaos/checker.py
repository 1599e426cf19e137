"""Judges a history by what a mode of replication promises. Pure: it knows nothing of brokers but what their clients were told.

    lost          what was acknowledged as safe is not in a reading that must hold all
    two           one place of a queue was two different messages, at any times, to anybody
    gap           a queue has an offset without a message
    order         a send that began after another's acknowledgement has an earlier place in the same queue
    taken back    a message that somebody was shown is not there in the end
    stranger      a message that nobody sent, or not as it was sent
    early         a delayed message was shown before its time
    rolled back   a message of a transaction that was rolled back was shown
    twice         a message of a transaction is there more than once
    trouble       something did not work though nothing was wrong any more
    skipped       a consumer group never got a message that is there

Duplicates of ordinary messages are counted: a producer that repeats a send without an answer makes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.history import COMMITTED, PLAIN, ROLLED_BACK, History, Place, Read, Reading

SHOWN = 5
"""Findings of a kind that are shown in words; the others are counted."""
CLOCK_SLACK_S = 0.05
"""Brokers reckon delays with the wall clock, in whole milliseconds."""


class Promise(NamedTuple):
    """What a mode promises."""

    safe: frozenset[str] = frozenset({"SEND_OK"})
    """Answers to a send after which it is never lost."""
    may_lose: bool = False
    """Whether what was acknowledged or shown may be gone after a failure, as with a slave that is not waited for and becomes master."""


class Finding(NamedTuple):
    kind: str
    text: str


@dataclass
class Verdict:
    findings: list[Finding]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return not self.findings

    def sentences(self) -> list[str]:
        by_kind: dict[str, list[str]] = defaultdict(list)
        for finding in self.findings:
            by_kind[finding.kind].append(finding.text)
        lines: list[str] = []
        for kind, texts in by_kind.items():
            lines += (f"{kind}: {text}" for text in texts[:SHOWN])
            if len(texts) > SHOWN:
                lines.append(f"{kind}: and {len(texts) - SHOWN:,} more")
        return lines


def check(history: History, promise: Promise) -> Verdict:
    """Raises ValueError for a history without a reading: it shows nothing."""
    if not history.readings or not any(reading.ranges for reading in history.readings):
        raise ValueError("the history has no reading of the queues in the end, so it says nothing about what was kept")
    last = next(reading for reading in reversed(history.readings) if reading.must_hold_all)
    findings = [
        *(Finding("trouble", text) for text in history.troubles),
        *strangers(history),
        *two_at_one_place(history, promise),
        *gaps(history),
        *out_of_order(history, last),
        *early(history),
        *transactions(history, last),
        *skipped(history, last),
    ]
    if not promise.may_lose:
        findings += lost(history, promise)
        findings += taken_back(history, last)
    return Verdict(findings, counts(history, promise, last))


def counts(history: History, promise: Promise, last: Reading) -> dict[str, int]:
    stored = list(last.found.values())
    held = set(stored)
    weak = (id for id, answer in history.acknowledged.items() if answer.status not in promise.safe)
    return {
        "sends": len(history.sends),
        "acknowledged": len(history.acknowledged),
        "acknowledged as safe": sum(answer.status in promise.safe for answer in history.acknowledged.values()),
        "failed or unknown": len(history.failed),
        "in the queues at the end": len(stored),
        "duplicates": len(stored) - len(held),
        "failed, and stored all the same": len(held & history.failed.keys()),
        "acknowledged as less than safe, and gone": sum(id not in held and history.sends[id].kind != ROLLED_BACK for id in weak),
        "reads": len(history.reads),
    }


def lost(history: History, promise: Promise) -> Iterator[Finding]:
    """Of queues that could be read; the others are trouble."""
    for reading in history.readings:
        if not reading.must_hold_all:
            continue
        held = set(reading.found.values())
        for id, answer in history.acknowledged.items():
            if answer.status not in promise.safe or answer.at >= reading.began or history.sends[id].kind == ROLLED_BACK:
                continue
            if answer.place is None:
                if reading.all_delivered and id not in held and history.sends[id].not_before < reading.began:
                    yield Finding("lost", f"{id} was acknowledged ({answer.status}) and is nowhere in {reading.name}")
            elif answer.place.queue in reading.ranges and reading.found.get(answer.place) != id:
                there = reading.found.get(answer.place, "nothing")
                yield Finding("lost", f"{id} was acknowledged ({answer.status}) at {answer.place}, where {reading.name} holds {there}")


def two_at_one_place(history: History, promise: Promise) -> Iterator[Finding]:
    """A mode that may lose gives a lost place to another message: only what is there now must agree."""
    holders: dict[Place, tuple[str, str]] = {}
    told: set[tuple[Place, str]] = set()

    def look(place: Place, id: str, who: str) -> Iterator[Finding]:
        before, source = holders.setdefault(place, (id, who))
        if before != id and (place, id) not in told:
            told.add((place, id))
            yield Finding("two", f"{place} was {before} ({source}) and is {id} ({who})")

    for reading in history.readings:
        for place, id in reading.found.items():
            yield from look(place, id, reading.name)
    if promise.may_lose:
        return
    for id, answer in history.acknowledged.items():
        if answer.place is not None and answer.status in promise.safe:
            yield from look(answer.place, id, "acknowledged")
    for read in history.reads:
        yield from look(read.place, read.id, f"read by {read.by}")


def gaps(history: History) -> Iterator[Finding]:
    for reading in history.readings:
        for queue, (first, end) in reading.ranges.items():
            missing = [offset for offset in range(first, end) if Place(queue, offset) not in reading.found]
            if missing:
                where = f"{queue} from {first} to {end - 1}"
                yield Finding("gap", f"{reading.name} has no message at {len(missing)} offsets of {where}, the first is {missing[0]}")
            if first:
                yield Finding("gap", f"{reading.name}: {queue} begins at {first}, though nothing was to be removed")


def out_of_order(history: History, last: Reading) -> Iterator[Finding]:
    """Over all producers: what was acknowledged before another send began stands before it."""
    for queue in last.ranges:
        stored = [(history.sends[id].at, place.offset, id) for place, id in last.found.items() if is_plain(history, id, place.queue, queue)]
        answered = sorted(
            (answer.at, answer.place.offset, id)
            for id, answer in history.acknowledged.items()
            if answer.place is not None and answer.place.queue == queue and last.found.get(answer.place) == id
        )
        done, highest, holder = 0, -1, ""
        for began, offset, id in sorted(stored):
            while done < len(answered) and answered[done][0] < began:
                if answered[done][1] > highest:
                    _, highest, holder = answered[done]
                done += 1
            if offset < highest and not is_duplicate(history, id, Place(queue, offset)):
                yield Finding("order", f"{id} began after {holder} was acknowledged at {queue}@{highest}, and stands at {offset}")


def is_plain(history: History, id: str, queue: str, wanted: str) -> bool:
    return queue == wanted and id in history.sends and history.sends[id].kind == PLAIN


def is_duplicate(history: History, id: str, place: Place) -> bool:
    answer = history.acknowledged.get(id)
    return answer is not None and answer.place is not None and answer.place != place


def taken_back(history: History, last: Reading) -> Iterator[Finding]:
    told: set[tuple[Place, str]] = set()
    for read in history.reads:
        if last.found.get(read.place) != read.id and (read.place, read.id) not in told:
            told.add((read.place, read.id))
            there = last.found.get(read.place, "nothing")
            yield Finding("taken back", f"{read.by} was shown {read.id} at {read.place}, which holds {there} in the end")


def strangers(history: History) -> Iterator[Finding]:
    told: set[tuple[Place, str]] = set()
    for read in history.reads:
        sent = history.sends.get(read.id)
        if (sent is None or sent.crc != read.crc) and (read.place, read.id) not in told:
            told.add((read.place, read.id))
            why = "which nobody sent" if sent is None else "whose bytes are not those that were sent"
            yield Finding("stranger", f"{read.by} was shown {read.id} at {read.place}, {why}")


def early(history: History) -> Iterator[Finding]:
    for read in history.reads:
        sent = history.sends.get(read.id)
        if sent is not None and read.at < sent.not_before - CLOCK_SLACK_S:
            yield Finding("early", f"{read.by} was shown {read.id} {sent.not_before - read.at:.3f} s before its time")


def transactions(history: History, last: Reading) -> Iterator[Finding]:
    shown: dict[str, list[Read]] = defaultdict(list)
    for read in history.reads:
        if read.id in history.sends and history.sends[read.id].kind == ROLLED_BACK:
            shown[read.id].append(read)
    for id, reads in shown.items():
        yield Finding("rolled back", f"{id} was rolled back, and {reads[0].by} was shown it at {reads[0].place}")
    places: dict[str, list[Place]] = defaultdict(list)
    for place, id in last.found.items():
        if id in history.sends and history.sends[id].kind == COMMITTED:
            places[id].append(place)
    for id, several in places.items():
        if len(several) > 1:
            yield Finding("twice", f"{id} is a transaction's, and stands at {' and '.join(map(str, several))}")


def skipped(history: History, last: Reading) -> Iterator[Finding]:
    groups: dict[str, set[str]] = defaultdict(set)
    for read in history.reads:
        if read.group:
            groups[read.group].add(read.id)
    for group, ids in groups.items():
        for place, id in last.found.items():
            if id not in ids:
                yield Finding("skipped", f"group {group} never got {id}, which stands at {place}")
