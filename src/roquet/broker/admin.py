"""What operators ask: configuration, counters, offsets and progress of everything. Mostly for mqadmin, dashboards and `status`.

Some answers look at many records. Reads that are not in memory are collected on the way and fetched with one trip to the
disk (`Reads`), instead of one each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple, TypeVar

from roquet import __version__, speedups
from roquet.broker.groups import Groups
from roquet.broker.handler import Portions, answers, portions, reply_with, send_answer
from roquet.broker.members import Members
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.one_by_one import OneByOne
from roquet.broker.part import Part, Shared
from roquet.broker.stats import Stats
from roquet.broker.topics import Topic, Topics
from roquet.errors import BadSetting, Refused
from roquet.message import MessageQueue
from roquet.ports import Keep, Peer
from roquet.properties import property_line
from roquet.routing.subscription import TagFilter
from roquet.settings import Value, table
from roquet.store.disk import Cold
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.store.store import Store
from roquet.wire.calls import brokers as broker_calls
from roquet.wire.calls import offsets as progress
from roquet.wire.calls import topics as topic_calls
from roquet.wire.calls.groups import QUERY_TOPICS_BY_CONSUMER
from roquet.wire.calls.members import QUERY_SUBSCRIPTION_BY_CONSUMER, SubscriptionOfGroup
from roquet.wire.calls.queues import QUERY_CONSUME_QUEUE, QueueEntries, QueueEntry
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import VERSION, Command
from roquet.wire.layout import ENTRY

log = logging.getLogger("roquet.broker")

T = TypeVar("T")

VERSION_NAME = "V4_9_8"
"""What VERSION is called in upstream's list."""
CHANGES_MAX = 1_000
"""Changes of settings that wait to be written."""
CONFIG_MAX = 64 * 1024
"""Bytes of one configuration update."""
ENTRIES_MAX = 10_000
"""Queue entries in one answer of 321."""
ROUNDS_MAX = 16
"""Times that a row is looked at again: its entry must be read, then its record, and memory may be short."""
WARNINGS_MAX = 100
"""Notices in one answer of 28."""

NOT_YET: Mapping[int, str] = {
    RequestCode.GET_TIMER_CHECK_POINT: "timers are derived from the log; there is no file of theirs to copy",
    RequestCode.GET_TIMER_METRICS: "pending timers are not counted by topic",
    RequestCode.GET_BROKER_MEMBER_GROUP: "ask a name server for the cluster (code 106)",
    RequestCode.EXCHANGE_BROKER_HA_INFO: "replication comes with a later version of Roquet",
    RequestCode.GET_BROKER_HA_STATUS: "replication comes with a later version of Roquet",
    RequestCode.QUERY_ASSIGNMENT: "queues are shared out by the clients; set clientRebalance=true, which is the default",
    RequestCode.SET_MESSAGE_REQUEST_MODE: "pop consuming comes with a later version of Roquet; consumers pull",
    RequestCode.POP_MESSAGE: "pop consuming comes with a later version of Roquet; consumers pull",
    RequestCode.ACK_MESSAGE: "pop consuming comes with a later version of Roquet; consumers pull",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "pop consuming comes with a later version of Roquet; consumers pull",
    RequestCode.NOTIFICATION: "pop consuming comes with a later version of Roquet; consumers pull",
    RequestCode.BATCH_ACK_MESSAGE: "pop consuming comes with a later version of Roquet; consumers pull",
}
"""Requests that real clients send and that get code 3 for now: what to tell them."""


class Reads:
    """Store times, looked up past what is not in memory. `look_at` fetches all of that together and looks again."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._fetches: list[Callable[[], object]] = []

    def time_at(self, queue: ConsumeQueue | None, offset: int) -> int:
        """Store time of the message at this queue offset; -1 when there is none."""
        if queue is None or not queue.first <= offset < queue.visible:
            return -1
        try:
            entry = queue.entry(offset)
            return -1 if entry is None else self.store.store_time_at(entry[0])
        except Cold as cold:
            self._fetches.append(cold.fetch)  # not the exception: it holds its frames, and they hold what was read so far
            return -1

    def look_at(self, items: Iterable[T], look: Callable[[T], None]) -> Generator[Cold | None, None, None]:
        """Look at all of them in portions. Those that met something that is not in memory are looked at again when it was fetched: the
        others stay as they are, since to begin anew with a hundred thousand rows would cost more than a turn."""
        for _ in range(ROUNDS_MAX):
            again: list[T] = []

            def one(item: T, again: list[T] = again) -> None:
                before = len(self._fetches)
                look(item)
                if len(self._fetches) > before:
                    again.append(item)

            yield from portions(items, one)
            if not again:
                return
            fetches, self._fetches = self._fetches, []
            yield Cold(partial(fetch_all, fetches))
            items = again
        raise Refused(ResponseCode.SYSTEM_BUSY, "the data could not be read from disk in time, try again")


def fetch_all(fetches: list[Callable[[], object]]) -> None:
    while fetches:
        fetches.pop()()


class ProgressRow(NamedTuple):
    """A group's progress in one queue, which is to be looked at."""

    stats: progress.ConsumeStats
    topic: str
    queue_id: int
    consumed: int


class Admin(Part):
    """State: the version of the configuration, counted as upstream does."""

    def __init__(
        self,
        shared: Shared,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        members: Members,
        stats: Stats,
        changed: Callable[[Mapping[str, Value]], None],
        keep: Keep | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        """`changed` hears of settings that changed, by our names, after they did. `keep`: where they are written down; None: they hold
        until the restart. `parts`: those that add to the answer of 28."""
        super().__init__(shared)
        self.topics = topics
        self.groups = groups
        self.offsets = offsets
        self.members = members
        self.stats = stats
        self.address = ""
        """This broker's, as clients know it."""
        self.changed = changed
        self.keep = keep
        self.keeping = OneByOne(shared.background)
        self.parts = parts
        self.filter_text: Callable[[str, str], str] = lambda group, topic: "null"
        """What the group filters the topic by, beside tags, as JSON."""
        self.config_version = DataVersion(self.clock.now_ms(), 0)

    # Configuration

    @answers(broker_calls.GET_BROKER_CONFIG)
    def get_config(self, peer: Peer, command: Command) -> Command:
        text = "".join(property_line(key, value) for key, value in self.settings.every_item().items())
        header = broker_calls.BrokerConfigResponseHeader(self.config_version.encode().decode())
        return broker_calls.GET_BROKER_CONFIG.reply(command, header, text.encode())

    def listening(self, address: str, ha_address: str) -> None:
        self.address = address

    @property
    def busy(self) -> bool:
        return bool(self.keeping)

    @answers(broker_calls.UPDATE_BROKER_CONFIG)
    def update_config(self, peer: Peer, command: Command) -> Command | None:
        """25: all or nothing, and only what the table allows. Answered when it is in the file, so that a restart finds it.

        When it cannot be written it holds all the same, until the restart, and the answer says so: on a full disk, somebody
        must be able to shorten the time that files are kept.
        """
        if not command.body or len(command.body) > CONFIG_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"expected 1 to {CONFIG_MAX} bytes of key=value lines, got {len(command.body)}")
        try:
            pairs = broker_calls.UPDATE_BROKER_CONFIG.read_body(command).pairs()
        except UnicodeDecodeError:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the settings are not UTF-8 text") from None
        try:
            values = self.settings.changes(pairs)
        except BadSetting as error:
            specs, harmless = table(type(self.settings)), self.settings.harmless
            fixed = any(key in harmless or (key in specs and not specs[key].mutable) for key in pairs)
            log.warning("%s asked to change settings and was refused: %s", peer.address, error)
            raise Refused(ResponseCode.NO_PERMISSION if fixed else ResponseCode.SYSTEM_ERROR, f"nothing was changed: {error}") from None
        if len(self.keeping) >= CHANGES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{CHANGES_MAX} changes of settings wait to be written, try again")
        self.settings.change(values)
        self.config_version = self.config_version.next(self.clock.now_ms())
        spelled = self.settings.spelled(values)
        changes = ", ".join(f"{key}={value}" for key, value in spelled.items())
        log.warning("%s changed %s", peer.address, changes)
        self.changed(values)
        keep = self.keep
        if keep is None or not spelled:
            return command.reply()

        def kept(error: Exception | None) -> None:
            reply = command.reply()
            if error is not None:
                trouble = f"{type(error).__name__}: {error}"
                remark = f"{changes} holds until the restart alone: it cannot be written to {self.settings.config_store_path}: {trouble}"
                log.error("%s", remark)
                reply = command.reply(ResponseCode.SYSTEM_ERROR, remark)
            send_answer(peer, command, reply)

        self.keeping.do(lambda: keep(spelled), kept)
        return None

    # Counters

    @answers(broker_calls.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, peer: Peer, command: Command) -> Command:
        """28. Upstream's keys; what has no counterpart here (thread pools) stands at 0, since its tools parse it."""
        return broker_calls.GET_BROKER_RUNTIME_INFO.reply(command, body=broker_calls.KvTable(self.runtime_table()))

    def runtime_table(self) -> dict[str, str]:
        stats, store = self.stats, self.store
        log_, capacity = store.log, store.disk.total_bytes(store.log.segments.directory)
        ratio = ratio_text(store.disk.used_ratio(log_.segments.directory))
        rates = [stats.rates(seconds) for seconds in (10, 60, 600)]
        earliest = store.store_time_at(log_.start) if log_.start < log_.safe else -1
        rows: dict[str, object] = {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": VERSION,
            "roquetVersion": __version__,
            "roquetSpeedups": speedups.in_words(),
            "msgPutTotalYesterdayMorning": stats.yesterday_morning[0],
            "msgPutTotalTodayMorning": stats.this_morning[0],
            "msgPutTotalTodayNow": stats.puts.count,
            "msgGetTotalYesterdayMorning": stats.yesterday_morning[1],
            "msgGetTotalTodayMorning": stats.this_morning[1],
            "msgGetTotalTodayNow": stats.gets.count,
            "sendThreadPoolQueueSize": 0,
            "sendThreadPoolQueueCapacity": 10_000,
            "pullThreadPoolQueueSize": 0,
            "pullThreadPoolQueueCapacity": 100_000,
            "queryThreadPoolQueueSize": 0,
            "queryThreadPoolQueueCapacity": 20_000,
            "EndTransactionQueueSize": 0,
            "EndTransactionThreadPoolQueueCapacity": 100_000,
            "dispatchBehindBytes": 0,
            "dispatchMaxBuffer": 0,
            "pageCacheLockTimeMills": 0,
            "sendThreadPoolQueueHeadWaitTimeMills": 0,
            "pullThreadPoolQueueHeadWaitTimeMills": 0,
            "queryThreadPoolQueueHeadWaitTimeMills": 0,
            "earliestMessageTimeStamp": earliest,
            "startAcceptSendRequestTimeStamp": 0,
            "remainTransientStoreBufferNumbs": 0x7FFFFFFF,
            "remainHowManyDataToFlush": size_text(max(0, log_.written - log_.flushed)),
            "commitLogDirCapacity": f"Total : {size_text(capacity[0])}, Free : {size_text(capacity[1])}.",
            "bootTimestamp": stats.started_ms,
            "runtime": duration_text(self.clock.steady_ms() - stats.started_steady_ms),
            "putMessageTimesTotal": stats.puts.count,
            "putMessageFailedTimes": 0,
            "putMessageSizeTotal": stats.puts.size,
            "putMessageAverageSize": stats.puts.size / max(stats.puts.count, 1),
            "getMessageEntireTimeMax": stats.longest_get_ms,
            "putTps": " ".join(str(rate[0]) for rate in rates),
            "getTransferedTps": " ".join(str(rate[1]) for rate in rates),
            "getTransferredTps": " ".join(str(rate[1]) for rate in rates),  # as the tools of 5.x spell it
            "getFoundTps": " ".join(str(rate[2]) for rate in rates),
            "getMissTps": " ".join(str(rate[3]) for rate in rates),
            "getTotalTps": " ".join(str(rate[2] + rate[3]) for rate in rates),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{log_.segments.directory}": ratio,
            "consumeQueueDiskRatio": ratio_text(store.disk.used_ratio(store.root)),
            "commitLogMinOffset": log_.start if log_.written else -1,  # -1: there is no file yet
            "commitLogMaxOffset": log_.safe,
        }
        rows.update(stats.put_times.rows())
        for part in self.parts:
            rows.update(part.metrics())
        rows.update(store.mender.metrics())
        for number, notice in enumerate(self.notices.list()[:WARNINGS_MAX], 1):
            rows[f"roquetWarning_{number}"] = notice.text
        return {key: str(value) for key, value in rows.items()}

    # Topics

    @answers(topic_calls.GET_TOPIC_STATS_INFO)
    def topic_stats(self, peer: Peer, command: Command) -> Portions:
        topic = self._topic(topic_calls.GET_TOPIC_STATS_INFO.read_header(command).topic)
        reads = Reads(self.store)
        ranges: dict[MessageQueue, topic_calls.QueueRange] = {}

        def look(queue_id: int) -> None:
            queue = self.store.find_queue(topic.topic_name, queue_id)
            first, last = (0, 0) if queue is None else (queue.first, queue.visible)
            ranges[self._queue(topic.topic_name, queue_id)] = topic_calls.QueueRange(
                first, last, reads.time_at(queue, last - 1) if last > 0 else 0
            )

        yield from reads.look_at(range(max(topic.read_queue_nums, topic.write_queue_nums)), look)
        return (yield from reply_with(topic_calls.GET_TOPIC_STATS_INFO, command, topic_calls.TopicStats(ranges), len(ranges), ranges.clear))

    @answers(topic_calls.GET_TOPIC_CONFIG)
    def topic_config(self, peer: Peer, command: Command) -> Command:
        name = topic_calls.GET_TOPIC_CONFIG.read_header(command).topic
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:255]}")
        return topic_calls.GET_TOPIC_CONFIG.reply(command, body=topic)

    @answers(topic_calls.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, peer: Peer, command: Command) -> Command:
        return topic_calls.GET_SYSTEM_TOPIC_LIST_FROM_BROKER.reply(command, body=topic_calls.TopicList(self.topics.system_topics()))

    @answers(topic_calls.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, peer: Peer, command: Command) -> Command:
        """300: those that subscribe to it now, and those that have progress in it."""
        name = topic_calls.QUERY_TOPIC_CONSUME_BY_WHO.read_header(command).topic
        found = sorted({*self.members.groups_subscribing(name), *self.offsets.groups_of(name)})
        return topic_calls.QUERY_TOPIC_CONSUME_BY_WHO.reply(command, body=topic_calls.GroupList(found))

    @answers(QUERY_CONSUME_QUEUE)
    def queue_entries(self, peer: Peer, command: Command) -> Command:
        """321: the raw entries of a queue, and whether a group's tags would take them."""
        header = QUERY_CONSUME_QUEUE.read_header(command)
        queue = self.store.find_queue(header.topic, header.queue_id)
        if queue is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic[:255]} is not exist!")
        if not queue.first <= header.index < queue.visible:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!")
        body = QueueEntries(min_queue_index=queue.first, max_queue_index=queue.visible)
        takes: TagFilter | None = None
        if header.consumer_group:
            body.subscription_data = self.members.subscription(header.consumer_group, header.topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group[:255]}@{header.topic} is not online!"
            else:
                body.filter_data = self.filter_text(header.consumer_group, header.topic)
                takes = TagFilter.of(body.subscription_data)
        at, stop = header.index, min(queue.visible, header.index + max(0, min(header.count, ENTRIES_MAX)))
        while at < stop:
            raw = queue.read(at, stop - at)
            if not raw:
                break
            for position, size, tag in ENTRY.iter_unpack(raw):
                body.queue_data.append(QueueEntry(position, size, tag, takes is not None and takes.takes_hash(tag)))
            at += len(raw) // ENTRY_SIZE
        return QUERY_CONSUME_QUEUE.reply(command, body=body)

    @answers(broker_calls.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_queues(self, peer: Peer, command: Command) -> Command:
        """306: retention removes entries together with their log files, so there is never anything left to clean."""
        return command.reply()

    @answers(broker_calls.CLEAN_UNUSED_TOPIC)
    def clean_topics(self, peer: Peer, command: Command) -> Portions:
        """316: remove queues of topics that do not exist any more."""

        def look(name: str) -> None:
            if not self.topics.is_system(name) and self.topics.get(name) is None:
                log.warning("removing the queues of %s, which is no topic any more (asked by %s)", name, peer.address)
                self.store.delete_topic(name)

        yield from portions(self.store.topics(), look)
        return command.reply()

    @answers(broker_calls.DELETE_EXPIRED_COMMITLOG)
    def delete_expired(self, peer: Peer, command: Command) -> Command:
        self.store.delete_expired_now()
        return command.reply()

    # Groups

    @answers(progress.GET_CONSUME_STATS)
    def consume_stats(self, peer: Peer, command: Command) -> Portions:
        """208: of one topic, or of all in which the group has progress."""
        header = progress.GET_CONSUME_STATS.read_header(command)
        group = header.consumer_group
        reads = Reads(self.store)
        stats = progress.ConsumeStats()
        names = [header.topic] if header.topic else self.offsets.topics_of(group)

        def look(row: ProgressRow | None) -> None:
            if row is not None:
                self._look_at_progress(row, reads)

        yield from reads.look_at(self._rows(group, names, lambda name: stats), look)
        return (yield from reply_with(progress.GET_CONSUME_STATS, command, stats, len(stats.offset_table), stats.offset_table.clear))

    @answers(progress.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, peer: Peer, command: Command) -> Portions:
        """317: every group, a topic at a time, and the backlog of all."""
        only_ordered = progress.GET_BROKER_CONSUME_STATS.read_header(command).is_order
        reads = Reads(self.store)
        names = self.offsets.topics_by_group()
        body = progress.ConsumeStatsList([], self.address, 0)
        count = 0

        def wanted(name: str) -> bool:
            topic = self.topics.get(name)
            return topic is not None and (topic.order or not only_ordered)

        def rows() -> Iterator[ProgressRow | None]:
            for group in list(self.groups.all()):
                found: list[progress.ConsumeStats] = []
                body.consume_stats_list.append({group.group_name: found})

                def one_more(name: str, found: list[progress.ConsumeStats] = found) -> progress.ConsumeStats:
                    found.append(progress.ConsumeStats())
                    return found[-1]

                yield from self._rows(group.group_name, filter(wanted, names.get(group.group_name, ())), one_more)
                yield None

        def look(row: ProgressRow | None) -> None:
            nonlocal count
            if row is not None:
                before = len(row.stats.offset_table)
                queue = self._look_at_progress(row, reads)
                if len(row.stats.offset_table) > before:  # not when it is looked at again
                    count += 1
                    body.total_diff = (body.total_diff or 0) + queue.broker_offset - queue.consumer_offset

        yield from reads.look_at(rows(), look)
        return (yield from reply_with(progress.GET_BROKER_CONSUME_STATS, command, body, count, lambda: empty(body.consume_stats_list)))

    def _rows(self, group: str, names: Iterable[str], stats_of: Callable[[str], progress.ConsumeStats]) -> Iterator[ProgressRow | None]:
        """The queues of these topics. None: a topic that is left out, because it is no topic any more, or because the group is online and
        does not subscribe to it."""
        for name in names:
            topic, online = self.topics.get(name), self.members.group(group)
            if topic is None or (online is not None and online.subscriptions and name not in online.subscriptions):
                yield None
                continue
            stats = stats_of(name)
            stats.consume_tps += self.stats.group_rate(group, name)
            known = self.offsets.queues_of(group, name)
            for queue_id in range(topic.read_queue_nums):
                yield ProgressRow(stats, name, queue_id, max(known.get(queue_id, 0), 0))

    def _look_at_progress(self, row: ProgressRow, reads: Reads) -> progress.QueueProgress:
        queue = self.store.find_queue(row.topic, row.queue_id)
        last_ms = max(reads.time_at(queue, row.consumed - 1), 0)
        found = progress.QueueProgress(0 if queue is None else queue.visible, row.consumed, last_ms)
        row.stats.offset_table[self._queue(row.topic, row.queue_id)] = found
        return found

    @answers(progress.QUERY_CONSUME_TIME_SPAN)
    def time_spans(self, peer: Peer, command: Command) -> Portions:
        header = progress.QUERY_CONSUME_TIME_SPAN.read_header(command)
        topic = self._topic(header.topic)
        reads = Reads(self.store)
        now_ms = self.clock.now_ms()
        spans: dict[int, progress.TimeSpan] = {}

        def look(queue_id: int) -> None:
            queue = self.store.find_queue(topic.topic_name, queue_id)
            first, last = (0, 0) if queue is None else (queue.first, queue.visible)
            span = progress.TimeSpan(self._queue(topic.topic_name, queue_id), reads.time_at(queue, first), reads.time_at(queue, last - 1))
            consumed = self.offsets.find(header.group, topic.topic_name, queue_id)
            span.consume_time_stamp = reads.time_at(queue, consumed - 1) if consumed > 0 else span.min_time_stamp
            if consumed < last:
                next_ms = reads.time_at(queue, max(consumed, first))
                span.delay_time = max(0, now_ms - next_ms) if next_ms > 0 else 0
            spans[queue_id] = span

        yield from reads.look_at(range(topic.write_queue_nums), look)
        body = progress.TimeSpans(list(spans.values()))
        spans.clear()
        return (
            yield from reply_with(progress.QUERY_CONSUME_TIME_SPAN, command, body, topic.write_queue_nums, body.consume_time_span_set.clear)
        )

    @answers(QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, peer: Peer, command: Command) -> Command:
        group = QUERY_TOPICS_BY_CONSUMER.read_header(command).group
        return QUERY_TOPICS_BY_CONSUMER.reply(command, body=topic_calls.TopicList(sorted(self.offsets.topics_of(group)), self.address))

    @answers(QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription_of_group(self, peer: Peer, command: Command) -> Command:
        header = QUERY_SUBSCRIPTION_BY_CONSUMER.read_header(command)
        found = self.members.subscription(header.group, header.topic)
        return QUERY_SUBSCRIPTION_BY_CONSUMER.reply(command, body=SubscriptionOfGroup(header.group, header.topic, found))

    def _topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:255]}] not exist")
        return found

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self.settings.broker_name, queue_id)


def empty(rows: list[T]) -> None:
    """One by one: what a single call lets go of holds up every thread."""
    while rows:
        rows.pop()


def ratio_text(used: float) -> str:
    """0.5, 0.52: whole percents, rounded up, as upstream shows how full a disk is."""
    return str(ceil(round(used * 100, 6)) / 100)


def size_text(size: int) -> str:
    """583 B, 252.0 GiB: as upstream's tools show sizes."""
    if size < 1024:
        return f"{size} B"
    number = float(size)
    for unit in "KMGTPE":
        number /= 1024
        if number < 1024 or unit == "E":
            break
    return f"{number:.1f} {unit}iB"


def duration_text(passed_ms: int) -> str:
    seconds = max(passed_ms, 0) // 1000
    return f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
