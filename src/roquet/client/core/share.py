"""Share: the queues this member of a group reads, kept right while members, routes and brokers come and go.

rebalance ──> who is in the group? which queues are mine? ──> let go of the others, take the new ones
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from roquet.client.core.assignment import RETRY_MS, Assignment, NotListed, NotReached, diff
from roquet.client.core.instance import ClientCore
from roquet.client.core.resolver import TopicRoute
from roquet.client.core.tasks import Task, Wait, ignore
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
        self._planning: dict[str, Wait[None]] = {}  # topic -> ends when the plan under way is through
        self._plan_again: set[str] = set()
        self._looking: Task[None] | None = None
        self._retry_timers: dict[str, Timer] = {}

    async def start(self) -> None:
        """Returns when the first rebalance is through: the queues there are now are being read."""
        self.active = True
        topics = list(self.reader.topics())
        if not topics:
            return
        await self.client.tasks.all(self._find(topic) for topic in topics)
        self._look_for_topics()
        await self.client.heartbeat_all()
        await self.rebalance()

    async def _find(self, topic: str) -> None:
        try:
            await self.client.routes.fetch(topic)
        except RoquetError as error:
            if not is_retry_topic(topic):
                log.warning("! group %s waits for topic %s: %s", self.group, topic, error)

    def stop(self) -> None:
        self.active = False

    def topic_added(self, topic: str) -> None:
        if self.active:
            self.client.tasks.start(self._begin_with(topic))
            self._look_for_topics()

    async def _begin_with(self, topic: str) -> None:
        await self.client.heartbeat_all()
        await self.rebalance_topic(topic)

    def topic_removed(self, topic: str) -> None:
        for queue in [queue for queue in self.reader.held() if queue.topic == topic]:
            self.reader.drop(queue)
        if self.active:
            self.client.heartbeat_now()

    def route_changed(self, route: TopicRoute) -> None:
        if self.active and route.topic in self.reader.topics():
            # The brokers of a new route have just had their heartbeat; ask them for the members after that.
            self.rebalance_soon(route.topic, RETRY_MS // 4)

    def _look_for_topics(self) -> None:
        if self._looking is None or self._looking.over:
            self._looking = self.client.tasks.start(self._look())

    async def _look(self) -> None:
        """A topic nobody has yet is asked for every few seconds; the retry topic appears with the first heartbeat."""
        await self.client.sleep(RETRY_MS)
        while self.active:
            unknown = [topic for topic in self.reader.topics() if self.client.routes.get(topic) is None]
            if not unknown:
                return
            for topic in unknown:
                self.client.tasks.start(self.client.routes.fetch(topic), ignore)  # what is learned comes back as route_changed
            await self.client.sleep(UNKNOWN_ROUTE_MS)

    # -- rebalancing

    async def rebalance(self) -> None:
        await self.client.tasks.all(self.rebalance_topic(topic) for topic in list(self.reader.topics()))

    def rebalance_now(self, topic: str) -> None:
        self.client.tasks.start(self.rebalance_topic(topic))

    def rebalance_soon(self, topic: str, delay_ms: int) -> None:
        timer = self._retry_timers.get(topic)
        if timer is None or timer.work is None:
            self._retry_timers[topic] = self.client.after(delay_ms, partial(self.rebalance_now, topic))

    async def rebalance_topic(self, topic: str) -> None:
        """Returns when the plan that is under way now is through, whoever began it."""
        if not self.active or topic not in self.reader.topics():
            return
        under_way = self._planning.get(topic)
        if under_way is not None:
            self._plan_again.add(topic)
            await under_way
            return
        over = self._planning[topic] = Wait()
        try:
            await self._rebalance(topic)
        finally:
            del self._planning[topic]
            over.end(None)
        if topic in self._plan_again:
            self._plan_again.discard(topic)
            self.rebalance_now(topic)

    async def _rebalance(self, topic: str) -> None:
        try:
            wanted = await self.assignment.plan(topic)
        except NotListed:
            self.client.heartbeat_soon()
            self.rebalance_soon(topic, RETRY_MS)
        except NotReached:
            self.client.refresh(topic)
            self.rebalance_soon(topic, UNREACHABLE_MS)
        else:
            if wanted is not None and self.active:
                await self._apply(topic, wanted)

    async def _apply(self, topic: str, wanted: set[MessageQueue]) -> None:
        held = [queue for queue in self.reader.held() if queue.topic == topic]
        gone, new = diff(held, wanted)
        self._plan += 1
        for queue in [queue for queue in self._taking if queue.topic == topic and queue not in wanted]:
            del self._taking[queue]
        for queue in gone:
            self.reader.drop(queue)
        if gone or new:
            log.info("= group %s %s: %d queues, %d taken, %d let go", self.group, topic, len(wanted), len(new), len(gone))
        await self.client.tasks.all(self._take(queue, self._plan) for queue in new)

    async def _take(self, queue: MessageQueue, plan: int) -> None:
        self._taking[queue] = plan
        try:
            offset = await self.reader.prepare(queue)
        except RoquetError as error:
            if self._is_wanted(queue, plan):
                self._take_later(queue, error)
            return
        if self._is_wanted(queue, plan) and self.active and queue.topic in self.reader.topics() and queue not in self.reader.held():
            self.reader.begin(queue, offset)
        else:
            self.reader.abandon(queue)

    def _is_wanted(self, queue: MessageQueue, plan: int) -> bool:
        """By this plan, which is through with the queue now; a later one may want it, or not."""
        if self._taking.get(queue) != plan:
            return False
        del self._taking[queue]
        return True

    def _take_later(self, queue: MessageQueue, error: RoquetError) -> None:
        if isinstance(error, NotYet):
            self.rebalance_soon(queue.topic, RETRY_MS)
        else:
            log.warning("! group %s cannot begin with %s: %s; it tries again", self.group, queue, error, exc_info=error.__cause__)
            self.rebalance_soon(queue.topic, UNREACHABLE_MS)
