"""What brokers answered to pulls, as chunks: where each record stands, whether one is missing, and which are wanted.

Nothing here is done per record but the walk over small answers, which say no sizes: their brokers send them one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from roquet.client.core.failures import BadAnswer
from roquet.message import MessageQueue
from roquet.net.blocking import Room
from roquet.spark.places import Chunk, DataGone, Positions, Sizes
from roquet.spark.tags import TagCheck
from roquet.wire.command import Command
from roquet.wire.layout import RECORD_MIN

CHUNK_ROWS = 8_192
ANSWER_BYTES = 4 * 1024 * 1024
"""Of records in one answer, as brokers give it unless told otherwise."""
CHUNK_BYTES = ANSWER_BYTES - 512 * 1024
"""Answers are gathered to chunks of at least so many records or about so many bytes: what is done once for every chunk costs as much as
decoding some hundred records. One full answer is enough: more would only leave the processor's cache before it is decoded."""
ROOM_BYTES = CHUNK_BYTES + ANSWER_BYTES + 64 * 1024
"""Of one chunk: when there are not enough bytes yet, there is room for one more answer."""
QUEUE_OFFSET_AT = 20


def place_records(body: memoryview, count_text: str | None) -> tuple[Positions, Sizes]:
    """Where the records of a pull's answer stand; `count_text`: its scanCount. Raises BadAnswer."""
    if count_text is None:
        positions = walk(body)
        return positions, np.diff(positions, append=len(body)).astype(np.int32)
    # A large answer: after the records stand their sizes, so that nobody has to walk.
    count = int(count_text) if count_text.isdigit() else 0
    size = len(body) - 4 * count
    if count < 1 or size < count * RECORD_MIN:
        raise BadAnswer(f"a broker answered {len(body)} bytes for {count_text!r} messages; look at its version")
    sizes = np.frombuffer(body, ">i4", count, size).astype(np.int32)
    ends = np.cumsum(sizes, dtype=np.int64)
    if int(sizes.min()) < RECORD_MIN or int(ends[-1]) != size:
        raise BadAnswer(f"a broker answered {size} bytes of messages, and sizes that make {int(ends[-1])}; look at its version")
    return ends - sizes, sizes


def walk(body: memoryview) -> Positions:
    """Where each record begins: with its size. Raises BadAnswer."""
    starts: list[int] = []
    at, end, number = 0, len(body), int.from_bytes
    while at < end:
        starts.append(at)
        size = number(body[at : at + 4], "big")
        at += size
        if size < RECORD_MIN:
            break
    if not starts or at != end:
        raise BadAnswer(f"a broker answered a pull with {end} bytes that are no records from byte {starts[-1] if starts else 0} on")
    return np.array(starts, np.int64)


def new_room() -> Room:
    return Room(np.empty(ROOM_BYTES, np.uint8).data)


@dataclass(slots=True)
class Gathered:
    """Answers put together to one chunk. They are received one behind the other; only one that does not fit there costs a copy."""

    queue: MessageQueue
    start: int
    """Everything before it was taken."""
    stop: int
    filtered: bool
    check: TagCheck | None
    room: Room = field(default_factory=new_room)
    positions: list[Positions] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    """Of the answers in the room."""

    def next_room(self) -> Room:
        """Where the next answer may go: behind the last one that was added."""
        self.room.used = self.size
        return self.room

    def add(self, answer: Command) -> None:
        """Its body is in the room already, or goes there. Raises BadAnswer."""
        body = answer.body
        if len(body) <= self.room.left:
            self.room.put(body)
        else:
            whole = b"".join((self.room.data[: self.size], body)) if self.size else body
            self.room = Room(memoryview(whole), len(whole))
        positions, sizes = place_records(self.room.data[self.size : self.room.used], answer.fields.get("scanCount"))
        self.positions.append(positions + self.size)
        self.sizes.append(sizes)
        self.rows += len(sizes)
        self.size = self.room.used

    @property
    def is_large(self) -> bool:
        return self.rows >= CHUNK_ROWS or self.size >= CHUNK_BYTES

    def take(self) -> Iterator[Chunk]:
        """One chunk, or none. Leaves out what was not asked for: other offsets, and strangers whose tag has the same hash.

        Raises DataGone where an answer without a filter leaves a message out, after what stands before that.
        """
        if not self.rows:
            return
        data, positions, sizes = self.room.data[: self.size], np.concatenate(self.positions), np.concatenate(self.sizes)
        self.room, self.positions, self.sizes, self.rows, self.size = new_room(), [], [], 0, 0
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
