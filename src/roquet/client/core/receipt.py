"""What a producer gets for a message that a broker stored."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

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
