"""Driver: what is due when, and when everything has happened that happens without time.

One step of time goes to the next thing that is due: a timer of a client, the end of a call, a tick of the servers, a message that is
delivered later. Between two steps everything comes to rest: what is on the wires arrives, servers do what they do at their ticks, the event
loop runs until nobody in it has anything to do, and handlers end.

When nothing has happened for two minutes but what keeps clients alive, time is skipped up to the next message that is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from roquet.broker.core import Broker
from roquet.broker.part import Part
from roquet.client.core.push_consumer import PushConsumerCore
from roquet.client.core.timers import Timer
from roquet.client.member import STARTED
from roquet.client.running import running_loop
from roquet.client.shared import SharedClient
from roquet.errors import ClientError
from roquet.nameserver.core import NameServer
from roquet.ports import FOREVER, Rest
from roquet.testing.kit.clock import Time
from roquet.testing.kit.wires import Line, Wires

T = TypeVar("T")

log = logging.getLogger(__name__)

TICK_MS = 1_000
CALM_MS = 5_000
"""When nothing has happened for so long, servers tick so seldom."""
QUIET_MS = 130_000
"""Time is skipped when nothing happened for so long. It is longer than any lease: clients live 120 s, locks of queues 60 s."""
FAR_MS = 65_000
"""What is to happen later than this is nobody's routine, so it is not skipped."""
STILL_S = 5.0
"""Of real time: then somebody may wait for a clock that nobody turns."""
STILL = 2
"""Ticks without an effect, after which servers are at rest."""
TICKS_MAX = 1_000
EVENTS_MAX = 500_000
"""At one moment: more than any test needs."""
ROUNDS = 20
"""So many turns of a loop that does not say what it has to do are enough for whoever was woken."""
ROUNDS_MAX = 100
"""Somebody in the loop never rests: then it is not waited for."""
STEPS_A_TURN = 64
"""After so many steps the loop gets a turn in any case, for what comes from outside."""


class Done(Generic[T]):
    """What is over already, for whoever awaits it."""

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self._value


class Driver:
    """State: the servers and clients that it drives, the loop that these live in, and when something last happened."""

    def __init__(self, time: Time, patience_s: float) -> None:
        """`patience_s`: so long (of real time) a handler is waited for that does not end."""
        self.time = time
        self.patience_s = patience_s
        self.wires = Wires(time, self._wake)
        self.name_server: NameServer | None = None
        self.broker: Broker | None = None
        self._waiting: list[Part] = []  # of its parts, those where messages wait for their time
        self.clients: dict[SharedClient, None] = {}
        self.owner: object = None
        """The place of the members whose handlers are waited for."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._lock: tuple[asyncio.AbstractEventLoop | None, asyncio.Lock] = None, asyncio.Lock()
        self.over = False
        """The broker has ended, and nobody turns the clock any more."""
        self._pump_due = False
        self._told_of_stillness = False
        self._hurries = 0
        self._hurrying: asyncio.Task[None] | None = None
        self._given_up: set[asyncio.Task[None]] = set()
        self._tick_ms = 0
        self._rested_at = -1
        self._life: tuple[int, int] = (0, 0)
        self._life_ms = time.steady_ms()
        self._timers: set[Timer] = set()  # that somebody set for a time far away
        self._called: set[tuple[Line, int]] = set()  # the same of calls
        self._steps = 0

    def drive(self, broker: Broker | None) -> None:
        """This broker from now on; None: there is none."""
        self.broker = broker
        self._waiting = [] if broker is None else [part for part in broker.parts if type(part).next_due_ms is not Part.next_due_ms]

    # Where it runs

    def enter(self) -> None:
        """Somebody in this loop becomes a client. Raises ClientError when there are clients in another one."""
        here = asyncio.get_running_loop()
        if self._home() not in (None, here):
            raise ClientError(
                "this test broker has clients in another event loop, and its clients live in one; close those first, or make a broker of"
                " its own for each loop"
            )
        if self.loop is not here:
            self.loop, self._pump_due = here, False
            self._hurries, self._hurrying = 0, None

    def _home(self) -> asyncio.AbstractEventLoop | None:
        """The loop that its clients live in. Those of a loop that was closed are gone, whoever forgot to close them."""
        if self.loop is not None and self.loop.is_closed():
            for caller in [caller for caller in self.wires.callers if caller.loop is not None]:
                caller.abandon()
            self.clients.clear()
            self.loop = None
        elif not any(caller.loop is not None for caller in self.wires.callers) and not self._hurries:
            self.loop = None
        return self.loop

    def perform(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Do it in the loop where the clients live. Where there is a loop it is to be awaited; else it is done when this returns."""
        here, home = running_loop(), self._home()
        if home is None or home is here:
            return self.here(work)
        if home.is_running():
            under_way = asyncio.run_coroutine_threadsafe(work, home)
            return Done(under_way.result()) if here is None else asyncio.wrap_future(under_way)
        if here is None:
            return Done(home.run_until_complete(work))
        work.close()
        raise ClientError("the clients of this test broker live in another event loop, which does not run; close them there first")

    def here(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """The same, where the caller is."""
        return Done(driven(work)) if running_loop() is None else work

    def look(self, work: Callable[[], T]) -> T:
        """`perform` for what does not wait."""
        here, home = running_loop(), self._home()
        if home is not None and home is not here and home.is_running():
            return asyncio.run_coroutine_threadsafe(_called(work), home).result()
        return work()

    def _wake(self) -> None:
        if self.loop is not None and not self._pump_due and not self.loop.is_closed():
            self._pump_due = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        self.wires.deliver()
        if not self._told_of_stillness and self.loop is not None:
            self._told_of_stillness = True
            self.loop.call_later(STILL_S, self._look_for_stillness, self.wires.delivered)

    def _look_for_stillness(self, delivered: int) -> None:
        """A test that waits for what waits for the clock would wait for ever, and not know why."""
        if self.loop is None or self.over:
            return
        if delivered != self.wires.delivered:
            self.loop.call_later(STILL_S, self._look_for_stillness, self.wires.delivered)
            return
        log.warning(
            "! nothing has happened for %g s, and the clock of this test broker stands still: whatever waits for time (a timeout, a retry,"
            " a later message) waits for the test to turn it; await broker.clock.advance(...), or broker.clock.until(what you await)",
            STILL_S,
        )

    # Turning

    async def advance(self, ms: int) -> None:
        end = self.time.passed_ms + ms
        await self._turn(lambda: self.time.passed_ms >= end, end)

    async def until(self, what: Awaitable[T], limit_ms: int) -> T:
        end_ms = self.time.passed_ms + limit_ms
        task = asyncio.ensure_future(what)
        try:
            await self._turn(task.done, end_ms)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise TimeoutError(f"{what!r} is not done after {limit_ms / 1000:g} s of the test's clock")
        return task.result()

    async def until_true(self, what: Callable[[], object], limit_ms: int) -> None:
        """Not to be performed elsewhere: `what` is asked where this runs, and time is turned where the clients live."""
        end_ms = self.time.passed_ms + limit_ms
        await self.perform(self.advance(0))
        while not what():
            if self.time.passed_ms >= end_ms:
                raise TimeoutError(f"{what!r} is not true after {limit_ms / 1000:g} s of the test's clock")
            await self.perform(self._go_on(end_ms))

    async def _turn(self, is_over: Callable[[], object], end_ms: int) -> None:
        """Step by step, until it is over, or so much has passed."""
        async with self._alone():
            await self.settle(thoroughly=True)
        while not is_over() and self.time.passed_ms < end_ms:
            await self._go_on(end_ms)

    async def _go_on(self, end_ms: int) -> None:
        """One step. The last one comes to rest thoroughly."""
        async with self._alone():
            left_ms = end_ms - self.time.passed_ms
            if left_ms > 0:
                self._step(left_ms)
            await self.settle(thoroughly=self.time.passed_ms >= end_ms)

    def _alone(self) -> asyncio.Lock:
        """One step at a time, whoever turns."""
        here = running_loop()
        if self._lock[0] is not here:
            self._lock = here, asyncio.Lock()
        return self._lock[1]

    async def set_wall(self, step_ms: int) -> None:
        self.time.set_ms += step_ms
        async with self._alone():
            self._tick()
            await self.settle(thoroughly=True)

    @asynccontextmanager
    async def hurrying(self) -> AsyncIterator[None]:
        """Somebody waits for a start or a close: time goes on while nothing else happens."""
        self.enter()
        self._hurries += 1
        if self._hurrying is None:
            self._hurrying = asyncio.create_task(self._hurry())
        try:
            yield
        finally:
            self._hurries -= 1
            if not self._hurries:
                turner, self._hurrying = self._hurrying, None
                turner.cancel()
                await asyncio.gather(turner, return_exceptions=True)

    async def _hurry(self) -> None:
        while self._hurries:
            async with self._alone():
                await self.settle()
                if self._hurries:
                    self._step(FOREVER, may_skip=False)

    def _step(self, left_ms: int, *, may_skip: bool = True) -> None:
        self._look_for_life()
        skip_ms = min(self._skippable_ms(), left_ms) if may_skip else 0
        if skip_ms > 0:
            self.time.skipped_ms += skip_ms
            if self.broker is not None:
                self.broker.store.wall.slept(skip_ms)
            self._tick()
        else:
            self.time.lived_ms += min(self._next_in_ms(), left_ms)
            self._run_due()
        self._steps += 1

    def _next_in_ms(self) -> int:
        """How long it is until the next thing is due."""
        next_ms = min(self._tick_ms, self.wires.next_deadline_ms(), *(client.core.next_due_ms() for client in self.clients))
        in_ms = next_ms - self.time.steady_ms()
        deliver_in_ms = self._due_ms() - self.time.now_ms()
        return max(1, min(in_ms, deliver_in_ms) if deliver_in_ms > 0 else in_ms)

    def _run_due(self) -> None:
        now_ms = self.time.steady_ms()
        for client in list(self.clients):
            if client.core.next_due_ms() <= now_ms:
                client.ring()
        self.wires.expire()
        if now_ms >= self._tick_ms or self._due_ms() <= self.time.now_ms():
            self._tick()

    def _tick(self) -> None:
        now_ms = self.time.steady_ms()
        self._tick_ms = now_ms + (CALM_MS if now_ms - self._life_ms >= CALM_MS else TICK_MS)
        if self.name_server is not None:
            self.name_server.tick(now_ms)
        if self.broker is not None:
            rest: Rest | None = self.broker.tick(now_ms)
            while rest is not None:
                rest = rest()

    def _due_ms(self) -> int:
        """No message that waits for its time is due before this wall time."""
        return min([part.next_due_ms() for part in self._waiting], default=FOREVER)

    # Skipping

    def _look_for_life(self) -> None:
        life = self._log_end(), max(map(last_consumed_ms, self.clients), default=0)
        if life != self._life or self._calls():  # one that was given up ends when its consumer gives it up, too
            self._life, self._life_ms = life, self.time.steady_ms()

    def _skippable_ms(self) -> int:
        now_ms = self.time.steady_ms()
        if now_ms - self._life_ms < QUIET_MS or self._is_expected(now_ms):
            return 0
        return self._due_ms() - self.time.now_ms()

    def _is_expected(self, now_ms: int) -> bool:
        """Somebody waits for something, and for longer than routine does. Once seen as such it stays that, however near it comes."""
        for client in self.clients:
            self._timers.update(client.core.timers.after(now_ms + FAR_MS))
        for caller in self.wires.callers:
            for line in caller.lines.values():
                self._called.update((line, opaque) for opaque in line.calls.after(now_ms + FAR_MS))
        self._timers = {timer for timer in self._timers if timer.work is not None}
        self._called = {(line, opaque) for line, opaque in self._called if opaque in line.calls}
        return bool(self._timers or self._called)

    def _log_end(self) -> int:
        return -1 if self.broker is None else self.broker.store.log.end

    # Rest

    async def settle(self, *, thoroughly: bool = False) -> None:
        """Everything happens that can without time. Raises ClientError when that never ends."""
        limit = self.wires.delivered + EVENTS_MAX
        while self.wires.delivered < limit:
            self.rest(thoroughly=thoroughly)
            before = self.wires.delivered
            await self._until_loop_rests()
            if self.wires.delivered == before and not self.wires.busy and self._rested_at == self._log_end():
                return
        raise ClientError(
            f"{EVENTS_MAX} things have happened while the clock stands still, and more follow; does a handler send what it is called with?"
        )

    def rest(self, *, thoroughly: bool = False) -> None:
        """What is on the wires arrives, and servers do what they can do now. `thoroughly`: they are asked also when nothing was stored."""
        self.wires.deliver()
        if not thoroughly and self._rested_at == self._log_end() and self._due_ms() > self.time.now_ms():
            return
        still = 0
        for _ in range(TICKS_MAX):
            before = self.wires.delivered, self._log_end()
            self._tick()
            self.wires.deliver()
            still = still + 1 if (self.wires.delivered, self._log_end()) == before else 0
            if still == STILL:
                break
        self._rested_at = self._log_end()

    async def _until_loop_rests(self) -> None:
        loop = running_loop()
        if loop is None:
            return
        ready = getattr(loop, "_ready", None)  # asyncio's own loops say what they have to do; others are given some turns
        if self._steps % STEPS_A_TURN == 0:
            await asyncio.sleep(0)
        if ready is None:
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
        else:
            for _ in range(ROUNDS_MAX):
                if not ready:
                    break
                await asyncio.sleep(0)
        calls = self._calls()
        self._given_up &= calls
        calls -= self._given_up
        calls.discard(asyncio.current_task())  # a handler that turns the clock itself
        if calls:
            ended, _ = await asyncio.wait(calls, timeout=self.patience_s, return_when=asyncio.FIRST_COMPLETED)
            if ended:
                self.wires.delivered += 1  # something happened
            else:
                self._given_up |= calls

    def _calls(self) -> set[asyncio.Task[None]]:
        """Of handlers, that have not ended."""
        return {call for member in list(STARTED) if member.place is self.owner for call in member.calls()}


def last_consumed_ms(client: SharedClient) -> int:
    """When a handler of this client was last called."""
    consumers = [one for one in client.core.consumers.values() if isinstance(one, PushConsumerCore)]
    return max((queue.last_consume_ms for one in consumers for queue in one.queues.values()), default=0)


def driven(work: Coroutine[Any, Any, T]) -> T:
    """What it gives, where there is no loop and so nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    work.close()
    raise ClientError("this needs an event loop: call it inside of one")


async def _called(work: Callable[[], T]) -> T:
    return work()
