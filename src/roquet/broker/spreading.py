"""A topic that its first message made here is made on the other brokers of the cluster, too.

A producer that finds no route sends to the brokers of the default topic (TBW102), and whoever gets the first message makes the topic. As
soon as name servers show it there, producers see that broker alone, and all messages of the topic go to it for ever. So this broker asks

    a name server     which brokers of its cluster make topics like that (the default topic's route)
    a name server     which of them have the new topic already: those are left as they are
    each of the rest  to make it (17), as mqadmin and `roquet topic create` do; Roquet's brokers keep what they have meanwhile

Who does not answer is asked again, with growing pauses, until it has the topic or is no longer in the route. A notice names it meanwhile.
When all have it, it is looked at five times more within eight minutes: a broker that is being restarted is in no route. A crash of this
broker forgets what is under way: `roquet cluster expand BROKER --topic TOPIC` mends that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from roquet.broker.part import Part, Shared
from roquet.broker.register import Registration
from roquet.broker.talking import hold
from roquet.broker.topics import Topic, Topics
from roquet.errors import RoquetError
from roquet.ports import Caller
from roquet.routing.talks import Talk, ask, ask_first
from roquet.wire.calls.routes import GET_ROUTEINFO_BY_TOPIC, BrokerData, RouteHeader, RouteInfo
from roquet.wire.calls.topics import UPDATE_AND_CREATE_TOPIC, CreateTopicHeader
from roquet.wire.codes import Perm, ResponseCode

log = logging.getLogger("roquet.broker")

CALL_MS = 3_000
PAUSE_MS = 1_000
"""From the first failure to the next try; then twice as long each time."""
PAUSE_MAX_MS = 60_000
LOOK_MS = 15_000
"""From the time when all have a topic to the next look; then twice as long each time."""
LOOKS = 5
AT_ONCE_MAX = 4
"""Topics under way at a time."""
WAITING_MAX = 1_000
"""Topics that wait at once; `newNamesPerSecond` bounds how fast they come."""
NAMED_MAX = 10
"""Topics that a notice names."""
FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
MASTER = 0


@dataclass(slots=True)
class Fresh:
    """A topic that is not everywhere yet."""

    name: str
    default_topic: str
    """In whose image it was made."""
    due_ms: int
    tries: int = 0
    """That failed, since the last that did not."""
    looks: int = 0
    """That found it everywhere."""
    under_way: bool = False


class Spreading(Part):
    """State: the topics that are not everywhere yet, and of each broker that did not take some why."""

    master_only = True

    def __init__(self, shared: Shared, topics: Topics, registration: Registration, caller: Caller) -> None:
        super().__init__(shared)
        self._topics = topics
        self._registration = registration
        self._caller = caller
        self._fresh: dict[str, Fresh] = {}
        self._refused: dict[str, dict[str, str]] = {}  # broker name -> topic -> why
        self.made = 0
        """Topics made on other brokers since the start."""
        topics.made_by_send = self.begin

    def begin(self, topic: str, default_topic: str) -> None:
        """A send made this topic. It goes on with the next tick."""
        if not self.settings.spread_automatic_topics or not self._registration.name_servers or self._topics.is_system(topic):
            return
        if len(self._fresh) >= WAITING_MAX:
            log.warning(
                "topic %s stays on this broker alone: %d others wait to be made elsewhere, limit is %d",
                topic,
                len(self._fresh),
                WAITING_MAX,
            )
            return
        self._fresh[topic] = Fresh(topic, default_topic, self.clock.steady_ms())

    def became_slave(self) -> None:
        for name in list(self._fresh):
            self._forget(name)

    def topic_deleted(self, topic: str) -> None:
        self._forget(topic)

    def tick(self, now_ms: int) -> None:
        if not self._fresh:
            return
        room = AT_ONCE_MAX - sum(one.under_way for one in self._fresh.values())
        due = [one for one in self._fresh.values() if not one.under_way and now_ms >= one.due_ms]
        for one in due[: max(0, room)]:
            one.under_way = True
            hold(self._caller, self._spread(one), CALL_MS, partial(self._done, one))

    def _spread(self, fresh: Fresh) -> Talk[dict[str, str]]:
        """Broker name -> why it did not take the topic; empty when all have it that should."""
        servers = self._registration.name_servers
        default = yield from ask_first(servers, GET_ROUTEINFO_BY_TOPIC, RouteHeader(fresh.default_topic), accept=FOUND_OR_NOT)
        if not default.ok:
            raise RoquetError(f"no broker is registered with {fresh.default_topic}, this one neither")
        route = yield from ask_first(servers, GET_ROUTEINFO_BY_TOPIC, RouteHeader(fresh.name), accept=FOUND_OR_NOT)
        there = {row.broker_name for row in route.body.queue_datas} if route.ok else set()
        refused: dict[str, str] = {}
        for name, (address, queues) in self._others(default.body).items():
            topic = self._topics.get(fresh.name)
            if name in there or topic is None:
                continue
            try:
                yield from ask(address, UPDATE_AND_CREATE_TOPIC, header_of(topic, min(queues, topic.write_queue_nums), fresh.default_topic))
            except RoquetError as error:
                refused[name] = str(error)
            else:
                self.made += 1
                log.info("topic %s is made on %s at %s, too", fresh.name, name, address)
        return refused

    def _others(self, default: RouteInfo) -> dict[str, tuple[str, int]]:
        """Broker name -> (its master's address, queues that it allows an automatic topic), of those that make topics by themselves."""
        settings = self.settings
        makes = {row.broker_name: row.write_queue_nums for row in default.queue_datas if row.perm & Perm.INHERIT and row.perm & Perm.WRITE}
        return {
            group.broker_name: (address, makes[group.broker_name])
            for group in default.broker_datas
            if group.cluster == settings.broker_cluster_name and group.broker_name != settings.broker_name
            and makes.get(group.broker_name, 0) > 0 and (address := master_of(group))
        }  # fmt: skip

    def _done(self, fresh: Fresh, result: Mapping[str, str] | RoquetError) -> None:
        fresh.under_way = False
        if self._fresh.get(fresh.name) is not fresh:
            return  # deleted meanwhile
        if isinstance(result, RoquetError):
            log.info("topic %s is not made on other brokers yet, no name server tells them: %s", fresh.name, result)
        else:
            self._note(fresh.name, result)
            if not result:
                self._found_everywhere(fresh)
                return
        fresh.due_ms = self.clock.steady_ms() + min(PAUSE_MAX_MS, PAUSE_MS << min(fresh.tries, 10))
        fresh.tries += 1

    def _found_everywhere(self, fresh: Fresh) -> None:
        fresh.tries, fresh.due_ms = 0, self.clock.steady_ms() + (LOOK_MS << fresh.looks)
        fresh.looks += 1
        if fresh.looks > LOOKS:
            del self._fresh[fresh.name]

    def _forget(self, topic: str) -> None:
        if self._fresh.pop(topic, None) is not None:
            self._note(topic, {})

    def _note(self, topic: str, refused: Mapping[str, str]) -> None:
        """These brokers do not have the topic, and no others."""
        for broker in [*self._refused, *refused]:
            topics = self._refused.setdefault(broker, {})
            topics.pop(topic, None)
            if broker in refused:
                topics[topic] = refused[broker]
            if topics:
                self._warn(broker, topics)
            else:
                del self._refused[broker]
                self.notices.clear(f"spread {broker}")

    def _warn(self, broker: str, topics: Mapping[str, str]) -> None:
        named = ", ".join(list(topics)[:NAMED_MAX]) + (f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else "")
        first = next(iter(topics))
        self.notices.warn(
            f"spread {broker}",
            f"the first message of {named} came to this broker, and {broker} did not take the new topic: {topics[first]}. It is asked "
            "again. Until it has the topic all messages go elsewhere; to make it there by hand: "
            f"roquet topic create {first} --broker {broker}",
        )

    def metrics(self) -> Mapping[str, object]:
        return {"roquetTopicsMadeElsewhere": self.made} if self.made else {}


def master_of(group: BrokerData) -> str:
    return group.broker_addrs.get(MASTER, "")


def header_of(topic: Topic, queues: int, default_topic: str) -> CreateTopicHeader:
    return CreateTopicHeader(
        topic=topic.topic_name,
        default_topic=default_topic,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=topic.perm,
        topic_filter_type=topic.topic_filter_type,
        order=topic.order,
        topic_sys_flag=topic.topic_sys_flag,
        only_if_absent=True,
    )
