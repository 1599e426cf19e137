"""The supervisor: first its decisions with a clock moved by hand, then real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest

from roquet.supervisor import Child, NeverStarted, Order, Patience, Program, State, Supervisor, letter_name, shard_name

PATIENCE = Patience(first_pause_ms=100, pause_ms_max=1_000, healthy_after_ms=10_000, stop_deadline_ms=5_000)


def child_running_since(now_ms: int) -> Child:
    child = Child("broker-a", PATIENCE)
    assert child.next_order(now_ms) is Order.START
    child.started(now_ms)
    return child


def test_a_new_child_is_started_at_once() -> None:
    assert Child("broker-a", PATIENCE).next_order(0) is Order.START


def test_a_running_child_is_left_alone() -> None:
    child = child_running_since(1)
    assert child.next_order(1_000_000) is Order.NOTHING
    assert child.wake_ms() is None


def test_the_pause_doubles_with_each_early_death_and_is_bounded() -> None:
    child = child_running_since(1)
    child.booted = True
    now_ms, pauses = 1, []
    for _ in range(7):
        pause = child.exited(now_ms)
        assert child.next_order(now_ms + pause - 1) is Order.NOTHING
        assert child.next_order(now_ms + pause) is Order.START
        now_ms += pause
        child.started(now_ms)
        pauses.append(pause)
    assert pauses == [100, 200, 400, 800, 1_000, 1_000, 1_000]
    assert child.restarts == 7


def test_a_child_that_ran_well_for_a_while_gets_the_short_pause_again() -> None:
    child = child_running_since(1)
    for now_ms in (1, 2, 3):
        child.exited(now_ms)
        child.started(now_ms)
    assert child.exited(3 + PATIENCE.healthy_after_ms) == 100


def test_a_thousand_deaths_make_no_larger_pause_than_the_limit() -> None:
    assert PATIENCE.pause_ms(1_000) == PATIENCE.pause_ms_max
    assert PATIENCE.pause_ms(0) == 0


def test_a_stopping_child_is_killed_once_after_the_deadline() -> None:
    child = child_running_since(1)
    assert child.stop(100)
    assert child.next_order(100 + 4_999) is Order.NOTHING
    assert child.next_order(100 + 5_000) is Order.KILL
    child.killed = True
    assert child.next_order(100 + 5_001) is Order.NOTHING
    assert child.exited(100 + 5_002) == 0
    assert child.state is State.STOPPED


def test_a_child_that_waits_for_its_restart_stops_without_a_signal() -> None:
    child = child_running_since(1)
    child.exited(2)
    assert not child.stop(3)
    assert child.state is State.STOPPED
    assert child.next_order(10_000) is Order.NOTHING


def test_one_that_never_booted_is_given_up_after_a_few_deaths_and_one_that_did_is_not() -> None:
    never, once = child_running_since(1), child_running_since(1)
    once.booted = True
    for child in (never, once):
        for now_ms in range(10, 13):
            child.exited(now_ms)
    assert never.next_order(1_000_000) is Order.GIVE_UP
    assert once.next_order(1_000_000) is Order.START


def test_shards_are_named_as_clusters_are() -> None:
    assert [letter_name(number) for number in (0, 1, 25, 26, 27, 701, 702)] == ["a", "b", "z", "aa", "ab", "zz", "aaa"]
    assert [shard_name("broker-a", number) for number in (0, 1)] == ["broker-a", "broker-b"]
    assert shard_name("orders", 2) == "orders-c"


# Real processes: small Python programs in the place of brokers.

OBEDIENT = "import sys; print('boot success', flush=True); sys.stdin.read()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + OBEDIENT


def program(name: str, code: str) -> Program:
    return Program(name, [sys.executable, "-c", code])


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


def test_a_killed_process_comes_back_and_the_others_never_notice() -> None:
    async def scenario() -> None:
        lines: list[str] = []
        stop = asyncio.Event()
        patience = Patience(first_pause_ms=1)
        supervisor = Supervisor([program("a", OBEDIENT), program("b", OBEDIENT)], say=lines.append, patience=patience)
        running = asyncio.create_task(supervisor.run(stop))
        await supervisor.wait_until_booted(20)
        first, other = supervisor.pids["a"], supervisor.pids["b"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: supervisor.pids.get("a", first) != first, "a runs again under a new pid")
        assert supervisor.pids["b"] == other
        assert supervisor.children[0].restarts == 1
        stop.set()
        assert await running
        assert any("a died (SIGKILL)" in line for line in lines)
        assert "a | boot success" in lines
        assert not supervisor.pids

    asyncio.run(scenario())


def test_a_process_that_ignores_sigterm_is_killed_with_a_message() -> None:
    async def scenario() -> None:
        lines: list[str] = []
        stop = asyncio.Event()
        supervisor = Supervisor([program("a", STUBBORN)], say=lines.append, patience=Patience(stop_deadline_ms=50))
        running = asyncio.create_task(supervisor.run(stop))
        await supervisor.wait_until_booted(20)
        stop.set()
        assert not await running
        assert any("did not stop within 0.05 s" in line for line in lines)

    asyncio.run(scenario())


def test_a_program_that_cannot_boot_is_reported_with_its_last_words() -> None:
    async def scenario() -> None:
        stop = asyncio.Event()
        patience = Patience(first_pause_ms=60_000)
        failing = program("a", "import sys; sys.exit('port 1 is taken')")
        lines: list[str] = []
        supervisor = Supervisor([failing], say=lines.append, patience=patience)
        running = asyncio.create_task(supervisor.run(stop))
        await until(lambda: bool(supervisor.children[0].deaths_in_a_row), "it died")
        with pytest.raises(NeverStarted, match="a: port 1 is taken"):
            await supervisor.wait_until_booted(0.01)
        assert supervisor.report()[0].startswith("a ")
        stop.set()
        await running

    asyncio.run(scenario())


def test_a_program_that_does_not_exist_is_tried_a_few_times_and_then_everything_ends() -> None:
    async def scenario() -> None:
        lines: list[str] = []
        programs = [Program("a", ["/nonexistent/roquet"]), program("b", OBEDIENT)]
        supervisor = Supervisor(programs, say=lines.append, patience=Patience(first_pause_ms=1))
        with pytest.raises(NeverStarted, match="a ended 3 times before it listened"):
            await supervisor.run(asyncio.Event())
        assert sum("cannot be started" in line for line in lines) == 3
        assert supervisor.children[1].state is State.STOPPED

    asyncio.run(scenario())
