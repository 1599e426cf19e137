"""PushConsumer: the asyncio face of PushConsumerCore.

consumer = PushConsumer("billing", "127.0.0.1:9876")

@consumer.on("orders", "paid || refunded")
async def bill(message: ReceivedMessage) -> None: ...

consumer.run()                       # until Ctrl-C or SIGTERM; inside an event loop: await consumer.serve()

Messages of a queue one after the other: PushConsumer(..., orderly=True), or @consumer.on_orderly(topic).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeVar, Unpack

from roquet.client.core.checks import check_ranges
from roquet.client.core.filter_check import check_sql, check_subscription
from roquet.client.core.inner_producer import inner_producer
from roquet.client.core.instance import ClientCore
from roquet.client.core.push_consumer import PushConsumerCore, PushConsumerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.replies import reply_message
from roquet.client.core.share_changes import Notify
from roquet.client.core.stats import ConsumerStats
from roquet.client.core.tasks import Wait
from roquet.client.functions import OWN_THREADS, Functions, check_handler, name_of
from roquet.client.handlers import Function, Handlers
from roquet.client.keywords import PushConsumerKeywords
from roquet.client.member import Member
from roquet.client.offset_store import OffsetStore, StoreCalls, check_store
from roquet.client.running import finished
from roquet.client.share_functions import ShareFunction, check_share_function, notifier
from roquet.client.stopping import run, serve
from roquet.errors import ClientError
from roquet.message import MessageQueue, ReceivedMessage

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Function)

OrderlyListener = Function
"""The same for a consumer that is orderly. Returns None for success; RETRY_LATER or Suspend(ms) for the same messages again
after a moment; COMMIT or ROLLBACK with auto_commit=False."""


class PushConsumer(Member[PushConsumerCore]):
    """Shares a topic's queues with the other members of its group, and calls functions with the messages.

    A function that returns None or True is done with its messages; one that raises, or returns False or RETRY_LATER,
    gets them again later: after 10 s, 30 s, 1 min... and after reconsume_times_max retries (as many as its group has at the
    broker, usually 16) they become dead letters. It may also return RetryLater(delay_level=..., messages=the failed ones of
    a batch) or DEAD_LETTER. Messages can come twice (after a crash or a rebalance), so consume idempotently.

    Orderly, a function gets the messages of a queue one after the other; after a failure the same ones again (in
    suspend_queue_ms, or as Suspend(ms) says), and no other member has the queue meanwhile.
    """

    Settings = PushConsumerSettings
    stops_first = True
    settings: PushConsumerSettings

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        listener: Function | None = None,
        offsets_directory: str | os.PathLike[str] | None = None,
        close_wait_ms: int = 30_000,
        offset_store: OffsetStore | None = None,
        on_assigned: ShareFunction | None = None,
        on_revoked: ShareFunction | None = None,
        **settings: Unpack[PushConsumerKeywords],
    ) -> None:
        """`listener` serves the topics that were subscribed without a function of their own. `offset_store` keeps the group's progress, in
        place of its brokers (and, broadcasting, of the file in `offsets_directory`). `on_assigned` gets the list of queues that this
        member was given, before anything of them is read; `on_revoked` those that it gave away (at the end, all of them), when the
        functions that ran for them have ended and progress is written. The rest is Member's, and the fields of
        PushConsumerSettings: `consume_from` (first, last or timestamp) is where a group begins in a queue that it has no progress in;
        with a `batch_size` above 1 functions get lists; `strategy` is AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, or one of routing.assign.
        """
        if settings.get("broadcasting") and settings.get("instance_name") is None:
            settings["instance_name"] = "DEFAULT"  # as upstream: offsets are filed under the client id, which must survive a restart
        super().__init__(group, namesrv, **settings)
        self._stats = ConsumerStats(group)
        self.close_wait_ms = close_wait_ms
        check_ranges(self, close_wait_ms=(0, 86_400_000))
        self._offsets_directory = offsets_directory
        if offset_store is not None:
            check_store(offset_store)
        self._offset_store = offset_store
        check_share_function("on_assigned", on_assigned)
        check_share_function("on_revoked", on_revoked)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._own_calls = Functions(f"{group}-own", OWN_THREADS)
        self._subscribed: dict[str, tuple[str, str | None]] = {}  # topic -> tags, and SQL in their place
        self._handlers = Handlers(self, group, self.settings, self.namespace, self._hooks)
        if listener is not None:
            check_handler(listener, "any")
            self._handlers.set(None, listener)
        self._ending: PushConsumerCore | None = None
        self._closer: asyncio.Task[None] | None = None
        self._hurried = False

    # -- subscribing

    def subscribe(self, topic: str, tags: str = "*", function: Function | None = None, *, sql: str | None = None) -> None:
        """Take messages of this topic with these tags: "*", or "TagA || TagB". May be called while running. For a topic that is subscribed
        it changes the filter: leave the function out then, since a topic has one.

        `sql`, in place of tags: by properties, "size > 5 AND colour IN ('red', 'blue')". Raises BadSql with the place of a mistake.
        Brokers must have enablePropertyFilter on; start() raises Rejected when one has not.
        """
        check_subscription(topic, tags)
        if sql is not None:
            check_sql(tags, sql)
        before = self._handlers.of(topic)
        if function is None and before is None and not self._handlers.takes_any:
            raise ClientError(f"no function for topic {topic!r}; give one here, use @consumer.on, or pass listener= to PushConsumer")
        if function is not None:
            check_handler(function, topic)
            if topic in self._subscribed and before is not None and before != function:
                raise ClientError(
                    f"topic {topic!r} has a handler already, {name_of(before)}, and was given another one, {name_of(function)};"
                    " a topic has one handler in a consumer: call both from one function, or use a second consumer of another group"
                )
            self._handlers.set(topic, function)
        self._subscribed[topic] = (tags, sql)
        if self._core is not None:
            self._core.subscribe(topic, tags, sql=sql)

    def on(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Callable[[F], F]:
        """Decorator: this function gets the topic's messages."""
        check_subscription(topic, tags)

        def register(function: F) -> F:
            self.subscribe(topic, tags, function, sql=sql)
            return function

        return register

    def on_orderly(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Callable[[F], F]:
        """Decorator like `on`, for a consumer that is orderly; it makes the consumer so. Before start()."""
        if not self.settings.orderly:
            if self._subscribed or self._core is not None:
                raise ClientError("a consumer is orderly as a whole: use on_orderly for all its topics, or PushConsumer(orderly=True)")
            self.settings = replace(self.settings, orderly=True)
        return self.on(topic, tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Take no more messages of this topic. May be called while running."""
        self._subscribed.pop(topic, None)
        if self._core is not None:
            self._core.unsubscribe(topic)

    # -- running

    def _make(self, client: ClientCore) -> PushConsumerCore:
        self._own_calls.open()
        file, store = None, None
        if self._offset_store is not None:
            store = StoreCalls(self._offset_store, self.group, self.namespace, self._own_calls)
        elif self.settings.broadcasting:
            file = self.place.offset_file(client.client_id, self.group, self._offsets_directory)
        core = PushConsumerCore(
            client,
            self.group,
            self._handlers.listen,
            self.settings,
            offset_file=file,
            stats=self._stats,
            store=store,
            on_assigned=self._notifier("on_assigned", self._on_assigned),
            on_revoked=self._notifier("on_revoked", self._on_revoked),
        )
        for topic, (tags, sql) in self._subscribed.items():
            core.subscribe(topic, tags, sql=sql)
        self._handlers.serve(core.consuming)
        if self._hooks is not None:
            core.may_begin = Wait()  # until they were told that it started
        return core

    def _notifier(self, name: str, function: ShareFunction | None) -> Notify | None:
        return notifier(name, function, self.group, self.namespace, self._own_calls)

    async def start(self) -> Self:
        """Returns when the first share of queues is being pulled, or after five seconds. Topics nobody has yet are waited for."""
        return await super().start()

    async def _begin(self) -> None:
        if not self._subscribed:
            raise ClientError(
                f"consumer {self.group!r} has no subscription, so it would get nothing; use @consumer.on(topic), or"
                " subscribe(topic), before start()"
            )
        await super()._begin()
        core = self._part()
        if core.may_begin is not None:
            core.may_begin.end(None)
        await self._settle(core.settled)
        if core.refusal is not None:
            raise core.refusal

    def forked(self) -> None:
        """This is a child of the process that started it: neither its loop, its connections nor its threads are here."""
        super().forked()
        self._handlers.forked()
        self._own_calls.forked()

    def run(self) -> None:
        """Be a program: start, consume until SIGINT (Ctrl-C) or SIGTERM, then let running functions finish, write progress down, leave
        the group and return. A second signal does not wait for functions. With producers and other consumers: `roquet.run(...)`."""
        run(self)

    async def serve(self) -> None:
        """The same inside an event loop that runs already."""
        await serve(self)

    async def _closing(self, core: PushConsumerCore) -> None:
        self._ending = core
        try:
            await finished(core.client.tasks, core.close(wait_ms=0 if self._hurried else self.close_wait_ms))
        finally:
            self._ending, self._hurried = None, False
            self._handlers.close()
            self._own_calls.close()

    async def close(self) -> None:
        """Stop pulling, let running functions finish (for `close_wait_ms` at most), write progress down, leave the group. Called by one
        of its functions it does not wait for that one: it returns at once, and the consumer closes when the function has returned."""
        if self._called_from_here:
            self._closer = asyncio.get_running_loop().create_task(super().close())
        else:
            await super().close()

    def hurry(self) -> None:
        """Do not wait any longer for functions that run: close() goes on without them."""
        self._hurried = True
        if self._ending is not None:
            self._ending.consuming.idle.end(False)

    @property
    def running(self) -> int:  # type: ignore[override] # counted, not kept
        """Calls of functions that run now."""
        core = self._core or self._ending
        return 0 if core is None else core.consuming.running

    @property
    def _called_from_here(self) -> bool:  # type: ignore[override] # asked, not kept
        """Whoever asks is one of its functions."""
        return self._handlers.called_from_here or self._own_calls.called_from_here

    def calls(self) -> set[asyncio.Task[None]]:
        """Calls of functions that the loop still has, after close() those that do not end."""
        return self._handlers.tasks

    @property
    def in_threads(self) -> int:  # type: ignore[override]
        """Calls of plain functions that run in threads now."""
        return self._handlers.in_threads

    @property
    def stats(self) -> ConsumerStats:
        """What it has consumed since it was made: numbers in all, for each topic, and of queues that had to wait."""
        return self._stats

    def pause(self) -> None:
        """Pull nothing more until resume(); what was pulled is still consumed."""
        self._part().pause()

    def resume(self) -> None:
        """Pull again after pause()."""
        self._part().resume()

    @property
    def concurrency(self) -> int:
        """Calls of functions at a time. May be set while it runs: fewer hold as soon as enough of those that run have ended."""
        return self.settings.concurrency

    @concurrency.setter
    def concurrency(self, most: int) -> None:
        self._look_where()
        replace(self.settings, concurrency=most)  # raises for what cannot be
        self.settings.concurrency = most
        self._handlers.set_threads(most)
        if self._core is not None:
            self._core.consuming.set_concurrency(most)

    @property
    def queues(self) -> list[MessageQueue]:
        """This member's share now, retry queues included."""
        return sorted(self.namespace.unwrap_queue(queue) for queue in self._part().queues)

    async def reply(self, message: ReceivedMessage, body: bytes, *, properties: dict[str, str] | None = None) -> SendReceipt:
        """Answer a message that was sent with producer.request(). Raises InvalidMessage when it asks for no reply."""
        producer = inner_producer(self._client())
        answer = reply_message(message, body, properties=properties)
        return await self._wait(producer.sent(answer, hooks=self._hooks))
