"""A master and a slave in one process, connected in memory: what one sends the other gets when `settle` is called."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roquet.broker.core import Broker
from roquet.errors import RoquetError
from roquet.ports import Answered
from roquet.testing import FakePeer, ManualClock, WholeBroker
from roquet.wire.command import Command
from roquet.wire.frame import Framer

from .streams import Wire
from .test_roles import log_of

MASTER = "127.0.0.1:10911"


class CallMaster:
    """A caller that asks a broker core directly."""

    def __init__(self) -> None:
        self.master: Broker | None = None
        self.asked: list[int] = []
        self.oneways: list[Command] = []
        self._opaque = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        self.asked.append(command.code)
        if self.master is None or address != MASTER:
            self._waiting.append(lambda: done(RoquetError(f"{address} is down")))
            return
        self._opaque += 1
        command.opaque = self._opaque
        peer = FakePeer()
        self.master.receive(peer, Framer().feed(command.encode()))
        (answer,) = peer.take()
        self._waiting.append(lambda: done(answer))

    def oneway(self, address: str, command: Command) -> None:
        self.oneways.append(command)
        if self.master is not None:
            self.master.receive(FakePeer(), Framer().feed(command.encode()))

    def hang_up(self, address: str) -> None: ...

    def run_one(self) -> None:
        self._waiting.popleft()()

    def run(self) -> bool:
        ran = bool(self._waiting)
        while self._waiting:
            self._waiting.popleft()()
        return ran


class Pair:
    """Two directories; either broker can be stopped, killed and started again."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.settings = {"mapped_file_size_commit_log": 16_384, "broker_role": "ASYNC_MASTER", **settings}
        self.clock = ManualClock()
        self.caller = CallMaster()
        self.master = self.start_master()
        self.slave = self.start_slave()

    def start_master(self, root: str = "m", **settings: Any) -> WholeBroker:
        self.master = WholeBroker(self.root / root, clock=self.clock, **{**self.settings, **settings})
        self.wire = Wire(self.master.broker.slaves)
        self.caller.master = self.master.broker
        if hasattr(self, "slave"):
            self.slave.broker.copying._dialer = self.wire
        return self.master

    def start_slave(self, root: str = "s", **settings: Any) -> WholeBroker:
        own = {**self.settings, "broker_role": "SLAVE", "broker_id": 1, "ha_master_address": "127.0.0.1:10912", **settings}
        self.slave = WholeBroker(self.root / root, clock=self.clock, **own)
        copying = self.slave.broker.copying
        copying._dialer, copying._caller = self.wire, self.caller
        return self.slave

    def settle(self, rounds: int = 30, step_ms: int = 50) -> None:
        """Time passes, and everything arrives."""
        for _ in range(rounds):
            self.slave.tick(step_ms)
            self.master.broker.tick(self.clock.ms)
            self.caller.run()
            self.wire.carry()

    def kill(self, broker: WholeBroker) -> None:
        self.wire.cut()
        broker.broker.store.locks.close()
        if broker is self.master:
            self.caller.master = None
            self.wire.up = False

    def stop(self, broker: WholeBroker) -> None:
        self.wire.cut()
        broker.close()
        if broker is self.master:
            self.caller.master = None
            self.wire.up = False

    @property
    def same(self) -> bool:
        return log_of_all(self.master) == log_of_all(self.slave)

    def close(self) -> None:
        for broker in (self.slave, self.master):
            broker.close()


def log_of_all(broker: WholeBroker) -> tuple[int, bytes]:
    """Where the log begins, and all its bytes."""
    store = broker.broker.store
    return store.log.start, log_of(broker)[: store.log.written - store.log.start]
