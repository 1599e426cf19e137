"""The whole stage of a run: machines, the network between them, name servers, brokers and clients; and the faults that happen to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from operator import ge
from pathlib import Path
from random import Random
from signal import Signals
from typing import Any, Self, TypeVar

from chaos.availability import Happened
from chaos.clients import Orders
from chaos.group import (
    BROKER_NAME,
    BROKER_PORT,
    NAME_SERVER_PORT,
    PATIENCE_S,
    Broken,
    Layout,
    Node,
    Program,
    address_of,
    broker,
    name_server,
)
from chaos.history import Writer
from chaos.links import Directed, Links, Trouble, both_ways, inward, outward
from chaos.namespaces import Machine
from chaos.nodes import Nodes, Pulled
from chaos.schedule import (
    CUT,
    CUT_INWARD,
    CUT_OUTWARD,
    CUT_PEERS,
    DELAY,
    FOLLOWER,
    FULL_DISK,
    KILL,
    LEADER,
    LOSS,
    NAME_SERVER,
    REPLACE,
    STOP,
    Fault,
)
from roquet import Admin
from roquet.errors import CallTimeout, RoquetError
from roquet.wire.calls.routes import GET_BROKER_CLUSTER_INFO

T = TypeVar("T")

TOPIC = "load"
GROUP, WATCHERS = "readers", "watchers"
LOOK_S = 0.1
ASK_MS = 5_000
READ_TRIES = 5
QUIET_S = 8.0
"""Nothing new for so long, and everything is consumed: then brokers have asked after every transaction, too."""
ASKED_S = 70.0
"""The same where the master was restarted: it asks producers that it knows again. One that sends nothing finds the master in its next
route, after 30 s at most, and tells it who it is with the heartbeat after that, after 30 s more."""
LOST_SHARE, DELAY_S = 0.1, 0.2


class Cluster:
    """`with` starts all of it, and ends it."""

    def __init__(
        self,
        layout: Layout,
        directory: Path,
        *,
        queues: int,
        rate: float,
        send_timeout_ms: int,
        random: Random,
        before_restart: Callable[[Node], None],
    ) -> None:
        """`before_restart`: what happens to a broker's files between its death and its next start: nothing, or a bug to find."""
        self.layout, self.directory = layout, directory
        self.queues, self.rate, self.send_timeout_ms = queues, rate, send_timeout_ms
        self._random, self._before_restart = random, before_restart
        self._stack = contextlib.ExitStack()
        self.machines: dict[str, Machine] = {}
        self.histories: list[Path] = []
        self.clients: list[Program] = []

    # ---- start and end --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        self._writer = self._stack.enter_context(Writer(self._history("run"), "run"))
        names = {"names-1": address_of(11), "names-2": address_of(12)}
        clients = {"producer-1": 31, "producer-2": 32, "delayer": 33, "transactor": 34, "consumer-1": 41, "consumer-2": 42, "watcher": 43}
        everyone = {
            **names,
            **{spec.name: spec.address for spec in self.layout.brokers},
            **{name: address_of(number) for name, number in clients.items()},
            "control": address_of(51),
        }
        for name, address in everyone.items():
            machine = self.machines[name] = Machine(name, address)
            self._stack.callback(machine.close)
        self.links = self._stack.enter_context(Links(list(self.machines.values()), self._random))
        self._stack.callback(self._end_programs)
        self.namesrv = ";".join(f"{address}:{NAME_SERVER_PORT}" for address in names.values())
        self.name_servers = [name_server(self.machines[name], self.directory) for name in names]
        self.brokers = [broker(self.machines[spec.name], self.directory, self.namesrv, spec.settings) for spec in self.layout.brokers]
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_booted()
        self.wait_whole()
        self.ask(lambda admin: admin.create_topic(TOPIC, read_queues=self.queues, write_queues=self.queues))
        for name in clients:
            self._start_client(name)

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _end_programs(self) -> None:
        for program in [*self.clients, *(node.program for node in self.nodes)]:
            program.give(Signals.SIGKILL)
        for program in [*self.clients, *(node.program for node in self.nodes)]:
            program.wait_ended()

    def _history(self, name: str) -> Path:
        path = self.directory / f"history-{name}.jsonl"
        self.histories.append(path)
        return path

    def _start_client(self, name: str) -> None:
        role = name.partition("-")[0]
        rates = {"producer": self.rate / 2, "delayer": self.rate / 20, "transactor": self.rate / 20}
        orders = Orders(
            role=role, name=name, namesrv=self.namesrv, topic=TOPIC, history=str(self._history(name)), rate=rates.get(role, 1.0),
            group=WATCHERS if role == "watcher" else GROUP, send_timeout_ms=self.send_timeout_ms,
            nodes={node.name: broker_address(node) for node in self.brokers}, queues=(BROKER_NAME, self.queues),
        )  # fmt: skip
        program = Program(self.machines[name], ["chaos.clients", orders.text()], self.directory / f"{name}.log")
        program.start()
        self.clients.append(program)

    @property
    def nodes(self) -> list[Node]:
        return [*getattr(self, "name_servers", ()), *getattr(self, "brokers", ())]

    # ---- asking ---------------------------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """From a machine that nothing ever happens to. Raises RoquetError."""

        async def asked() -> T:
            async with Admin(self.namesrv, timeout_ms=ASK_MS) as admin:
                return await question(admin)

        with self.machines["control"].inside():
            return asyncio.run(asked())

    def wait_until(self, happened: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not happened():
            if time.monotonic() > deadline:
                raise Broken(f"{what} did not happen within {patience_s:.0f} s; logs are in {self.directory}")
            self.check_alive()
            time.sleep(LOOK_S)

    def check_alive(self) -> None:
        """Raises Broken when a program ended by itself, or the network did."""
        if self.links.error is not None:
            raise Broken(f"the network between the machines failed: {self.links.error!r}")
        for program in [*self.clients, *(node.program for node in self.nodes)]:
            if program.process is not None and not program.alive:
                raise Broken(f"{program.machine.name} ended with {program.process.returncode}; its output is in {program.log}")

    def wait_whole(self) -> None:
        """Until every name server knows every broker, one of them as master, and the whole answers."""
        self.wait_until(self._is_whole, "that every name server knows every broker, and one as master,")

    def _is_whole(self) -> bool:
        wanted = {broker_address(node) for node in self.brokers}

        async def looked(admin: Admin) -> bool:
            for address in admin.name_server_addresses:
                known = (await admin.call(address, GET_BROKER_CLUSTER_INFO)).body.broker_addr_table.get(BROKER_NAME)
                if known is None or set(known.broker_addrs.values()) != wanted or 0 not in known.broker_addrs:
                    return False
            for address in wanted:
                await admin.runtime(address)
            return True

        try:
            return self.ask(looked)
        except (RoquetError, OSError):
            return False

    def leader(self) -> Node | None:
        """The broker that name servers call master."""
        try:
            addresses = {one.address for one in self.ask(lambda admin: admin.brokers()) if one.is_master}
        except (RoquetError, OSError):
            return None
        return next((node for node in self.brokers if broker_address(node) in addresses), None)

    # ---- faults ---------------------------------------------------------------------------------------------------------------

    def victim(self, fault: Fault) -> Node:
        leader = self.leader() or self.brokers[0]
        candidates = {
            LEADER: [leader],
            FOLLOWER: [node for node in self.brokers if node is not leader] or [leader],
            NAME_SERVER: self.name_servers,
        }[fault.role]
        return candidates[int(fault.choice * len(candidates))]

    def suffer(self, fault: Fault) -> Happened:
        """From its begin to its end; what has to start again may not be back yet."""
        node = self.victim(fault)
        began = time.monotonic()
        try:
            self._begin(fault.kind, node)
            if fault.kind not in (KILL, REPLACE) or self.layout.fails_over:
                time.sleep(fault.lasts_s)
        finally:
            self._end(fault.kind, node)
        return Happened(fault.kind, f"{fault.role} {node.name}", began, time.monotonic())

    def wait_copied(self) -> None:
        """Until every node has what the master has now: a second one may be replaced then."""
        leader = self.leader() or self.brokers[0]
        wanted = self.ends(leader)
        for node in self.brokers:
            if node is not leader:
                self.wait_until(lambda node=node: all(map(ge, self.ends(node), wanted)), f"that {node.name} has what the master has")  # type: ignore[misc]

    def _begin(self, kind: str, node: Node) -> None:
        match kind:
            case "kill":
                node.kill()
            case "replace":
                node.kill()
                node.empty_disk()
            case "stop":
                node.pause()
            case "full-disk":
                node.fill_disk()
            case _:
                self.links.set(self._troubles(kind, node))

    def _end(self, kind: str, node: Node) -> None:
        self.links.set([])
        if kind in (KILL, REPLACE):
            if kind == KILL and node in self.brokers:
                self._before_restart(node)
            node.start()
        elif kind == STOP:
            node.resume()
        elif kind == FULL_DISK:
            node.free_disk()

    def _troubles(self, kind: str, node: Node) -> list[Directed]:
        everyone, peers = list(self.machines), [one.name for one in self.brokers]
        cut = Trouble(cut=True)
        return {
            CUT: both_ways(node.name, everyone, cut),
            CUT_PEERS: both_ways(node.name, peers, cut),
            CUT_OUTWARD: outward(node.name, everyone, cut),
            CUT_INWARD: inward(node.name, everyone, cut),
            LOSS: both_ways(node.name, everyone, Trouble(loss=LOST_SHARE)),
            DELAY: both_ways(node.name, everyone, Trouble(delay_s=DELAY_S)),
        }[kind]

    # ---- the end --------------------------------------------------------------------------------------------------------------

    def read_slave_alone(self) -> None:
        """Kill the master while sends are under way. Everything that was acknowledged as safe must be with the slave."""
        master = self.leader() or self.brokers[0]
        master.kill()
        time.sleep(1.0)  # answers that were on their way arrive
        slave = next(node for node in self.brokers if node is not master)
        self.read_all(slave, f"{slave.name}, whose master was killed", all_delivered=False)
        master.start()

    def settle(self) -> None:
        """Everybody stops sending, and everything is delivered."""
        for program in self.clients:
            assert program.process is not None
            assert program.process.stdin is not None
            program.process.stdin.write(b"quiet\n")
            program.process.stdin.flush()
        for program in self.clients:
            if program.machine.name.partition("-")[0] in ("producer", "delayer", "transactor"):
                self.wait_until(lambda program=program: program.said("quiet"), f"the end of sends by {program.machine.name}")  # type: ignore[misc]
        seen: tuple[int, float] = (-1, 0.0)
        quiet_s = ASKED_S if self.layout.safe_on_slave else QUIET_S

        def is_quiet() -> bool:
            nonlocal seen
            with contextlib.suppress(RoquetError, OSError):
                progress = self.ask(lambda admin: admin.progress(GROUP, TOPIC))
                total = sum(one.broker_offset for one in progress)
                if total != seen[0] or any(one.lag for one in progress):
                    seen = (total, time.monotonic())
                return time.monotonic() - seen[1] > quiet_s
            return False

        try:
            self.wait_until(is_quiet, "that the consumers are done", PATIENCE_S + quiet_s)
        except Broken as error:
            self._writer.write("trouble", text=str(error))

    def read_everywhere(self) -> None:
        """All queues at every broker, the master's last."""
        leader = self.leader()
        if leader is None:
            raise Broken("no broker is master in the end, though nothing is wrong any more")
        ends = self.ends(leader)
        for node in sorted(self.brokers, key=lambda one: one is leader):
            if node is not leader and self.layout.copies:
                try:
                    self.wait_until(lambda node=node: self.ends(node) == ends, f"that {node.name} has all that the master has")  # type: ignore[misc]
                except Broken as error:
                    self._writer.write("trouble", text=f"{error}; its queues end at {self.ends(node)}, the master's at {ends}")
            if node is leader or self.layout.copies:
                self.read_all(node, f"{node.name}{', the master' if node is leader else ''}", all_delivered=True)

    def ends(self, node: Node) -> list[int]:
        """Where its queues end; -1 for one that it does not show."""

        async def asked(nodes: Nodes) -> list[int]:
            return [await self._end_of(nodes, node, queue_id) for queue_id in nodes.queue_ids]

        return self._ask_nodes(asked)

    async def _end_of(self, nodes: Nodes, node: Node, queue_id: int) -> int:
        try:
            return (await nodes.pull(broker_address(node), queue_id, 0)).end
        except (RoquetError, OSError):
            return -1

    def read_all(self, node: Node, name: str, *, all_delivered: bool) -> None:
        """It must hold everything that was acknowledged as safe."""
        self._writer.write("began reading", reading=name, must_hold_all=True, all_delivered=all_delivered)

        async def reading(nodes: Nodes) -> None:
            for queue_id in nodes.queue_ids:
                try:
                    first, end = await self._read_queue(nodes, node, name, queue_id)
                    self._writer.write("range", reading=name, queue=nodes.queue_name(queue_id), first=first, end=end)
                except (RoquetError, OSError) as error:
                    self._writer.write("trouble", text=f"queue {nodes.queue_name(queue_id)} could not be read at {name}: {error}")

        self._ask_nodes(reading)

    async def _read_queue(self, nodes: Nodes, node: Node, name: str, queue_id: int) -> tuple[int, int]:
        """Its first offset and its end. Raises RoquetError."""
        offset = 0
        while True:
            pulled = await self._pull(nodes, node, queue_id, offset)
            for row in pulled.rows:
                self._writer.write("read", reading=name, **row)
            if pulled.next_offset in (offset, pulled.end):
                return pulled.first, pulled.end
            offset = pulled.next_offset

    async def _pull(self, nodes: Nodes, node: Node, queue_id: int, offset: int) -> Pulled:
        """A machine that is busy with other things may leave one without an answer: it is said and repeated. Raises RoquetError."""
        for _ in range(READ_TRIES):
            try:
                return await nodes.pull(broker_address(node), queue_id, offset)
            except CallTimeout:
                print(
                    f"{node.name} did not answer a pull of {nodes.queue_name(queue_id)}@{offset} in {ASK_MS} ms; it is repeated", flush=True
                )
        return await nodes.pull(broker_address(node), queue_id, offset)

    def _ask_nodes(self, question: Callable[[Nodes], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            async with Nodes(self.namesrv, WATCHERS, TOPIC, (BROKER_NAME, self.queues), timeout_ms=ASK_MS) as nodes:
                return await question(nodes)

        with self.machines["control"].inside():
            return asyncio.run(asked())


def broker_address(node: Node) -> str:
    return f"{node.program.machine.address}:{BROKER_PORT}"


def acknowledgements(paths: Sequence[Path], offsets: dict[Path, int]) -> list[tuple[float, str]]:
    """When sends were acknowledged, and how, in what these files gained since the last look. `offsets` is where that ended."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            file.seek(offsets.get(path, 0))
            whole = file.read().rpartition(b"\n")[0]
        offsets[path] = offsets.get(path, 0) + len(whole) + bool(whole)
        for line in whole.split(b"\n"):
            if b'"did":"acknowledged"' in line:
                event = json.loads(line)
                found.append((event["at"], event["status"]))
    return found
