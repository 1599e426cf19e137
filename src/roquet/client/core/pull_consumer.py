"""PullConsumerCore: the user decides which queue to read from where, and when progress is committed.

It sends no consumer heartbeat: it takes no part in rebalancing, so it cannot take queues away from push consumers of
the same group (upstream's pull consumer does). Its progress is the group's all the same.
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.client.core.instance import ClientCore, Finished
from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.producer import valid
from roquet.client.core.pulling import SUSPENDED_TIMEOUT_MS, Pulled, Puller, PullResult
from roquet.client.core.queue_calls import GotNumber, QueueCalls
from roquet.client.core.routes import TopicRoute
from roquet.errors import NotStarted, RoquetError
from roquet.message import MessageQueue
from roquet.routing.subscription import TagFilter, subscribe
from roquet.wire.names import check_group

BLOCK_MS = 20_000
PULL_COUNT_MAX = 32

GotQueues = Callable[[list[MessageQueue] | RoquetError], None]


class PullConsumerCore:
    def __init__(self, client: ClientCore, group: str, *, namespace: Namespace = NO_NAMESPACE) -> None:
        valid(check_group, group)
        self.client = client
        self.namespace = namespace
        self.group = group = namespace.wrap(group)
        self.started = False
        self.calls = QueueCalls(client)
        self._puller = Puller(client, group)

    def start(self) -> None:
        self.started = True

    def close(self, done: Finished) -> None:
        self.started = False
        done()

    def fetch_queues(self, topic: str, done: GotQueues) -> None:
        """Every queue of the topic that can be read."""
        self._check_started()

        def fetched(result: TopicRoute | RoquetError) -> None:
            done(result if isinstance(result, RoquetError) else [self.namespace.unwrap_queue(queue) for queue in result.read_queues])

        self.client.routes.fetch(self.namespace.wrap(topic), fetched)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        done: Pulled,
        *,
        count_max: int = PULL_COUNT_MAX,
        tags: str = "*",
        block_ms: int = 0,
    ) -> None:
        """Up to `count_max` messages from `offset` on. `block_ms`: wait that long at the broker when there is nothing yet."""
        self._check_started()
        queue = self.namespace.wrap_queue(queue)
        tag_filter = TagFilter.of(subscribe(queue.topic, tags))

        def pulled(result: PullResult | RoquetError) -> None:
            if isinstance(result, PullResult) and result.messages:
                # The broker compares hashes of tags only.
                wanted = [message for message in result.messages if tag_filter.takes_tag(message.tags)]
                if self.namespace:
                    for message in wanted:
                        message.record.topic = self.namespace.unwrap(message.record.topic)
                result = result._replace(messages=wanted)
            done(result)

        timeout = max(SUSPENDED_TIMEOUT_MS, block_ms + 10_000) if block_ms else 10_000
        self._puller.pull(queue, offset, count_max, pulled, subscription=tags, suspend_ms=block_ms, timeout_ms=timeout)

    def fetch_offset(self, queue: MessageQueue, done: GotNumber) -> None:
        self.calls.fetch_offset(self.group, self.namespace.wrap_queue(queue), done)

    def commit(self, queue: MessageQueue, offset: int, done: GotNumber) -> None:
        self.calls.update_offset(self.group, self.namespace.wrap_queue(queue), offset, done)

    def min_offset(self, queue: MessageQueue, done: GotNumber) -> None:
        self.calls.min_offset(self.namespace.wrap_queue(queue), done)

    def max_offset(self, queue: MessageQueue, done: GotNumber) -> None:
        self.calls.max_offset(self.namespace.wrap_queue(queue), done)

    def search_offset(self, queue: MessageQueue, timestamp_ms: int, done: GotNumber) -> None:
        self.calls.search_offset(self.namespace.wrap_queue(queue), timestamp_ms, done)

    def earliest_time(self, queue: MessageQueue, done: GotNumber) -> None:
        self.calls.earliest_time(self.namespace.wrap_queue(queue), done)

    def _check_started(self) -> None:
        if not self.started:
            raise NotStarted(f"pull consumer {self.group!r} is not started or was closed; use it inside `async with`, or call start()")
