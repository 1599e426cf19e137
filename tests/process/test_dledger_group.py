"""Three brokers that are one DLedger group: the leader is killed, stopped and brought back under load. Nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet import Message, Producer
from roquet.cli.shards import free_ports
from roquet.errors import ClientError
from tests.process.programs import PATIENCE_S, SMALL_FILES, Broker, Nursery
from tests.process.test_sends_across_a_restart import bodies

TOPIC = "orders"
SERVES = "serves as the master"


class Group:
    """State: the brokers that run, by id."""

    def __init__(self, nursery: Nursery, path: Path, flush: str) -> None:
        self.nursery = nursery
        self.path = path
        self.name_server = nursery.name_server(path / "names")
        self.address = "{}:{}".format(*self.name_server.address)
        names = ("n0", "n1", "n2")
        peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(names, free_ports(3, "127.0.0.1"), strict=True))
        self.settings = {
            "namesrvAddr": self.address,
            "registerBrokerTimeoutMills": "6000",
            "enableDLegerCommitLog": "true",
            "dLegerPeers": peers,
            "flushDiskType": flush,
            **SMALL_FILES,
        }
        self.brokers = {name: self.start(name) for name in names}

    def start(self, name: str) -> Broker:
        return self.nursery.begin_broker(self.path / name, self.settings | {"dLegerSelfId": name})

    def restart(self, name: str) -> None:
        self.brokers[name] = self.start(name)
        self.brokers[name].program.wait_for("boot success")

    def leads(self, name: str) -> bool:
        lines = self.brokers[name].program.text.splitlines()
        told = [line for line in lines if SERVES in line or " is FOLLOWER " in line or " is CANDIDATE " in line]
        return self.brokers[name].program.is_alive() and bool(told) and SERVES in told[-1]

    async def leader(self, but: str = "") -> str:
        """The one that serves; not this one."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for name in self.brokers:
                if name != but and self.leads(name):
                    return name
            await asyncio.sleep(0.01)
        raise AssertionError("nobody leads:\n" + "\n".join(broker.program.text for broker in self.brokers.values()))

    def ledger(self, name: str) -> bytes:
        files = sorted((self.path / name / "store" / f"dledger-{name}" / "data").iterdir())
        return b"".join(file.read_bytes() for file in files)

    def close(self) -> None:
        for broker in self.brokers.values():
            with contextlib.suppress(ProcessLookupError):
                broker.program.send_signal(signal.SIGCONT)
            broker.kill()
        self.name_server.kill()


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def group(nursery: Nursery, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(nursery, tmp_path, request.param)
    yield made
    made.close()


class Load:
    """Some senders at once, each with one message under way. State: what was acknowledged, and when the last was."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.acknowledged: list[bytes] = []
        self.failed = 0
        self.longest_s = 0.0
        self._last_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(4)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, sender: int) -> None:
        number = 0
        while True:
            number += 1
            body = b"%d-%d" % (sender, number)
            try:
                await self.producer.send(Message(TOPIC, body))
            except ClientError:
                self.failed += 1
                await asyncio.sleep(0.02)  # the next try is another message
                continue
            now_s = time.monotonic()
            self.longest_s, self._last_s = max(self.longest_s, now_s - self._last_s), now_s
            self.acknowledged.append(body)

    async def more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        target = len(self.acknowledged) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < target:
                await asyncio.sleep(0.01)


async def play(group: Group, fault: signal.Signals) -> None:
    first = await group.leader()
    async with Producer("senders", group.address) as producer, Load(producer) as load:
        await load.more()
        broker = group.brokers[first]
        if fault is signal.SIGKILL:
            await asyncio.to_thread(broker.kill)
        else:
            broker.program.send_signal(fault)
        second = await group.leader(but=first)
        await load.more()
        if fault is signal.SIGKILL:
            await asyncio.to_thread(group.restart, first)
        else:
            broker.program.send_signal(signal.SIGCONT)
        await load.more()
        await asyncio.to_thread(group.brokers[second].kill)
        await group.leader(but=second)
        await load.more()
        await asyncio.to_thread(group.restart, second)
        await load.more()
    there = set(await bodies(group.address, TOPIC))
    missing = [body for body in load.acknowledged if body not in there]
    assert not missing, f"{len(missing)} of {len(load.acknowledged)} are lost: {missing[:5]}"
    await same_ledgers(group)


async def same_ledgers(group: Group) -> None:
    """Nobody sends any more: soon all members hold the same bytes."""
    async with asyncio.timeout(PATIENCE_S):
        while len({group.ledger(name) for name in group.brokers}) > 1:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped for a while"])
def test_a_leader_is_replaced_and_nothing_acknowledged_is_lost(group: Group, fault: signal.Signals) -> None:
    asyncio.run(play(group, fault))


async def play_clean_stop(group: Group) -> None:
    first = await group.leader()
    async with Producer("senders", group.address) as producer, Load(producer) as load:
        await load.more()
        status = await asyncio.to_thread(group.brokers[first].stop)
        assert status == 0
        assert "hands the leadership over" in group.brokers[first].program.text
        await group.leader(but=first)
        await load.more()
        await asyncio.to_thread(group.restart, first)
        await load.more()
    there = set(await bodies(group.address, TOPIC))
    assert not [body for body in load.acknowledged if body not in there]


def test_a_leader_that_is_stopped_hands_over_first(nursery: Nursery, tmp_path: Path) -> None:
    group = Group(nursery, tmp_path, "ASYNC_FLUSH")
    try:
        asyncio.run(play_clean_stop(group))
    finally:
        group.close()


async def play_empty_member(group: Group) -> None:
    first = await group.leader()
    lost = next(name for name in group.brokers if name != first)
    async with Producer("senders", group.address) as producer, Load(producer) as load:
        await load.more()
        await asyncio.to_thread(group.brokers[lost].kill)
        await load.more()
        shutil.rmtree(group.path / lost / "store")
        await asyncio.to_thread(group.restart, lost)
        await load.more()
    there = set(await bodies(group.address, TOPIC))
    assert not [body for body in load.acknowledged if body not in there]
    await same_ledgers(group)


def test_a_dead_member_is_replaced_by_an_empty_one(nursery: Nursery, tmp_path: Path) -> None:
    group = Group(nursery, tmp_path, "SYNC_FLUSH")
    try:
        asyncio.run(play_empty_member(group))
    finally:
        group.close()
