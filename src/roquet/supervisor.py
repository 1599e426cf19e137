"""Many cores: N brokers under one supervisor, each its own process, ports and store.

Nothing is shared between them, so to every client they are an ordinary cluster of N brokers. The supervisor does three
things: start what should run, start again what died (waiting longer each time it dies young), and stop everything.

`Child` is the decision, without a process or a clock in it: it is told what happened and when, and says what to do next.

    WAITING --due--> (start) --> RUNNING --exited--> WAITING (after a pause that doubles)
       |                            |
       +--------- stop() -----------+--> STOPPING --deadline--> (kill) --> STOPPED

One that dies again and again before it ever listened makes the supervisor give up: that is a wrong setting, not bad luck.

`Supervisor` is the hands: it starts processes, copies their output with a name in front, and carries signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roquet.errors import RoquetError


class State(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Order(enum.Enum):
    """What a child's `next_order` asks its supervisor to do now."""

    NOTHING = "nothing"
    START = "start"
    KILL = "kill"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class Patience:
    """How long to wait before starting again, and for an end. All in milliseconds."""

    first_pause_ms: int = 200
    pause_ms_max: int = 30_000
    healthy_after_ms: int = 60_000
    """A child that ran this long had a good start: its next pause is the first one again."""
    stop_deadline_ms: int = 20_000
    """A broker flushes its store on the way out; past this it is killed, and recovers at its next start as after a crash."""

    attempts_before_first_boot: int = 3
    """A child that never once came up has a wrong setting, not bad luck: after so many deaths the supervisor gives up."""

    def pause_ms(self, deaths_in_a_row: int) -> int:
        """200, 400, 800 ... up to the maximum; 0 before the first death."""
        if deaths_in_a_row < 1:
            return 0
        # The exponent is bounded too, so that a year of crashes makes no huge number.
        return min(self.pause_ms_max, self.first_pause_ms << min(deaths_in_a_row - 1, 30))


@dataclass
class Child:
    """One process as its supervisor sees it. Mutable: everything below `patience`, by the methods only."""

    name: str
    patience: Patience = field(default_factory=Patience)
    state: State = State.WAITING
    due_ms: int = 0  # WAITING: start at this time. STOPPING: kill at this time.
    started_ms: int = 0
    deaths_in_a_row: int = 0
    starts: int = 0
    killed: bool = False
    booted: bool = False  # it has listened at least once

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    def next_order(self, now_ms: int) -> Order:
        if self.state is State.WAITING and not self.booted and self.deaths_in_a_row >= self.patience.attempts_before_first_boot:
            return Order.GIVE_UP
        if self.state is State.WAITING and now_ms >= self.due_ms:
            return Order.START
        if self.state is State.STOPPING and now_ms >= self.due_ms and not self.killed:
            return Order.KILL
        return Order.NOTHING

    def wake_ms(self) -> int | None:
        """When to ask again if nothing happens until then; None: only an exit or a stop changes anything."""
        return self.due_ms if self.state is State.WAITING or (self.state is State.STOPPING and not self.killed) else None

    def started(self, now_ms: int) -> None:
        self.starts += 1
        self.started_ms = now_ms
        self.state = State.RUNNING

    def exited(self, now_ms: int) -> int:
        """The process is gone. Returns the pause before the next start in ms; 0 when there will be none."""
        if self.state in (State.STOPPING, State.STOPPED):
            self.state = State.STOPPED
            return 0
        if self.state is State.RUNNING and now_ms - self.started_ms >= self.patience.healthy_after_ms:
            self.deaths_in_a_row = 0
        self.deaths_in_a_row += 1
        pause_ms = self.patience.pause_ms(self.deaths_in_a_row)
        self.state = State.WAITING
        self.due_ms = now_ms + pause_ms
        return pause_ms

    def stop(self, now_ms: int) -> bool:
        """Ask it to end. True when there is a process to send SIGTERM to."""
        if self.state is State.RUNNING:
            self.state = State.STOPPING
            self.due_ms = now_ms + self.patience.stop_deadline_ms
            return True
        if self.state is State.WAITING:
            self.state = State.STOPPED
        return False


@dataclass(frozen=True)
class Program:
    name: str
    command: Sequence[str]


BOOT_SUCCESS = "boot success"
"""Every server prints one line with these words and its address when it listens."""

LINE_SIZE_MAX = 64 * 1024


class NeverStarted(RoquetError):
    """A child did not come up in the time allowed. The text carries its last words."""


class Supervisor:
    """Runs programs until told to stop. One owner, one event loop.

    A child's standard input is a pipe that only we hold: when this process dies, even by SIGKILL, the children read its
    end and stop by themselves (`--stop-with-parent`), so no broker is left behind holding its store's lock.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        say: Callable[[str], None] = print,
        patience: Patience | None = None,
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self.programs = list(programs)
        self.children = [Child(program.name, patience or Patience()) for program in self.programs]
        # Mutable state, all touched by run() and its tasks only.
        self.pids: dict[str, int] = {}
        self._say = say
        self._now_ms = now_ms
        self._booted = {child.name: asyncio.Event() for child in self.children}
        self._wake = asyncio.Event()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._last_lines: dict[str, str] = {}
        self._failure = ""

    async def run(self, stop: asyncio.Event) -> bool:
        """Keep every program running until `stop` is set, then end them all. True when all of them ended without SIGKILL.

        Raises NeverStarted, after ending the others, when one of them cannot be brought up at all.
        """
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._wake_at_stop(stop))
            while True:
                now_ms = self._now_ms()
                if stop.is_set() or self._failure:
                    self._ask_all_to_stop(now_ms)
                for program, child in zip(self.programs, self.children, strict=True):
                    order = child.next_order(now_ms)
                    if order is Order.START:
                        await self._start(program, child, tasks)
                    elif order is Order.KILL:
                        self._kill(child)
                    elif order is Order.GIVE_UP:
                        words = self._last_lines.get(child.name, "it said nothing")
                        self._failure = f"{child.name} ended {child.deaths_in_a_row} times before it listened. Its last line: {words}"
                        self._wake.set()
                if all(child.state is State.STOPPED for child in self.children):
                    break
                await self._sleep_until_something_happens()
            watch.cancel()
        if self._failure:
            raise NeverStarted(self._failure)
        return not any(child.killed for child in self.children)

    async def wait_until_booted(self, timeout_s: float | None = None) -> None:
        """Return when every program has said that it listens. Raises NeverStarted with the last line of those that have not."""
        try:
            async with asyncio.timeout(timeout_s):
                for event in self._booted.values():
                    await event.wait()
        except TimeoutError:
            late = [name for name, event in self._booted.items() if not event.is_set()]
            words = "; ".join(f"{name}: {self._last_lines.get(name, 'it said nothing')}" for name in late)
            raise NeverStarted(f"not up after {timeout_s:g} s: {words}") from None

    def report(self) -> list[str]:
        """One line per child, for people."""
        return [
            f"{child.name:<12} {child.state.value:<8} pid {self.pids.get(child.name, 0) or '-':<8} restarts {child.restarts}"
            for child in self.children
        ]

    async def _wake_at_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _sleep_until_something_happens(self) -> None:
        due = [wake for child in self.children if (wake := child.wake_ms()) is not None]
        timeout_s = max(0, min(due) - self._now_ms()) / 1000 if due else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()

    async def _start(self, program: Program, child: Child, tasks: asyncio.TaskGroup) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=LINE_SIZE_MAX,
                # Its own session: a Ctrl-C at the terminal reaches the supervisor alone, which then stops them in order.
                start_new_session=True,
            )
        except OSError as error:
            pause_ms = child.exited(self._now_ms())
            self._say(f"{child.name} cannot be started: {error}; trying again in {pause_ms / 1000:g} s")
            return
        child.started(self._now_ms())
        self._processes[child.name] = process
        self.pids[child.name] = process.pid
        self._say(f"{child.name} starts, pid {process.pid}")
        tasks.create_task(self._follow(child, process))

    async def _follow(self, child: Child, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await read_line(process.stdout):
            text = line.decode("utf-8", "replace").rstrip()
            self._last_lines[child.name] = text
            if BOOT_SUCCESS in text:
                child.booted = True
                self._booted[child.name].set()
            self._say(f"{child.name} | {text}")
        code = await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self.pids.pop(child.name, None)
        pause_ms = child.exited(self._now_ms())
        if child.state is State.WAITING:
            self._say(f"{child.name} died ({how_it_ended(code)}); starting it again in {pause_ms / 1000:g} s")
        self._wake.set()

    def _ask_all_to_stop(self, now_ms: int) -> None:
        for child in self.children:  # asked again, a child that is stopping already says False
            if child.stop(now_ms):
                self._ask_to_stop(child)

    def _kill(self, child: Child) -> None:
        waited_s = child.patience.stop_deadline_ms / 1000
        self._say(f"{child.name} did not stop within {waited_s:g} s; killing it (it recovers at its next start)")
        child.killed = True
        with contextlib.suppress(ProcessLookupError):  # it may have gone a moment ago; _follow is about to notice
            self._processes[child.name].kill()

    def _ask_to_stop(self, child: Child) -> None:
        """By SIGTERM; on Windows, where that would end it at once, by the end of its standard input."""
        process = self._processes[child.name]
        with contextlib.suppress(ProcessLookupError):
            if sys.platform != "win32":
                process.terminate()
            elif process.stdin is not None:
                process.stdin.close()


async def read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or what there is of one longer than the limit; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(max(1, error.consumed))


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def letter_name(number: int) -> str:
    """0 a, 1 b ... 25 z, 26 aa: how brokers of a cluster are named."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord("a") + digit) + text
    return text


def shard_name(broker_name: str, shard: int) -> str:
    """broker-a, broker-b ... from "broker-a" or "broker"; other names get a letter behind them."""
    stem = broker_name[:-2] if broker_name.endswith("-a") else broker_name
    return f"{stem}-{letter_name(shard)}"
