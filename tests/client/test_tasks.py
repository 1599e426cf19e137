"""Tasks: coroutines that the core steps itself. Every error reaches somebody, and nothing is left behind."""

from __future__ import annotations

import gc
import logging

import pytest

from roquet.client.core.tasks import Cancelled, Tasks, Wait, ignore
from roquet.errors import ClientError, ConnectFailed, NoRoute, RoquetError
from tests.client.fakes import FakeCluster, Results


def test_a_task_runs_at_once_until_it_waits_and_goes_on_in_the_call_that_ends_the_wait() -> None:
    tasks, first, second = Tasks(), Wait[int](), Wait[int]()
    seen: list[int] = []

    async def work() -> int:
        seen.append(0)
        seen.append(await first)
        seen.append(await second)
        return 7

    results = Results()
    tasks.start(work(), results.append)
    assert (seen, len(tasks)) == ([0], 1)
    second.end(2)  # not awaited yet: kept until it is
    assert seen == [0]
    first.end(1)
    assert (seen, results, len(tasks)) == ([0, 1, 2], [7], 0)


def test_only_the_first_end_of_a_wait_counts() -> None:
    tasks, wait, results = Tasks(), Wait[int](), Results()
    tasks.start(_until(wait), results.append)
    wait.end(ConnectFailed("first"))
    wait.end(2)
    assert isinstance(results.only, ConnectFailed)


def test_an_error_goes_to_who_waits_and_to_the_log_when_nobody_does(caplog: pytest.LogCaptureFixture) -> None:
    tasks, wait, results = Tasks(), Wait[int](), Results()

    async def caught() -> str:
        try:
            await tasks.start(_until(wait))
        except NoRoute as error:
            return str(error)
        return "nothing was raised"

    tasks.start(caught(), results.append)
    wait.end(NoRoute("away"))
    assert results == ["away"]
    assert not caplog.records
    tasks.start(_fail(ClientError("lost?")))
    assert "nobody waits" in caplog.text
    assert "lost?" in caplog.text


@pytest.mark.parametrize(("error", "logged"), [(NoRoute("away"), False), (ZeroDivisionError("a mistake"), True)])
def test_what_is_ignored_is_an_error_of_ours_and_not_a_mistake(error: Exception, logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    Tasks().start(_fail(error), ignore)
    assert ("a mistake" in caplog.text) is logged


def test_a_callback_that_fails_is_logged_and_keeps_no_other_from_its_result(caplog: pytest.LogCaptureFixture) -> None:
    tasks, wait, results = Tasks(), Wait[int](), Results()
    task = tasks.start(_until(wait), lambda _: _raise(ZeroDivisionError()))
    tasks.start(_until(task), results.append)
    wait.end(3)
    assert results == [3]
    assert "ZeroDivisionError" in caplog.text


def test_each_runs_all_at_once_and_gives_what_each_gave_or_raised() -> None:
    tasks, results = Tasks(), Results()
    waits = [Wait[int]() for _ in range(3)]
    tasks.start(tasks.each(_until(wait) for wait in waits), results.append)
    waits[2].end(2)
    waits[0].end(ConnectFailed("gone"))
    assert not results
    waits[1].end(1)
    assert isinstance(results.only, list)
    assert isinstance(results.only[0], ConnectFailed)
    assert results.only[1:] == [1, 2]


def test_a_mistake_in_one_of_many_is_raised_and_not_a_result() -> None:
    tasks, results = Tasks(), Results()
    tasks.start(tasks.each([_fail(ZeroDivisionError("a mistake"))]), results.append)
    assert isinstance(results.only, ZeroDivisionError)


def test_cancelling_ends_a_task_where_it_waits_runs_its_finally_and_tells_who_waits() -> None:
    tasks, wait, results = Tasks(), Wait[int](), Results()
    left: list[str] = []

    async def work() -> int:
        try:
            return await wait
        finally:
            left.append("finally")

    task = tasks.start(work())
    tasks.start(_until(task), results.append)
    task.cancel()
    task.cancel()
    assert left == ["finally"]
    assert isinstance(results.only, Cancelled)
    assert "work did not end: it was cancelled" in str(results.only)
    wait.end(1)
    assert len(tasks) == 0


def test_a_task_whose_client_is_thrown_away_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """The collector closes the coroutines of a client that nobody holds, one after another, and a `finally` in one wakes the next."""
    tasks, wait = Tasks(), Wait[int]()
    left: list[str] = []

    async def child() -> None:
        await wait

    async def parent() -> None:
        try:
            await tasks.each([work])
        finally:
            wait.end(1)
            left.append("finally")

    work, whole = child(), parent()
    tasks.start(whole)
    work.close()
    whole.close()
    assert (left, len(tasks), caplog.records) == (["finally"], 0, [])


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_mistake_in_a_task_is_not_taken_for_a_client_that_was_thrown_away(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    Tasks().start(_fail(kind("a mistake")))
    assert "a mistake" in caplog.text


def test_nor_is_an_iterator_that_ends_too_early(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        next(iter(()))

    Tasks().start(work())
    assert "StopIteration" in caplog.text


def test_a_task_that_cancels_itself_ends_where_it_waits_next() -> None:
    tasks, begin, wait, seen = Tasks(), Wait[None](), Wait[int](), Results()

    async def cancels_itself() -> None:
        await begin
        seen.append("before")
        task.cancel()
        seen.append("after")
        await wait
        seen.append("never")

    task = tasks.start(cancels_itself())
    begin.end(None)
    wait.end(1)
    assert seen == ["before", "after"]
    assert task.over


def test_closing_cancels_all_and_wakes_none_of_them(caplog: pytest.LogCaptureFixture) -> None:
    tasks, wait, results, seen = Tasks(), Wait[int](), Results(), Results()
    first = tasks.start(_until(wait))

    async def stubborn() -> None:
        try:
            await first
        except RoquetError:
            seen.append("went on after the client was closed")

    tasks.start(stubborn(), results.append)
    tasks.close()
    assert isinstance(results.only, Cancelled)
    assert "this client was closed" in str(results.only)
    assert (seen, len(tasks), caplog.records) == ([], 0, [])


def test_what_is_started_after_the_close_does_not_begin(recwarn: pytest.WarningsRecorder) -> None:
    tasks, results, seen = Tasks(), Results(), Results()
    tasks.close()

    async def work() -> None:
        seen.append("began")

    tasks.start(work(), results.append)
    tasks.start(work())
    gc.collect()
    assert isinstance(results.only, Cancelled)
    assert (seen, list(recwarn)) == ([], [])


def test_a_finally_that_fails_or_waits_is_logged_and_the_rest_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    tasks, wait, results = Tasks(), Wait[int](), Results()

    async def waits_again() -> None:
        try:
            await wait
        finally:
            await Wait[int]()

    tasks.start(waits_again())
    tasks.start(_until(wait), results.append)
    tasks.close()
    assert isinstance(results.only, Cancelled)
    assert "failed while it was cancelled" in caplog.text


def test_a_client_sleeps_by_the_steady_clock_and_leaves_no_timer_behind() -> None:
    cluster = FakeCluster("a")
    client = cluster.client()
    results = Results()
    before = len(client.tasks)
    client.tasks.start(client.sleep(100), results.append)
    cluster.clock.step(3_600_000)
    cluster.advance(90)
    assert not results
    cluster.advance(10)
    assert results == [None]
    sleeper = client.tasks.start(client.sleep(100), results.append)
    sleeper.cancel()
    cluster.advance(200)
    assert isinstance(results[1], Cancelled)
    assert len(client.tasks) == before


def test_what_takes_too_long_ends_with_what_was_said_for_that_case() -> None:
    cluster = FakeCluster("a")
    client = cluster.client()
    results = Results()
    waits = [Wait[int](), Wait[int]()]
    for wait in waits:
        client.tasks.start(client.within(wait, 100, -1), results.append)
    waits[0].end(5)
    cluster.advance(100)
    assert results == [5, -1]


def test_a_closed_client_has_no_task_and_no_timer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    client = FakeCluster("a").client()
    assert len(client.tasks) > 0
    client.close()
    assert (len(client.tasks), client.next_due_ms()) == (0, 1 << 62)
    assert not caplog.records


async def _until(wait: Wait[int]) -> int:
    return await wait


async def _fail(error: Exception) -> None:
    raise error


def _raise(error: Exception) -> None:
    raise error
