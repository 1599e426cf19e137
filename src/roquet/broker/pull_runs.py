"""Usual pulls that come in a row: known ones without a filter, whose entries were read ahead and whose messages are in memory."""

from __future__ import annotations

from roquet.broker.entries_ahead import Place, Ready
from roquet.broker.gather import ENTRIES_MAX, View, pull_answer
from roquet.broker.pull_requests import Grant
from roquet.speedups import native
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.wire.frame import Frame
from roquet.wire.pull_shapes import pull_shape

Terms = tuple[int, int, int, int, int, int]
"""What holds for all pulls of a read: (where the log begins, where it ends, from where on it counts as being in memory, messages and bytes
of an answer from memory, bytes of the largest record that an entry may speak of)."""

Answers = tuple[list[bytes], list[tuple[Place, int]], Grant | None, int, int, int]
"""(the frames, what the pulls say of the group's progress, who allowed them, how many messages are in the answers, bytes of their records,
bytes that were seen in stretches of the log)."""


def answer_pulls(
    frames: list[Frame], at: int, ready: dict[bytes, Ready], queues: dict[Place, ConsumeQueue], terms: Terms,
    stretches: dict[int, memoryview], stretch: int, view: View, span_max: int, bytes_max: int,
) -> Answers:  # fmt: skip
    """The answers to the pulls from `at` on, up to the first whose shape is not `ready`, or which another allows than the one before it, or
    which has anything else about it that must be looked at; and up to the first with which they are `bytes_max` bytes of records or more.

    The log is seen in `stretches` of so many bytes, by their numbers, else by `view`, as in `gather`. Nothing has happened: whether the
    grant still holds is for the caller to ask."""
    answers: list[bytes] = []
    told: list[tuple[Place, int]] = []
    grant: Grant | None = None
    start, end, near, count_most, size_most, record_max = terms
    count = size = viewed = looked = 0

    def seen(place: int, length: int) -> memoryview:
        nonlocal looked
        kept, begin = stretches.get(place // stretch), place % stretch
        if kept is None or begin + length > len(kept):
            return view(place, length)
        looked += length
        return kept[begin : begin + length]

    while 0 <= at < len(frames) and size < bytes_max:
        form, header, _ = frames[at]
        shaped = pull_shape(form, header)
        found = None if shaped is None else ready.get(shaped[0])
        if shaped is None or found is None:
            break
        _, opaque, offset, told_offset = shaped
        allows, place, queue, number, raw, count_max, size_max, tells, binary = found
        grant = grant or allows
        if allows is None or allows is not grant or queues.get(place) is not queue:
            break
        first, last = queue.first, queue.visible
        most = min(count_max, count_most), min(size_max, size_most)
        skipped, wanted = offset - number, min(most[0], last - offset)
        if offset < first or skipped < 0 or not 0 < wanted <= min(ENTRIES_MAX, len(raw) // ENTRY_SIZE - skipped):
            break
        raw = raw[skipped * ENTRY_SIZE : (skipped + wanted) * ENTRY_SIZE]
        if near > start and int.from_bytes(raw[:8], "big", signed=True) < near:
            break
        looked = 0
        try:
            answer = pull_answer(raw, None, offset, *most, start, end, record_max, seen, span_max, binary, opaque, first, last)
        except Exception:  # whoever looks properly meets it again
            break
        if answer is None:
            break
        answers.append(answer[0])
        if tells and told_offset <= last:
            told.append((place, told_offset))
        count, size, viewed, at = count + answer[1], size + answer[3], viewed + looked, at + 1
    return answers, told, grant, count, size, viewed


answer_run = answer_pulls if native is None else native.answer_pulls
