"""Pulls: 11 and 361 (which 5.x lite consumers send), with long polling. Large ones are in `scans.py`.

A pull that finds nothing is parked on its queue and looked at again when the queue's visible end rises. While parked, a
filtered pull moves its own start over what it has judged, so that nothing is judged twice, and the client's next offset
moves with it. The deadline is checked in `tick`.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from roquet.broker.entries_ahead import EntriesAhead
from roquet.broker.filters import Filters, Judge, check_filter, properties_at
from roquet.broker.gather import SPAN_MAX, Answer, Gathered, framed, gather_for
from roquet.broker.groups import Groups
from roquet.broker.handler import answers
from roquet.broker.members import Members
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.pacing import Pace
from roquet.broker.parking import Parking
from roquet.broker.part import Part, Shared
from roquet.broker.pull_requests import SCAN_MAX, SHAPES_MAX, Asked, Grant, KnownPull, PullRequest, PullRequests, most_of, quick_header
from roquet.broker.pull_runs import Terms, answer_run
from roquet.broker.roles import is_slave
from roquet.broker.scans import BUSY_BYTES, PROBED, Readers, Records, Scan, collect, likely_count
from roquet.broker.sql_columns import judge_at_once
from roquet.broker.stats import Stats
from roquet.broker.topics import Topics
from roquet.errors import Refused, StoreUnavailable
from roquet.message import Property
from roquet.ports import Peer
from roquet.routing.sql92 import Filter
from roquet.routing.subscription import BadExpression, TagFilter, is_tag_type, subscribe
from roquet.store.disk import Cold
from roquet.store.mending import Odd
from roquet.store.pieces import LogPieces
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.store.stretches import STRETCH, LogStretches
from roquet.store.window import LogWindow
from roquet.wire.calls.pulls import LITE_PULL_MESSAGE, PULL_MESSAGE, PullHeader
from roquet.wire.codes import Perm, PullFlag, ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Frame
from roquet.wire.layout import BLANK_LENGTH, ENTRY, MAGIC_V1, MAGIC_V2, RECORD_FRONT, RECORD_MIN
from roquet.wire.names import OFFSET_MOVED_TOPIC
from roquet.wire.pulled import frame_front, pull_answer_head

log = logging.getLogger("roquet.broker")

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

GAP_MAX = 16 * 1024
"""Records of one answer that stand closer than this in the log are read together."""
JUDGED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the log that one pull with an SQL filter reads, give or take one read."""
WORK_MAX = 40_000
"""Terms of an SQL filter times entries that one pull judges at most: an expensive filter sees fewer of them."""
AHEAD_MAX = 64
"""Reads that one trip to the disk makes at most, for an answer whose first message is not in memory."""
RECORD_EXTRA = 1 << 26
"""A record may be so much longer than the largest message of today: the limit may have been higher once."""
Wanted = tuple[int, int, int]
"""(log offset, size, queue offset) of a record to send."""
RUN_BYTES = 256 * 1024
"""Bytes of records in answers to pulls in a row, give or take one answer, before the clock and the peer are looked at."""
SUSPEND_MS_MAX = 60_000
WAKES_MAX = 500
"""Parked pulls that one message, or one tick, wakes. The others follow tick by tick."""
HELD_MAX = 64
"""Scans that wait for the next tick. More of them are answered at once: nobody is to wait for a second."""


class Status(StrEnum):
    """Upstream's GetMessageStatus; its name is the answer's remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


CODES = {
    Status.FOUND: ResponseCode.SUCCESS,
    Status.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    Status.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
}
READ, COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = int(Perm.READ), int(PullFlag.COMMIT_OFFSET), int(PullFlag.SUSPEND), int(PullFlag.SUBSCRIPTION)
"""As plain numbers: to ask an IntFlag costs a microsecond."""
LACKING = (Status.OFFSET_OVERFLOW_BADLY, Status.NO_MESSAGE_IN_QUEUE)
"""Where the queue ends before the offset."""
DOUBT_MS = 50
"""A pull whose answer is in doubt is looked at so often."""
MAY_PARK = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
"""A pull that would be answered with one of these is parked, if it may."""


@dataclass(slots=True)
class Found:
    status: Status
    next_offset: int
    first: int
    last: int
    count: int = 0
    records: list[bytes | memoryview] = field(default_factory=list)
    """The bytes of `count` records, some of them in one piece."""
    sizes: bytes = b""
    """Of the records, in the answer to a scan."""
    scanned: Records | None = None
    """In place of both, when nobody had to look into the records."""
    far: bool = False
    """The messages are farther from the log's end than accessMessageInMemoryMaxRatio of the memory. Known if slaves may be read."""

    @property
    def size(self) -> int:
        return sum(map(len, self.records)) if self.scanned is None else self.scanned.size


@dataclass(slots=True, eq=False)
class Pull:
    """One request, decoded and allowed."""

    peer: Peer
    command: Command
    group: str
    topic: str
    queue_id: int
    offset: int
    """Moves while parked, over entries that the filter turned down."""
    asked: int
    """The offset as asked for: decides between NOT_FOUND and MOVED."""
    count_max: int
    size_max: int
    tags: TagFilter | None
    """Judges a tag hash; None takes all."""
    judge: Judge | None
    """Judges properties; None takes all."""
    deadline_ms: int
    """Not parked when in the past."""
    scan: Scan | None = None
    """Set when the reader asked for a large answer."""
    doubted_ms: int = -1
    """Since when it is doubted that this broker has all that there is (`_doubts`)."""
    known: KnownPull | None = None
    """What it has in common with others."""


class Puller(Part):
    """State: the parked pulls, and the scans that must wait for the next tick; everything else is looked up."""

    def __init__(
        self, shared: Shared, topics: Topics, groups: Groups, members: Members, filters: Filters, offsets: ConsumerOffsets, stats: Stats
    ) -> None:
        super().__init__(shared)
        self.topics = topics
        self.groups = groups
        self.members = members
        self.filters = filters
        self.offsets = offsets
        self.stats = stats
        self.fetch = shared.fetch
        self.memory_bytes = shared.memory_bytes
        self.parking = Parking()
        self.requests = PullRequests()
        self._grants: dict[tuple[str, bytes | None], Grant] = {}  # the last that was made of each group in a topic with these tags
        window = LogWindow(self.store.log)
        self.stretches = LogStretches(self.store.log, window.view)
        self.pieces = LogPieces(self.store.log, window.view)
        self.ahead = EntriesAhead(self.store.log)
        self.pace = Pace()
        self.readers = Readers()
        self.record_max = self.settings.max_message_size + RECORD_EXTRA
        self.scanned_at = -1  # end of the log at the last scan, -1 before the first
        self._woken_later: deque[Pull] = deque()  # there are messages for them, and too many of them for one turn
        self._looked: dict[object, Found] | None = None  # while many pulls of a queue are woken: what was found for those before
        self._held: deque[tuple[Pull, Callable[[], None] | None]] = deque()

    @answers(PULL_MESSAGE, LITE_PULL_MESSAGE)
    def handle(self, peer: Peer, command: Command) -> None:
        pull, commit_offset = self._decode(peer, command)
        then = None
        if commit_offset is not None and self.topics.get(pull.topic) is not None and not is_slave(self.settings):
            then = partial(self._commit, pull, commit_offset)
        if pull.scan is not None and not self.pace.open and len(self._held) < HELD_MAX:
            self._held.append((pull, then))
        else:
            self._answer_or_park(pull, then)

    def take(self, peer: Peer, frames: list[Frame], until_ms: int) -> tuple[int, bool]:
        """Answer the pulls that come first and are like ones which were allowed, while that still holds and their messages are in memory.
        Returns how many, and whether the next may be a pull, too, which must be looked at properly: nothing has happened."""
        steady_ms, terms = self.clock.steady_ms, self._terms()
        at, then_ms = 0, steady_ms()
        granted: Grant | None = None
        usual = True  # the next may be one for a run
        try:
            while at < len(frames):
                taken = self._answer_run(peer, frames, at, terms) if usual else 0
                if not taken:
                    asked = self.requests.find(frames[at])
                    if asked is None:
                        return at, False
                    grant, usual = asked[0].grant, asked[0].usual is not None
                    if (
                        grant is None
                        or not (grant is granted or self._is_granted(grant))
                        or not self._answer_one(peer, asked, grant, terms)
                    ):
                        break
                    granted, taken = grant, 1
                at += taken
                if peer.closed:
                    return len(frames), False
                now_ms = steady_ms()
                if now_ms > then_ms:
                    self.stats.note_get(now_ms - then_ms)
                    then_ms = now_ms
                if now_ms >= until_ms or peer.unread:
                    break
        except Exception:  # a mistake of ours
            log.exception("! a pull from %s failed: it is looked at once more", peer.address)
        return at, True

    def _terms(self) -> Terms:
        log_, settings = self.store.log, self.settings
        count_max, size_max = settings.max_transfer_count_on_message_in_memory, settings.max_transfer_bytes_on_message_in_memory
        return log_.segments.start, log_.written, log_.written - self._memory_share(), count_max, size_max, self._largest()

    def _answer_run(self, peer: Peer, frames: list[Frame], at: int, terms: Terms) -> int:
        """Those from there on that are all usual: how many. Of one that is left nothing has happened."""
        stretches = self.stretches
        answers, told, grant, count, size, viewed = answer_run(
            frames, at, self.ahead.kept(), self.store.queues, terms, stretches.kept(), STRETCH, stretches.view, SPAN_MAX, RUN_BYTES,
        )  # fmt: skip
        if not answers or grant is None:
            return 0
        if not self._is_granted(grant):
            self.ahead.clear()  # it is in other entries, too
            return 0
        if told and not is_slave(self.settings):
            try:
                self.offsets.commit_all(grant.group.group_name, grant.topic.topic_name, told)
            except Refused:
                return 0
        stretches.viewed += viewed
        self.stats.got_as(grant.key, count, size, len(answers))
        peer.send_all(answers)
        return len(answers)

    def _answer_one(self, peer: Peer, asked: Asked, grant: Grant, terms: Terms) -> bool:
        """False: look properly, nothing has happened."""
        answer = self._quick_answer(asked, grant, terms)
        if answer is None:
            return False
        self.stats.got_as(grant.key, answer[1], answer[3])
        peer.send(answer[0])
        return True

    def _quick_answer(self, asked: Asked, grant: Grant, terms: Terms) -> Answer | None:
        """None: look properly, nothing has happened."""
        known, opaque, offset, commit_offset = asked
        queue = self.store.queues.get(known.place)
        if queue is None:
            return None
        first, last, codes = queue.first, queue.visible, grant.codes
        if not first <= offset < last:
            return None
        start, end, near, count_max, size_max, record_max = terms
        if known.count_max < count_max:
            count_max = known.count_max
        if known.size_max < size_max:
            size_max = known.size_max
        try:
            raw = self.ahead.read(known, queue, offset, count_max if codes is None else max(known.entries_max, count_max))
            if not raw:
                return None
            if near > start and int.from_bytes(raw[:8], "big") < near:
                if self.settings.slave_read_enable:
                    return None  # a slave is to serve it from now on
                count_max, size_max = self._limits(count_max, size_max, True)
            few = codes is not None and known.entries_max != SCAN_MAX  # match, and stand far from each other
            view = self.pieces.near(int.from_bytes(raw[:8], "big")) if few else self.stretches.view
            gathered = grant.gather(raw, codes, offset, count_max, size_max, start, end, record_max, view, SPAN_MAX)
            found = framed(gathered, offset, known.binary, opaque, first, last)
            if found is None:
                self.ahead.forget(known)  # one of them may be damaged, and mended in its file
            elif known.commits and commit_offset <= last and not is_slave(self.settings):
                self.offsets.commit(known.header.consumer_group, *known.place, commit_offset)
        except LookupError:
            self.ahead.forget(known)  # the same
            return None
        except (Cold, OSError, Refused):
            return None
        if codes is not None and found is not None:
            known.note_judged(found[2])
        return found

    def _is_granted(self, grant: Grant) -> bool:
        """Those who allowed such a pull are the same, and would allow it again."""
        topic, name = grant.topic.topic_name, grant.group.group_name
        if (
            self.topics.get(topic) is not grant.topic
            or self.groups.get(name) is not grant.group
            or grant.group.broker_id
            or not self.settings.broker_permission & READ
        ):
            return False
        if grant.subscription is None:
            return True
        group = self.members.group(name)
        return (
            group is not None
            and group.subscriptions.get(topic) is grant.subscription
            and (grant.group.consume_broadcast_enable or group.message_model != "BROADCASTING")
        )

    def _shared(self, grant: Grant) -> Grant:
        """The last one of this group in this topic, if that is like it: a consumer's pulls from all its queues have one, which is looked at
        once a read."""
        last = self._grants.get((grant.key, grant.codes))
        if last is None or not grant.is_like(last):
            if len(self._grants) >= SHAPES_MAX:
                self._grants.clear()
            self._grants[grant.key, grant.codes] = last = grant
        return last

    def _largest(self) -> int:
        """Bytes of the largest record that an entry may speak of."""
        return min(self.settings.max_message_size + RECORD_EXTRA, BLANK_LENGTH - 1)

    def _is_far(self, raw: bytes) -> bool:
        """Is the message of the first of these entries so far from the tail that it may not be in memory?"""
        return int.from_bytes(raw[:8], "big") < self.store.log.written - self._memory_share()

    def _memory_share(self) -> int:
        """Bytes at the log's tail that count as being in memory."""
        return self.memory_bytes * self.settings.access_message_in_memory_max_ratio // 100

    def _limits(self, count_max: int, size_max: int, far: bool) -> tuple[int, int]:
        """How many messages and bytes an answer may have. Far from the tail it is smaller: it comes from the disk."""
        settings = self.settings
        size_max = min(settings.max_transfer_bytes_on_message_in_memory, size_max)
        if far:
            count_max = min(count_max, settings.max_transfer_count_on_message_in_disk)
            size_max = min(size_max, settings.max_transfer_bytes_on_message_in_disk)
        return count_max, size_max

    def _commit(self, pull: Pull, offset: int) -> None:
        """The group's progress that came along. Beyond the queue's end it is from before a power loss that took messages:
        remembered, it would skip those that get their offsets again."""
        queue = self.store.find_queue(pull.topic, pull.queue_id)
        if queue is not None and offset <= queue.visible:
            self.offsets.commit(pull.group, pull.topic, pull.queue_id, offset)

    # May it pull?

    def _decode(self, peer: Peer, command: Command) -> tuple[Pull, int | None]:
        """Upstream's checks in upstream's order. Returns the pull, and the consumer offset that came along with it."""
        settings = self.settings
        known: KnownPull | None = None
        if isinstance(command, PullRequest) and command.known is not None:
            known = command.known
            header, offset, commit_offset = known.header, command.queue_offset, command.commit_offset
        else:
            header = quick_header(command.fields) or PULL_MESSAGE.read_header(command)
            offset, commit_offset = header.queue_offset, header.commit_offset
        if header.max_msg_nums < 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"maxMsgNums={header.max_msg_nums}: how many messages to send at most, 1 or more")
        if not settings.broker_permission & READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{settings.broker_ip1}] pulling message is forbidden")
        group = self.groups.find(header.consumer_group)
        if group is None:
            remark = f"subscription group [{header.consumer_group}] does not exist, {FAQ}"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}")
        topic = self.topics.get(header.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {FAQ}")
        if not topic.perm & READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{peer.address}]",
            )
        tags, judge = self._filter(header, group.consume_broadcast_enable)
        if known is not None:
            own = header.sys_flag & SUBSCRIPTION
            subscribed = None if own else self.members.subscription(header.consumer_group, header.topic)
            codes, key = None if tags is None or tags.takes_all else tags.hashes, f"{header.topic}@{header.consumer_group}"
            if judge is not None or command.flag:
                known.grant = None
            else:
                known.grant = self._shared(Grant(group, topic, subscribed, codes, key, gather_for(codes)))
        scan = None if header.scan_bytes is None else Scan.read(header.scan_bytes, header, settings.max_scan_bytes)
        suspend_ms = 0
        if header.sys_flag & SUSPEND and scan is None:
            suspend_ms = min(max(header.suspend_timeout_millis, 0), SUSPEND_MS_MAX)
            if not settings.long_polling_enable:
                suspend_ms = settings.short_polling_time_mills
        pull = Pull(
            peer,
            command,
            header.consumer_group,
            header.topic,
            header.queue_id,
            offset,
            offset,
            *most_of(header),
            tags,
            judge,
            self.store.steady_ms + suspend_ms if suspend_ms else 0,
            scan,
            known=known,
        )
        return pull, commit_offset if header.sys_flag & COMMIT_OFFSET and commit_offset >= 0 else None

    def _filter(self, header: PullHeader, broadcast_enable: bool) -> tuple[TagFilter | None, Judge | None]:
        """What the pull wants to see: who judges tag hashes, and who properties."""
        if header.sys_flag & SUBSCRIPTION:
            if not is_tag_type(header.expression_type):
                return None, check_filter(header.expression_type, header.subscription, self.settings)
            if header.subscription == "*":
                return None, None
            try:
                found = subscribe(header.topic, header.subscription)
            except BadExpression as error:
                raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}") from None
        else:
            group = self.members.group(header.consumer_group)
            if group is None:
                raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist" + FAQ)
            if not broadcast_enable and group.message_model == "BROADCASTING":
                raise Refused(ResponseCode.NO_PERMISSION, f"the consumer group[{header.consumer_group}] can not consume by broadcast way")
            subscribed = self.members.subscription(header.consumer_group, header.topic)
            if subscribed is None:
                raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist" + FAQ)
            if subscribed.sub_version < header.sub_version:
                raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
            if not is_tag_type(subscribed.expression_type):
                return None, self.filters.for_pull(header.topic, header.consumer_group, header.sub_version)
            found = subscribed
        return (None if found.sub_string in ("*", "", None) else TagFilter.of(found)), None

    # What is there?

    def _answer_or_park(self, pull: Pull, then: Callable[[], None] | None = None, attempt: int = 0) -> None:
        begun_ms = self.clock.steady_ms()
        try:
            found = self._look(pull)
        except Cold as cold:
            if attempt > 20:
                raise Refused(ResponseCode.SYSTEM_BUSY, "the messages could not be read from disk in time, try again") from None
            self.fetch(cold, lambda: self._again(pull, then, attempt + 1))
            return
        self.stats.note_get(self.clock.steady_ms() - begun_ms)
        if then is not None:
            then()
        if found.status is not Status.FOUND and pull.deadline_ms > self.store.steady_ms and _code(found.status, pull.asked) in MAY_PARK:
            if found.status is Status.NO_MATCHED_MESSAGE:
                pull.offset = found.next_offset
            if found.next_offset >= found.last and self._park(pull):
                return
        if self.store.log.led_ms is not None and self._doubts(pull, found):
            return
        self._answer(pull, found)

    def _doubts(self, pull: Pull, found: Found) -> bool:
        """It asks for more than there is here. A leader that was replaced without its knowledge, as by a pause of its process, lacks what
        the new one has: before it sends anybody back it waits until a majority has followed it since it was asked, or it learns
        that it leads no more."""
        led_ms, now_ms = self.store.log.led_ms, self.store.steady_ms
        if found.status not in LACKING or _code(found.status, pull.asked) != ResponseCode.PULL_OFFSET_MOVED or is_slave(self.settings):
            return False
        if pull.doubted_ms < 0:
            pull.doubted_ms = self.clock.steady_ms()
        assert led_ms is not None
        if led_ms() > pull.doubted_ms:
            return False
        pull.deadline_ms = now_ms + DOUBT_MS
        if not self._park(pull):
            raise Refused(ResponseCode.SYSTEM_BUSY, "too many pulls wait here, try again")
        return True

    def _again(self, pull: Pull, then: Callable[[], None] | None, attempt: int) -> None:
        if not pull.peer.closed:
            try:
                self._answer_or_park(pull, then, attempt)
            except Refused as refused:
                pull.peer.send(pull.command.reply(refused.code, refused.remark).encode())
            except Exception as error:  # whoever wrote what it waited for, or whose tick it is, has nothing to do with it
                log.exception("! a waiting pull of %s from %s/%d failed", pull.peer.address, pull.topic, pull.queue_id)
                if not pull.peer.closed:
                    pull.peer.send(pull.command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}").encode())

    def _look(self, pull: Pull) -> Found:
        queue = self.store.find_queue(pull.topic, pull.queue_id)
        if queue is None:
            return Found(Status.NO_MESSAGE_IN_QUEUE, 0, 0, 0)  # upstream makes a queue by looking for it
        first, last, offset = queue.first, queue.visible, pull.offset
        if last < offset <= queue.next:  # a slave has shown it already, and its report of that is on the way
            return Found(Status.OFFSET_OVERFLOW_ONE, offset, first, last)
        if last == 0:
            return Found(Status.NO_MESSAGE_IN_QUEUE, 0, first, last)
        if offset < first:
            return Found(Status.OFFSET_TOO_SMALL, first, first, last)
        if offset == last:
            return Found(Status.OFFSET_OVERFLOW_ONE, offset, first, last)
        if offset > last:
            return Found(Status.OFFSET_OVERFLOW_BADLY, last, first, last)
        if pull.scan is not None:
            return self._scan(pull, pull.scan, queue, first, last)
        if self._looked is None:
            return self._read(pull, queue, first, last)
        asked = (offset, pull.count_max, pull.size_max, pull.judge, pull.tags and (pull.tags.takes_all, pull.tags.codes))
        found = self._looked.get(asked)
        if found is None:
            found = self._looked[asked] = self._read(pull, queue, first, last)
        return found

    def _scan(self, pull: Pull, scan: Scan, queue: ConsumeQueue, first: int, last: int) -> Found:
        # Whoever sends meanwhile waits for one answer at most: then answers are short.
        bytes_max = min(scan.bytes_max, self.readers.share(pull.peer, self.store.steady_ms))
        if self.store.log.end > self.scanned_at >= 0:
            bytes_max = min(bytes_max, BUSY_BYTES)
        self.scanned_at = self.store.log.end
        offset, tags, judge = pull.offset, pull.tags, pull.judge
        count_max = scan.entries_max(offset, last, filtered=tags is not None or judge is not None)
        if judge is not None:
            raw = queue.read(offset, min(count_max, max(1, WORK_MAX // judge.cost)))
            try:
                taken, judged = self._judge(raw, judge, count_max, bytes_max, pull)
            except (LookupError, Odd):
                taken, judged = self._judge(self.store.mender.clean(queue, offset, raw), judge, count_max, bytes_max, pull)
            found = Found(Status.FOUND, offset + judged, first, last, len(taken), taken)
            found.sizes = b"".join([len(record).to_bytes(4, "big") for record in taken])
        else:
            if tags is None:
                count_max = likely_count(queue.read(offset, PROBED), bytes_max, count_max)
            raw = queue.read(offset, count_max)
            codes = None if tags is None else tags.codes
            try:
                records = collect(self.store.log, raw, codes, bytes_max, offset)
            except (LookupError, Odd):
                records = collect(self.store.log, self.store.mender.clean(queue, offset, raw), codes, bytes_max, offset)
            found = Found(Status.FOUND, offset + records.judged, first, last, len(records.sizes), scanned=records)
        if not raw:
            return self._step_over(queue, offset, first, last)
        self.pace.spent += found.size
        if not found.count:
            found.status = Status.MESSAGE_WAS_REMOVING if tags is None and judge is None else Status.NO_MATCHED_MESSAGE
        return found

    def _step_over(self, queue: ConsumeQueue, offset: int, first: int, last: int) -> Found:
        """Nothing where something should be: step over the file, as upstream does."""
        step = queue.segments.size // ENTRY_SIZE
        return Found(Status.OFFSET_FOUND_NULL, min((offset // step + 1) * step, last), first, last)

    def _read(self, pull: Pull, queue: ConsumeQueue, first: int, last: int) -> Found:
        settings, offset, judge = self.settings, pull.offset, pull.judge
        self.record_max = self._largest()
        accepts = None if pull.tags is None else pull.tags.takes_hash
        count_max = min(settings.max_transfer_count_on_message_in_memory, pull.count_max)
        scan = count_max if accepts is None and judge is None else max(SCAN_MAX, count_max)
        if judge is not None:
            scan = min(scan, WORK_MAX // judge.cost)
        known = None if accepts is None else pull.known
        raw = queue.read(offset, min(scan if known is None else max(scan, known.entries_max), last - offset))
        if not raw:
            return self._step_over(queue, offset, first, last)
        far = self._is_far(raw)
        count_max, size_max = self._limits(count_max, pull.size_max, far)
        found = self._read_at_once(pull, raw, first, last, count_max, size_max)
        if found is not None and known is not None:
            known.note_judged(found.next_offset - offset)
        if found is None:
            raw = raw[: scan * ENTRY_SIZE]  # one after another takes its time
            try:
                found = self._pick(pull, raw, first, last, count_max, size_max)
            except (LookupError, Odd):
                found = self._pick_carefully(pull, queue, raw, first, last, count_max, size_max)
        if far and settings.slave_read_enable:
            found.far = self._is_far(raw[max(0, found.next_offset - offset - 1) * ENTRY_SIZE :])
        return found

    def _read_at_once(self, pull: Pull, raw: bytes, first: int, last: int, count_max: int, size_max: int) -> Found | None:
        """What `_pick` would give, where nothing about the entries and their records is unusual."""
        log_, offset, judge = self.store.log, pull.offset, pull.judge
        found: Gathered | None = None
        if judge is None:
            codes = None if pull.tags is None or pull.tags.takes_all else pull.tags.hashes
            try:
                found = gather_for(codes)(
                    raw, codes, offset, count_max, size_max, log_.start, log_.written, self.record_max, self.stretches.view, SPAN_MAX
                )
            except (Cold, LookupError):
                return None
        elif isinstance(judge, Filter):
            found = judge_at_once(log_, raw, judge, offset, count_max, size_max, self.record_max, self.stretches.view)
        if found is None:
            return None
        body, count, judged = found
        return Found(Status.FOUND if count else Status.NO_MATCHED_MESSAGE, offset + judged, first, last, count, [body])

    def _pick_carefully(self, pull: Pull, queue: ConsumeQueue, raw: bytes, first: int, last: int, count_max: int, size_max: int) -> Found:
        """One entry is damaged: mended ones, or those before it, or a step over it. Whoever waits goes on in any case."""
        cleaned = self.store.mender.clean(queue, pull.offset, raw)
        for part in (cleaned, cleaned[:ENTRY_SIZE]):
            with contextlib.suppress(LookupError, Odd):
                return self._pick(pull, part, first, last, count_max, size_max)
        log.error("! message %d of %s/%d was read differently twice: it is stepped over", pull.offset, queue.topic, queue.queue_id)
        return Found(Status.NO_MATCHED_MESSAGE, pull.offset + 1, first, last)

    def _pick(self, pull: Pull, raw: bytes, first: int, last: int, count_max: int, size_max: int) -> Found:
        """What the pull gets of these entries. Raises Odd or LookupError when one of them is damaged."""
        offset = pull.offset
        if pull.judge is not None:
            taken, judged = self._judge(raw, pull.judge, count_max, size_max, pull)
            return Found(Status.FOUND if taken else Status.NO_MATCHED_MESSAGE, offset + judged, first, last, len(taken), taken)
        accepts = None if pull.tags is None else pull.tags.takes_hash
        wanted, judged = self._choose(raw, accepts, count_max, size_max, offset)
        if not wanted:
            status = Status.MESSAGE_WAS_REMOVING if accepts is None else Status.NO_MATCHED_MESSAGE
            return Found(status, offset + judged, first, last)
        records, count = self._records(wanted)
        if count < len(wanted):
            judged = next(number for number, (position, _, _) in enumerate(ENTRY.iter_unpack(raw)) if position == wanted[count][0])
        return Found(Status.FOUND, offset + judged, first, last, count, records)

    def _choose(
        self, raw: bytes, accepts: Callable[[int], bool] | None, count_max: int, size_max: int, offset: int
    ) -> tuple[list[Wanted], int]:
        """The records to send, and how many entries were judged. The first is sent whatever its size. Raises Odd."""
        start, record_max, size, before = self.store.log.start, self.record_max, 0, 0
        wanted: list[Wanted] = []
        judged = 0
        for position, length, tag in ENTRY.iter_unpack(raw):
            if length == BLANK_LENGTH:
                judged += 1
                continue
            if not RECORD_MIN <= length <= record_max or position < before:  # places rise along a queue
                raise Odd
            before = position
            if position >= start and (accepts is None or accepts(tag)):
                size += length
                if wanted and (size > size_max or len(wanted) >= count_max):
                    break
                wanted.append((position, length, offset + judged))
            judged += 1
        if before > self.store.log.written:
            raise Odd
        return wanted, judged

    def _judge(self, raw: bytes, judge: Judge, count_max: int, size_max: int, pull: Pull) -> tuple[list[bytes | memoryview], int]:
        """The records whose properties the judge takes, and how many entries were judged. The first is sent whatever its size.

        Stops where the next ones must be read from disk, so that what was judged stays judged. Raises Cold at the first entry, and Odd
        where an entry is damaged.
        """
        read, takes, log_start = self.store.log.read, judge.takes, self.store.log.start
        entries = [(position, length, pull.offset + number) for number, (position, length, _) in enumerate(ENTRY.iter_unpack(raw))]
        before = 0
        for position, length, _ in entries:
            if length != BLANK_LENGTH:
                if not RECORD_MIN <= length <= self.record_max or position < before:
                    raise Odd
                before = position
        if before > self.store.log.written:
            raise Odd
        taken: list[bytes | memoryview] = []
        size = spent = at = 0
        while at < len(entries) and spent < JUDGED_BYTES_MAX:
            start, length, _ = entries[at]
            if start < log_start or length == BLANK_LENGTH:
                at += 1
                continue
            stop, upto = self._span(entries, at)
            try:
                data = read(start, stop - start)
            except Cold as cold:
                if at:
                    break
                raise self.store.log.together(cold, self._spans_after(entries, upto)) from None
            spent += stop - start
            for position, length, number in entries[at:upto]:
                begin = position - start
                if RECORD_FRONT.unpack_from(data, begin) not in ((length, MAGIC_V1, number), (length, MAGIC_V2, number)):
                    raise Odd
                try:
                    matches = takes(data, properties_at(data, begin), begin + length)
                except IndexError:  # no record: damaged, so nobody's
                    matches = False
                if matches:
                    size += length
                    if taken and size > size_max:
                        return taken, at
                    taken.append(data[begin : begin + length])
                at += 1
                if taken and len(taken) >= count_max:
                    return taken, at
        return taken, at

    def _span(self, entries: list[Wanted], at: int) -> tuple[int, int]:
        """What to read together with entry `at`: where in the log it ends, and the first entry that is not in it."""
        size = self.store.log.segments.size
        start, length, _ = entries[at]
        stop = start + length
        limit = start - start % size + size  # a read stays inside one file
        upto, count = at + 1, len(entries)
        while upto < count:
            position, length, _ = entries[upto]
            if not 0 <= position - stop <= GAP_MAX or position + length - start > SPAN_MAX or position >= limit:
                break
            stop = position + length
            upto += 1
        return stop, upto

    def _spans_after(self, entries: list[Wanted], at: int) -> Iterator[tuple[int, int]]:
        """(log offset, size) of the reads that follow, as many as are worth one trip to the disk."""
        size, log_start = 0, self.store.log.start
        for _ in range(AHEAD_MAX):
            while at < len(entries) and (entries[at][0] < log_start or entries[at][1] == BLANK_LENGTH):
                at += 1
            if at >= len(entries) or size >= JUDGED_BYTES_MAX:
                return
            start = entries[at][0]
            stop, at = self._span(entries, at)
            size += stop - start
            yield start, stop - start

    def _records(self, wanted: list[Wanted]) -> tuple[list[bytes | memoryview], int]:
        """The records, and how many: up to the first that is not in memory. Those that stand near each other in the log come with
        one read. Raises Cold when that is the first of all, and Odd when one is not what its entry says."""
        read, front = self.store.log.read, RECORD_FRONT.unpack_from
        records: list[bytes | memoryview] = []
        at, count = 0, len(wanted)
        while at < count:
            start = wanted[at][0]
            stop, upto = self._span(wanted, at)
            try:
                data = read(start, stop - start)
            except Cold as cold:
                if at:
                    break
                raise self.store.log.together(cold, self._spans_after(wanted, upto)) from None
            for position, length, number in wanted[at:upto]:
                begin = position - start
                size, magic, queue_offset = front(data, begin)
                if size != length or queue_offset != number or (magic != MAGIC_V1 and magic != MAGIC_V2):
                    raise Odd
                records.append(data[begin : begin + length])
            at = upto
        return records, at

    # Answering

    def _answer(self, pull: Pull, found: Found) -> None:
        code, next_offset = _code(found.status, pull.asked), found.next_offset
        suggested = self._suggested(pull.group, found) if self.settings.slave_read_enable else 0
        if code == ResponseCode.PULL_OFFSET_MOVED:
            if is_slave(self.settings) and not self.settings.offset_check_in_slave:
                # It may only be behind its master: who asks keeps the offset, and asks there.
                code, next_offset, suggested = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.asked, self._home_of(pull.group)
            else:
                self._tell_moved(pull, found)
        command = pull.command
        if command.is_oneway:
            return
        pieces, size, binary = found.records, found.size, command.binary
        if found.count:
            self.stats.got(pull.group, pull.topic, found.count, size)
        else:
            self.stats.get_missed += 1
        if found.sizes:
            pieces, size = [*pieces, found.sizes], size + len(found.sizes)
        head = pull_answer_head(
            command.opaque, code, found.status.encode(), next_offset, found.first, found.last,
            found.count if found.count and pull.scan else None, suggested, binary=binary,
        )  # fmt: skip
        if found.scanned is None:
            pull.peer.send(b"".join((frame_front(head, size, binary=binary), *pieces)))  # one join: a large answer is copied once
        elif binary:
            body = found.scanned.body
            pull.peer.send(b"".join((frame_front(head, len(body), binary=True), body)))
        else:
            pull.peer.send(found.scanned.frame(head))

    def _suggested(self, name: str, found: Found) -> int:
        """The id of the broker that the group is to read from next: a slave, while what it wants is not in this one's memory."""
        group = self.groups.get(name) if found.far else None
        return self._home_of(name) if group is None else group.which_broker_when_consume_slowly

    def _home_of(self, name: str) -> int:
        group = self.groups.get(name)
        return 0 if group is None else group.broker_id

    def _tell_moved(self, pull: Pull, found: Found) -> None:
        """Upstream's OFFSET_MOVED_EVENT: somebody was sent elsewhere, and a topic keeps that on record."""
        where = f"{pull.topic}/{pull.queue_id}"
        log.info("= group %s on %s: offset %d is not there, sent to %d", pull.group, where, pull.asked, found.next_offset)
        if pull.topic == OFFSET_MOVED_TOPIC or self.store.trouble.refuse_writes():
            return
        queue = self.store.queue(OFFSET_MOVED_TOPIC, 0)
        body = (
            f'{{"consumerGroup":"{pull.group}","messageQueue":{{"brokerName":"{self.settings.broker_name}","queueId":{pull.queue_id},'
            f'"topic":"{pull.topic}"}},"offsetNew":{found.next_offset},"offsetRequest":{pull.asked}}}'
        )
        properties = f"{Property.TAGS}\x01{pull.group}\x02{Property.KEYS}\x01{pull.group}"
        now_ms, host = self.store.staging.now_ms, self.store.staging.store_host
        try:
            self.store.put(queue, body.encode(), properties, sys_flag=0, flag=0, born_ms=now_ms, born_host=host)
        except (Refused, StoreUnavailable) as error:  # a record for people: the answer does not depend on it
            log.warning("= the event was not stored: %s", error)

    # Long polling

    def _park(self, pull: Pull) -> bool:
        if not self.parking.add(pull):
            return False
        self.store.queue(pull.topic, pull.queue_id).on_visible = self._woken
        return True

    def _woken(self, queue: ConsumeQueue) -> None:
        queue.on_visible = None
        pulls = self.parking.take_queue((queue.topic, queue.queue_id))
        self._looked = {}
        try:
            for pull in pulls[:WAKES_MAX]:
                self._again(pull, None, 0)
        finally:
            self._looked = None
        self._woken_later.extend(pulls[WAKES_MAX:])

    def topic_deleted(self, topic: str) -> None:
        self.ahead.clear()

    def disconnected(self, peer: Peer) -> None:
        for pull in self.parking.drop_peer(peer):
            self._unwatch(pull)
        self.readers.forget(peer)

    def tick(self, now_ms: int) -> None:
        self.pace.tick(self.store.log.end)
        while self._held and self.pace.open:
            self._again(*self._held.popleft(), 0)
        for _ in range(min(WAKES_MAX, len(self._woken_later))):
            self._again(self._woken_later.popleft(), None, 0)
        for pull in self.parking.take_due(now_ms, WAKES_MAX):
            self._unwatch(pull)
            pull.deadline_ms = 0
            self._again(pull, None, 0)

    def _unwatch(self, pull: Pull) -> None:
        """A queue that nobody waits on any more need not tell."""
        key = (pull.topic, pull.queue_id)
        queue = self.store.find_queue(*key)
        if queue is not None and not self.parking.waits_on(key):
            queue.on_visible = None


def _code(status: Status, offset: int) -> ResponseCode:
    if status is Status.NO_MESSAGE_IN_QUEUE and offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return CODES.get(status, ResponseCode.PULL_OFFSET_MOVED)
