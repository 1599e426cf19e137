"""What a producer gets for a message that a broker stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from typing import NamedTuple, cast, overload

from roquet.message import MessageQueue


class SendStatus(IntEnum):
    """The message is stored in all four cases; they differ in what a crash could still take. Numbers are the response codes."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10  # in memory, not surely on disk yet
    SLAVE_NOT_AVAILABLE = 11  # no slave is near enough
    FLUSH_SLAVE_TIMEOUT = 12  # no slave has confirmed it in time

    def __str__(self) -> str:
        return self.name


STATUSES: dict[int, SendStatus] = {int(status): status for status in SendStatus}


class SendReceipt(NamedTuple):
    """What a broker answered for a message that it stored."""

    status: SendStatus
    message_id: str
    """Made by this client (UNIQ_KEY); the one that consumers see."""
    offset_message_id: str
    """Made by the broker: its address and the place in its log. view_message takes it."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = None
    recall_handle: str | None = None
    """Of a timed message that can still be cancelled: producer.cancel(receipt) takes it."""
    trace_on: bool = True
    """Whether its broker wants it traced."""

    @property
    def ok(self) -> bool:
        """Whether it is stored as safely as it was asked for."""
        return self.status is SendStatus.SEND_OK


def per_message(receipt: SendReceipt, message_ids: Sequence[str]) -> list[SendReceipt]:
    """A batch's receipt as one for each message: their queue offsets follow each other."""
    count = len(message_ids)
    if count == 1:
        return [receipt]
    status, _, offset_id, queue, first, transaction_id, region, recall_handle, trace_on = receipt
    columns = zip(
        repeat(status, count), message_ids, offset_ids(offset_id, count), repeat(queue, count), range(first, first + count),
        repeat(transaction_id, count), repeat(region, count), repeat(recall_handle, count), repeat(trace_on, count), strict=True,
    )  # fmt: skip
    return list(map(_make, repeat(SendReceipt), columns))


_make = cast(Callable[[type[SendReceipt], Iterable[object]], SendReceipt], tuple.__new__)
"""SendReceipt._make without its call of Python code: there is one for each message."""


def offset_ids(joined: str, count: int) -> list[str]:
    """The broker's ids of a batch's messages."""
    ids = joined.split(",")
    return ids if len(ids) == count else [joined] * count  # 5.x brokers may store a batch as one record


class Receipts(Sequence[SendReceipt]):
    """Those of a batch, one for each message and in their order. They are made when somebody looks at one."""

    __slots__ = ("_message_ids", "_receipt", "_receipts")

    def __init__(self, receipt: SendReceipt, message_ids: Sequence[str]) -> None:
        """`receipt`: the broker's, for all of them."""
        self._receipt = receipt
        self._message_ids = message_ids
        self._receipts: list[SendReceipt] | None = None

    def _made(self) -> list[SendReceipt]:
        if self._receipts is None:
            self._receipts = per_message(self._receipt, self._message_ids)
        return self._receipts

    def __len__(self) -> int:
        return len(self._message_ids)

    @overload
    def __getitem__(self, place: int) -> SendReceipt: ...

    @overload
    def __getitem__(self, place: slice) -> list[SendReceipt]: ...

    def __getitem__(self, place: int | slice) -> SendReceipt | list[SendReceipt]:
        return self._made()[place]

    def __iter__(self) -> Iterator[SendReceipt]:
        return iter(self._made())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made() == list(other)

    __hash__ = None  # type: ignore[assignment] # as a list has none

    def __repr__(self) -> str:
        return repr(self._made())
