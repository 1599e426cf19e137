"""Where topics are: which name server is asked, what its answer means, and which broker of a route serves.

Values in, values out: questions are steps (routing/name_servers.py), time is a parameter. The client, admin, Spark's readers and its
sink all resolve here, each over its own connections.

A topic nobody knows yet is sent to the brokers of the default topic (TBW102), which create it on the first message: see
`find(..., default_queues=4)`. Only producers do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from roquet.client.core.failures import rejected
from roquet.errors import NoRoute, RoquetError
from roquet.message import MessageQueue
from roquet.routing.name_servers import NameServers, Steps
from roquet.wire.calls.routes import BrokerData, QueueData, RouteInfo
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import DEFAULT_TOPIC

ASK_TIMEOUT_MS = 3_000
MASTER = 0


class TopicRoute:
    """One topic's route, with the queues counted out once."""

    __slots__ = ("by_default", "info", "masters", "read_queues", "topic", "write_queues")

    def __init__(self, topic: str, info: RouteInfo, *, by_default: int = 0) -> None:
        self.topic = topic
        self.info = info
        self.by_default = by_default
        """Not 0: no broker is known to have the topic; these are the default topic's brokers, with so many queues each."""
        self.masters = masters_of(info.broker_datas)
        self.write_queues = tuple(write_queues(topic, info))
        self.read_queues = tuple(read_queues(topic, info))

    def __repr__(self) -> str:
        brokers = ", ".join(broker.broker_name for broker in self.info.broker_datas)
        kind = " by default" if self.by_default else ""
        return f"<TopicRoute {self.topic}{kind}: {len(self.write_queues)} to write, {len(self.read_queues)} to read, on {brokers}>"


def write_queues(topic: str, info: RouteInfo) -> Iterable[MessageQueue]:
    """The queues a producer may choose from: writable, and with a master to write to."""
    if info.order_topic_conf:
        for part in info.order_topic_conf.split(";"):
            broker, _, count = part.partition(":")
            for queue_id in range(int(count) if count.isdigit() else 0):
                yield MessageQueue(topic, broker, queue_id)
        return
    masters = masters_of(info.broker_datas)
    for queues in sorted(info.queue_datas, key=lambda one: one.broker_name):
        if queues.perm & Perm.WRITE and queues.broker_name in masters:
            for queue_id in range(queues.write_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def read_queues(topic: str, info: RouteInfo) -> Iterable[MessageQueue]:
    """The queues a group shares out. A broker without a master still counts: its slaves are read."""
    for queues in sorted(info.queue_datas, key=lambda one: one.broker_name):
        if queues.perm & Perm.READ:
            for queue_id in range(queues.read_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def masters_of(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """Broker name -> address of its master, of those that have one."""
    return {broker.broker_name: broker.broker_addrs[MASTER] for broker in brokers if MASTER in broker.broker_addrs}


def replica_of(addresses: Mapping[int, str] | None, broker_id: int = MASTER) -> tuple[str, int] | None:
    """(address, id) of the one to read from: the one asked for, else the master, else the first slave. None: there is none."""
    if not addresses:
        return None
    found = next(wanted for wanted in (broker_id, MASTER, min(addresses)) if wanted in addresses)
    return addresses[found], found


def writable(route: TopicRoute) -> TopicRoute:
    """The route, for who sends. Raises NoRoute when no queue takes writes."""
    if not route.write_queues:
        raise NoRoute(f"topic {route.topic!r} has no queue that takes writes now: no permission, or no master; look at its brokers")
    return route


class Resolver:
    """The table, by topic and by broker: what the name servers said last."""

    def __init__(self, name_servers: NameServers, make: Callable[[int, dict[str, str]], Command] = Command) -> None:
        self.name_servers = name_servers
        self.on_change: Callable[[TopicRoute], None] = lambda route: None
        """Told each topic whose route is new or different."""
        self.topics: dict[str, TopicRoute] = {}
        self.brokers: dict[str, dict[int, str]] = {}  # name -> id -> address; 0 is the master
        self._make = make

    # -- looking

    def get(self, topic: str) -> TopicRoute | None:
        return self.topics.get(topic)

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER)

    def reader(self, broker_name: str, broker_id: int = MASTER) -> tuple[str, int] | None:
        return replica_of(self.brokers.get(broker_name), broker_id)

    def addresses(self, *, masters_only: bool = False) -> list[str]:
        return [
            address
            for _, addresses in sorted(self.brokers.items())
            for broker_id, address in sorted(addresses.items())
            if broker_id == MASTER or not masters_only
        ]

    def broker_at(self, address: str) -> str:
        """Name of the broker with this address, "" when none is known."""
        return next((name for name, addresses in self.brokers.items() if address in addresses.values()), "")

    # -- asking

    def find(self, topic: str, default_queues: int = 0) -> Steps[TopicRoute]:
        """Ask the name servers. `default_queues`: when nobody knows the topic, the default topic's brokers with at most so many
        queues each. Raises NoRoute, ConnectFailed (no name server answered) or Rejected."""
        info = yield from self.ask(topic)
        if isinstance(info, RouteInfo):
            return self.learn(topic, info)
        known = self.topics.get(topic)
        if known is not None and not known.by_default:
            return known  # it was there: a name server that restarted knows nothing for half a minute
        if not default_queues:
            raise info
        info = yield from self.ask(DEFAULT_TOPIC)
        if isinstance(info, NoRoute):
            raise NoRoute(
                f"no broker has topic {topic!r}, and none creates topics on demand; create it first"
                " (create_topic, or mqadmin updateTopic), or turn autoCreateTopicEnable on"
            )
        return self.learn(topic, as_default(info, default_queues), by_default=default_queues)

    def ask(self, topic: str) -> Steps[RouteInfo | NoRoute]:
        """NoRoute is no failure yet: there are other places to look."""
        address, answer = yield from self.name_servers.ask(lambda: self._make(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return NoRoute(f"no name server knows topic {topic!r}; create it, or send to it once so that a broker does")
        if answer.code != ResponseCode.SUCCESS:
            raise rejected(answer, address)
        try:
            return RouteInfo.decode(answer.body)
        except RoquetError as error:
            return NoRoute(f"{address} sent a route of {topic!r} that cannot be read: {error}")

    def learn(self, topic: str, info: RouteInfo, *, by_default: int = 0) -> TopicRoute:
        """Take a route into the table. One that is as it was may still bring back a broker's addresses: another topic's older answer, which
        came after it, may have changed them."""
        known = self.topics.get(topic)
        brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in info.broker_datas}
        same = known is not None and known.info == info and known.by_default == by_default
        if same and brokers.items() <= self.brokers.items():
            assert known is not None
            return known
        route = self.topics[topic] = TopicRoute(topic, info, by_default=by_default)
        self.brokers |= brokers
        self._forget_brokers()
        self.on_change(route)
        return route

    def forget(self, topic: str) -> None:
        if self.topics.pop(topic, None) is not None:
            self._forget_brokers()

    def _forget_brokers(self) -> None:
        named = {broker.broker_name for route in self.topics.values() for broker in route.info.broker_datas}
        for name in [name for name in self.brokers if name not in named]:
            del self.brokers[name]


def as_default(info: RouteInfo, queues_max: int) -> RouteInfo:
    """The default topic's route as a new topic would get it: fewer queues, and not more than the default topic has."""
    counts = [(one, min(queues_max, one.read_queue_nums)) for one in info.queue_datas]
    return RouteInfo(
        queue_datas=[QueueData(one.broker_name, count, count, one.perm) for one, count in counts], broker_datas=info.broker_datas
    )
