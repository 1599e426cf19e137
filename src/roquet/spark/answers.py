"""What brokers answered to pulls, as chunks: where each record stands, whether one is missing, and which are wanted.

Nothing here is done per record but the walk over small answers, which say no sizes: their brokers send them one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from roquet.client.core.failures import BadAnswer
from roquet.message import MessageQueue
from roquet.spark.places import Chunk, DataGone, Positions, Sizes
from roquet.spark.tags import TagCheck
from roquet.wire.command import Command
from roquet.wire.record import SMALLEST

CHUNK_BYTES = 768 * 1024
"""Small answers are gathered to chunks of about so many bytes."""
QUEUE_OFFSET_AT = 20

Placed = tuple[memoryview, Positions, Sizes]


def together(parts: Sequence[Placed]) -> Placed:
    """Several answers as one."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0] + [len(data) for data, _, _ in parts[:-1]], dtype=np.int64)
    return (
        memoryview(b"".join([data for data, _, _ in parts])),
        np.concatenate([positions + start for (_, positions, _), start in zip(parts, starts, strict=True)]),
        np.concatenate([sizes for _, _, sizes in parts]),
    )


def place_records(answer: Command) -> Placed:
    """The records of a pull's answer, and where they stand. Raises BadAnswer."""
    body, count_text = answer.body, answer.fields.get("scanCount")
    if count_text is None:
        positions = walk(body)
        return memoryview(body), positions, np.diff(positions, append=len(body)).astype(np.int32)
    # A large answer: after the records stand their sizes, so that nobody has to walk.
    count = int(count_text) if count_text.isdigit() else 0
    size = len(body) - 4 * count
    if count < 1 or size < count * SMALLEST:
        raise BadAnswer(f"a broker answered {len(body)} bytes for {count_text!r} messages; look at its version")
    sizes = np.frombuffer(body, ">i4", count, size).astype(np.int32)
    ends = np.cumsum(sizes, dtype=np.int64)
    if int(sizes.min()) < SMALLEST or int(ends[-1]) != size:
        raise BadAnswer(f"a broker answered {size} bytes of messages, and sizes that make {int(ends[-1])}; look at its version")
    return memoryview(body)[:size], ends - sizes, sizes


def walk(body: bytes) -> Positions:
    """Where each record begins: with its size. Raises BadAnswer."""
    starts: list[int] = []
    at, end, number = 0, len(body), int.from_bytes
    while at < end:
        starts.append(at)
        size = number(body[at : at + 4], "big")
        at += size
        if size < SMALLEST:
            break
    if not starts or at != end:
        raise BadAnswer(f"a broker answered a pull with {end} bytes that are no records from byte {starts[-1] if starts else 0} on")
    return np.array(starts, np.int64)


@dataclass(slots=True)
class Gathered:
    """Answers put together to one chunk."""

    queue: MessageQueue
    start: int
    """Everything before it was taken."""
    stop: int
    filtered: bool
    check: TagCheck | None
    answers: list[Command] = field(default_factory=list)
    size: int = 0

    def add(self, answer: Command) -> None:
        self.answers.append(answer)
        self.size += len(answer.body)

    @property
    def is_large(self) -> bool:
        return self.size >= CHUNK_BYTES

    def take(self) -> Iterator[Chunk]:
        """One chunk, or none. Leaves out what was not asked for: other offsets, and strangers whose tag has the same hash.

        Raises DataGone where an answer without a filter leaves a message out, after what stands before that.
        """
        if not self.answers:
            return
        answers, self.answers, self.size = self.answers, [], 0
        data, positions, sizes = together([place_records(answer) for answer in answers])
        everywhere = np.ndarray((len(data) - QUEUE_OFFSET_AT - 7,), ">i8", data, QUEUE_OFFSET_AT, (1,))
        offsets = everywhere[positions].astype(np.int64)
        keep = (offsets >= self.start) & (offsets < self.stop)
        missing = None
        if not self.filtered:
            wrong = np.flatnonzero(offsets != np.arange(self.start, self.start + len(offsets)))
            if len(wrong):
                at = int(wrong[0])
                missing = DataGone(self.queue, self.start + at, max(self.start + at + 1, int(offsets[at])))
                keep[at:] = False
        if self.check is not None:
            keep &= self.check.takes(data, positions, sizes)
        if not keep.all():
            positions, sizes = positions[keep], sizes[keep]
        self.start = int(offsets[-1]) + 1
        if len(positions):
            yield Chunk(data, positions, sizes)
        if missing is not None:
            raise missing
