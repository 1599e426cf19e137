"""Where topics are: what the name servers said last, and asking them again.

A topic nobody knows yet is sent to the brokers of the default topic (TBW102), which create it on the first message:
see `fetch(..., fallback=True)`. Only producers do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roquet.client.core.failures import rejected
from roquet.client.core.name_servers import NameServers
from roquet.client.core.tasks import Task, Tasks, ignore
from roquet.errors import NoRoute, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.routes import QueueData, RouteInfo
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import DEFAULT_TOPIC

ASK_TIMEOUT_MS = 3_000
MASTER = 0


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

    def __init__(self, name_servers: NameServers, make: Callable[[int, dict[str, str]], Command], tasks: Tasks) -> None:
        self.on_change: Callable[[TopicRoute], None] = lambda route: None
        self.topics: dict[str, TopicRoute] = {}
        self.brokers: dict[str, dict[int, str]] = {}  # name -> id -> address; 0 is the master
        self._name_servers = name_servers
        self._make = make
        self._tasks = tasks
        self._asking: dict[tuple[str, bool], Task[TopicRoute]] = {}

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

    async def fetch(self, topic: str, *, fallback: bool = False, default_queues: int = 4, default_topic: str = DEFAULT_TOPIC) -> TopicRoute:
        """Ask the name servers. Questions for the same topic that are under way are shared.

        `fallback`: when nobody knows the topic, use the default topic's brokers with at most `default_queues` queues
        each. Raises NoRoute, ConnectFailed (no name server answered) or Rejected.
        """
        key = (topic, fallback)
        question = self._asking.get(key)
        if question is None:
            question = self._tasks.start(self._fetch(key, default_queues, default_topic), ignore)
            if not question.over:
                self._asking[key] = question
        return await question

    async def _fetch(self, key: tuple[str, bool], default_queues: int, default_topic: str) -> TopicRoute:
        topic, fallback = key
        try:
            info = await self._ask(topic)
            if isinstance(info, RouteInfo):
                return self.learn(topic, info)
            known = self.topics.get(topic)
            if known is not None and not known.by_default:
                return known  # it was there: a name server that restarted knows nothing for half a minute
            if not fallback:
                raise info
            info = await self._ask(default_topic)
            if isinstance(info, NoRoute):
                raise NoRoute(
                    f"no broker has topic {topic!r}, and none creates topics on demand; create it first"
                    " (create_topic, or mqadmin updateTopic), or turn autoCreateTopicEnable on"
                )
            return self.learn(topic, as_default(info, default_queues), by_default=default_queues)
        finally:
            self._asking.pop(key, None)

    def fetch_again(self, topic: str) -> None:
        """Look whether a topic in use has moved. One that had no broker of its own is looked for at the default topic's again."""
        known = self.topics.get(topic)
        by_default = known.by_default if known is not None else 0
        self._tasks.start(self.fetch(topic, fallback=bool(by_default), default_queues=by_default), ignore)

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

    async def _ask(self, topic: str) -> RouteInfo | NoRoute:
        """NoRoute is no failure yet: there are other places to look."""
        fields = {"topic": topic}
        address, answer = await self._name_servers.ask(lambda: self._make(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields), ASK_TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return NoRoute(f"no name server knows topic {topic!r}; create it, or send to it once so that a broker does")
        if answer.code != ResponseCode.SUCCESS:
            raise rejected(answer, address)
        try:
            return RouteInfo.decode(answer.body)
        except RoquetError as error:
            return NoRoute(f"{address} sent a route of {topic!r} that cannot be read: {error}")


def as_default(info: RouteInfo, queues_max: int) -> RouteInfo:
    """The default topic's route as a new topic would get it: fewer queues, and not more than the default topic has."""
    cut = [replace_counts(one, min(queues_max, one.read_queue_nums)) for one in info.queue_datas]
    return RouteInfo(queue_datas=cut, broker_datas=info.broker_datas)


def replace_counts(queues: QueueData, count: int) -> QueueData:
    return QueueData(broker_name=queues.broker_name, read_queue_nums=count, write_queue_nums=count, perm=queues.perm)
