"""The next item is made while the last one is used."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from roquet.spark.ahead import ahead

WAIT_S = 30.0


class Source:
    """Numbers, and a flag for each that says that it was made."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.made = [threading.Event() for _ in range(count)]
        self.closed = threading.Event()
        self.threads: set[int] = set()

    def numbers(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                self.threads.add(threading.get_ident())
                self.made[number].set()
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()


def test_all_items_come_in_their_order_and_then_the_end() -> None:
    source = Source(1_000)
    assert list(ahead(source.numbers())) == list(range(1_000))
    assert source.threads
    assert threading.get_ident() not in source.threads
    assert list(ahead(iter(()))) == []


def test_while_an_item_is_used_the_next_one_is_made_and_no_more_than_that() -> None:
    source = Source(5)
    items = ahead(source.numbers())
    assert next(items) == 0
    assert source.made[1].wait(WAIT_S)
    assert not source.made[2].wait(0.05), "it made more than it was allowed to"
    assert next(items) == 1
    assert source.made[2].wait(WAIT_S)


def test_nothing_is_made_before_somebody_asks() -> None:
    source = Source(1)
    ahead(source.numbers())
    assert not source.made[0].is_set()


def test_an_error_comes_after_the_items_before_it() -> None:
    items = ahead(Source(2, ValueError("no more")).numbers())
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="no more"):
        next(items)


def test_who_stops_early_waits_for_nothing_and_the_source_is_closed_by_its_own_thread() -> None:
    source = Source(1_000)
    items = ahead(source.numbers())
    assert isinstance(items, Generator)
    assert next(items) == 0
    items.close()
    assert source.closed.wait(WAIT_S)
    assert not source.made[3].is_set()


def test_who_stops_while_the_next_item_hangs_does_not_hang() -> None:
    goes_on = threading.Event()

    def hangs() -> Iterator[int]:
        yield 0
        goes_on.wait(WAIT_S)
        yield 1

    items = ahead(hangs())
    assert isinstance(items, Generator)
    assert next(items) == 0
    items.close()
    goes_on.set()
