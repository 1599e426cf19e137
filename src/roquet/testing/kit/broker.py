"""Broker: a name server and a broker for a test, with a clock that the test turns.

    async with roquet.testing.Broker() as broker:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("reminders", b"pay", deliver_after=7200))
        await broker.clock.advance(hours=2)
        assert broker.published.bodies("reminders") == [b"pay"]

They are the real ones, and so is the client above them. Around them everything is simulated: wires in place of sockets, a disk in memory,
and time. No port is opened, no thread started, no file written, and a start takes a few milliseconds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from random import Random
from time import time_ns
from types import TracebackType
from typing import Any, Self, TypeVar

from roquet.broker.core import Broker as BrokerCore
from roquet.client.place import PLACES
from roquet.embed import ALONE, Clients
from roquet.errors import ClientError
from roquet.nameserver.core import NameServer
from roquet.settings import BrokerSettings, NameServerSettings
from roquet.testing.background import attempt
from roquet.testing.disk import SimDisk
from roquet.testing.kit.clock import Clock, Time, wall_ms
from roquet.testing.kit.driver import Driver
from roquet.testing.kit.home import Home
from roquet.testing.kit.published import Published
from roquet.testing.kit.wires import WireCaller, Wires
from roquet.testing.network import stored_host

T = TypeVar("T")

ADDRESS = "127.0.0.1:10911"
"""Of the broker, among its own wires."""
MEMORY = 1 << 28
SMALL = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
ELSEWHERE = {
    "aclEnable": "access control reads files",
    "enableDLegerCommitLog": "a group has several members",
}
"""Settings that are for several brokers, or for the machine."""

_numbers = itertools.count(1)


class Broker(Clients):
    """A broker and its name server inside the test: real cores on simulated wires, a disk in memory, and a clock turned by hand.

    Use it in `async with`, or in `with` where there is no event loop. Give `namesrv` to whatever takes the address of a name server. All
    clients of one broker live in one event loop at a time.
    """

    clock: Clock
    """Of the broker, the name server and all their clients."""
    published: Published
    """What is in the topics."""
    namesrv: str
    """The address for clients: no host has this name, and only clients of this process reach it."""

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, now: datetime | None = None, seed: int = 0, patience: float = 1.0
    ) -> None:
        """`settings`: the broker's, under RocketMQ's keys, as `roquet.embedded()` takes them; an unknown key raises. `now`: what the clock
        shows at first; None: the time of this machine. `seed`: decides what chance decides. `patience`: for so many seconds of real time a
        handler that does not end is waited for, before time goes on without it.
        """
        self.namesrv = f"roquet-test-{os.getpid()}-{next(_numbers)}.invalid:9876"
        self.address = ADDRESS
        self._pairs = {**ALONE, **SMALL, **(settings or {})}
        self._read()
        self.seed = seed
        self._driver = driver = Driver(Time(time_ns() // 1_000_000 if now is None else wall_ms(now)), patience)
        self.clock = Clock(driver)
        self.published = Published(driver)
        self._home = Home(driver, seed)
        self._disk = SimDisk(driver.time, seed)
        self._caller: WireCaller | None = None
        self._runs = 0

    def _read(self) -> BrokerSettings:
        pairs = self._pairs
        found, warnings = BrokerSettings.read(pairs)
        for key, why in ELSEWHERE.items():
            if pairs.get(key, "false").strip().lower() == "true":
                raise ClientError(f"{key}=true is nothing for a test broker: {why}; use roquet.embedded(), or a real cluster")
        if found.broker_role == "SLAVE":
            raise ClientError("brokerRole=SLAVE is nothing for a test broker: it has no master; use a real cluster")
        if warnings:
            raise ClientError("; ".join(warnings))
        return found.replace(namesrv_addr=self.namesrv, store_path_root_dir="/broker")

    # Life

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._driver.broker is not None

    def start(self) -> Awaitable[None]:
        """Start it, or start it again: what it had stored is there. In an event loop, await it."""
        return self._driver.perform(self._done(self._start))

    def stop(self) -> Awaitable[None]:
        """Stop it as an operator does: everything is saved, and the name server, which goes on, knows it no more. Clients try again
        until it is back. In an event loop, await it."""
        return self._driver.perform(self._done(self._stop))

    def kill(self) -> Awaitable[None]:
        """End it as SIGKILL does: nothing more is saved. In an event loop, await it."""
        return self._driver.perform(self._done(self._kill))

    def settle(self) -> Awaitable[None]:
        """Everything happens that happens without time: what was sent is consumed, and what handlers send in their turn. In an event
        loop, await it."""
        return self._driver.perform(self._done(lambda: None))

    async def _done(self, work: Callable[[], T]) -> T:
        result = work()
        await self._driver.advance(0)
        return result

    def _start(self) -> None:
        driver = self._driver
        if driver.broker is not None:
            return
        if driver.over:
            raise ClientError("this test broker has ended; make another one")
        time, wires = driver.time, driver.wires
        if driver.name_server is None:
            driver.name_server = NameServer(NameServerSettings(), time, self._disk, "/name-server")
            wires.listen(self.namesrv, driver.name_server)
            PLACES[self.namesrv] = self._home
        self._runs += 1
        self._caller = WireCaller(wires)
        core = BrokerCore(
            self._read(), self._disk, time, WireBackground(wires), self._caller, Random(f"broker {self.seed} {self._runs}"), MEMORY,
            keep=self._pairs.update,
        )  # fmt: skip
        core.open()
        core.listening(ADDRESS, stored_host(ADDRESS))
        wires.listen(ADDRESS, core)
        driver.drive(core)
        core.registration.now()
        driver.rest(thoroughly=True)

    def _stop(self) -> None:
        core = self._driver.broker
        if core is None:
            return
        core.registration.unregister(lambda: None)
        self._driver.rest()
        self._driver.wires.stop(ADDRESS)
        while core.saving and self._driver.wires.busy:
            self._driver.wires.deliver()
        core.close()
        self._ended()

    def _kill(self) -> None:
        if self._driver.broker is not None:
            self._driver.wires.stop(ADDRESS)
            self._ended()

    def _ended(self) -> None:
        if self._caller is not None:
            self._caller.abandon()
        self._driver.drive(None)
        self._caller = None
        self._disk.kill()

    def _end(self) -> None:
        """The last thing: nobody turns the clock any more. A client that is still open is left alone with the machine's."""
        self._kill()
        driver = self._driver
        driver.wires.stop(self.namesrv)
        driver.name_server = None
        driver.wires.deliver()
        PLACES.pop(self.namesrv, None)
        driver.over = True
        driver.time.leave_alone()
        for client in list(driver.clients):
            if not client.loop.is_closed():
                client.arm(client.core.next_due_ms())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._driver.look(self._end)

    def __enter__(self) -> Self:
        self._driver.look(self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._driver.look(self._end)

    def __repr__(self) -> str:
        return f"<Broker {self.namesrv}{'' if self.running else ', not running'}, {self.clock!r}>"


class WireBackground:
    """ports.Background: blocking work, done in its turn among what is on the wires."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def perform() -> None:
            result: Any = attempt(work)
            done(result)

        self._wires.post(perform)
