"""A whole broker core in this process: real files, a clock that stands still, background work done when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from roquet.broker.core import Broker
from roquet.errors import ConnectFailed
from roquet.ports import Answered
from roquet.settings import BrokerSettings
from roquet.store.disk import Disk, RealDisk
from roquet.testing.clock import ManualClock
from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from tests.broker.conftest import FakePeer

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class HeldBackground:
    """Keeps the work until `run_all`; `open` says whether it is done at once instead."""

    def __init__(self) -> None:
        self.open = True
        self.jobs: list[Job] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))
        if self.open:
            self.run_all()

    def run_all(self) -> None:
        while self.jobs:
            work, done = self.jobs.pop(0)
            try:
                result = work()
            except Exception as error:
                result = error
            done(result)


class NobodyThere:
    """A network without anybody in it."""

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        done(ConnectFailed(f"{address}: nobody there"))

    def oneway(self, address: str, command: Command) -> None: ...

    def hang_up(self, address: str) -> None: ...


class InsideBroker:
    def __init__(self, root: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.background = HeldBackground()
        values: dict[str, Any] = {
            "store_path_root_dir": str(root),
            "mapped_file_size_commit_log": 1 << 20,
            "mapped_file_size_consume_queue": 6_000,
            "max_hash_slot_num": 100,
            "max_index_num": 4_000,
        }
        self.settings = BrokerSettings(**(values | settings))
        self.core = Broker(self.settings, disk or RealDisk(), self.clock, self.background, NobodyThere(), Random(1), 1 << 30)
        self.core.open()
        self.core.listening("127.0.0.1:10911", bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)))
        self._opaque = 0

    def give(self, peer: FakePeer, *requests: Command) -> None:
        """These requests arrive in one read."""
        self.core.receive(peer, [frame for one in requests for frame in Framer().feed(one.encode())])

    def ask(self, command: Command) -> Command:
        """On a connection of its own; the answer must come at once."""
        peer = FakePeer()
        self._opaque += 1
        command.opaque = self._opaque
        self.give(peer, command)
        (answer,) = peer.take()
        return commands.decode(Framer().feed(answer.encode())[0])

    def tick(self, ms: int = 100) -> None:
        self.clock.ms += ms
        self.core.tick(self.clock.ms)
