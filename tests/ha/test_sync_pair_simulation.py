"""A sync pair from a seed: cut and slow connections, kills, power losses, pauses, masters that are lost and slaves that take over.

Checked all the time: a send that was answered with success is at its place on the master, whichever of the two that is by now. At the
end, when nothing goes wrong any more, both logs are the same, and so are all queues.

    ROQUET_SEEDS=0:2000 pytest tests/ha/test_sync_pair_simulation.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from roquet.broker.core import Broker
from roquet.errors import RoquetError
from roquet.ports import Answered, StreamEnd
from roquet.settings import BrokerSettings
from roquet.store.disk import blocking
from roquet.testing import FakePeer, ManualBackground, ManualClock, SimDisk
from roquet.testing.network import stored_host
from roquet.wire.command import Command
from roquet.wire.frame import Framer

from .streams import FakeStream
from .test_roles import SEND

FIRST, STOP = map(int, os.environ.get("ROQUET_SEEDS", "0:40").split(":"))
STEPS = 120
ADDRESSES = ("10.0.0.1:10911", "10.0.0.2:10911")


class Machine:
    """One of the two: a disk that outlives its broker."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.clock = world.clock
        self.disk = SimDisk(world.clock, f"{world.seed} {number}")
        self.disk.make_dir("/data")
        self.disk.sync_dir("/")
        self.disk.cold_ratio = world.random.choice((0.0, 0.0, 0.2))
        self.core: Broker | None = None
        self.background = ManualBackground(hold=True)
        self.role = "SLAVE" if number else "SYNC_MASTER"

    def start(self) -> None:
        world = self.world
        other = ADDRESSES[1 - self.number]
        host, _, port = other.rpartition(":")
        values: dict[str, Any] = {
            "store_path_root_dir": "/data/broker", "broker_role": self.role, "broker_id": 1 if self.role == "SLAVE" else 0,
            "ha_master_address": f"{host}:{int(port) + 1}" if self.role == "SLAVE" else "", **world.settings,
        }  # fmt: skip
        self.background = ManualBackground(hold=True)
        core = Broker(
            BrokerSettings(**values), self.disk, self.clock, self.background, world, Random(f"{world.seed} {self.number}"), 1 << 24,
            dialer=world,
        )  # fmt: skip
        core.open()
        core.listening(ADDRESSES[self.number], stored_host(ADDRESSES[self.number]))
        self.core = core

    def end(self, how: str) -> None:
        """ "stop", "kill" or "crash" (power loss)."""
        core, self.core = self.core, None
        if core is None:
            return
        self.world.cut()
        if self.role == "SLAVE":
            self.world.calls.clear()  # slaves alone call somebody
        if how == "stop":
            self.background.hold = False
            self.background.release()
            core.close()
            self.disk.kill()
        elif how == "kill":
            self.disk.kill()
        else:
            self.disk.crash()


class World:
    """Both machines, the wire between them, and what was promised. It is their caller and dialer, too."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.clock = ManualClock()
        self.sync_flush = random.random() < 0.7
        self.settings = {
            "mapped_file_size_commit_log": 8_192, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 40, "max_index_num": 100,
            "flush_disk_type": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH", "vip_channel_enable": False,
            "ha_transfer_batch_size": random.choice((100, 1_000, 32_768)), "clean_file_forcibly_enable": False,
        }  # fmt: skip
        self.machines = [Machine(self, 0), Machine(self, 1)]
        self.peer = FakePeer()
        self.sent: dict[int, bytes] = {}
        self.promised: dict[tuple[int, int], bytes] = {}
        """(queue, offset) -> the body that was acknowledged there with success."""
        self.answered = 0
        self._opaque = 0
        self._ends: tuple[FakeStream, FakeStream, StreamEnd, StreamEnd] | None = None
        self._buffers = [b"", b""]
        self.calls: list[Callable[[], None]] = []
        for machine in self.machines:
            machine.start()
        while not self.promised:  # two that share nothing are left alone, rightly
            self.send(1)
            self.work(60, all_of_it=True)

    @property
    def master(self) -> Machine:
        return next(machine for machine in self.machines if machine.role != "SLAVE")

    @property
    def slave(self) -> Machine:
        return next(machine for machine in self.machines if machine.role == "SLAVE")

    # What brokers are given

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        core = next((machine.core for machine, own in zip(self.machines, ADDRESSES, strict=True) if own == address), None)
        peer = FakePeer()
        if core is None or self.random.random() < 0.1:
            self.calls.append(lambda: done(RoquetError("it does not answer")))
            return
        self._opaque += 1
        command.opaque = self._opaque
        core.receive(peer, Framer().feed(command.encode()))

        def later() -> None:
            answers = peer.take()
            done(answers[0] if answers else RoquetError("it does not answer in time"))

        self.calls.append(later)

    def oneway(self, address: str, command: Command) -> None: ...

    def hang_up(self, address: str) -> None: ...

    def dial(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        core = self.master.core
        if core is None or self.random.random() < 0.2:
            end.lost(None, "it cannot be reached")
            return
        here, there = FakeStream("10.0.0.9:10912"), FakeStream("10.0.0.8:40000")
        self._ends, self._buffers = (here, there, end, core.slaves), [b"", b""]
        core.slaves.opened(there)
        end.opened(here)

    def carry(self, *, all_of_it: bool = False) -> None:
        """Some of what is under way arrives."""
        if self._ends is None:
            return
        here, there, end, listener = self._ends
        if here.closed or there.closed:
            self.cut()
            return
        self._buffers[0] += here.take()
        self._buffers[1] += there.take()
        for number, (target, stream) in enumerate(((listener, there), (end, here))):
            data = self._buffers[number]
            size = len(data) if all_of_it or self.random.random() < 0.5 else self.random.randrange(len(data) + 1)
            self._buffers[number] = data[size:]
            if size and not stream.closed:
                target.received(stream, data[:size])

    def cut(self) -> None:
        if self._ends is not None:
            here, there, end, listener = self._ends
            self._ends = None
            here.closed = there.closed = True
            listener.lost(there, "cut")
            end.lost(here, "cut")

    # What happens

    def send(self, count: int) -> None:
        core = self.master.core
        if core is None:
            return
        commands = []
        for _ in range(count):
            self._opaque += 1
            body = b"%d " % self._opaque * self.random.choice((1, 5, 60))
            self.sent[self._opaque] = body
            queue = str(self.random.randrange(2))
            commands.append(Command(310, {**SEND, "e": queue, "i": f"KEYS\x01k{self._opaque}"}, body, opaque=self._opaque))
        core.receive(self.peer, Framer().feed(b"".join(command.encode() for command in commands)))

    def hear(self) -> None:
        for answer in self.peer.take():
            self.answered += 1
            if answer.code == 0:
                self.promised[int(answer.fields["queueId"]), int(answer.fields["queueOffset"])] = self.sent[answer.opaque]

    def work(self, ms: int, *, all_of_it: bool = False) -> None:
        self.clock.forward(ms)
        for machine in self.machines:
            if machine.core is not None:
                rest = machine.core.tick(self.clock.steady_ms())
                while rest is not None:
                    rest = rest()
                for _ in range(len(machine.background.waiting)):
                    if all_of_it or self.random.random() < 0.7:
                        machine.background.release_one()
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        self.carry(all_of_it=all_of_it)
        self.hear()

    def restart(self, machine: Machine, how: str) -> None:
        machine.end(how)
        machine.start()
        self.hear()
        if machine is self.master:
            self.peer = FakePeer()
            self.check()

    def take_over(self) -> None:
        """The master's machine is away; its slave becomes the master, and the old one, when it is back, the slave."""
        how = self.random.choice(("kill", "crash", "stop") if self.sync_flush else ("kill", "stop"))
        old, new = self.master, self.slave
        self.hear()
        old.end(how)
        self.hear()
        new.end(self.random.choice(("stop", "kill")))
        old.role, new.role = "SLAVE", "SYNC_MASTER"
        self.peer = FakePeer()
        new.start()
        self.check()
        for _ in range(self.random.randrange(5)):
            self.send(1)
            self.work(20)
        old.start()

    def step(self) -> None:
        chance = self.random.random()
        how = self.random.choice(("kill", "crash", "stop") if self.sync_flush else ("kill", "stop"))
        if chance < 0.45:
            self.send(self.random.randrange(1, 8))
            self.work(self.random.choice((1, 10, 60)))
        elif chance < 0.9:
            self.work(self.random.choice((1, 10, 60, 60, 500, 4_000)))
        elif chance < 0.93:
            self.cut()
        elif chance < 0.95:
            self.restart(self.master, how)
        elif chance < 0.98:
            self.restart(self.slave, how)
        else:
            self.take_over()

    # What must hold

    def check(self) -> None:
        core = self.master.core
        assert core is not None
        for (queue_id, offset), body in self.promised.items():
            queue = core.store.find_queue("T", queue_id)
            entry = None if queue is None else blocking(queue.entry, offset)
            assert entry is not None, f"seed {self.seed}: T/{queue_id} {offset} was acknowledged and is not there"
            raw = blocking(core.store.record_at, entry[0])
            assert body in raw, f"seed {self.seed}: at T/{queue_id} {offset} stands another message than was acknowledged"

    def settle(self) -> None:
        self.random = Random(0)
        for _ in range(400):
            self.work(60, all_of_it=True)
        for machine in self.machines:
            assert machine.core is not None
            machine.core.store.applier.advance()
        self.check()
        logs = [logged(machine) for machine in self.machines]
        assert logs[0] == logs[1], f"seed {self.seed}: the logs differ"
        queues = [queued(machine) for machine in self.machines]
        assert queues[0] == queues[1], f"seed {self.seed}: the queues differ"


def logged(machine: Machine) -> tuple[int, bytes]:
    assert machine.core is not None
    log = machine.core.store.log
    data = b"".join(log.segments.file(base).read(0, log.segments.size) for base in log.segments.bases)
    return log.start, data[: log.written - log.start]


def queued(machine: Machine) -> dict[tuple[str, int], list[tuple[int, int, int] | None]]:
    assert machine.core is not None
    return {
        key: [blocking(queue.entry, number) for number in range(queue.first, queue.visible)]
        for key, queue in machine.core.store.queues.items()
        if queue.visible > queue.first
    }


@pytest.mark.parametrize("seed", range(FIRST, STOP))
def test_what_a_sync_pair_acknowledged_is_never_lost_and_both_end_alike(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    assert world.answered
