"""Groups of servers as values, and their nodes as processes on machines of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import NamedTuple

from chaos.checker import Promise
from chaos.namespaces import Machine, mount_memory, resize_memory
from chaos.schedule import CUT, CUT_INWARD, CUT_OUTWARD, CUT_PEERS, DELAY, FULL_DISK, KILL, LOSS, REPLACE, STOP

ROOT = Path(__file__).parent.parent
BROKER_NAME = "broker-a"
BROKER_PORT, NAME_SERVER_PORT, RAFT_PORT = 10911, 9876, 40911
DISK_SIZE = 256 << 20
PATIENCE_S = 120.0
"""Of everything that must happen at all; a busy machine takes long to start a program."""
LOOK_S = 0.02
RESIZE_TRIES = 100
LOST_BYTES = 20_000

ANYWHERE = (KILL, STOP, CUT, CUT_OUTWARD, CUT_INWARD, LOSS, DELAY, FULL_DISK)
"""What can happen to a server that is alone."""
REPLICATED = (*ANYWHERE, CUT_PEERS, REPLACE)
COMMON = {
    "brokerClusterName": "chaos",
    "brokerName": BROKER_NAME,
    "listenPort": str(BROKER_PORT),
    "autoCreateTopicEnable": "false",
    # A full disk must not make it remove what the run wants to see in the end.
    "cleanFileForciblyEnable": "false",
    "diskMaxUsedSpaceRatio": "95",
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    # Transactions that nobody answered for are asked after soon, so that a run need not wait for minutes.
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "100",
}


class BrokerSpec(NamedTuple):
    name: str
    address: str
    settings: dict[str, str]


class Layout(NamedTuple):
    """A kind of group: its brokers, what it promises, and what may happen to it."""

    name: str
    brokers: Sequence[BrokerSpec]
    promise: Promise
    kinds: tuple[str, ...]
    never_leaders: tuple[str, ...] = ()
    """Of these kinds, those that the leader must be spared."""
    fails_over: bool = False
    """Whether another node takes writes when the leader is away. Where not, a killed one is started again at once."""
    copies: bool = False
    """Whether every node must have everything when all is well again."""
    safe_on_slave: bool = False
    """Whether a slave must have everything that was acknowledged as safe at the moment its master is killed."""


def address_of(number: int) -> str:
    return f"10.77.0.{number}"


def single(flush: str) -> Layout:
    broker = BrokerSpec("broker-1", address_of(21), {"brokerId": "0", "brokerRole": "ASYNC_MASTER", "flushDiskType": flush})
    return Layout("single", [broker], Promise(), ANYWHERE)


def pair(role: str, flush: str) -> Layout:
    roles = {"broker-1": {"brokerId": "0", "brokerRole": role}, "broker-2": {"brokerId": "1", "brokerRole": "SLAVE"}}
    brokers = [BrokerSpec(name, address_of(21 + at), {**more, "flushDiskType": flush}) for at, (name, more) in enumerate(roles.items())]
    name = "sync" if role == "SYNC_MASTER" else "async"
    return Layout(name, brokers, Promise(), REPLICATED, never_leaders=(REPLACE,), copies=True, safe_on_slave=name == "sync")


def dledger(flush: str) -> Layout:
    addresses = [address_of(21 + at) for at in range(3)]
    peers = ";".join(f"n{at}-{address}:{RAFT_PORT}" for at, address in enumerate(addresses))
    shared = {"enableDLegerCommitLog": "true", "dLegerGroup": BROKER_NAME, "dLegerPeers": peers, "flushDiskType": flush}
    brokers = [BrokerSpec(f"broker-{at + 1}", address, {**shared, "dLegerSelfId": f"n{at}"}) for at, address in enumerate(addresses)]
    return Layout("dledger", brokers, Promise(), REPLICATED, fails_over=True, copies=True)


LAYOUTS: dict[str, Callable[[str], Layout]] = {
    "single": single,
    "async": lambda flush: pair("ASYNC_MASTER", flush),
    "sync": lambda flush: pair("SYNC_MASTER", flush),
    "dledger": dledger,
}


class Broken(Exception):
    """The run cannot go on. The text says why."""


class Program:
    """A module that runs as a process on a machine. Its output is in a file, over all its starts."""

    def __init__(self, machine: Machine, arguments: Sequence[str], log: Path) -> None:
        self.machine, self.arguments, self.log = machine, arguments, log
        self.process: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    def start(self) -> None:
        """From the main thread alone: the process ends with the thread that started it."""
        command = [sys.executable, "-m", "chaos.child", *self.arguments]
        environment = {**os.environ, "CHAOS_PARENT": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as output, self.machine.inside():
            self._said_before = output.tell()
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def give(self, number: Signals) -> None:
        if self.alive:
            assert self.process is not None
            self.process.send_signal(number)

    def end(self, number: Signals) -> None:
        self.give(number)
        self.wait_ended()

    def wait_ended(self) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Broken(f"{self.machine.name} did not end within {PATIENCE_S:.0f} s; its output is in {self.log}") from None
        finally:
            if self.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()

    def said(self, words: str) -> bool:
        """Since its last start."""
        with self.log.open("rb") as output:
            output.seek(self._said_before)
            return words.encode() in output.read()

    def wait_said(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.said(words):
            if not self.alive:
                assert self.process is not None
                raise Broken(
                    f"{self.machine.name} ended with {self.process.returncode} and never said {words!r}; its output is in {self.log}"
                )
            if time.monotonic() > deadline:
                raise Broken(f"{self.machine.name} did not say {words!r} within {PATIENCE_S:.0f} s; its output is in {self.log}")
            time.sleep(LOOK_S)


@dataclass
class Node:
    """A server. What happens to it is done here, but for its network."""

    program: Program
    disk: Path | None = None
    """Where its own file system is mounted."""
    paused: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return self.program.machine.name

    def start(self) -> None:
        self.program.start()

    def wait_booted(self) -> None:
        self.program.wait_said("boot success")

    def kill(self) -> None:
        self.program.end(Signals.SIGKILL)

    def empty_disk(self) -> None:
        assert self.disk is not None, f"{self.name} has no file system of its own"
        shutil.rmtree(self.disk / "store")

    def pause(self) -> None:
        self.program.give(Signals.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.program.give(Signals.SIGCONT)
        self.paused = False

    def fill_disk(self) -> None:
        """It shrinks to what is used now."""
        assert self.disk is not None, f"{self.name} has no file system of its own"
        for _ in range(RESIZE_TRIES):  # the server may take some more meanwhile
            now = os.statvfs(self.disk)
            with contextlib.suppress(OSError):
                resize_memory(self.disk, (now.f_blocks - now.f_bfree) * now.f_bsize)
                return
        raise Broken(f"the file system of {self.name} could not be made full")

    def free_disk(self) -> None:
        assert self.disk is not None, f"{self.name} has no file system of its own"
        resize_memory(self.disk, DISK_SIZE)


def lose_tail(node: Node) -> None:
    """A bug to plant: the last records of its log are gone, as if nobody had written them."""
    assert node.disk is not None, f"{node.name} has no file system of its own"
    files = [*node.disk.glob("store/commitlog/[0-9]*"), *node.disk.glob("store/dledger-*/data/[0-9]*")]
    for path in sorted(files, reverse=True):
        data = path.read_bytes()
        end = len(data.rstrip(b"\0"))
        if end:
            with path.open("r+b") as file:
                file.seek(max(0, end - LOST_BYTES))
                file.write(bytes(min(end, LOST_BYTES)))
            return


def name_server(machine: Machine, directory: Path) -> Node:
    place = directory / machine.name
    place.mkdir()
    config = write_settings(place / "namesrv.conf", {"listenPort": str(NAME_SERVER_PORT), "bindAddress": machine.address})
    arguments = ["roquet", "namesrv", "-c", str(config), "--data", str(place / "data")]
    return Node(Program(machine, arguments, directory / f"{machine.name}.log"))


def broker(machine: Machine, directory: Path, namesrv: str, settings: dict[str, str]) -> Node:
    disk = directory / machine.name
    mount_memory(disk, DISK_SIZE)
    values = {**COMMON, "brokerIP1": machine.address, "namesrvAddr": namesrv, "storePathRootDir": str(disk / "store"), **settings}
    config = write_settings(directory / f"{machine.name}.conf", values)
    return Node(Program(machine, ["roquet", "broker", "-c", str(config)], directory / f"{machine.name}.log"), disk)


def write_settings(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
