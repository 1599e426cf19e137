"""LitePullCore: a group member that asks for its messages. Queues are read ahead; poll hands out what is there.

    subscribe(topics)   queues are shared out in the group, as for a push consumer
    assign(queues)      these queues, whatever others do; no part in the group's rebalancing

Three numbers per queue:

    offset      where the next pull begins                         moves when messages arrive here
    position    the next message that poll will return             moves when poll returns
    finished    what counts as done, and is committed              moves to position when poll is called again
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from roquet.client.core.checks import check_ranges
from roquet.client.core.filter_check import check_filters, filter_of
from roquet.client.core.group_member import GroupMember, GroupSettings
from roquet.client.core.held_back import Limit
from roquet.client.core.instance import ClientCore, Reply
from roquet.client.core.offsets import RemoteOffsets
from roquet.client.core.pulling import SUSPENDED_TIMEOUT_MS, TROUBLE_MS, PullResult, PullStatus, wait_after
from roquet.client.core.send_back import restore_topics
from roquet.client.core.share import NotYet
from roquet.client.core.share_changes import Notify, ShareChanges
from roquet.client.core.stats import ConsumerStats
from roquet.client.core.stored_offsets import ProgressStore, StoredOffsets
from roquet.client.core.tasks import Wait
from roquet.errors import ClientError, NotStarted, Rejected, RoquetError
from roquet.message import MessageQueue, ReceivedMessage
from roquet.routing.subscription import TAG
from roquet.wire.calls.members import ConsumeType
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

log = logging.getLogger(__name__)

BLOCK_MS = 20_000
POLL_MS = 5_000
TAKE = "it is read on when poll takes some"


@dataclass
class LitePullSettings(GroupSettings):
    """Upstream's defaults."""

    auto_commit: bool = True
    auto_commit_ms: int = 5_000
    pull_batch_size: int = 10
    """Messages per pull, and so the most that one poll returns."""
    count_all_max: int = 10_000
    """Messages read ahead in all; those of paused queues do not count."""
    block_ms: int = BLOCK_MS

    def __post_init__(self) -> None:
        self.check_pauses()
        check_ranges(
            self, pull_batch_size=(1, 1_024), count_max=(1, 65_535), count_all_max=(1, 10_000_000), auto_commit_ms=(1_000, 1 << 40)
        )


class _Reading:
    """One queue being read. A seek makes a new one; what still arrives for the old one is ignored."""

    __slots__ = ("count", "finished", "go_on", "gone", "held_by", "offset", "paused", "position", "queue", "size")

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.offset = self.position = self.finished = offset
        self.count = 0  # messages read ahead
        self.size = 0
        self.paused = False
        self.gone = False
        self.held_by: Limit | None = None
        self.go_on: Wait[None] = Wait()  # pulling waits, because of the pause or until poll takes some


class LitePullCore(GroupMember):
    consume_type = ConsumeType.CONSUME_ACTIVELY
    settings: LitePullSettings

    def __init__(
        self,
        client: ClientCore,
        group: str,
        settings: LitePullSettings | None = None,
        *,
        stats: ConsumerStats | None = None,
        store: ProgressStore | None = None,
        on_assigned: Notify | None = None,
        on_revoked: Notify | None = None,
    ) -> None:
        """`store`: keeps the group's progress, in place of its brokers."""
        self.settings = settings or LitePullSettings()
        super().__init__(client, group, self.settings, broadcasting=False)
        self.stats = stats or ConsumerStats(group)
        self.offsets = RemoteOffsets(self.group, self.calls) if store is None else StoredOffsets(client, self.group, store)
        self.changes = ShareChanges(client, self.group, on_assigned, on_revoked)
        self.readings: dict[MessageQueue, _Reading] = {}
        self.started = False
        self.refusal: Rejected | None = None
        """What a broker said against an SQL filter at the start. Nothing is read then."""
        self._assigned: set[MessageQueue] | None = None  # None: not by hand
        self._taking: set[MessageQueue] = set()  # of these, those that are on their way to be read
        self._joined = False
        self._ready: deque[tuple[_Reading, list[ReceivedMessage], int]] = deque()  # (queue, messages, position after them)
        self._count = 0
        self._polls: deque[Wait[list[ReceivedMessage]]] = deque()
        self._commit_due_ms = 0

    # -- which queues

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        if self._assigned is not None:
            raise ClientError("this consumer was given queues with assign(); subscribe and assign exclude each other, make another one")
        topic = self.namespace.wrap(topic)
        self._subscribe(filter_of(topic, tags, sql, self._version(topic)))
        if self.started:
            self._join()
            self.share.topic_added(topic)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these from now on."""
        if self.subscriptions:
            raise ClientError("this consumer subscribes to topics; subscribe and assign exclude each other, make another one")
        self._assigned = {self.namespace.wrap_queue(queue) for queue in queues}
        for queue in [queue for queue in self.readings if queue not in self._assigned]:
            self.drop(queue)
        if self.started:
            self._take_assigned()

    def _take_assigned(self) -> None:
        for queue in sorted((self._assigned or set()) - self.readings.keys() - self._taking):
            self.client.tasks.start(self._take_queue(queue))

    async def _take_queue(self, queue: MessageQueue) -> None:
        self._taking.add(queue)
        while self._lacks(queue):
            try:
                offset = await self.prepare(queue)
            except RoquetError as error:
                log.warning("! group %s cannot begin with %s: %s; it tries again", self.group, queue, error, exc_info=error.__cause__)
                await self.client.sleep(TROUBLE_MS)
            else:
                if self._lacks(queue):
                    self.begin(queue, offset)
        self._taking.discard(queue)

    def _lacks(self, queue: MessageQueue) -> bool:
        return self.started and queue in (self._assigned or ()) and queue not in self.readings

    # -- being part of a client

    def start(self) -> None:
        self.started = True
        self.started_ms = self.client.clock.now_ms()
        self._commit_due_ms = self.client.clock.steady_ms() + self.settings.auto_commit_ms
        if self.subscriptions:
            self._join()
        else:
            self._take_assigned()
            self.settled.end(True)

    def _join(self) -> None:
        if not self._joined:
            self.client.add_consumer(self)
            self._joined = True
            self.client.tasks.start(self._begin())

    async def _begin(self) -> None:
        self.refusal = await check_filters(self.client, self.group, list(self.subscriptions.values()))
        if self.refusal is not None:
            log.error("! group %s does not read, a broker refuses its filter: %s", self.group, self.refusal)
        elif self.started:
            await self.share.start()
        self.settled.end(True)

    async def close(self, *, finish: bool = True) -> None:
        """`finish`: what the last poll returned counts as done. Only with auto commit anything is committed here."""
        if not self.started:
            return
        if self.settings.auto_commit:
            self._note(finish)
        self.started = False
        self.share.stop()
        for reading in self.readings.values():
            reading.gone = True
            reading.go_on.end(None)
        for poll in list(self._polls):
            poll.end(NotStarted(f"consumer {self.group!r} was closed"))
        self._polls.clear()
        await self.offsets.persist_surely()
        if self._tells():
            await self.changes.gone(self.readings)
        await self.client.remove_consumer(self)

    def asked(self, address: str, command: Command, reply: Reply) -> None:
        if command.code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            reply(self.client.answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "a lite pull consumer does not serve this"))
            return
        for queue, offset in self._moves(command):
            self._restart(self.readings[queue], offset)
        reply(self.client.answer(command, ResponseCode.SUCCESS))

    # -- Share's reader

    def held(self) -> Collection[MessageQueue]:
        return self.readings.keys()

    async def prepare(self, queue: MessageQueue) -> int:
        if self.changes.is_going(queue):
            raise NotYet(f"{queue} was let go, and on_revoked has not returned")
        return await self._where_to_begin(queue)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        if self._tells():
            self.changes.came(queue)
        self._read(_Reading(queue, offset))

    def abandon(self, queue: MessageQueue) -> None:
        pass

    def drop(self, queue: MessageQueue) -> None:
        reading = self.readings.pop(queue)
        self._discard(reading)
        if self.settings.auto_commit and reading.finished != self.offsets.table.get(queue):
            self.offsets.update(queue, reading.finished, increase_only=False)
        if self._tells():
            self.changes.going(queue)
            self.client.tasks.start(self._release_and_tell(queue))
        else:
            self.offsets.release(queue)

    async def _release_and_tell(self, queue: MessageQueue) -> None:
        await self.offsets.release_surely(queue)
        await self.changes.gone([queue])

    def _tells(self) -> bool:
        """Who chooses queues by hand knows them."""
        return self.changes.wanted and self._assigned is None

    # -- reading ahead

    def _read(self, reading: _Reading) -> None:
        self.readings[reading.queue] = reading
        self.client.tasks.start(self._read_ahead(reading))

    async def _read_ahead(self, reading: _Reading) -> None:
        coming = self.changes.coming(reading.queue)
        if coming is not None:
            await coming
        while self._is_read(reading):
            limit = self._limit(reading)
            if reading.paused or limit is not None:
                if not reading.paused and limit is not reading.held_by:
                    self._held_back(reading, limit)
                reading.go_on = Wait()
                await reading.go_on
            else:
                reading.held_by = None
                delay_ms = await self._pull(reading)
                if delay_ms:
                    await self.client.sleep(delay_ms)

    def _is_read(self, reading: _Reading) -> bool:
        return not reading.gone and self.started

    def _limit(self, reading: _Reading) -> Limit | None:
        """For which nothing more is read ahead until poll takes some."""
        settings = self.settings
        if reading.count >= settings.count_max:
            return "messages"
        if reading.size >= settings.size_max:
            return "bytes"
        if self._count < settings.count_all_max:
            return None
        taken = sum(one.count for one in self.readings.values() if not one.paused)  # poll takes nothing of the others
        return "all" if taken >= settings.count_all_max else None

    def _held_back(self, reading: _Reading, limit: Limit | None) -> None:
        reading.held_by = limit
        if limit is not None:
            why = f"{reading.count} messages of it with {reading.size} bytes are read ahead, {self._count} of all queues"
            self.stats.held_back.count(limit)
            self.stats.held_back.say(limit, reading.queue, why, self.client.clock.steady_ms(), advice=TAKE)

    async def _pull(self, reading: _Reading) -> int:
        """One pull, and what comes of it. How long to wait before the next, ms."""
        settings, before = self.settings, reading.offset
        asked_ms = self.client.clock.steady_ms()
        subscription = self.subscriptions.get(reading.queue.topic)
        try:
            result = await self._puller.pull(
                reading.queue,
                before,
                settings.pull_batch_size,
                subscription="*" if subscription is None else subscription.sub_string,
                expression_type=TAG if subscription is None else subscription.expression_type or TAG,
                suspend_ms=settings.block_ms,
                timeout_ms=max(SUSPENDED_TIMEOUT_MS, settings.block_ms + 10_000),
                lite=True,
            )
        except RoquetError as error:
            return wait_after(self.client, reading.queue, error) if self._is_read(reading) else 0
        if not self._is_read(reading):
            return 0
        self._keep(reading, result, asked_ms)
        return self._pause_ms(before, asked_ms, result)

    def _keep(self, reading: _Reading, result: PullResult, asked_ms: int) -> None:
        """Until poll takes them."""
        before, reading.offset = reading.offset, result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("! group %s: no offset %d in %s, going on from %d", self.group, before, reading.queue, result.next_offset)
        messages = result.messages
        if messages:
            self._count_pulled(self.stats, reading.queue, len(messages), asked_ms)
        tag_filter = self._filters.get(reading.queue.topic)
        if messages and tag_filter is not None:
            messages = [message for message in messages if tag_filter.takes_tag(message.tags)]
        restore_topics(messages, reading.queue, self.namespace)
        if messages or result.next_offset != before:
            self._ready.append((reading, messages, result.next_offset))
            reading.count += len(messages)
            reading.size += sum(message.stored_size for message in messages)
            self._count += len(messages)
        if messages:
            self._serve()

    def _discard(self, reading: _Reading) -> None:
        reading.gone = True
        self._count -= reading.count
        self._ready = deque(one for one in self._ready if one[0] is not reading)
        reading.go_on.end(None)
        self._go_on()

    def _go_on(self) -> None:
        """Some were taken: queues that waited for room pull again."""
        for reading in list(self.readings.values()):
            reading.go_on.end(None)

    # -- handing out

    async def poll(self, timeout_ms: int) -> list[ReceivedMessage]:
        """Messages of one queue, as soon as there are some; none after `timeout_ms`. What the polls before returned is
        finished now: auto commit counts it."""
        self._check_started()
        self._finish()
        poll: Wait[list[ReceivedMessage]] = Wait()
        self._polls.append(poll)
        self._serve()
        try:
            return await (poll if poll.over else self.client.within(poll, timeout_ms, []))
        finally:
            poll.end([])  # cancelled: nothing is handed out to it

    def _finish(self) -> None:
        for reading in self.readings.values():
            reading.finished = reading.position
        now = self.client.clock.steady_ms()
        if self.settings.auto_commit and now >= self._commit_due_ms:
            self._commit_due_ms = now + self.settings.auto_commit_ms
            self._note(False)
            self.offsets.persist()

    def _serve(self) -> None:
        while self._polls:
            if self._polls[0].over:
                self._polls.popleft()
                continue
            messages = self._take()
            if not messages:
                return
            self._polls.popleft().end(messages)

    def _take(self) -> list[ReceivedMessage]:
        passed: list[tuple[_Reading, list[ReceivedMessage], int]] = []
        found: list[ReceivedMessage] = []
        while self._ready and not found:
            reading, messages, position = self._ready.popleft()
            if reading.paused:
                passed.append((reading, messages, position))
                continue
            reading.position = position
            reading.count -= len(messages)
            reading.size -= sum(message.stored_size for message in messages)
            self._count -= len(messages)
            found = messages
        self._ready.extendleft(reversed(passed))
        if found:
            self.stats.of(found[0].topic).consumed += len(found)
            now = self.client.clock.now_ms()
            for message in found:
                message._began_ms = now
            self._go_on()
        return found

    def unread(self, messages: list[ReceivedMessage]) -> None:
        """These were handed out to nobody (the waiter was cancelled meanwhile): hand them out again."""
        if not messages:
            return
        self.stats.of(messages[0].topic).consumed -= len(messages)
        if messages[0].queue in self.readings:
            self._restart(self.readings[messages[0].queue], messages[0].queue_offset)

    # -- progress

    def _note(self, finish: bool) -> None:
        for reading in self.readings.values():
            offset = reading.position if finish else reading.finished
            if offset != self.offsets.table.get(reading.queue):
                self.offsets.update(reading.queue, offset, increase_only=False)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Remember the positions of all queues (everything that poll returned is finished), or these offsets."""
        self._check_started()
        if offsets is None:
            wanted = {queue: reading.position for queue, reading in self.readings.items()}
        else:
            wanted = {self.namespace.wrap_queue(queue): offset for queue, offset in offsets.items()}
        try:
            await self.offsets.commit(dict(sorted(wanted.items())))
        finally:
            for queue in wanted.keys() - self.readings.keys():
                self.offsets.forget(queue)

    async def committed(self, queue: MessageQueue) -> int:
        """How far the group has come, as it is written down; -1 when it never was there."""
        return await self.offsets.fetch(self.namespace.wrap_queue(queue))

    # -- moving

    async def seek(self, queue: MessageQueue, offset: int) -> int:
        """Go on from this offset, which is returned. Raises when the queue does not reach there."""
        queue = self._mine(queue).queue
        low = await self.calls.min_offset(queue)
        high = await self.calls.max_offset(queue)
        if not low <= offset <= high:
            raise ClientError(f"seek to {offset} in {queue}, which reaches from {low} to {high}; choose an offset between")
        return self._move(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> int:
        queue = self._mine(queue).queue
        return self._move(queue, await self.calls.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> int:
        queue = self._mine(queue).queue
        return self._move(queue, await self.calls.max_offset(queue))

    def _move(self, queue: MessageQueue, offset: int) -> int:
        reading = self.readings.get(queue)
        if reading is None:
            raise ClientError(f"{queue} was given to another member meanwhile")
        self._restart(reading, offset)
        return offset

    def _restart(self, reading: _Reading, offset: int) -> None:
        fresh = self.readings[reading.queue] = _Reading(reading.queue, offset)
        fresh.paused = reading.paused
        self._discard(reading)
        self._read(fresh)

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message that poll returns from this queue."""
        return self._mine(queue).position

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Poll returns nothing of these until resume."""
        for queue in queues:
            self._mine(queue).paused = True
        self._go_on()  # what these hold counts no longer

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for reading in [self._mine(queue) for queue in queues]:
            reading.paused = False
            reading.go_on.end(None)
        self._serve()

    def _mine(self, queue: MessageQueue) -> _Reading:
        self._check_started()
        reading = self.readings.get(self.namespace.wrap_queue(queue))
        if reading is None:
            raise ClientError(f"{queue} is not read by this consumer now; `assignment` lists those that are")
        return reading

    def _check_started(self) -> None:
        if not self.started:
            raise NotStarted(f"consumer {self.group!r} is not started or was closed; call start() first")
