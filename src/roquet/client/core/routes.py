"""Where topics are: what the name servers said last, and asking them again.

A topic nobody knows yet is sent to the brokers of the default topic (TBW102), which create it on the first message:
see `fetch(..., fallback=True)`. Only producers do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roquet.client.core.failures import rejected
from roquet.client.core.name_servers import NameServers
from roquet.errors import NoRoute, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.routes import QueueData, RouteInfo
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import DEFAULT_TOPIC

ASK_TIMEOUT_MS = 3_000
MASTER = 0

Fetched = Callable[["TopicRoute | RoquetError"], None]


class TopicRoute:
    """One topic's route, with the queues counted out once."""

    __slots__ = ("by_default", "info", "read_queues", "topic", "write_queues")

    def __init__(self, topic: str, info: RouteInfo, *, by_default: int = 0) -> None:
        self.topic = topic
        self.info = info
        self.by_default = by_default
        """Not 0: no broker is known to have the topic; these are the default topic's brokers, with so many queues each."""
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
    with_master = {broker.broker_name for broker in info.broker_datas if MASTER in broker.broker_addrs}
    for queues in sorted(info.queue_datas, key=lambda one: one.broker_name):
        if queues.perm & Perm.WRITE and queues.broker_name in with_master:
            for queue_id in range(queues.write_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def read_queues(topic: str, info: RouteInfo) -> Iterable[MessageQueue]:
    """The queues a group shares out. A broker without a master still counts: its slaves are read."""
    for queues in sorted(info.queue_datas, key=lambda one: one.broker_name):
        if queues.perm & Perm.READ:
            for queue_id in range(queues.read_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


class Routes:
    """The table, by topic and by broker. `on_change` is told each topic whose route is new or different."""

    def __init__(self, name_servers: NameServers, make: Callable[[int, dict[str, str]], Command]) -> None:
        self.on_change: Callable[[TopicRoute], None] = lambda route: None
        self.topics: dict[str, TopicRoute] = {}
        self.brokers: dict[str, dict[int, str]] = {}  # name -> id -> address; 0 is the master
        self._name_servers = name_servers
        self._make = make
        self._asking: dict[tuple[str, bool], list[Fetched]] = {}

    # -- looking

    def get(self, topic: str) -> TopicRoute | None:
        return self.topics.get(topic)

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER)

    def reader(self, broker_name: str, broker_id: int = MASTER) -> tuple[str, int] | None:
        """(address, id) of the replica to read from: the one asked for, else the master, else any."""
        addresses = self.brokers.get(broker_name)
        if not addresses:
            return None
        for wanted in (broker_id, MASTER):
            if wanted in addresses:
                return addresses[wanted], wanted
        lowest = min(addresses)
        return addresses[lowest], lowest

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

    def fetch(
        self, topic: str, done: Fetched, *, fallback: bool = False, default_queues: int = 4, default_topic: str = DEFAULT_TOPIC
    ) -> None:
        """Ask the name servers. Questions for the same topic that are under way are shared.

        `fallback`: when nobody knows the topic, use the default topic's brokers with at most `default_queues` queues
        each. `done` gets the route, NoRoute, ConnectFailed (no name server answered) or Rejected.
        """
        key = (topic, fallback)
        waiting = self._asking.get(key)
        if waiting is not None:
            waiting.append(done)
            return
        self._asking[key] = [done]

        def finish(result: TopicRoute | RoquetError) -> None:
            for one in self._asking.pop(key, []):
                one(result)

        def told(result: RouteInfo | RoquetError) -> None:
            if isinstance(result, RouteInfo):
                finish(self.learn(topic, result))
            elif isinstance(result, NoRoute) and topic in self.topics and not self.topics[topic].by_default:
                finish(self.topics[topic])  # it was there: a name server that restarted knows nothing for half a minute
            elif isinstance(result, NoRoute) and fallback:
                self._ask(default_topic, default_told)
            else:
                finish(result)

        def default_told(result: RouteInfo | RoquetError) -> None:
            if isinstance(result, NoRoute):
                finish(
                    NoRoute(
                        f"no broker has topic {topic!r}, and none creates topics on demand; create it first"
                        " (create_topic, or mqadmin updateTopic), or turn autoCreateTopicEnable on"
                    )
                )
            elif isinstance(result, RouteInfo):
                finish(self.learn(topic, as_default(result, default_queues), by_default=default_queues))
            else:
                finish(result)

        self._ask(topic, told)

    def fetch_again(self, topic: str) -> None:
        """Look whether a topic in use has moved. One that had no broker of its own is looked for at the default topic's again."""
        known = self.topics.get(topic)
        by_default = known.by_default if known is not None else 0
        self.fetch(topic, _ignore, fallback=bool(by_default), default_queues=by_default)

    def learn(self, topic: str, info: RouteInfo, *, by_default: int = 0) -> TopicRoute:
        """Take a route into the table."""
        known = self.topics.get(topic)
        if known is not None and known.info == info and known.by_default == by_default:
            return known
        route = self.topics[topic] = TopicRoute(topic, info, by_default=by_default)
        for broker in info.broker_datas:
            self.brokers[broker.broker_name] = dict(broker.broker_addrs)
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

    def _ask(self, topic: str, done: Callable[[RouteInfo | RoquetError], None]) -> None:
        def answered(address: str, answer: Command | RoquetError) -> None:
            if isinstance(answer, RoquetError):
                done(answer)
            elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
                done(NoRoute(f"no name server knows topic {topic!r}; create it, or send to it once so that a broker does"))
            elif answer.code != ResponseCode.SUCCESS:
                done(rejected(answer, address))
            else:
                try:
                    info = RouteInfo.decode(answer.body)
                except RoquetError as error:
                    done(NoRoute(f"{address} sent a route of {topic!r} that cannot be read: {error}"))
                    return
                done(info)

        self._name_servers.ask(lambda: self._make(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}), ASK_TIMEOUT_MS, answered)


def as_default(info: RouteInfo, queues_max: int) -> RouteInfo:
    """The default topic's route as a new topic would get it: fewer queues, and not more than the default topic has."""
    cut = [replace_counts(one, min(queues_max, one.read_queue_nums)) for one in info.queue_datas]
    return RouteInfo(queue_datas=cut, broker_datas=info.broker_datas)


def replace_counts(queues: QueueData, count: int) -> QueueData:
    return QueueData(broker_name=queues.broker_name, read_queue_nums=count, write_queue_nums=count, perm=queues.perm)


def _ignore(_: object) -> None:
    pass
