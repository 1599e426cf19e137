"""The examples that are spoken with: real processes, and a broker behind real sockets."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import roquet

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


class Program:
    """One that runs, with its input and what it printed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed: list[str] = []

    @classmethod
    async def start(cls, name: str, *arguments: str, namesrv: str, home: Path) -> Program:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, str(ROOT / "examples" / name), *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "NAMESRV_ADDR": namesrv, "HOME": str(home)},
            )
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def until(self, line: str) -> None:
        """Until it has printed this line."""
        while line not in self.printed:
            assert await self._read(), f"it ended and never printed {line!r}: {self.printed}"

    async def end(self) -> list[str]:
        """No more input: all that it has printed, when it has ended as it should."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while await self._read():
            pass
        assert await self.process.wait() == 0, self.printed
        return self.printed

    async def _read(self) -> bool:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if line:
            self.printed.append(line.decode().rstrip("\n"))
        return bool(line)


def with_a_broker(home: Path, scenario: Callable[[Callable[..., Coroutine[Any, Any, Program]]], Coroutine[Any, Any, None]]) -> None:
    started: list[Program] = []

    async def run() -> None:
        async with roquet.embedded() as mq, asyncio.timeout(PATIENCE_S):

            async def start(*command: str) -> Program:
                started.append(await Program.start(*command, namesrv=mq.namesrv, home=home))
                return started[-1]

            try:
                await scenario(start)
            finally:
                for program in started:
                    if program.process.returncode is None:
                        program.process.kill()
                        await program.process.wait()

    asyncio.run(run())


def test_in_the_chat_everybody_gets_every_line_in_one_order_and_who_comes_back_what_was_missed(tmp_path: Path) -> None:
    async def scenario(start: Callable[..., Coroutine[Any, Any, Program]]) -> None:
        ada = await start("chat.py", "Ada")
        await ada.until("Ada: (joined)")
        bob = await start("chat.py", "Bob")
        await bob.until("Bob: (joined)")
        for number in range(5):
            ada.say(f"line {number}")
            bob.say(f"answer {number}")
        for member in (ada, bob):
            await member.until("Ada: line 4")
            await member.until("Bob: answer 4")
        heard = [line for line in ada.printed if "joined" not in line]
        assert heard == [line for line in bob.printed if "joined" not in line]
        assert sorted(heard) == sorted(f"{who} {number}" for who in ("Ada: line", "Bob: answer") for number in range(5))
        assert "Bob: (joined)" in ada.printed

        await ada.end()
        await bob.until("Ada: (left)")
        bob.say("is anybody there?")
        await bob.until("Bob: is anybody there?")
        ada = await start("chat.py", "Ada")
        await ada.until("Bob: is anybody there?")
        assert not set(heard) & set(await ada.end()), "what Ada had seen does not come again"
        await bob.end()

    with_a_broker(tmp_path, scenario)


def test_the_scheduler_rings_when_it_is_time_and_not_for_what_was_cancelled(tmp_path: Path) -> None:
    async def scenario(start: Callable[..., Coroutine[Any, Any, Program]]) -> None:
        scheduler = await start("scheduler.py")
        scheduler.say("in 4 tea is ready")
        scheduler.say("in 0.5 the egg is hard")
        scheduler.say("in 5 never mind")
        scheduler.say("in 3000 fetch the cake")
        scheduler.say("cancel 3")
        scheduler.say("cancel 4")
        await scheduler.until("3 is cancelled")
        await scheduler.until("4 is cancelled")
        scheduler.say("in 5 go home")
        scheduler.say("cancel 6")
        await scheduler.until("expected is `in SECONDS TEXT`, or `cancel NUMBER` with a number from here")
        scheduler.say("in soon something")
        await scheduler.until("not done: could not convert string to float: 'soon'")
        await scheduler.until("now: go home")  # later than what was cancelled would have come
        scheduler.say("cancel 1")
        printed = await scheduler.end()
        assert [line for line in printed if line.startswith("now: ")] == ["now: the egg is hard", "now: tea is ready", "now: go home"]
        assert any(line.startswith("not done: ") and "answered code" in line for line in printed[-1:]), "too late to cancel"

    with_a_broker(tmp_path, scenario)


def test_a_reminder_outlives_the_scheduler_that_took_it(tmp_path: Path) -> None:
    async def scenario(start: Callable[..., Coroutine[Any, Any, Program]]) -> None:
        first = await start("scheduler.py")
        first.say("in 1 wake up")
        await first.until("1: in 1 s, wake up")
        first.process.kill()
        await first.process.wait()
        second = await start("scheduler.py")
        await second.until("now: wake up")
        await second.end()

    with_a_broker(tmp_path, scenario)


def test_every_order_lives_in_order_although_the_bank_does_not_answer_once(tmp_path: Path) -> None:
    async def scenario(start: Callable[..., Coroutine[Any, Any, Program]]) -> None:
        printed = await (await start("order_life.py")).end()
        steps = ["created", "paid", "shipped", "refunded"]
        for order in range(1, 7):
            wanted = [f"order {order}: {step}" for step in steps]
            if order == 2:
                wanted.insert(1, "order 2: the bank does not answer")
            assert [line for line in printed if line.startswith(f"order {order}:")] == wanted

    with_a_broker(tmp_path, scenario)


def test_the_settings_of_a_spring_service_run_as_they_are(tmp_path: Path) -> None:
    async def scenario(start: Callable[..., Coroutine[Any, Any, Program]]) -> None:
        services = [await start("spring/service.py") for _ in range(2)]
        for service in services:
            await service.until("ready")
        assert (await (await start("spring/send.py")).end())[-1] == "sent"  # before it, what of the files has no effect
        # What both together must have printed.
        steps = ("created", "paid", "shipped")
        alone = {f"one of us got order {number}" for number in range(1, 5)} | {"payment 1 was committed"}
        alone |= {f"order {number} is {step}" for number in (1, 2) for step in steps}
        while missing := alone - {line for service in services for line in service.printed}:
            await read_any(services, missing)
        for service in services:
            await service.until("all of us got a word to all")
            service.process.terminate()
        printed = [await service.end() for service in services]
        both = {line for lines in printed for line in lines if line.startswith(("one of", "payment", "order"))}
        assert both == alone, "nothing with another tag, and nothing that was rolled back"
        for lines in printed:
            for number in (1, 2):
                places = [steps.index(line.split()[-1]) for line in lines if line.startswith(f"order {number}")]
                assert places == sorted(places)

    with_a_broker(tmp_path, scenario)


async def read_any(programs: list[Program], missing: set[str]) -> None:
    """Until one of them has printed one line more."""
    reads = [asyncio.ensure_future(program._read()) for program in programs]
    done, left = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    for read in left:
        read.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert all(read.result() for read in done), f"one ended, and this never came: {missing}"
