"""The machine's clock, compiled and not, says the same."""

from __future__ import annotations

import time

import pytest

from roquet import clock
from roquet.clock import SystemClock
from roquet.speedups import native, why_not


@pytest.mark.parametrize("name", ["now_ms", "steady_ms"])
def test_the_clock_of_a_broker_is_that_of_the_system(name: str) -> None:
    plain, used = getattr(clock, name), getattr(SystemClock(), name)
    for _ in range(1_000):
        before, between, after = plain(), used(), plain()
        assert type(between) is int
        assert before <= between <= after


def test_the_steady_one_is_python_s_own_too() -> None:
    """Whoever has a deadline from one may ask the other."""
    before, between, after = time.monotonic(), SystemClock().steady_ms(), time.monotonic()
    assert int(before * 1_000) <= between <= after * 1_000


@pytest.mark.skipif(native is None, reason=f"the extension is not here: {why_not}")
def test_it_is_compiled_where_the_extension_is() -> None:
    assert native is not None
    assert (SystemClock.now_ms, SystemClock.steady_ms) == (native.now_ms, native.steady_ms)
