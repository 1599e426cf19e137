"""PullConsumer: the asyncio face of PullConsumerCore.

async with PullConsumer("readers", "127.0.0.1:9876") as consumer:
    for queue in await consumer.fetch_queues("orders"):
        result = await consumer.pull(queue, await consumer.min_offset(queue))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from roquet.client.core.instance import ClientCore
from roquet.client.core.pull_consumer import BLOCK_MS, PULL_COUNT_MAX, PullConsumerCore, PullConsumerSettings
from roquet.client.core.pulling import PullResult
from roquet.client.core.stats import ConsumerStats
from roquet.client.keywords import MemberKeywords
from roquet.client.member import Member
from roquet.message import MessageQueue


class PullConsumer(Member[PullConsumerCore]):
    """Reads queues by hand. Takes no part in the group's rebalancing; `commit` and `fetch_offset` are the group's progress."""

    Settings = PullConsumerSettings

    def __init__(self, group: str, namesrv: str | Sequence[str] | None = None, **settings: Unpack[MemberKeywords]) -> None:
        super().__init__(group, namesrv, **settings)
        self._stats = ConsumerStats(group)

    def _make(self, client: ClientCore) -> PullConsumerCore:
        return PullConsumerCore(client, self.group, self.settings, stats=self._stats)

    @property
    def stats(self) -> ConsumerStats:
        """What it has pulled since it was made: numbers in all, and for each topic."""
        return self._stats

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of the topic that can be read."""
        return await self._wait(self._part().fetch_queues(topic))

    async def pull(
        self, queue: MessageQueue, offset: int, count_max: int = PULL_COUNT_MAX, *, tags: str = "*", sql: str | None = None
    ) -> PullResult:
        """What is there now, from `offset` on. Go on from the result's next_offset, whatever its status. `sql`, in place of tags: by
        properties. Raises BadSql, and Rejected when the broker takes no SQL."""
        return self._told(await self._wait(self._part().pull(queue, offset, count_max=count_max, tags=tags, sql=sql)))

    async def pull_blocking(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int = PULL_COUNT_MAX,
        *,
        tags: str = "*",
        sql: str | None = None,
        block_ms: int = BLOCK_MS,
    ) -> PullResult:
        """The same, but wait at the broker when there is nothing yet."""
        found = await self._wait(self._part().pull(queue, offset, count_max=count_max, tags=tags, sql=sql, block_ms=block_ms))
        return self._told(found)

    def _told(self, found: PullResult) -> PullResult:
        """Nobody says when they are consumed, so middleware hears only that they were handed out."""
        if self._hooks is not None and self._hooks.consumes and found.messages:
            self._hooks.end_consume(self._hooks.begin_consume(found.messages), "success", [], None)
        return found

    async def fetch_offset(self, queue: MessageQueue) -> int:
        """How far the group has come; -1 when it has no progress in this queue."""
        return await self._wait(self._part().calls.fetch_offset(self._part().group, self.namespace.wrap_queue(queue)))

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """The group is done with everything before `offset`."""
        await self._wait(self._part().calls.update_offset(self._part().group, self.namespace.wrap_queue(queue), offset))
