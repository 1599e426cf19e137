"""Calls of a user's functions share tasks, and each is as if it had one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from roquet.client import PushConsumer, ReceivedMessage
from roquet.client.functions import CALLS_A_TURN, Functions
from tests.client.tcp import FakeServer, run, until

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


def in_loop(test: Callable[[Functions], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        functions = Functions("f", 4)
        functions.open()
        async with asyncio.timeout(600):
            await test(functions)

    asyncio.run(bounded())


def never() -> None:
    raise AssertionError("nobody cancelled it")


def test_calls_that_do_not_wait_share_tasks_and_leave_the_loop_its_turns() -> None:
    async def test(functions: Functions) -> None:
        tasks: list[asyncio.Task[Any] | None] = []

        async def call(_: int) -> None:
            tasks.append(asyncio.current_task())

        for number in range(3 * CALLS_A_TURN):
            functions.begin(call, (number,), never)
        await asyncio.sleep(0)
        assert len(tasks) == CALLS_A_TURN, "the rest goes in the next turns"
        await until(lambda: len(tasks) == 3 * CALLS_A_TURN)
        assert len(set(tasks)) < 10
        await until(lambda: not functions.tasks)

    in_loop(test)


def test_a_call_that_waits_holds_up_no_other() -> None:
    async def test(functions: Functions) -> None:
        over: list[int] = []
        go = asyncio.Event()

        async def call(number: int) -> None:
            if number % 3 == 0:
                await go.wait()
            over.append(number)

        for number in range(30):
            functions.begin(call, (number,), never)
        await until(lambda: len(over) == 20)
        assert len(functions.tasks) == 10
        go.set()
        await until(lambda: len(over) == 30 and not functions.tasks)

    in_loop(test)


def test_what_a_call_sets_in_its_context_no_other_sees() -> None:
    async def test(functions: Functions) -> None:
        seen: list[str] = []

        async def call(number: int) -> None:
            seen.append(NAME.get())
            NAME.set(f"call {number}")
            if number == 2:
                functions.begin(call, (7,), never)  # as the core does when a call is over

        NAME.set("somebody else")
        for number in range(5):
            functions.begin(call, (number,), never)
        await until(lambda: len(seen) == 6)
        assert set(seen) == {"nobody"}

    in_loop(test)


def test_a_variable_whose_value_cannot_be_compared_is_another_one() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    variable: ContextVar[Any] = ContextVar("variable", default=None)

    async def test(functions: Functions) -> None:
        seen: list[Any] = []

        async def call() -> None:
            seen.append(variable.get())
            variable.set(Odd())

        variable.set(Odd())
        functions.open()
        for _ in range(3):
            functions.begin(call, (), never)
        await until(lambda: len(seen) == 3)
        assert len(set(map(id, seen))) == 1

    in_loop(test)


def test_calls_that_wait_for_their_turn_are_told_when_all_is_closed() -> None:
    async def test(functions: Functions) -> None:
        cancelled: list[int] = []
        began: list[int] = []

        async def call(number: int) -> None:
            began.append(number)
            await asyncio.Event().wait()

        for number in range(3):
            functions.begin(call, (number,), lambda number=number: cancelled.append(number))  # type: ignore[misc]
        await until(lambda: len(began) == 3)
        for number in range(3, 6):
            functions.begin(call, (number,), lambda number=number: cancelled.append(number))  # type: ignore[misc]
        functions.close()
        await until(lambda: not functions.tasks)
        assert sorted(cancelled) == list(range(6))
        assert began == [0, 1, 2]
        functions.begin(call, (6,), lambda: cancelled.append(6))
        await until(lambda: began[-1] == 6)  # it can be used again
        functions.close()
        await until(lambda: not functions.tasks)
        assert cancelled[-1] == 6

    in_loop(test)


def test_a_task_that_is_cancelled_from_outside_takes_only_its_own_call_with_it() -> None:
    async def test(functions: Functions) -> None:
        over: list[int] = []
        cancelled: list[int] = []

        async def call(number: int) -> None:
            if number == 0:
                await asyncio.Event().wait()
            over.append(number)

        for number in range(4):
            functions.begin(call, (number,), lambda number=number: cancelled.append(number))  # type: ignore[misc]
        for task in list(functions.tasks):
            task.cancel()  # it has not begun: all of them wait for another
        await until(lambda: len(over) == 3)
        [waits] = functions.tasks
        waits.cancel()
        await until(lambda: not functions.tasks)
        assert (over, cancelled) == ([1, 2, 3], [0])

    in_loop(test)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_handlers_of_a_consumer_see_only_what_was_set_before_its_start(batch_size: int) -> None:
    async def test(server: FakeServer) -> None:
        [queue, _] = server.cluster.create_topic("t", 2)
        for number in range(40):
            server.cluster.append(queue, b"%d" % number)
        seen: list[str] = []

        async def handle(given: ReceivedMessage | list[ReceivedMessage]) -> None:
            seen.append(NAME.get())
            NAME.set("left behind")

        consumer = PushConsumer("g", server.address, consume_from="first", batch_size=batch_size)
        consumer.subscribe("t", function=handle)
        NAME.set("the program")
        async with consumer:
            NAME.set("later")
            await until(lambda: len(seen) == 40 // batch_size)
        assert set(seen) == {"the program"}

    run(test)
