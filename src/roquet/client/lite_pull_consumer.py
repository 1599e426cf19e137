"""LitePullConsumer: the asyncio face of LitePullCore.

consumer = LitePullConsumer("reports", "127.0.0.1:9876")
consumer.subscribe("orders", "paid")

async with consumer:
    async for message in consumer:                   # or: for message in await consumer.poll()
        ...
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from roquet.client.core.events import ConsumeEvent
from roquet.client.core.filter_check import check_sql, check_subscription
from roquet.client.core.instance import ClientCore
from roquet.client.core.lite_pull import POLL_MS, LitePullCore, LitePullSettings
from roquet.client.core.share_changes import Notify
from roquet.client.core.stats import ConsumerStats
from roquet.client.core.tasks import Work
from roquet.client.functions import OWN_THREADS, Functions
from roquet.client.keywords import LitePullKeywords
from roquet.client.member import Member
from roquet.client.offset_store import OffsetStore, StoreCalls, check_store
from roquet.client.running import finished
from roquet.client.share_functions import ShareFunction, check_share_function, notifier
from roquet.errors import ClientError, NotStarted
from roquet.message import MessageQueue, ReceivedMessage

log = logging.getLogger(__name__)


class LitePullConsumer(Member[LitePullCore]):
    """A member of a group that asks for its messages: `subscribe` to topics (queues are shared out), or `assign` queues.

    With auto_commit the messages of a poll count as finished when poll is called again, or at the end of `async with`;
    without, when commit() is called. Either way a crash repeats messages and loses none.
    """

    Settings = LitePullSettings
    settings: LitePullSettings

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        offset_store: OffsetStore | None = None,
        on_assigned: ShareFunction | None = None,
        on_revoked: ShareFunction | None = None,
        **settings: Unpack[LitePullKeywords],
    ) -> None:
        """`offset_store` keeps the group's progress, in place of its brokers. `on_assigned` gets the list of queues that this member was
        given, before anything of them is read (it may seek there); `on_revoked` those that it gave away (at the end, all of them), when
        progress is written. Not for queues that were chosen with assign(). The rest is Member's, and the fields of LitePullSettings."""
        super().__init__(group, namesrv, **settings)
        self._stats = ConsumerStats(group)
        if offset_store is not None:
            check_store(offset_store)
        self._offset_store = offset_store
        check_share_function("on_assigned", on_assigned)
        check_share_function("on_revoked", on_revoked)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._closer: asyncio.Task[None] | None = None
        self._own_calls = Functions(f"{group}-own", OWN_THREADS)
        self._subscribed: dict[str, tuple[str, str | None]] = {}  # topic -> tags, and SQL in their place
        self._left: deque[ReceivedMessage] = deque()  # of the last poll, those that `async for` has not given out
        self._assigned: list[MessageQueue] | None = None
        self._event: ConsumeEvent | None = None  # what middleware was told to be consumed now

    # -- which queues

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Take part in sharing out this topic's queues. May be called while running. `sql`, in place of tags: by properties, as
        PushConsumer.subscribe has it; start() raises Rejected when a broker does not take it."""
        check_subscription(topic, tags)
        if sql is not None:
            check_sql(tags, sql)
        if self._assigned is not None:
            raise ClientError("this consumer was given queues with assign(); subscribe and assign exclude each other, make another one")
        if self._core is not None:
            self._core.subscribe(topic, tags, sql=sql)
        self._subscribed[topic] = (tags, sql)

    def unsubscribe(self, topic: str) -> None:
        """Take no more messages of this topic."""
        self._subscribed.pop(topic, None)
        if self._core is not None:
            self._core.unsubscribe(topic)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues from now on, whoever else reads them."""
        if self._subscribed:
            raise ClientError("this consumer subscribes to topics; subscribe and assign exclude each other, make another one")
        self._assigned = list(queues)
        if self._core is not None:
            self._core.assign(self._assigned)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of the topic that can be read: what assign takes."""
        client, namespace = self._client(), self.namespace
        route = await self._wait(client.routes.fetch(namespace.wrap(topic)))
        return [namespace.unwrap_queue(queue) for queue in route.read_queues]

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self.namespace.unwrap_queue(queue) for queue in self._part().readings)

    # -- running

    def _make(self, client: ClientCore) -> LitePullCore:
        self._own_calls.open()
        store = None
        if self._offset_store is not None:
            store = StoreCalls(self._offset_store, self.group, self.namespace, self._own_calls)
        core = LitePullCore(
            client,
            self.group,
            self.settings,
            stats=self._stats,
            store=store,
            on_assigned=self._notifier("on_assigned", self._on_assigned),
            on_revoked=self._notifier("on_revoked", self._on_revoked),
        )
        for topic, (tags, sql) in self._subscribed.items():
            core.subscribe(topic, tags, sql=sql)
        if self._assigned is not None:
            core.assign(self._assigned)
        return core

    def _notifier(self, name: str, function: ShareFunction | None) -> Notify | None:
        return notifier(name, function, self.group, self.namespace, self._own_calls)

    async def start(self) -> Self:
        """Returns when the first share of queues is being read, or after five seconds."""
        return await super().start()

    async def _begin(self) -> None:
        await super()._begin()
        core = self._part()
        await self._settle(core.settled)
        if core.refusal is not None:
            raise core.refusal

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """After an error what the last poll returned is not finished: it comes again."""
        if error is not None and self._core is not None:
            self._left.clear()
            self._consumed(error)
            await self._wait(self._core.close(finish=False))
        await self.close()

    async def _closing(self, core: LitePullCore) -> None:
        self._consumed()
        self._give_back(core)
        try:
            await finished(core.client.tasks, core.close())
        finally:
            self._own_calls.close()

    async def close(self) -> None:
        """Write progress down and leave the group. Called by on_assigned or on_revoked it does not wait for that: it returns at once."""
        if self._called_from_here:
            self._closer = asyncio.get_running_loop().create_task(super().close())
        else:
            await super().close()

    @property
    def _called_from_here(self) -> bool:  # type: ignore[override] # asked, not kept
        """Whoever asks is on_assigned or on_revoked."""
        return self._own_calls.called_from_here

    def forked(self) -> None:
        """This is a child of the process that started it: neither its loop, its connections nor its threads are here."""
        super().forked()
        self._own_calls.forked()

    def _give_back(self, core: LitePullCore) -> None:
        """What `async for` has not given out was not read: poll returns it again, here or at another member."""
        left, self._left = list(self._left), deque()
        core.unread(left)

    # -- messages

    def __aiter__(self) -> Self:
        """`async for message in consumer`: poll, message by message, until it is closed. One is finished when the next is asked for."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._consumed()
        while not self._left:
            if self._began and self._core is None:
                raise StopAsyncIteration
            try:
                self._left.extend(await self._polled(POLL_MS))
            except NotStarted:
                if not self._began or self._core is not None:
                    raise
        message = self._left.popleft()
        self._consuming([message])
        return message

    async def poll(self, timeout_ms: int = POLL_MS) -> list[ReceivedMessage]:
        """Messages of one queue in order, as soon as there are some; an empty list after `timeout_ms`."""
        self._consumed()
        self._give_back(self._part())
        messages = await self._polled(timeout_ms)
        self._consuming(messages)
        return messages

    def _consuming(self, messages: list[ReceivedMessage]) -> None:
        """These are handed out. They count as consumed when others are asked for, or at the end."""
        if self._hooks is not None and self._hooks.consumes and messages:
            self._event = self._hooks.begin_consume(messages)

    def _consumed(self, error: BaseException | None = None) -> None:
        event, self._event = self._event, None
        if event is not None and self._hooks is not None:
            self._hooks.end_consume(event, "success" if error is None else "retry", [] if error is None else event.messages, error)

    async def _polled(self, timeout_ms: int) -> list[ReceivedMessage]:
        core = self._part()
        if not self._subscribed and self._assigned is None and not core.topics():
            raise ClientError(
                f"consumer {self.group!r} has no subscription, so poll() would return nothing;"
                " call subscribe(topic) or assign(queues) first"
            )
        answer: asyncio.Future[list[ReceivedMessage]] = asyncio.get_running_loop().create_future()

        def done(result: list[ReceivedMessage] | Exception) -> None:
            if answer.done():
                if isinstance(result, list):
                    core.unread(result)
            elif isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        poll = core.client.tasks.start(core.poll(timeout_ms), done)
        try:
            return await answer
        except asyncio.CancelledError:
            poll.cancel()
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                core.unread(answer.result())  # they arrived as we were cancelled
            raise

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """poll returns nothing of these until resume()."""
        self._part().pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """poll returns messages of these queues again."""
        self._part().resume(queues)

    @property
    def stats(self) -> ConsumerStats:
        """What it has consumed since it was made: numbers in all, for each topic, and of queues that had to wait."""
        return self._stats

    # -- progress

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Everything that poll returned, or `async for` gave, is finished; or, of these queues, everything before these offsets."""
        if offsets is None and self._left:
            queue = self.namespace.unwrap_queue(self._left[0].queue)
            offsets = {one: self.position(one) for one in self.assignment}
            if queue in offsets:  # not when another member has it now
                offsets[queue] = self._left[0].queue_offset
        await self._wait(self._part().commit(offsets))

    async def committed(self, queue: MessageQueue) -> int:
        """How far the group has come, as its broker (or offset_store) knows it; -1 when it never was there."""
        return await self._wait(self._part().committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message that poll returns from this queue."""
        return self._part().position(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> int:
        """poll goes on from this offset, which is returned. Raises ClientError for one outside the queue."""
        return await self._seek(queue, self._part().seek(queue, offset))

    async def seek_to_begin(self, queue: MessageQueue) -> int:
        """poll goes on from the first message that the queue still has. Its offset."""
        return await self._seek(queue, self._part().seek_to_begin(queue))

    async def seek_to_end(self, queue: MessageQueue) -> int:
        """poll goes on with what comes from now on. The offset of the next message."""
        return await self._seek(queue, self._part().seek_to_end(queue))

    async def _seek(self, queue: MessageQueue, work: Work[int]) -> int:
        offset = await self._wait(work)
        if self._left and self._left[0].queue == self.namespace.wrap_queue(queue):
            self._left.clear()  # `async for` goes on from there too
        return offset

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of what was stored at about this time: for seek."""
        core = self._part()
        real = self.namespace.wrap_queue(queue)
        return await self._wait(core.calls.search_offset(real, timestamp_ms))
