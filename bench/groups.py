"""Nodes that keep one log together, of either kind: a sync master with its slave, and a DLedger group of three."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from frames import GET_BROKER_RUNTIME_INFO, Admin, Refused
from servers import Launcher, Running, apache, cpu_seconds

HEAP = "2g"  # of each of Apache's nodes; a broker alone has 4
SETTINGS: dict[str, object] = {
    "waitTimeMillsInSendQueue": 10_000
}  # Apache turns sends away that have waited 200 ms: here nodes share cores
FIRST_SEND_S = 90.0
MEMBERS = 3


@dataclass(frozen=True)
class Node:
    """How one of the nodes is started, the first time and again."""

    directory: Path
    port: int
    settings: dict[str, object]


@dataclass
class Group(Running):
    """As a broker under test: who takes the sends is its `broker`, and its CPU time is that of all nodes."""

    launcher: Launcher = field(default_factory=Launcher)
    nodes: list[Node] = field(default_factory=list)
    servers: list[apache.Server] = field(default_factory=list)

    def cpu(self) -> float:
        for server in self.servers:
            if server.process.poll() is not None:
                raise apache.InteropError(f"{self.kind}: a node ended with {server.process.returncode}:\n{server.log()[-2000:]}")
        return sum(cpu_seconds(server.pid) for server in self.servers)

    def find_leader(self) -> None:
        """Wait until one of the nodes acknowledges a send: it is the one to load."""

        def found() -> bool:
            for server in self.servers:
                if acknowledges(server):
                    self.broker = server
                    return True
            return False

        apache.wait_until(found, "a node that acknowledges sends", timeout_s=FIRST_SEND_S, every_s=0.1)

    def until_equal(self, behind: int = 0) -> None:
        """Wait until the logs of all nodes end at the same place, or are at most so many bytes `behind`: messages may come meanwhile."""

        def equal() -> bool:
            try:
                ends = [log_end(server) for server in self.servers]
            except (OSError, Refused):
                return False
            return max(ends) - min(ends) <= behind

        apache.wait_until(equal, "equal logs on all nodes", timeout_s=FIRST_SEND_S, every_s=0.1)

    def start_again(self, server: apache.Server) -> None:
        number = self.servers.index(server)
        self.servers[number] = _start(self.launcher, self.kind, self.namesrv, self.nodes[number])

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


def acknowledges(server: apache.Server) -> bool:
    if server.process.poll() is not None:
        raise apache.InteropError(f"a node ended with {server.process.returncode}:\n{server.log()[-3000:]}")
    try:
        with Admin(server.address) as admin:
            admin.send("BenchStart", b"the first")
    except (OSError, Refused):
        return False
    return True


def log_end(server: apache.Server) -> int:
    with Admin(server.address) as admin:
        _, body = admin.ask(GET_BROKER_RUNTIME_INFO, {})
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


@contextlib.contextmanager
def sync_pair(launcher: Launcher, kind: str, directory: Path) -> Iterator[Group]:
    """A master that acknowledges what its slave has, too."""
    master = SETTINGS | {"brokerRole": "SYNC_MASTER"}
    slave = SETTINGS | {"brokerRole": "SLAVE", "brokerId": 1}
    nodes = [Node(directory / name, apache.free_port(), settings) for name, settings in (("master", master), ("slave", slave))]
    # A slave is told where its master is when it registers, which it does again 30 s later.
    with _group(launcher, kind, directory, nodes, one_by_one=True) as group:
        yield group


@contextlib.contextmanager
def dledger(launcher: Launcher, kind: str, directory: Path) -> Iterator[Group]:
    ports = [apache.free_port() for _ in range(MEMBERS)]
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    group: dict[str, object] = SETTINGS | {"enableDLegerCommitLog": True, "dLegerGroup": "broker-a", "dLegerPeers": peers}
    nodes = [Node(directory / f"n{number}", apache.free_port(), group | {"dLegerSelfId": f"n{number}"}) for number in range(MEMBERS)]
    with _group(launcher, kind, directory, nodes, one_by_one=False) as members:
        yield members


@contextlib.contextmanager
def _group(launcher: Launcher, kind: str, directory: Path, nodes: list[Node], *, one_by_one: bool) -> Iterator[Group]:
    """One of the nodes has acknowledged a send, and the others have it, too. They are killed at the end."""
    with launcher.namesrv(kind, directory / "namesrv") as namesrv, contextlib.ExitStack() as stack:
        servers: list[apache.Server] = []
        for node in nodes:
            servers.append(_start(launcher, kind, namesrv, node))
            stack.callback(servers[-1].kill)
            if one_by_one:
                apache.wait_until(partial(apache.is_registered, namesrv, servers[-1].address), "the registration", timeout_s=FIRST_SEND_S)
        group = Group(kind, servers[0], namesrv, 0.0, launcher=launcher, nodes=nodes, servers=servers)
        stack.callback(group.kill)
        group.find_leader()
        group.until_equal()
        yield group


def _start(launcher: Launcher, kind: str, namesrv: str, node: Node) -> apache.Server:
    return launcher.start(kind, namesrv, node.directory, node.port, node.settings, HEAP)
