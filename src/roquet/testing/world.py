"""World: a simulated cluster, and everything that goes wrong in it.

    name servers   10.0.1.n:9876    each broker registers with all of them, each client asks one at a time
    broker groups  10.0.2.n:10911   sim-broker-0, sim-broker-1 ...; a group's members have ids, 0 is the master
    clients        10.0.3.n         A: producer. B: producer, push consumer. C: push consumer, and a reader of all queues. And again.

The cores are the real ones, each on a node of its own: with its own disk, clock and place in the network. First comes a time
of faults (`faults.py`). Then the faults end, and everything must come to rest: all that any group acknowledged is consumed,
every consumer group stands at the end of its queues, every name server knows every broker, and every producer reaches every
broker group. Clocks stay as wrong as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from roquet.broker.core import Broker
from roquet.client.core.producer import ProducerCore
from roquet.client.core.push_consumer import PushConsumerCore
from roquet.client.core.transactions import TransactionCore
from roquet.nameserver.core import NameServer
from roquet.testing.broker_group import BrokerGroup
from roquet.testing.broker_node import BrokerNode
from roquet.testing.checker import Checker
from roquet.testing.client_node import ClientNode
from roquet.testing.faults import Faults
from roquet.testing.name_server_node import NameServerNode
from roquet.testing.names import TOPICS
from roquet.testing.network import SimNetwork
from roquet.testing.node import Node
from roquet.testing.promises import Violation
from roquet.testing.simulation import SECOND, Simulation
from roquet.testing.watched_log import watched_log

REST_US = 240 * SECOND
"""Within this time after the last fault everything must have come to rest."""
LIMITS = {"groups": 20, "members": 10, "name_servers": 250, "clients": 26}


@dataclass(frozen=True, slots=True)
class Shape:
    groups: int = 2
    members: int = 1
    """In each broker group."""
    name_servers: int = 2
    clients: int = 3

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(f"{getattr(self, name)} {name.replace('_', ' ')}, expected 1 to {limit}")

    def __str__(self) -> str:
        return f"{self.groups} broker groups of {self.members}, {self.name_servers} name servers, {self.clients} clients"


@dataclass(frozen=True, slots=True)
class Cores:
    """What runs on the nodes. A test plants a bug here."""

    broker: Callable[..., Broker] = Broker
    name_server: Callable[..., NameServer] = NameServer
    producer: Callable[..., ProducerCore] = ProducerCore
    consumer: Callable[..., PushConsumerCore] = PushConsumerCore
    transactions: Callable[..., TransactionCore] = TransactionCore


USUAL = Shape()
REAL = Cores()


class World:
    """One run. `run` is its whole life; a test of one thing calls `start`, does that, and calls `come_to_rest`."""

    topics: tuple[str, ...] = TOPICS
    troubled_s = (6, 16)
    """So many seconds things go wrong, at least and at most."""
    broker_settings: Mapping[str, Any] = MappingProxyType({})
    fails = 0.02
    """How many messages a listener fails to consume."""

    def __init__(
        self, seed: int, shape: Shape = USUAL, cores: Cores = REAL, *, show: Callable[[str], None] | None = None
    ) -> None:  # fmt: skip
        self.shape = shape
        self.cores = cores
        self.simulation = Simulation(seed, show=show)
        self.random = Random(f"world {seed}")
        self.checker = Checker()
        self.network = SimNetwork(self.simulation)
        self.network.slowest_us = self.random.choice((1_000, 5_000, 40_000))
        self.calm = False
        """The time of faults is over."""
        self.name_servers = [NameServerNode(self, number) for number in range(shape.name_servers)]
        self.name_server_addresses = [node.address for node in self.name_servers]
        self.groups: list[BrokerGroup] = self._make_groups()
        self.brokers: list[BrokerNode] = [node for group in self.groups for node in group.members]
        self.clients = [ClientNode(self, number, **self._roles(number)) for number in range(shape.clients)]
        self.nodes: list[Node] = [*self.name_servers, *self.brokers, *self.clients]

    def _make_groups(self) -> list[BrokerGroup]:
        return [BrokerGroup(self, number, self.shape.members) for number in range(self.shape.groups)]

    def _roles(self, number: int) -> dict[str, Any]:
        return roles(number, self.shape.clients)

    def _faults(self) -> Faults:
        return Faults(self)

    def run(self) -> None:
        """The whole life of it. Raises Violation, or whatever else goes wrong."""
        with watched_log(self.simulation):
            self.start()
            faults = self._faults()
            troubled_us = self.random.randint(*self.troubled_s) * SECOND
            faults.plan(troubled_us)
            self.simulation.run(troubled_us)
            faults.end()
            self.come_to_rest()
            self._last_things()
            self.simulation.note(f"= end, {self.checker.acked_count} acknowledged")

    def start(self) -> None:
        simulation = self.simulation
        flush = ", ".join(f"{group.name} {'SYNC_FLUSH' if group.sync_flush else 'ASYNC_FLUSH'}" for group in self.groups)
        simulation.note(f"= seed {simulation.seed}, {self.shape}, {flush}")
        for node in (*self.name_servers, *self.brokers):
            simulation.after(0, node.start)
        for client in self.clients:
            simulation.after(simulation.between(0, SECOND), client.start)

    def come_to_rest(self) -> None:
        """Nothing goes wrong from here on. Raises Violation when not all is well in good time."""
        self.calm = True
        if not self.simulation.run(self.simulation.now_us + REST_US, lambda: not any(self._unrest())):
            raise Violation(f"not at rest {REST_US // SECOND} s after the last fault: {'; '.join(self._unrest())}")
        self.simulation.note("= at rest")
        for group in self.groups:
            group.look()

    def _unrest(self) -> Iterator[str]:
        """What is not as it must be, one reason a client and a broker group."""
        everybody: list[ClientNode | BrokerGroup] = [*self.clients, *self.groups]
        return (reason for one in everybody if (reason := one.unrest()))

    def _last_things(self) -> None:
        """After a clean stop even a power loss takes nothing."""
        for broker in self.brokers:
            broker.stop_cleanly(lambda: None)
        if not self.simulation.run(self.simulation.now_us + 10 * SECOND, lambda: not any(broker.up for broker in self.brokers)):
            raise Violation(f"these do not stop: {', '.join(broker.name for broker in self.brokers if broker.up)}")
        for broker in self.brokers:
            broker.power_loss()
            broker.start()


def roles(number: int, count: int) -> dict[str, Any]:
    """What client `number` of so many does. However few there are, somebody does each thing."""
    return {"produces": number % 3 != 2, "consumes": number % 3 != 0 or count == 1, "reads": number == min(2, count - 1)}
