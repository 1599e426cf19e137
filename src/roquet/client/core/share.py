"""Share: the queues this member of a group reads, kept right while members, routes and brokers come and go.

rebalance ──> who is in the group? which queues are mine? ──> let go of the others, take the new ones
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from roquet.client.core.assignment import RETRY_MS, Assignment, NotListed, diff
from roquet.client.core.instance import ClientCore, Finished
from roquet.client.core.routes import TopicRoute
from roquet.client.core.tasks import ignore
from roquet.errors import RoquetError
from roquet.message import MessageQueue
from roquet.routing.assign import Strategy
from roquet.wire.names import is_retry_topic

if TYPE_CHECKING:
    from roquet.client.core.timers import Timer

log = logging.getLogger(__name__)

UNREACHABLE_MS = 3_000
UNKNOWN_ROUTE_MS = 5_000


class NotYet(RoquetError):
    """A queue cannot be taken now, which is nothing unusual: its last owner has not finished with it. Ask again soon."""


class Reader(Protocol):
    """Who reads the queues that the share decides about."""

    def topics(self) -> Iterable[str]: ...

    def held(self) -> Collection[MessageQueue]:
        """The queues being read."""
        ...

    async def prepare(self, queue: MessageQueue) -> int:
        """Find out where to begin; with an error (NotYet, or a real one) it is tried again."""
        ...

    def begin(self, queue: MessageQueue, offset: int) -> None: ...

    def abandon(self, queue: MessageQueue) -> None:
        """Prepared, but no longer wanted."""
        ...

    def drop(self, queue: MessageQueue) -> None:
        """Somebody else reads it from now on."""
        ...


class Share:
    def __init__(self, client: ClientCore, group: str, reader: Reader, *, strategy: Strategy, broadcasting: bool) -> None:
        self.client = client
        self.group = group
        self.reader = reader
        self.assignment = Assignment(client, group, strategy=strategy, broadcasting=broadcasting)
        self.active = False
        self._taking: dict[MessageQueue, int] = {}  # queue -> number of the plan that wants it
        self._plan = 0
        self._planning: dict[str, list[Finished]] = {}  # topic -> who waits for the plan under way
        self._plan_again: set[str] = set()
        self._routes_timer: Timer | None = None
        self._retry_timers: dict[str, Timer] = {}

    def start(self, settled: Finished) -> None:
        """`settled` is called when the first rebalance is through: the queues there are now are being read."""
        self.active = True
        topics = list(self.reader.topics())
        left = len(topics)
        if not left:
            settled()

        def known(topic: str, result: TopicRoute | RoquetError) -> None:
            nonlocal left
            if isinstance(result, RoquetError) and not is_retry_topic(topic):
                log.warning("! group %s waits for topic %s: %s", self.group, topic, result)
            left -= 1
            if left == 0:
                self.client.tasks.start(self.client.heartbeat_all(), lambda _: self.rebalance(settled))
                self._fetch_unknown_routes()

        for topic in topics:
            self.client.tasks.start(self.client.routes.fetch(topic), partial(known, topic))

    def stop(self) -> None:
        self.active = False

    def topic_added(self, topic: str) -> None:
        if self.active:
            self.client.tasks.start(self.client.heartbeat_all(), lambda _: self.rebalance_topic(topic))
            self._fetch_unknown_routes()

    def topic_removed(self, topic: str) -> None:
        for queue in [queue for queue in self.reader.held() if queue.topic == topic]:
            self.reader.drop(queue)
        if self.active:
            self.client.heartbeat_now()

    def route_changed(self, route: TopicRoute) -> None:
        if self.active and route.topic in self.reader.topics():
            # The brokers of a new route have just had their heartbeat; ask them for the members after that.
            self.rebalance_soon(route.topic, RETRY_MS // 4)

    def _fetch_unknown_routes(self) -> None:
        """A topic nobody has yet is asked for every few seconds; the retry topic appears with the first heartbeat."""

        def look() -> None:
            self._routes_timer = None
            unknown = [topic for topic in self.reader.topics() if self.client.routes.get(topic) is None]
            for topic in unknown:
                self.client.tasks.start(self.client.routes.fetch(topic), ignore)  # what is learned comes back as route_changed
            if unknown and self.active:
                self._routes_timer = self.client.after(UNKNOWN_ROUTE_MS, look)

        if self._routes_timer is None:
            self._routes_timer = self.client.after(RETRY_MS, look)

    # -- rebalancing

    def rebalance(self, finished: Finished | None = None) -> None:
        topics = list(self.reader.topics())
        left = len(topics)

        def one_finished() -> None:
            nonlocal left
            left -= 1
            if left == 0 and finished is not None:
                finished()

        for topic in topics:
            self.rebalance_topic(topic, one_finished)

    def rebalance_soon(self, topic: str, delay_ms: int) -> None:
        timer = self._retry_timers.get(topic)
        if timer is None or timer.work is None:
            self._retry_timers[topic] = self.client.after(delay_ms, lambda: self.rebalance_topic(topic))

    def rebalance_topic(self, topic: str, finished: Finished | None = None) -> None:
        if not self.active or topic not in self.reader.topics():
            if finished is not None:
                finished()
            return
        if topic in self._planning:
            self._plan_again.add(topic)
            if finished is not None:
                self._planning[topic].append(finished)
            return
        self._planning[topic] = [] if finished is None else [finished]

        def unlisted() -> None:
            self.client.heartbeat_soon()
            self.rebalance_soon(topic, RETRY_MS)

        def unreachable() -> None:
            self.client.refresh(topic)
            self.rebalance_soon(topic, UNREACHABLE_MS)

        def planned(wanted: set[MessageQueue] | RoquetError | None) -> None:
            if isinstance(wanted, RoquetError):
                unlisted() if isinstance(wanted, NotListed) else unreachable()
                over()
            elif wanted is None or not self.active:
                over()
            else:
                self._apply(topic, wanted, over)

        def over() -> None:
            waiting = self._planning.pop(topic, [])
            for one in waiting:
                one()
            if topic in self._plan_again:
                self._plan_again.discard(topic)
                self.rebalance_topic(topic)

        self.client.tasks.start(self.assignment.plan(topic), planned)

    def _apply(self, topic: str, wanted: set[MessageQueue], finished: Finished) -> None:
        held = [queue for queue in self.reader.held() if queue.topic == topic]
        gone, new = diff(held, wanted)
        self._plan += 1
        number = self._plan
        for queue in [queue for queue in self._taking if queue.topic == topic and queue not in wanted]:
            del self._taking[queue]
        for queue in gone:
            self.reader.drop(queue)
        if gone or new:
            log.info("= group %s %s: %d queues, %d taken, %d let go", self.group, topic, len(wanted), len(new), len(gone))
        left = len(new)
        if not left:
            finished()
            return

        def found(queue: MessageQueue, result: int | RoquetError) -> None:
            nonlocal left
            if self._taking.get(queue) == number:
                del self._taking[queue]
                if isinstance(result, NotYet):
                    self.rebalance_soon(topic, RETRY_MS)
                elif isinstance(result, RoquetError):
                    log.warning("! group %s cannot begin with %s: %s; it tries again", self.group, queue, result)
                    self.rebalance_soon(topic, UNREACHABLE_MS)
                elif self.active and topic in self.reader.topics() and queue not in self.reader.held():
                    self.reader.begin(queue, result)
                else:
                    self.reader.abandon(queue)
            elif isinstance(result, int):
                self.reader.abandon(queue)
            left -= 1
            if left == 0:
                finished()

        for queue in new:
            self._taking[queue] = number
            self.client.tasks.start(self.reader.prepare(queue), partial(found, queue))
