"""PushConsumerCore: takes its share of the queues, keeps a pull waiting at each, and feeds Consuming.

rebalance ── takes a queue ──> where did the group stop? ──> pull ──> Consuming ──> progress
                                                              ^  │
                                                              └──┘  again at once; later when full, paused or in trouble
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from roquet.client.core.assignment import RETRY_MS, Assignment, diff
from roquet.client.core.consuming import RECONSUME_TIMES_MAX, Consuming, Listener, Outcome, restore_topic
from roquet.client.core.instance import ClientCore, Finished, Reply
from roquet.client.core.offsets import LocalOffsets, OffsetFile, Offsets, RemoteOffsets
from roquet.client.core.process_queue import COUNT_MAX, SIZE_MAX, SPAN_MAX, ProcessQueue
from roquet.client.core.producer import valid
from roquet.client.core.pulling import SUSPEND_MS, SUSPENDED_TIMEOUT_MS, Puller, PullResult, PullStatus
from roquet.client.core.queue_calls import NO_OFFSET, GotNumber, QueueCalls
from roquet.client.core.routes import TopicRoute
from roquet.client.core.running_info import running_info
from roquet.errors import ClientError, ConnectFailed, NotStarted, Rejected, RoquetError
from roquet.message import MessageQueue, ReceivedMessage
from roquet.routing.assign import AVERAGE, Strategy
from roquet.routing.subscription import TagFilter, subscribe
from roquet.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerStatusBody,
    ConsumeType,
    MessageModel,
    ResetOffsetBody,
    SubscriptionData,
)
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import ConsumerStatusHeader, ResetOffsetHeader, decode
from roquet.wire.names import check_group, check_topic, is_retry_topic, retry_topic
from roquet.wire.record import Record

if TYPE_CHECKING:
    from roquet.client.core.timers import Timer

log = logging.getLogger(__name__)

FULL_MS = 50
"""Wait before looking again at a queue whose limits are reached."""
BUSY_MS = 20
"""Wait after the broker's own flow control."""
PAUSED_MS = 1_000
LOST_MS = 1_000
"""Wait after a lost connection."""
TROUBLE_MS = 3_000
"""Wait after any other failure."""
HASTY_MS = 100
"""An empty answer that came sooner, and without progress, did not wait at the broker; so we do, to not spin."""
UNKNOWN_ROUTE_MS = 5_000
CLOSE_WAIT_MS = 30_000

BUSY_CODES = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
UNKNOWN_TO_BROKER = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)

FROM_FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
FROM_LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
FROM_TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


@dataclass
class PushConsumerSettings:
    """Upstream's defaults."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = FROM_LAST
    """Where a group that has no progress in a queue begins."""
    consume_timestamp_ms: int = 0
    strategy: Strategy = AVERAGE
    concurrency_max: int = 20
    consume_batch_size: int = 1
    pull_batch_size: int = 32
    count_max: int = COUNT_MAX
    size_max: int = SIZE_MAX
    span_max: int = SPAN_MAX
    reconsume_times_max: int = RECONSUME_TIMES_MAX
    suspend_ms: int = SUSPEND_MS
    pull_timeout_ms: int = SUSPENDED_TIMEOUT_MS

    def __post_init__(self) -> None:
        for name, low, high in (
            ("concurrency_max", 1, 10_000), ("consume_batch_size", 1, 1_024), ("pull_batch_size", 1, 1_024),
            ("count_max", 1, 65_535), ("span_max", 1, 65_535),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ClientError(f"{name}={getattr(self, name)}; allowed are {low} to {high}")


class PushConsumerCore:
    def __init__(
        self,
        client: ClientCore,
        group: str,
        listener: Listener,
        settings: PushConsumerSettings | None = None,
        *,
        offset_file: OffsetFile | None = None,
    ) -> None:
        """`offset_file` is needed for broadcasting only."""
        valid(check_group, group)
        self.client = client
        self.group = group
        self.settings = settings or PushConsumerSettings()
        self.broadcasting = self.settings.model is MessageModel.BROADCASTING
        self.calls = QueueCalls(client)
        if self.broadcasting:
            if offset_file is None:
                raise ClientError("broadcasting needs a file for its offsets; pass offset_file")
            self.offsets: Offsets = LocalOffsets(offset_file)
        else:
            self.offsets = RemoteOffsets(group, self.calls)
        self.consuming = Consuming(
            client, group, self.offsets, listener,
            concurrency_max=self.settings.concurrency_max, batch_size=self.settings.consume_batch_size,
            broadcasting=self.broadcasting, reconsume_times_max=self.settings.reconsume_times_max,
        )  # fmt: skip
        self.assignment = Assignment(client, group, strategy=self.settings.strategy, broadcasting=self.broadcasting)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self.paused = False
        self.on_settled: Finished | None = None
        self.started_ms = 0
        self.state = "new"  # new -> running -> closing
        self._filters: dict[str, TagFilter] = {}
        self._puller = Puller(client, group)
        self._taking: dict[MessageQueue, int] = {}  # queue -> number of the plan that wants it
        self._plan = 0
        self._planning: dict[str, list[Finished]] = {}  # topic -> who waits for the plan under way
        self._plan_again: set[str] = set()
        self._routes_timer: Timer | None = None
        self._retry_timers: dict[str, Timer] = {}

    # -- subscriptions

    def subscribe(self, topic: str, tags: str = "*") -> None:
        """Before or after start. Subscribing again replaces the tags."""
        valid(check_topic, topic)
        self._subscribe(subscribe(topic, tags, self.client.clock.now_ms()))

    def _subscribe(self, subscription: SubscriptionData) -> None:
        self.subscriptions[subscription.topic] = subscription
        self._filters[subscription.topic] = TagFilter.of(subscription)
        if self.state == "running":
            self.client.heartbeat_all(partial(self._rebalance_topic, subscription.topic))
            self._fetch_unknown_routes()

    def unsubscribe(self, topic: str) -> None:
        if self.subscriptions.pop(topic, None) is None:
            return
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            self._drop(queue)
        if self.state == "running":
            self.client.heartbeat_all()

    # -- being part of a client

    def start(self) -> None:
        """`on_settled` is called when the first rebalance is through: the queues there are now have a pull under way."""
        if not self.broadcasting:
            self._subscribe(subscribe(retry_topic(self.group), "*", self.client.clock.now_ms()))
        self.started_ms = self.client.clock.now_ms()
        self.client.add_consumer(self)
        self.state = "running"
        topics = list(self.subscriptions)
        left = len(topics)
        if not left:
            self._settled()

        def known(topic: str, result: TopicRoute | RoquetError) -> None:
            nonlocal left
            if isinstance(result, RoquetError) and not is_retry_topic(topic):
                log.warning("! group %s waits for topic %s: %s", self.group, topic, result)
            left -= 1
            if left == 0:
                self.client.heartbeat_all(lambda: self._rebalance(self._settled))
                self._fetch_unknown_routes()

        for topic in topics:
            self.client.routes.fetch(topic, partial(known, topic))

    def _settled(self) -> None:
        told, self.on_settled = self.on_settled, None
        if told is not None:
            told()

    def _fetch_unknown_routes(self) -> None:
        """A topic nobody has yet is asked for every few seconds; the retry topic appears with the first heartbeat."""

        def look() -> None:
            self._routes_timer = None
            unknown = [topic for topic in self.subscriptions if self.client.routes.get(topic) is None]
            for topic in unknown:
                self.client.routes.fetch(topic, _ignore)  # what is learned comes back as route_changed
            if unknown and self.state == "running":
                self._routes_timer = self.client.after(UNKNOWN_ROUTE_MS, look)

        if self._routes_timer is None:
            self._routes_timer = self.client.after(RETRY_MS, look)

    def topics(self) -> list[str]:
        return list(self.subscriptions)

    def heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self.settings.model,
            consume_from_where=self.settings.consume_from,
            subscription_data_set=list(self.subscriptions.values()),
        )

    def persist(self) -> None:
        self.offsets.persist()

    def close(self, done: Finished, *, wait_ms: int = CLOSE_WAIT_MS) -> None:
        """Stop pulling, let what runs finish (for `wait_ms` at most), write progress down, leave the group."""
        if self.state != "running":
            self.state = "closing"
            done()
            return
        self.state = "closing"
        ended = False

        def idle() -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            for process_queue in self.queues.values():
                process_queue.dropped = True
            self.offsets.persist_surely(lambda: self.client.remove_consumer(self, done))

        def late() -> None:
            if not ended:
                log.warning(
                    "! group %s closes while %d calls of its listener run; their messages come again", self.group, self.consuming.running
                )
                idle()

        self.consuming.on_idle = idle
        self.consuming.stop()
        if not ended:
            self.client.after(wait_ms, late)

    # -- taking and letting go

    def route_changed(self, route: TopicRoute) -> None:
        if self.state == "running" and route.topic in self.subscriptions:
            # The brokers of a new route have just had their heartbeat; ask them for the members after that.
            self._rebalance_soon(route.topic, RETRY_MS // 4)

    def rebalance(self) -> None:
        self._rebalance(None)

    def _rebalance(self, finished: Finished | None) -> None:
        topics = list(self.subscriptions)
        left = len(topics)

        def one_finished() -> None:
            nonlocal left
            left -= 1
            if left == 0 and finished is not None:
                finished()

        for topic in topics:
            self._rebalance_topic(topic, one_finished)

    def _rebalance_topic(self, topic: str, finished: Finished | None = None) -> None:
        if self.state != "running" or topic not in self.subscriptions:
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
            self._rebalance_soon(topic, RETRY_MS)

        def unreachable() -> None:
            self.client.refresh(topic)
            self._rebalance_soon(topic, TROUBLE_MS)

        def planned(wanted: set[MessageQueue] | None) -> None:
            if wanted is None or self.state != "running":
                over()
            else:
                self._apply(topic, wanted, over)

        def over() -> None:
            waiting = self._planning.pop(topic, [])
            for one in waiting:
                one()
            if topic in self._plan_again:
                self._plan_again.discard(topic)
                self._rebalance_topic(topic)

        self.assignment.plan(topic, planned, unlisted=unlisted, unreachable=unreachable)

    def _rebalance_soon(self, topic: str, delay_ms: int) -> None:
        timer = self._retry_timers.get(topic)
        if timer is None or timer.work is None:
            self._retry_timers[topic] = self.client.after(delay_ms, lambda: self._rebalance_topic(topic))

    def _apply(self, topic: str, wanted: set[MessageQueue], finished: Finished) -> None:
        held = [queue for queue in self.queues if queue.topic == topic]
        gone, new = diff(held, wanted)
        self._plan += 1
        number = self._plan
        for queue in [queue for queue in self._taking if queue.topic == topic and queue not in wanted]:
            del self._taking[queue]
        for queue in gone:
            self._drop(queue)
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
                if isinstance(result, RoquetError):
                    log.warning("! group %s cannot begin with %s: %s; it tries again", self.group, queue, result)
                    self._rebalance_soon(topic, TROUBLE_MS)
                elif self.state == "running" and queue not in self.queues:
                    self._begin(queue, result)
            left -= 1
            if left == 0:
                finished()

        for queue in new:
            self._taking[queue] = number
            self._where_to_begin(queue, partial(found, queue))

    def _drop(self, queue: MessageQueue) -> None:
        process_queue = self.queues.pop(queue, None)
        if process_queue is not None:
            process_queue.dropped = True
            self.offsets.release(queue)

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        """(Re)start a queue at an offset; what was held of it before is forgotten."""
        old = self.queues.get(queue)
        if old is not None:
            old.dropped = True
        process_queue = self.queues[queue] = ProcessQueue(queue, offset, self.client.clock.now_ms())
        self._pull(process_queue)

    def _where_to_begin(self, queue: MessageQueue, done: GotNumber) -> None:
        retry = is_retry_topic(queue.topic)
        consume_from = self.settings.consume_from

        def loaded(result: int | RoquetError) -> None:
            if isinstance(result, RoquetError) or result != NO_OFFSET:
                done(result)
            elif consume_from is FROM_TIMESTAMP and not retry:
                self.calls.search_offset(queue, self.settings.consume_timestamp_ms, done)
            elif consume_from is FROM_TIMESTAMP or (consume_from is not FROM_FIRST and not retry):
                self.calls.max_offset(queue, done)
            elif retry:
                done(0)
            else:
                self.calls.min_offset(queue, lambda first: done(max(first, 0) if isinstance(first, int) else first))

        self.offsets.load(queue, loaded)

    # -- pulling

    def _pull_later(self, process_queue: ProcessQueue, delay_ms: int) -> None:
        self.client.after(delay_ms, lambda: self._pull(process_queue))

    def _pull(self, process_queue: ProcessQueue) -> None:
        settings = self.settings
        queue = process_queue.queue
        if process_queue.dropped or self.state != "running":
            return
        subscription = self.subscriptions.get(queue.topic)
        if subscription is None:
            return
        now = process_queue.last_pull_ms = self.client.clock.now_ms()
        if self.paused:
            self._pull_later(process_queue, PAUSED_MS)
            return
        if process_queue.is_full(settings.count_max, settings.size_max, settings.span_max):
            self._pull_later(process_queue, FULL_MS)
            return
        progress = None if self.broadcasting else self.offsets.table.get(queue)
        self._puller.pull(
            queue,
            process_queue.next_offset,
            settings.pull_batch_size,
            lambda result: self._pulled(process_queue, now, result),
            sub_version=subscription.sub_version,
            commit_offset=progress if progress else None,
            suspend_ms=settings.suspend_ms,
            timeout_ms=settings.pull_timeout_ms,
        )

    def _pulled(self, process_queue: ProcessQueue, asked_ms: int, result: PullResult | RoquetError) -> None:
        if process_queue.dropped or self.state != "running":
            return
        queue = process_queue.queue
        if isinstance(result, RoquetError):
            self._pull_later(process_queue, self._trouble(queue, result))
            return
        before = process_queue.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._moved(process_queue, result)
            return
        process_queue.next_offset = result.next_offset
        if result.messages:
            tag_filter = self._filters[queue.topic]
            wanted = [message for message in result.messages if tag_filter.takes_tag(message.tags)]
            for message in wanted:
                restore_topic(message)
            new = process_queue.put(wanted)
        else:
            new = []
        if new:
            self.consuming.submit(process_queue, new)
        elif not process_queue.messages:
            # Everything up to here was consumed or not for us.
            self.offsets.update(queue, result.next_offset)
        if result.next_offset == before and self.client.clock.now_ms() - asked_ms < HASTY_MS:
            self._pull_later(process_queue, HASTY_MS)
        else:
            self._pull(process_queue)

    def _trouble(self, queue: MessageQueue, error: RoquetError) -> int:
        """How long to wait before the next pull."""
        if isinstance(error, Rejected) and error.code in BUSY_CODES:
            return BUSY_MS
        log.info("! pull of %s: %s", queue, error)
        if isinstance(error, Rejected) and error.code in UNKNOWN_TO_BROKER:
            self.client.heartbeat_soon()  # it restarted, or has not heard of our subscription yet
            return LOST_MS
        if isinstance(error, ConnectFailed):
            self.client.refresh(queue.topic)
            return LOST_MS
        return TROUBLE_MS

    def _moved(self, process_queue: ProcessQueue, result: PullResult) -> None:
        """There is no such offset: deleted by age, or the broker lost its end. Go on where the broker says."""
        queue, before = process_queue.queue, process_queue.next_offset
        log.warning("! group %s: offset %d of %s does not exist, going on from %d", self.group, before, queue, result.next_offset)
        self._restart(queue, result.next_offset, TROUBLE_MS if result.next_offset == before else 0)

    def _restart(self, queue: MessageQueue, offset: int, delay_ms: int = 0) -> None:
        old = self.queues[queue]
        old.dropped = True
        self.offsets.update(queue, offset, increase_only=False)
        self.offsets.persist()
        process_queue = self.queues[queue] = ProcessQueue(queue, offset, self.client.clock.now_ms())
        if delay_ms:
            self._pull_later(process_queue, delay_ms)
        else:
            self._pull(process_queue)

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
        header = decode(ResetOffsetHeader, command.fields)
        for queue, offset in ResetOffsetBody.decode(command.body).offset_table.items():
            if queue.topic == header.topic and queue in self.queues and offset >= 0:
                log.warning("= group %s: %s is put to offset %d by an operator", self.group, queue, offset)
                self._restart(queue, offset)
        reply(self.client.answer(command, ResponseCode.SUCCESS))

    def _status(self, command: Command, reply: Reply) -> None:
        topic = decode(ConsumerStatusHeader, command.fields).topic
        table = {queue: offset for queue, offset in self.offsets.table.items() if queue.topic == topic}
        reply(self.client.answer(command, ResponseCode.SUCCESS, body=ConsumerStatusBody(message_queue_table=table).encode()))

    def _running_info(self, command: Command, reply: Reply) -> None:
        reply(self.client.answer(command, ResponseCode.SUCCESS, body=running_info(self).encode()))

    def _consume_directly(self, command: Command, reply: Reply) -> None:
        message = ReceivedMessage(Record.decode(command.body), command.fields.get("brokerName", ""))
        restore_topic(message)
        begun = self.client.clock.now_ms()

        def judged(outcome: Outcome) -> None:
            result = ConsumeDirectlyResult.SUCCESS if outcome is Outcome.SUCCESS else ConsumeDirectlyResult.LATER
            spent = self.client.clock.now_ms() - begun
            answer(ConsumeDirectlyResult(consume_result=result, spent_time_mills=spent))

        def answer(result: ConsumeDirectlyResult) -> None:
            reply(self.client.answer(command, ResponseCode.SUCCESS, body=result.encode()))

        try:
            self.consuming.listener([message], judged)
        except Exception as error:
            answer(ConsumeDirectlyResult(consume_result=ConsumeDirectlyResult.THROW_EXCEPTION, remark=repr(error)))


ANSWERS: Mapping[int, Callable[[PushConsumerCore, Command, Reply], None]] = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: PushConsumerCore._reset_offsets,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: PushConsumerCore._status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: PushConsumerCore._running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: PushConsumerCore._consume_directly,
}


def _ignore(_: object) -> None:
    pass
