"""What a user gives is checked when it is given."""

from __future__ import annotations

from collections.abc import Callable

from roquet.errors import ClientError, InvalidMessage, Refused


def valid(check: Callable[[str], None], name: str) -> None:
    """The same rules as the broker's, as the client's error."""
    if not isinstance(name, str):
        raise InvalidMessage(f"the name {name!r} is no text")
    try:
        check(name)
    except Refused as refusal:
        raise InvalidMessage(refusal.remark) from None


def check_ranges(settings: object, **ranges: tuple[int, int]) -> None:
    """Raises ClientError for the first that is outside."""
    for name, (low, high) in ranges.items():
        if not low <= getattr(settings, name) <= high:
            raise ClientError(f"{name}={getattr(settings, name)}; allowed are {low} to {high}")
