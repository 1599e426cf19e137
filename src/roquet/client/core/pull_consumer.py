"""PullConsumerCore: the user decides which queue to read from where, and when progress is committed.

It sends no consumer heartbeat: it takes no part in rebalancing, so it cannot take queues away from push consumers of
the same group (upstream's pull consumer does). Its progress is the group's all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from roquet.client.core.checks import valid
from roquet.client.core.filter_check import filter_of
from roquet.client.core.instance import ClientCore
from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.pulling import SUSPENDED_TIMEOUT_MS, Puller, PullResult
from roquet.client.core.queue_calls import QueueCalls
from roquet.client.core.stats import ConsumerStats
from roquet.errors import NotStarted
from roquet.message import MessageQueue
from roquet.routing.subscription import TAG, TagFilter
from roquet.wire.names import check_group

BLOCK_MS = 20_000
PULL_COUNT_MAX = 32


@dataclass
class PullConsumerSettings:
    namespace: Namespace = NO_NAMESPACE


class PullConsumerCore:
    def __init__(
        self, client: ClientCore, group: str, settings: PullConsumerSettings | None = None, *, stats: ConsumerStats | None = None
    ) -> None:
        valid(check_group, group)
        self.client = client
        self.stats = stats or ConsumerStats(group)
        self.namespace = namespace = (settings or PullConsumerSettings()).namespace
        self.group = group = namespace.wrap(group)
        self.started = False
        self.calls = QueueCalls(client)
        self._puller = Puller(client, group)

    def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.started = False

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of the topic that can be read."""
        self._check_started()
        route = await self.client.routes.fetch(self.namespace.wrap(topic))
        return [self.namespace.unwrap_queue(queue) for queue in route.read_queues]

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = PULL_COUNT_MAX,
        tags: str = "*",
        sql: str | None = None,
        block_ms: int = 0,
    ) -> PullResult:
        """Up to `count_max` messages from `offset` on. `block_ms`: wait that long at the broker when there is nothing yet."""
        self._check_started()
        queue = self.namespace.wrap_queue(queue)
        wanted_ones = filter_of(queue.topic, tags, sql)
        tag_filter = TagFilter.of(wanted_ones)
        timeout = max(SUSPENDED_TIMEOUT_MS, block_ms + 10_000) if block_ms else 10_000
        asked_ms = self.client.clock.steady_ms()
        result = await self._puller.pull(
            queue,
            offset,
            count_max,
            subscription=wanted_ones.sub_string,
            expression_type=wanted_ones.expression_type or TAG,
            suspend_ms=block_ms,
            timeout_ms=timeout,
        )
        if not result.messages:
            return result
        counted = self.stats.of(self.namespace.unwrap(queue.topic))
        counted.pulled += len(result.messages)
        counted.pull_durations.add(self.client.clock.steady_ms() - asked_ms)
        # The broker compares hashes of tags only.
        wanted = [message for message in result.messages if tag_filter.takes_tag(message.tags)]
        if self.namespace:
            for message in wanted:
                message.record.topic = self.namespace.unwrap(message.record.topic)
        return result._replace(messages=wanted)

    def _check_started(self) -> None:
        if not self.started:
            raise NotStarted(f"pull consumer {self.group!r} is not started or was closed; call start() first")
