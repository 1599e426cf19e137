"""What a user gives is checked when it is given."""

from __future__ import annotations

from collections.abc import Callable

from roquet.errors import ClientError, InvalidMessage, Refused
from roquet.message import MessageQueue


def valid(check: Callable[[str], None], name: str) -> None:
    """The same rules as the broker's, as the client's error."""
    if not isinstance(name, str):
        raise InvalidMessage(f"the name {name!r} is no text")
    try:
        check(name)
    except Refused as refusal:
        raise InvalidMessage(refusal.remark) from None


def check_ranges(settings: object, **ranges: tuple[int, int]) -> None:
    """Raises ClientError for the first that is outside, or no whole number."""
    for name, (low, high) in ranges.items():
        given = getattr(settings, name)
        if not isinstance(given, (int, float)):
            raise ClientError(f"{name}={given!r}; expected is a whole number, {low} to {high}")
        if not low <= given <= high:
            raise ClientError(f"{name}={given}; allowed are {low} to {high}")


def check_queue(queue: MessageQueue | None, topic: str) -> None:
    if queue is not None and not isinstance(queue, MessageQueue):
        number = queue if isinstance(queue, int) else 0
        raise InvalidMessage(f'queue is {queue!r}; expected is a MessageQueue, as in MessageQueue("{topic}", "broker-a", {number})')
