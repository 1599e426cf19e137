"""ProcessQueue: what one consumer has pulled from one queue and not finished yet.

Messages finish in any order, but progress is one number. The rule that loses nothing: progress is the smallest offset
still being consumed, and one past the largest ever held when nothing is.

    held 5 6 7 8     6 and 8 finish     progress 5      a crash now repeats 6 and 8, and skips nothing
    held 5 7         5 finishes         progress 7
    held 7           7 finishes         progress 9
"""

from __future__ import annotations

from collections.abc import Iterable

from roquet.client.core.held_back import Limit
from roquet.client.core.stats import TopicConsumes
from roquet.client.core.tasks import Wait
from roquet.message import MessageQueue, ReceivedMessage

COUNT_MAX = 1_000
SIZE_MAX = 100 * 1024 * 1024
SPAN_MAX = 2_000
NOTHING = -1


class ProcessQueue:
    """Invariant: offsets in `messages` rise in insertion order, so the first key is the smallest."""

    __slots__ = (
        "_room", "_room_at", "counted", "dropped", "held_by", "held_since_ms", "largest", "last_consume_ms", "last_pull_ms", "leaving",
        "messages", "next_offset", "queue", "size", "topic",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, next_offset: int, now_ms: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.messages: dict[int, ReceivedMessage] = {}
        self.size = 0  # bytes of bodies as stored
        self.largest = NOTHING  # offset ever held
        self.dropped = False
        """True: no longer ours. Nothing more is pulled, and results of what still runs are ignored."""
        self.leaving = False
        """True: to be dropped when the call that runs has ended. Nothing more is pulled, and no other call begins."""
        self.held_by: Limit | None = None
        """The limit for which nothing is pulled now, since that time."""
        self.held_since_ms = 0
        self._room: Wait[None] = Wait()
        self._room_at = NOTHING
        """With so few messages held, those who wait for room go on; NOTHING: nobody waits."""
        self.counted: TopicConsumes | None = None
        """Where its messages are counted; None: they are of several topics."""
        self.topic: str | None = None
        """Their topic, in the user's words; None: they are of several."""
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms

    def put(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hold these. What does not follow the largest offset held so far is a repetition and is left out of the result."""
        new: list[ReceivedMessage] = []
        for message in messages:
            offset = message.queue_offset
            if offset > self.largest:
                self.messages[offset] = message
                self.size += message.stored_size
                self.largest = offset
                new.append(message)
        return new

    def remove(self, messages: Iterable[ReceivedMessage]) -> None:
        """These are finished."""
        for message in messages:
            gone = self.messages.pop(message.queue_offset, None)
            if gone is not None:
                self.size -= gone.stored_size

    def tell_room(self) -> None:
        """If there is room now, who waits for it goes on. It may do anything here, so whoever removed messages says this last."""
        if len(self.messages) <= self._room_at:
            self._room_at = NOTHING
            self._room.end(None)

    def room(self) -> Wait[None]:
        """Ends when an eighth of what is held now is left: then there is room for many pulls. (With half of it left a message cost a tenth
        more.)"""
        self._room, self._room_at = Wait(), len(self.messages) // 8
        return self._room

    @property
    def progress(self) -> int:
        """What to commit, or NOTHING (-1) when nothing was ever held."""
        for offset in self.messages:
            return offset
        return self.largest + 1 if self.largest != NOTHING else NOTHING

    @property
    def span(self) -> int:
        """From the smallest to the largest offset held: how far one stuck message holds progress back."""
        for offset in self.messages:
            return self.largest - offset
        return 0

    def limit(self, count_max: int = COUNT_MAX, size_max: int = SIZE_MAX, span_max: int = SPAN_MAX) -> Limit | None:
        """The limit for which pulling must pause until some of this is consumed."""
        if len(self.messages) > count_max:
            return "messages"
        if self.size > size_max:
            return "bytes"
        return "span" if self.span > span_max else None

    def __repr__(self) -> str:
        state = " dropped" if self.dropped else ""
        return f"<ProcessQueue {self.queue} next {self.next_offset}, {len(self.messages)} held, progress {self.progress}{state}>"
