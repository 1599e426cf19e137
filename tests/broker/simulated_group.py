"""A DLedger group of whole brokers and a name server in one thread: real cores, simulated machines, network and time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from roquet.broker.core import Broker
from roquet.broker.dledger import GroupDoor
from roquet.broker.roles import is_slave
from roquet.client.core.instance import ClientCore
from roquet.errors import RoquetError
from roquet.nameserver.core import NameServer
from roquet.raft import member as raft
from roquet.settings import BrokerSettings, NameServerSettings
from roquet.testing.background import SimBackground
from roquet.testing.disk import SimDisk
from roquet.testing.network import SimCaller, SimNetwork, stored_host
from roquet.testing.simulation import SECOND, SimClock, Simulation
from roquet.testing.whole_broker import SMALL_FILES
from roquet.wire.command import Command

NAME_SERVER = "10.0.1.1:9876"
CLIENT = "10.0.3.1"
TICK_US = 50_000
PATIENCE_US = 30 * SECOND


class Member:
    """A machine with one broker. Its disk stays; processes come and go."""

    def __init__(self, group: SimulatedGroup, number: int) -> None:
        self.group = group
        self.name = f"n{number}"
        self.host = f"10.0.2.{number + 1}"
        self.address, self.raft_address = f"{self.host}:10911", f"{self.host}:40911"
        self.clock = SimClock(group.simulation)
        self.disk = SimDisk(self.clock, f"{self.name} {group.simulation.seed}")
        self.disk.make_dir("/data")
        self.broker: Broker | None = None
        self.caller: SimCaller | None = None
        self.background: SimBackground | None = None

    @property
    def core(self) -> Broker:
        assert self.broker is not None, f"{self.name} does not run"
        return self.broker

    @property
    def raft(self) -> raft.Member:
        assert self.core.group is not None
        return self.core.group.member

    @property
    def serves(self) -> bool:
        return self.broker is not None and not is_slave(self.broker.settings)

    def start(self) -> None:
        group = self.group
        settings = BrokerSettings(**{**group.settings, "dleger_self_id": self.name})
        self.background = SimBackground(group.simulation, slowest_us=2_000)
        self.caller = SimCaller(group.network, self.host)
        broker = Broker(
            settings, self.disk, self.clock, self.background, self.caller, Random(f"{self.name} {group.simulation.seed}"), 1 << 30
        )
        broker.open()
        broker.listening(self.address, stored_host(self.address))
        self.broker = broker
        assert broker.group is not None
        door = GroupDoor(broker.group)
        group.network.listen(self.address, broker)
        group.network.listen(self.raft_address, door)

        def tick() -> None:
            if self.broker is broker:
                group.simulation.after(TICK_US, tick)
                broker.tick(self.clock.steady_ms())
                door.tick(self.clock.steady_ms())

        tick()

    def kill(self) -> None:
        assert self.caller is not None
        assert self.background is not None
        self.broker = None
        self.background.kill()
        self.caller.kill()
        for address in (self.address, self.raft_address):
            self.group.network.stop(address, slowest_us=1_000)
        self.disk.kill()


class SimulatedGroup:
    def __init__(self, seed: int = 1, count: int = 3, **settings: Any) -> None:
        self.simulation = Simulation(seed)
        self.network = SimNetwork(self.simulation)
        self.network.split_ratio = 0.0
        clock = SimClock(self.simulation)
        self.name_server = NameServer(NameServerSettings(), clock, SimDisk(clock, "names"), "/data")
        self.network.listen(NAME_SERVER, self.name_server)
        self.members = [Member(self, number) for number in range(count)]
        self.settings: dict[str, Any] = {
            "broker_name": "group",
            "namesrv_addr": NAME_SERVER,
            "store_path_root_dir": "/data/store",
            "enable_dleger_commit_log": True,
            "dleger_peers": ";".join(f"{member.name}-{member.raft_address}" for member in self.members),
            **SMALL_FILES,
            **settings,
        }
        self.client = SimCaller(self.network, CLIENT)

    def start(self) -> Member:
        """All of them; returns the one that serves then."""
        for member in self.members:
            member.start()
        return self.leader()

    def leader(self, but: Member | None = None) -> Member:
        """The one that serves; waits for it."""
        self.wait(lambda: any(member.serves for member in self.members if member is not but), "somebody serves")
        return next(member for member in self.members if member.serves and member is not but)

    def others(self, member: Member) -> list[Member]:
        return [each for each in self.members if each is not member]

    def wait(self, until: Callable[[], bool], what: str, longest_us: int = PATIENCE_US) -> None:
        end_us = self.simulation.now_us + longest_us
        while not until():
            assert self.simulation.now_us < end_us, f"{what}: not within {longest_us / SECOND} s"
            self.simulation.run(self.simulation.now_us + 1_000)

    def run(self, seconds: float) -> None:
        self.simulation.run(self.simulation.now_us + int(seconds * SECOND))

    def cut_off(self, member: Member) -> None:
        """Nothing reaches it, and nothing that it sends arrives. No connection breaks by that."""
        for host in ("10.0.1.1", CLIENT, *(other.host for other in self.others(member))):
            self.network.part(member.host, host)

    def client_core(self) -> ClientCore:
        """A client that lives as long as the simulation."""
        clock = SimClock(self.simulation)
        caller = SimCaller(self.network, CLIENT)
        core = ClientCore(name_servers=[NAME_SERVER], client_id="client", caller=caller, clock=clock, random=Random(1))
        caller.handler = core.receive

        def tick() -> None:
            core.tick(clock.steady_ms())
            self.simulation.after(5_000, tick)

        tick()
        return core

    def begin(self, address: str, request: Command, timeout_ms: int = 5_000) -> list[Command | RoquetError]:
        """A list that gets the answer when it has come."""
        answers: list[Command | RoquetError] = []
        self.client.call(address, request, timeout_ms, answers.append)
        return answers

    def ask(self, address: str, request: Command, timeout_ms: int = 5_000) -> Command:
        answers = self.begin(address, request, timeout_ms)
        self.wait(lambda: bool(answers), f"an answer to {request.code}")
        (answer,) = answers
        assert isinstance(answer, Command), answer
        return answer
