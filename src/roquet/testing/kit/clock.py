"""The clock of a test. `Clock` is what the test turns, `Time` what the cores see of it.

Both clocks of the cores (ports.Clock) go on together, from one thing that is due to the next. A long span in which nothing is to happen
is skipped: then only the wall clock knows of it, so no lease runs out, and nobody has to renew one every thirty seconds of forty days.
"""

from __future__ import annotations

import time as machine
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from roquet.errors import ClientError

if TYPE_CHECKING:
    from roquet.testing.kit.driver import Driver

T = TypeVar("T")

DAY_MS = 86_400_000
STEADY_FROM_MS = 1_000_000_000


class Time:
    """ports.Clock. State: how much has passed, step by step and skipped, and by how much the wall clock was set."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.lived_ms = 0
        self.skipped_ms = 0
        self.set_ms = 0
        self._left_at: float | None = None

    def now_ms(self) -> int:
        return self.start_ms + self.lived_ms + self.skipped_ms + self.set_ms + self._alone_ms()

    def steady_ms(self) -> int:
        return STEADY_FROM_MS + self.lived_ms + self._alone_ms()

    @property
    def passed_ms(self) -> int:
        return self.lived_ms + self.skipped_ms

    def leave_alone(self) -> None:
        """Nobody turns it any more: it goes with the machine's, so that a client that is closed late does not wait for ever."""
        if self._left_at is None:
            self._left_at = machine.monotonic()

    def _alone_ms(self) -> int:
        return 0 if self._left_at is None else int((machine.monotonic() - self._left_at) * 1000)


class Clock:
    """The clock of a test's broker and of all its clients. It stands still until the test turns it.

    In an event loop await what `advance`, `until` and `set_wall` return. Without one, in a test of blocking code, they are done when they
    return.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._time = driver.time

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970, as messages carry it."""
        return self._time.now_ms()

    def time(self) -> float:
        """The wall clock in seconds since 1970: to be given to code that takes a `time.time`."""
        return self._time.now_ms() / 1000

    def monotonic(self) -> float:
        """Seconds that have passed since the broker's first start: to be given to code that takes a `time.monotonic`."""
        return self._time.passed_ms / 1000

    def advance(
        self,
        span: timedelta | float = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> Awaitable[None]:
        """Let so much time pass: a timedelta or seconds, or by name. Everything that is due meanwhile happens, each thing at its time;
        handlers that it calls are waited for. Without a span: everything that can happen now."""
        ms = span_ms(span, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        return self._driver.perform(self._driver.advance(ms))

    @overload
    def until(
        self, what: Awaitable[T], *, days: float = ..., hours: float = ..., minutes: float = ..., seconds: float = ...
    ) -> Awaitable[T]: ...
    @overload
    def until(
        self, what: Callable[[], object], *, days: float = ..., hours: float = ..., minutes: float = ..., seconds: float = ...
    ) -> Awaitable[None]: ...
    def until(
        self,
        what: Awaitable[Any] | Callable[[], object],
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> Awaitable[Any]:
        """Let time pass, from one thing that is due to the next, until this is done, and no further. An awaitable: returns what it gives,
        raises what it raises. A function: until it returns something true. Raises TimeoutError when that is not so after the given time,
        by default a day."""
        limit_ms = span_ms(0, days=days, hours=hours, minutes=minutes, seconds=seconds) or DAY_MS
        driver = self._driver
        if isinstance(what, Awaitable):
            return driver.perform(driver.until(what, limit_ms))
        return driver.here(driver.until_true(what, limit_ms))

    def set_wall(self, when: datetime | timedelta | int) -> Awaitable[None]:
        """Set the wall clock alone, as an operator or NTP does: to a time (a datetime with its zone, or ms since 1970), or by a timedelta,
        forward or back. No time passes; what is due by the new time is delivered."""
        if isinstance(when, timedelta):
            step_ms = round(when / timedelta(milliseconds=1))
        elif isinstance(when, datetime):
            step_ms = wall_ms(when) - self._time.now_ms()
        else:
            step_ms = when - self._time.now_ms()
        return self._driver.perform(self._driver.set_wall(step_ms))

    def __repr__(self) -> str:
        return f"<Clock {self.now().isoformat(' ', 'milliseconds')}, {timedelta(milliseconds=self._time.passed_ms)} passed>"


def wall_ms(when: datetime) -> int:
    """Milliseconds since 1970. Raises ClientError for a datetime without a zone."""
    if when.tzinfo is None:
        raise ClientError(f"{when!r} has no time zone, so nobody knows which moment it is; give one: datetime(..., tzinfo=UTC)")
    return round(when.timestamp() * 1000)


def span_ms(span: timedelta | float, **named: float) -> int:
    passed = span if isinstance(span, timedelta) else timedelta(seconds=span)
    passed += timedelta(**named)
    if passed < timedelta(0):
        raise ClientError(f"the clock was told to go back by {-passed}; time only passes: set_wall() sets the wall clock back")
    return round(passed / timedelta(milliseconds=1))
