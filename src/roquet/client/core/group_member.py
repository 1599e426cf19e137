"""What push and lite pull consumers have in common: subscriptions, heartbeats, their share of the queues, where to begin in one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar

from roquet.client.core.beginning import FROM_LAST, HALF_AN_HOUR_MS, where_to_begin
from roquet.client.core.checks import valid
from roquet.client.core.instance import ClientCore, Reply
from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.offsets import MemberOffsets
from roquet.client.core.process_queue import COUNT_MAX, SIZE_MAX
from roquet.client.core.pulling import HASTY_MS, Puller, PullResult
from roquet.client.core.queue_calls import QueueCalls
from roquet.client.core.resolver import TopicRoute
from roquet.client.core.rhythm import PAUSE_MAX_MS, PAUSE_MIN_MS, PERSIST_MS, REBALANCE_MS, ClientPauses
from roquet.client.core.share import Reader, Share
from roquet.client.core.stats import ConsumerStats
from roquet.client.core.tasks import Wait
from roquet.message import MessageQueue
from roquet.routing.assign import AVERAGE, Strategy
from roquet.routing.subscription import TagFilter, next_version
from roquet.wire.calls.members import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel, SubscriptionData
from roquet.wire.calls.offsets import RESET_CONSUMER_CLIENT_OFFSET
from roquet.wire.command import Command
from roquet.wire.names import check_group, check_topic


@dataclass
class GroupSettings(ClientPauses):
    """Upstream's defaults."""

    consume_from: ConsumeFromWhere = FROM_LAST
    """Where a group that has no progress in a queue begins."""
    consume_timestamp_ms: int | None = None
    """For FROM_TIMESTAMP. None: half an hour before the consumer was started."""
    strategy: Strategy = AVERAGE
    count_max: int = COUNT_MAX
    size_max: int = SIZE_MAX
    """Messages held per queue, and their bytes."""
    rebalance_ms: int = REBALANCE_MS
    """Between two looks at who reads which queue. A broker also tells at once when a member comes or goes."""
    persist_ms: int = PERSIST_MS
    """Between two times at which progress is written, where it changed."""
    namespace: Namespace = NO_NAMESPACE

    def check_pauses(self, **others: tuple[int, int]) -> None:
        pauses = {"rebalance_ms": (PAUSE_MIN_MS, PAUSE_MAX_MS), "persist_ms": (PAUSE_MIN_MS, PAUSE_MAX_MS)}
        super().check_pauses(**pauses, **others)


class GroupMember(Reader):
    consume_type: ClassVar[ConsumeType]
    settings: GroupSettings
    offsets: MemberOffsets

    def __init__(self, client: ClientCore, group: str, settings: GroupSettings, *, broadcasting: bool) -> None:
        valid(check_group, group)
        self.client = client
        self.namespace = settings.namespace
        self.group = self.namespace.wrap(group)
        self.broadcasting = broadcasting
        self.calls = QueueCalls(client)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.share = Share(client, self.group, self, strategy=settings.strategy, broadcasting=broadcasting)
        self.settled: Wait[bool] = Wait()
        """Ends when the first rebalance is through: the queues there are now are being read."""
        self.started_ms = 0
        self._base = settings
        self._filters: dict[str, TagFilter] = {}
        self._puller = Puller(client, self.group)

    def _version(self, topic: str) -> int:
        """Of a subscription that is made now."""
        valid(check_topic, topic)
        return next_version(self.subscriptions.get(topic), self.client.clock.now_ms())

    def _subscribe(self, subscription: SubscriptionData) -> None:
        self.subscriptions[subscription.topic] = subscription
        self._filters[subscription.topic] = TagFilter.of(subscription)

    def unsubscribe(self, topic: str) -> None:
        topic = self.namespace.wrap(topic)
        if self.subscriptions.pop(topic, None) is not None:
            self.share.topic_removed(topic)

    def topics(self) -> Collection[str]:
        return self.subscriptions.keys()

    def heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=MessageModel.BROADCASTING if self.broadcasting else MessageModel.CLUSTERING,
            consume_from_where=self._base.consume_from,
            subscription_data_set=list(self.subscriptions.values()),
        )

    def persist(self) -> None:
        self.offsets.persist()

    def rebalance(self) -> None:
        self.client.tasks.start(self.share.rebalance())

    def route_changed(self, route: TopicRoute) -> None:
        self.share.route_changed(route)

    def asked(self, address: str, command: Command, reply: Reply) -> None:
        """A broker's request to this consumer: RESET_CONSUMER_CLIENT_OFFSET and its kin."""
        raise NotImplementedError

    async def _where_to_begin(self, queue: MessageQueue) -> int:
        given = self._base.consume_timestamp_ms
        timestamp = self.started_ms - HALF_AN_HOUR_MS if given is None else given
        return await where_to_begin(self.calls, self.offsets, queue, self._base.consume_from, timestamp)

    def _pause_ms(self, before: int, asked_ms: int, result: PullResult) -> int:
        """How long to wait after an answer."""
        hasty = result.next_offset == before and self.client.clock.steady_ms() - asked_ms < HASTY_MS
        return HASTY_MS if hasty else 0

    def _count_pulled(self, stats: ConsumerStats, queue: MessageQueue, count: int, asked_ms: int) -> None:
        counted = stats.of(self.namespace.unwrap(queue.topic))
        counted.pulled += count
        counted.pull_durations.add(self.client.clock.steady_ms() - asked_ms)

    def _moves(self, command: Command) -> Iterator[tuple[MessageQueue, int]]:
        """Where an operator puts the group, of the queues that are read here."""
        topic = RESET_CONSUMER_CLIENT_OFFSET.read_header(command).topic
        for queue, offset in RESET_CONSUMER_CLIENT_OFFSET.read_body(command).offset_table.items():
            if queue.topic == topic and queue in self.held() and offset >= 0:
                yield queue, offset
