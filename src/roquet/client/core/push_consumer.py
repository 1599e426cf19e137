"""PushConsumerCore: takes its share of the queues, keeps a pull waiting at each, and feeds Consuming.

Share ── takes a queue ──> (lock it) ──> where did the group stop? ──> pull ──> Consuming or OrderedConsuming ──> progress
                                                                        ^  │
                                                                        └──┘  again at once; later when full, paused or in trouble
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from roquet.client.core.assignment import RETRY_MS
from roquet.client.core.beginning import FROM_FIRST, FROM_LAST, FROM_TIMESTAMP
from roquet.client.core.checks import check_ranges
from roquet.client.core.consuming import TIMEOUT_MS, Consuming, Consumption
from roquet.client.core.filter_check import check_filters, filter_of
from roquet.client.core.group_member import GroupMember, GroupSettings
from roquet.client.core.held_back import Limit
from roquet.client.core.instance import ClientCore, Reply
from roquet.client.core.offsets import LocalOffsets, MemberOffsets, OffsetFile, RemoteOffsets
from roquet.client.core.ordered import CONTINUOUS_MS, NO_LIMIT, OrderedConsuming
from roquet.client.core.ordered import SUSPEND_MS as SUSPEND_QUEUE_MS
from roquet.client.core.process_queue import SPAN_MAX, ProcessQueue
from roquet.client.core.pulling import SUSPEND_MS, SUSPENDED_TIMEOUT_MS, TROUBLE_MS, PullResult, PullStatus, wait_after
from roquet.client.core.queue_locks import LOCK_MAX_MS, LOCK_MS, QueueLocks
from roquet.client.core.rates import Rates
from roquet.client.core.rhythm import PAUSE_MIN_MS
from roquet.client.core.running_info import running_info
from roquet.client.core.send_back import SendingBack, restore_topic, restore_topics
from roquet.client.core.share import NotYet
from roquet.client.core.share_changes import Notify, ShareChanges
from roquet.client.core.stats import ConsumerStats
from roquet.client.core.stored_offsets import ProgressStore, StoredOffsets
from roquet.client.core.tasks import Wait
from roquet.client.core.verdicts import Listener, Outcome, Verdict
from roquet.errors import ClientError, ConnectFailed, NotStarted, Rejected, RoquetError
from roquet.message import MessageQueue, ReceivedMessage
from roquet.routing.subscription import subscribe
from roquet.wire.calls.consumers import ConsumeDirectlyResult
from roquet.wire.calls.members import ConsumeType, SubscriptionData
from roquet.wire.calls.offsets import GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusBody
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import is_retry_topic, retry_topic
from roquet.wire.record import Record

__all__ = ["FROM_FIRST", "FROM_LAST", "FROM_TIMESTAMP", "PushConsumerCore", "PushConsumerSettings"]

log = logging.getLogger(__name__)

FULL_MS = 50
"""Wait before looking again at a queue whose limits are reached; less when most of what is held is finished before."""
LASTS_MS = 1_000
"""A queue that has to wait for less is nothing unusual, as when a backlog is consumed."""
PAUSED_MS = 1_000
CLOSE_WAIT_MS = 30_000


@dataclass
class PushConsumerSettings(GroupSettings):
    """Upstream's defaults."""

    broadcasting: bool = False
    concurrency: int = 20
    """Calls of the listener at a time."""
    batch_size: int = 1
    """Messages per call."""
    pull_batch_size: int = 32
    span_max: int = SPAN_MAX
    reconsume_times_max: int = -1
    """After so many retries a message becomes a dead letter. -1: as many as the group has at its broker (roquet group create --retry-max;
    16 unless it says otherwise); orderly, it is never one."""
    consume_timeout_ms: int = TIMEOUT_MS
    """What takes longer is given back to the broker. Not when orderly."""
    orderly: bool = False
    auto_commit: bool = True
    """Orderly: success commits. False: only COMMIT does."""
    suspend_queue_ms: int = SUSPEND_QUEUE_MS
    """Orderly: how long a queue waits after a failure."""
    continuous_ms: int = CONTINUOUS_MS
    """Orderly: after so long a queue lets others go first, when there are more than may run at once."""
    lock_ms: int = LOCK_MS
    """Orderly: between two confirmations that its queues are its own. A broker gives a queue to others a minute after the last one."""
    suspend_ms: int = SUSPEND_MS
    pull_timeout_ms: int = SUSPENDED_TIMEOUT_MS

    def __post_init__(self) -> None:
        self.check_pauses(lock_ms=(PAUSE_MIN_MS, LOCK_MAX_MS))
        check_ranges(
            self, concurrency=(1, 10_000), batch_size=(1, 1_024), pull_batch_size=(1, 1_024), count_max=(1, 65_535), span_max=(1, 65_535),
            reconsume_times_max=(-1, NO_LIMIT), consume_timeout_ms=(1, 1 << 40), suspend_queue_ms=(10, 30_000), continuous_ms=(1, 1 << 40),
        )  # fmt: skip

    @property
    def times_max(self) -> int | None:
        """None: the broker decides, by what the group has there."""
        if self.reconsume_times_max >= 0:
            return self.reconsume_times_max
        return NO_LIMIT if self.orderly else None


class PushConsumerCore(GroupMember):
    consume_type = ConsumeType.CONSUME_PASSIVELY
    settings: PushConsumerSettings

    def __init__(
        self,
        client: ClientCore,
        group: str,
        listener: Listener,
        settings: PushConsumerSettings | None = None,
        *,
        offset_file: OffsetFile | None = None,
        stats: ConsumerStats | None = None,
        store: ProgressStore | None = None,
        on_assigned: Notify | None = None,
        on_revoked: Notify | None = None,
    ) -> None:
        """`store`: keeps the group's progress, in place of its brokers. `offset_file` is needed for broadcasting without one."""
        self.settings = settings or PushConsumerSettings()
        super().__init__(client, group, self.settings, broadcasting=self.settings.broadcasting)
        group = self.group
        self.stats = stats or ConsumerStats(group)
        self.rates = Rates(self.stats, client.clock.steady_ms())
        self.offsets = self._offsets(store, offset_file)
        self.offsets.writable = self._is_mine
        sending_back = SendingBack(client, group, times_max=self.settings.times_max, namespace=self.namespace)
        self.locks: QueueLocks | None = None
        self.consuming: Consumption[Any, Any]
        if self.settings.orderly:
            if not self.broadcasting:
                self.locks = QueueLocks(client, group, self.offsets, self.settings.lock_ms)
                self.locks.on_lost = self._lock_lost
            self.consuming = OrderedConsuming(
                client, group, self.offsets, listener, sending_back, self.settings, self.stats, locks=self.locks
            )
        else:
            self.consuming = Consuming(client, group, self.offsets, listener, sending_back, self.settings, self.stats)
        self.changes = ShareChanges(client, group, on_assigned, on_revoked)
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self.paused = False
        self.refusal: Rejected | None = None
        """What a broker said against an SQL filter at the start. Nothing is pulled then."""
        self.state = "new"  # new -> running -> closing
        self.may_begin: Wait[None] | None = None
        """Nothing is consumed before this ends."""
        self._leaving: dict[MessageQueue, ProcessQueue] = {}  # let go, but a call for it still runs
        self._left_one: Wait[None] = Wait()  # ends when one of them is through

    def _offsets(self, store: ProgressStore | None, offset_file: OffsetFile | None) -> MemberOffsets:
        if store is not None:
            return StoredOffsets(self.client, self.group, store)
        if not self.broadcasting:
            return RemoteOffsets(self.group, self.calls)
        if offset_file is None:
            raise ClientError("broadcasting needs a file for its offsets; pass offset_file")
        return LocalOffsets(offset_file)

    # -- subscriptions

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Before or after start. Subscribing again replaces the filter. Raises BadExpression; for `sql` it is BadSql, with the place."""
        topic = self.namespace.wrap(topic)
        self._subscribe(filter_of(topic, tags, sql, self._version(topic)))

    def _subscribe(self, subscription: SubscriptionData) -> None:
        super()._subscribe(subscription)
        self.share.topic_added(subscription.topic)

    # -- being part of a client

    def start(self) -> None:
        if not self.broadcasting:
            self._subscribe(subscribe(retry_topic(self.group), "*", self.client.clock.now_ms()))
        self.started_ms = self.client.clock.now_ms()
        self.client.add_consumer(self)
        self.state = "running"
        if self.locks is not None:
            self.locks.start()
        self.client.tasks.start(self._begin())

    async def _begin(self) -> None:
        self.refusal = await check_filters(self.client, self.group, list(self.subscriptions.values()))
        if self.may_begin is not None:
            await self.may_begin
        if self.refusal is not None:
            log.error("! group %s does not start, a broker refuses its filter: %s", self.group, self.refusal)
        elif self.state == "running":
            await self.share.start()
        self.settled.end(True)

    async def close(self, *, wait_ms: int = CLOSE_WAIT_MS) -> None:
        """Stop pulling, let what runs finish (for `wait_ms` at most), write progress down, leave the group."""
        state, self.state = self.state, "closing"
        if state != "running":
            return
        if self.may_begin is not None:
            self.may_begin.end(None)
        self.share.stop()
        self.consuming.stop()
        if not await self.client.within(self.consuming.idle, wait_ms, False):
            log.warning(
                "! group %s closes while %d calls of its listener run; their messages come again", self.group, self.consuming.running
            )
        for process_queue in self.queues.values():
            process_queue.dropped = True
        await self.offsets.persist_surely()
        while any(one.dropped for one in self._leaving.values()):  # let go, and its progress is on the way to the broker
            self._left_one = Wait()
            await self._left_one
        if self.changes.wanted:
            await self.changes.gone(self.queues)
        if self.locks is not None:
            self.locks.stop()
            await self.locks.unlock(list(self.locks.confirmed))
        await self.client.remove_consumer(self)

    # -- taking and letting go

    def held(self) -> Collection[MessageQueue]:
        return self.queues.keys()

    async def prepare(self, queue: MessageQueue) -> int:
        if self.changes.is_going(queue):
            raise NotYet(f"{queue} was let go, and on_revoked has not returned")
        if self.locks is None:
            return await self._where_to_begin(queue)
        if queue in self._leaving:
            raise NotYet(f"a call for {queue} still runs")
        if not await self.locks.lock(queue):
            self.stats.held_back.count("lock")
            self.stats.held_back.say("lock", queue, "another member holds its lock", self.client.clock.steady_ms())
            raise NotYet(f"another member holds {queue}")
        try:
            return await self._where_to_begin(queue)  # only now: who held it before has written its progress
        except RoquetError:
            self.abandon(queue)
            raise

    def begin(self, queue: MessageQueue, offset: int) -> None:
        self.changes.came(queue)
        self._read_from(queue, offset)

    def abandon(self, queue: MessageQueue) -> None:
        if self.locks is not None:
            self.client.tasks.start(self.locks.unlock([queue]))

    def drop(self, queue: MessageQueue) -> None:
        process_queue = self.queues.pop(queue, None)
        if process_queue is None:
            return
        if self.changes.wanted:
            self.changes.going(queue)
        if self.locks is not None:
            process_queue.leaving = True
            self._leaving[queue] = process_queue
            self.client.tasks.start(self._let_go(process_queue, self.locks))
        else:
            process_queue.dropped = True
            if self.changes.wanted:
                self.client.tasks.start(self._drop_and_tell(process_queue))
            else:
                self.offsets.release(queue)

    async def _drop_and_tell(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        await self.offsets.release_surely(queue)
        await self.consuming.until_free(process_queue)
        self._leaving[queue] = process_queue  # close() waits from here on
        await self.changes.gone([queue])
        if self._leaving.get(queue) is process_queue:
            del self._leaving[queue]
        self._left_one.end(None)

    async def _let_go(self, process_queue: ProcessQueue, locks: QueueLocks) -> None:
        """The call that runs ends, its progress is written, on_revoked hears of it, and only then the lock is given back."""
        queue = process_queue.queue
        await self.consuming.until_free(process_queue)
        process_queue.dropped = True
        if self._leaving.get(queue) is process_queue:
            await self.offsets.release_surely(queue)
        if self.changes.wanted:
            await self.changes.gone([queue])
        if self._leaving.get(queue) is process_queue:
            del self._leaving[queue]
            self.client.tasks.start(locks.unlock([queue]))
            self._left_one.end(None)

    def _is_mine(self, queue: MessageQueue) -> bool:
        return self.locks is None or self.locks.holds(queue)

    def _lock_lost(self, queue: MessageQueue) -> None:
        """The lock was somebody else's for a time: forget what is held here, and begin anew when it is ours again."""
        leaving = self._leaving.pop(queue, None)
        process_queue = self.queues.pop(queue, None)
        for one in (leaving, process_queue):
            if one is not None:
                one.dropped = True
        self.offsets.forget(queue)
        if process_queue is not None:
            if self.changes.wanted:
                self.changes.going(queue)
                self.client.tasks.start(self._tell_lost(process_queue))
            self.share.rebalance_soon(queue.topic, RETRY_MS)
        self._left_one.end(None)

    async def _tell_lost(self, process_queue: ProcessQueue) -> None:
        await self.consuming.until_free(process_queue)
        await self.changes.gone([process_queue.queue])

    # -- pulling

    def _read_from(self, queue: MessageQueue, offset: int) -> None:
        process_queue = self.queues[queue] = ProcessQueue(queue, offset, self.client.clock.now_ms())
        if not is_retry_topic(queue.topic):
            process_queue.topic = self.namespace.unwrap(queue.topic)
            process_queue.counted = self.stats.of(process_queue.topic)
        self.client.tasks.start(self._read(process_queue))

    async def _read(self, process_queue: ProcessQueue) -> None:
        """Keep a pull waiting at the queue, for as long as it is ours."""
        delay_ms = 0
        coming = self.changes.coming(process_queue.queue)
        if coming is not None:
            await coming
        while True:
            if delay_ms:
                await self.client.sleep(delay_ms)
            subscription = self.subscriptions.get(process_queue.queue.topic)
            if subscription is None or not self._is_read(process_queue):
                return
            delay_ms = await self._pull(process_queue, subscription)

    def _is_read(self, process_queue: ProcessQueue) -> bool:
        return not process_queue.dropped and not process_queue.leaving and self.state == "running"

    async def _pull(self, process_queue: ProcessQueue, subscription: SubscriptionData) -> int:
        """One pull, and what comes of it. How long to wait before the next, ms."""
        settings, queue, before = self.settings, process_queue.queue, process_queue.next_offset
        process_queue.last_pull_ms = self.client.clock.now_ms()
        asked_ms = self.client.clock.steady_ms()
        if self.paused:
            return PAUSED_MS
        limit = process_queue.limit(settings.count_max, settings.size_max, settings.span_max)
        if limit is not None:
            self._held_back(process_queue, limit, asked_ms)
            await self.client.within(process_queue.room(), FULL_MS, None)
            return 0
        process_queue.held_by = None
        progress = self.offsets.table.get(queue) if not self.broadcasting and self._is_mine(queue) else None
        try:
            result = await self._puller.pull(
                queue,
                before,
                settings.pull_batch_size,
                sub_version=subscription.sub_version,
                commit_offset=progress if progress else None,
                suspend_ms=settings.suspend_ms,
                timeout_ms=settings.pull_timeout_ms,
            )
        except RoquetError as error:
            return self._not_pulled(process_queue, error)
        if not self._is_read(process_queue):
            return 0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return self._moved(process_queue, result)
        self._take(process_queue, result, asked_ms)
        return self._pause_ms(before, asked_ms, result)

    def _held_back(self, process_queue: ProcessQueue, limit: Limit, now_ms: int) -> None:
        """Counted when it begins, and said when it lasts."""
        settings, held_back = self.settings, self.stats.held_back
        if limit is not process_queue.held_by:
            process_queue.held_by, process_queue.held_since_ms = limit, now_ms
            held_back.count(limit)
        if now_ms - process_queue.held_since_ms < LASTS_MS:
            return
        why = {
            "messages": f"{len(process_queue.messages)} messages of it are held here, more than count_max={settings.count_max}",
            "bytes": f"its messages that are held here have {process_queue.size} bytes, more than size_max={settings.size_max}",
            "span": f"offset {process_queue.progress} is not done and {process_queue.largest} is held here, more than"
            f" span_max={settings.span_max} apart",
        }
        held_back.say(limit, process_queue.queue, why[limit], now_ms)

    def _not_pulled(self, process_queue: ProcessQueue, error: RoquetError) -> int:
        queue = process_queue.queue
        if not self._is_read(process_queue):
            return 0
        if self.locks is not None and isinstance(error, ConnectFailed):
            self.locks.doubt(queue.broker_name)
        return wait_after(self.client, queue, error)

    def _take(self, process_queue: ProcessQueue, result: PullResult, asked_ms: int) -> None:
        queue = process_queue.queue
        process_queue.next_offset = result.next_offset
        new: list[ReceivedMessage] = []
        if result.messages:
            self._count_pulled(self.stats, queue, len(result.messages), asked_ms)
            tag_filter = self._filters[queue.topic]
            wanted = result.messages
            if tag_filter.judges:
                wanted = [message for message in wanted if tag_filter.takes_tag(message.tags)]
            restore_topics(wanted, queue, self.namespace)
            new = process_queue.put(wanted)
        if new:
            self.consuming.submit(process_queue, new)
        elif not process_queue.messages:
            # Everything up to here was consumed or not for us.
            self.offsets.update(queue, result.next_offset)

    def _moved(self, process_queue: ProcessQueue, result: PullResult) -> int:
        """There is no such offset: deleted by age, or the broker lost its end. Go on where the broker says, but lose nothing that is in
        hand. How long to wait before the next pull, ms."""
        queue, before, offset = process_queue.queue, process_queue.next_offset, result.next_offset
        if offset < before and process_queue.messages:
            offset = min(offset, process_queue.progress)  # what is not finished may still be there, and comes again
        log.warning("! group %s: offset %d of %s does not exist, going on from %d", self.group, before, queue, offset)
        if offset < before:
            self._restart(queue, offset)
        elif offset == before:
            return TROUBLE_MS
        else:
            process_queue.next_offset = offset  # what is in hand is consumed, though the broker has it no longer
            if not process_queue.messages:
                self.offsets.update(queue, offset)
        return 0

    def _restart(self, queue: MessageQueue, offset: int) -> None:
        self.queues[queue].dropped = True
        self.offsets.update(queue, offset, increase_only=False)
        self.offsets.persist()
        self._read_from(queue, offset)

    def persist(self) -> None:
        self.rates.sample(self.client.clock.steady_ms())
        super().persist()

    # -- for the user

    def pause(self) -> None:
        """Pull nothing more until resume; what was pulled is still consumed."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # -- what brokers ask

    def asked(self, address: str, command: Command, reply: Reply) -> None:
        if self.state != "running":
            raise NotStarted(f"consumer {self.group!r} is closing")
        ANSWERS[command.code](self, command, reply)

    def _reset_offsets(self, command: Command, reply: Reply) -> None:
        for queue, offset in self._moves(command):
            log.warning("= group %s: %s is put to offset %d by an operator", self.group, queue, offset)
            self._restart(queue, offset)
        reply(self.client.answer(command, ResponseCode.SUCCESS))

    def _status(self, command: Command, reply: Reply) -> None:
        topic = GET_CONSUMER_STATUS_FROM_CLIENT.read_header(command).topic
        table = {queue: offset for queue, offset in self.offsets.table.items() if queue.topic == topic}
        reply(self.client.answer(command, ResponseCode.SUCCESS, body=ConsumerStatusBody(message_queue_table=table).encode()))

    def _running_info(self, command: Command, reply: Reply) -> None:
        reply(self.client.answer(command, ResponseCode.SUCCESS, body=running_info(self).encode()))

    def _consume_directly(self, command: Command, reply: Reply) -> None:
        message = ReceivedMessage(Record.decode(command.body), command.fields.get("brokerName", ""))
        restore_topic(message, self.namespace)
        self.client.tasks.start(self._consume_now(message, command, reply))

    async def _consume_now(self, message: ReceivedMessage, command: Command, reply: Reply) -> None:
        begun = self.client.clock.steady_ms()
        answer: Wait[Verdict] = Wait()

        def judged(verdict: Verdict = Outcome.RETRY_LATER) -> None:
            answer.end(verdict)

        try:
            self.consuming.listener([message], judged)
        except Exception as error:
            result = ConsumeDirectlyResult(consume_result=ConsumeDirectlyResult.THROW_EXCEPTION, remark=repr(error))
        else:
            verdict = await answer
            named = DIRECT_RESULTS.get(verdict) if isinstance(verdict, Outcome) else None
            result = ConsumeDirectlyResult(
                consume_result=named or ConsumeDirectlyResult.LATER,
                order=self.settings.orderly,
                auto_commit=self.settings.auto_commit,
                spent_time_mills=self.client.clock.steady_ms() - begun,
            )
        reply(self.client.answer(command, ResponseCode.SUCCESS, body=result.encode()))


DIRECT_RESULTS = {Outcome.SUCCESS: ConsumeDirectlyResult.SUCCESS, Outcome.COMMIT: "CR_COMMIT", Outcome.ROLLBACK: "CR_ROLLBACK"}


ANSWERS: Mapping[int, Callable[[PushConsumerCore, Command, Reply], None]] = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: PushConsumerCore._reset_offsets,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: PushConsumerCore._status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: PushConsumerCore._running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: PushConsumerCore._consume_directly,
}
