"""The smallest-offset rule and the limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roquet.client.core.process_queue import NOTHING, ProcessQueue
from roquet.message import MessageQueue, ReceivedMessage
from roquet.wire.record import Record

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int, size: int = 1) -> ReceivedMessage:
    return ReceivedMessage(Record("t", 0, b"x" * size, queue_offset=offset), "b")


def test_progress_is_the_smallest_offset_still_held_and_then_one_past_the_largest() -> None:
    held = ProcessQueue(QUEUE, 5, 0)
    five, six, seven, eight = messages = [message(offset) for offset in (5, 6, 7, 8)]
    assert held.progress == NOTHING
    held.put(messages)
    for done, progress in (([six, eight], 5), ([five], 7), ([seven], 9), ([seven], 9)):
        held.remove(done)
        assert held.progress == progress


def test_a_repetition_is_not_held_twice() -> None:
    held = ProcessQueue(QUEUE, 0, 0)
    first = [message(0), message(1)]
    assert held.put(first) == first
    again = [message(1), message(2)]
    assert held.put(again) == again[1:]
    assert (len(held.messages), held.size) == (3, 3)


def test_each_limit_alone_makes_it_full() -> None:
    held = ProcessQueue(QUEUE, 0, 0)
    held.put([message(offset) for offset in range(3)])
    assert held.limit(count_max=3, size_max=3, span_max=2) is None
    assert held.limit(count_max=2) == "messages"
    assert held.limit(size_max=2) == "bytes"
    assert held.limit(span_max=1) == "span"
    held.remove(list(held.messages.values()))
    assert (held.size, held.span) == (0, 0)
    assert held.limit(count_max=0, size_max=0, span_max=0) is None


@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=30))
def test_whatever_finishes_first_progress_never_passes_what_is_unfinished_and_never_falls(data: st.DataObject, gaps: list[int]) -> None:
    offsets: list[int] = []
    for gap in gaps:  # a filter leaves gaps
        offsets.append((offsets[-1] if offsets else 0) + gap)
    held = ProcessQueue(QUEUE, 0, 0)
    messages = [message(offset) for offset in offsets]
    held.put(messages)
    left = set(offsets)
    last = held.progress
    for done in data.draw(st.permutations(messages)):
        held.remove([done])
        progress = held.progress
        left.discard(done.queue_offset)
        assert progress == (min(left) if left else offsets[-1] + 1)
        assert progress >= last
        last = progress
