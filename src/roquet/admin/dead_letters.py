"""Dead letters of a group: reading them, and sending them again, each once.

    async with Admin("127.0.0.1:9876") as admin, DeadLetters(admin, "billing") as dead:
        plan = await dead.plan(Choice(tag="paid"))
        await dead.replay(plan)

What makes a second run safe is in the brokers, and nothing is kept here:

1. The message sent again carries the dead letter's own offset id as its unique key. Before a letter is sent, its target
   topic is asked for that key. Message and mark are one record, so there is no moment at which only one of them exists;
   and the mark is younger than the letter, so it lasts as long as the letter does.
2. How far all letters from the first on were sent is kept as the progress of the group CID_RMQ_SYS_REDRIVE in the dead
   letter topic. It only saves questions: it is believed if the letter before it is found to have been sent.
3. One at a time: a run locks the dead letter queues as an orderly consumer would, for a minute at most beyond its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from zlib import crc32

from roquet.admin.asking import gather_bounded
from roquet.admin.client import Admin
from roquet.admin.topics import QueueStatus
from roquet.client.core.resolver import masters_of, write_queues
from roquet.errors import ClientError, InvalidMessage, NoRoute, Rejected, RoquetError
from roquet.message import MessageQueue, Property, ReceivedMessage
from roquet.wire.calls.call import Answered, Call
from roquet.wire.calls.pulls import PULL_MESSAGE, PullHeader
from roquet.wire.calls.queues import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ, LockBody
from roquet.wire.calls.sends import SEND_MESSAGE, SendHeader
from roquet.wire.codes import PullFlag, ResponseCode
from roquet.wire.names import DEFAULT_TOPIC, DLQ_PREFIX, TOOLS_GROUP, dead_letter_topic, retry_topic
from roquet.wire.record import decode_records, encode_properties

REDRIVE_GROUP = "CID_RMQ_SYS_REDRIVE"
PRODUCER_GROUP = "roquet_redrive"
PULL_COUNT = 32
CHECKED_TOGETHER = 256
LOCK_RENEW_S = 20
MARK_EVERY = 500

STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)

DELIVERY_PROPERTIES = frozenset(
    {
        Property.RETRY_TOPIC, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.DELAY, Property.WAIT, Property.CLUSTER,
        Property.RECONSUME_TIME, Property.MAX_RECONSUME_TIMES, Property.CONSUME_START_TIME, Property.MIN_OFFSET, Property.MAX_OFFSET,
        Property.TRANSACTION_PREPARED, Property.PRODUCER_GROUP, Property.TRANSACTION_PREPARED_QUEUE_OFFSET,
        Property.TRANSACTION_CHECK_TIMES, Property.CHECK_IMMUNITY_SECONDS, Property.TRANSACTION_ID,
        Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS, Property.TIMER_OUT_MS, Property.START_DELIVER_TIME,
        Property.TIMER_ENQUEUE_MS, Property.TIMER_DEQUEUE_MS, Property.TIMER_ROLL_TIMES, Property.TIMER_DELAY_LEVEL,
        Property.INNER_MULTI_DISPATCH, Property.INNER_MULTI_QUEUE_OFFSET, Property.FAILURE,
    }
)  # fmt: skip
"""They say how the message was delivered before; it starts anew."""

OnProgress = Callable[[int], None]


class NoDeadLetters(NoRoute):
    """The group never had one, so its topic was never made."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters. What is not given does not matter; all that is given must hold."""

    message_id: str = ""
    """The producer's, the broker's of the letter, or that of the first record (ORIGIN_MESSAGE_ID)."""
    key: str = ""
    tag: str = ""
    begin_ms: int = 0
    """Became a dead letter then or later."""
    end_ms: int = (1 << 63) - 1
    """... and before."""
    properties: tuple[tuple[str, str], ...] = ()
    topic: str = ""
    """Was sent to this topic first."""

    def takes(self, letter: ReceivedMessage) -> bool:
        properties = letter.properties
        ids = (letter.message_id, letter.offset_message_id, properties.get(Property.ORIGIN_MESSAGE_ID))
        return (
            (not self.message_id or self.message_id in ids)
            and (not self.key or self.key in letter.keys)
            and (not self.tag or self.tag == letter.tags)
            and self.begin_ms <= letter.store_timestamp < self.end_ms
            and all(properties.get(name) == value for name, value in self.properties)
            and (not self.topic or origin_topic(letter) == self.topic)
        )


@dataclass(slots=True)
class Step:
    """One letter of a plan. `sent` is when the same letter was sent before, 0 when it was not; `why_not` why it cannot be."""

    queue: MessageQueue
    offset: int
    key: str
    """Unique key of the message to be sent: the letter's offset id."""
    message_id: str
    target: str
    why_not: str = ""
    sent: int = 0


@dataclass(slots=True)
class Plan:
    steps: list[Step] = field(default_factory=list)
    looked_at: int = 0
    """Letters, chosen or not."""
    skipped: int = 0
    """Letters before the mark: sent by an earlier run, and not looked at."""

    def to_send(self) -> list[Step]:
        return [step for step in self.steps if not step.sent and not step.why_not]


@dataclass(slots=True)
class Outcome:
    sent: int = 0
    failed: str = ""
    """Why it stopped before the end; "" when it did not."""


def origin_topic(letter: ReceivedMessage) -> str:
    """The topic that the message was sent to by its producer, "" when it does not say."""
    return letter.properties.get(Property.RETRY_TOPIC) or letter.properties.get(Property.DLQ_ORIGIN_TOPIC, "")


def sent_again(letter: ReceivedMessage, target: str) -> dict[str, str]:
    """The properties of the message to be sent: the producer's own, and where it comes from."""
    properties = {name: value for name, value in letter.properties.items() if name not in DELIVERY_PROPERTIES}
    properties[Property.UNIQUE_KEY] = letter.offset_message_id
    properties[Property.DLQ_ORIGIN_MESSAGE_ID] = letter.message_id
    origin = origin_topic(letter)
    if origin:
        properties[Property.DLQ_ORIGIN_TOPIC] = origin
        if target.startswith("%"):
            properties[Property.RETRY_TOPIC] = origin  # consumers show a retried message under the topic it was sent to
    return properties


async def dead_letter_groups(admin: Admin) -> dict[str, list[QueueStatus]]:
    topics = [name for name in await admin.topic_names() if name.startswith(DLQ_PREFIX)]
    found = await gather_bounded(topics, admin.topic_status)
    return {topic.removeprefix(DLQ_PREFIX): queues for topic, queues in found.items()}


class DeadLetters:
    """The dead letters of one group. Entered, it holds the lock that keeps a second run away; reading needs none.

    `to`: another topic than the one each message came from. `only_this_group`: to the group's own retry topic, so that
    other groups of the original topic do not see the messages again.
    """

    def __init__(self, admin: Admin, group: str, *, to: str = "", only_this_group: bool = False) -> None:
        if to and only_this_group:
            raise ClientError("to another topic, or to this group only: choose one of the two")
        self.admin = admin
        self.group = group
        self.topic = dead_letter_topic(group)
        self.to = retry_topic(group) if only_this_group else to
        self.client_id = f"roquet-redrive@{os.getpid()}#{time.monotonic_ns()}"
        self._addresses: dict[str, str] = {}
        self._locked_s = 0.0
        self._turn = 0
        self._targets: dict[str, list[tuple[str, int, str]]] = {}

    async def __aenter__(self) -> DeadLetters:
        await self._lock()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(RoquetError):  # it expires by itself within a minute
            await self._each_broker(UNLOCK_BATCH_MQ)

    # Reading

    async def queues(self) -> list[QueueStatus]:
        """Raises NoDeadLetters when the group never had one."""
        try:
            found = await self.admin.topic_status(self.topic)
        except NoRoute:
            raise NoDeadLetters(f"group {self.group!r} has no dead letters: no name server knows the topic {self.topic!r}") from None
        self._addresses = masters_of((await self.admin.route(self.topic)).broker_datas)
        return found

    async def count(self) -> int:
        return sum(queue.count for queue in await self.queues())

    async def letters(self, starts: dict[MessageQueue, int] | None = None) -> AsyncIterator[ReceivedMessage]:
        """Those that are there now, queue by queue, oldest first."""
        for status in await self.queues():
            at = max(status.min_offset, (starts or {}).get(status.queue, 0))
            while at < status.max_offset:
                found, following = await self._pull(status.queue, at, PULL_COUNT)
                for letter in found:
                    if letter.queue_offset < status.max_offset:
                        yield letter
                if following <= at:
                    break
                at = following

    async def _pull(self, queue: MessageQueue, offset: int, count: int) -> tuple[list[ReceivedMessage], int]:
        header = PullHeader(
            TOOLS_GROUP, queue.topic, queue.queue_id, offset, count, int(PullFlag.SUBSCRIPTION), 0, 0, 0, "*", "TAG"
        )  # fmt: skip
        nothing = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
        try:
            answer = await self.admin.call(self._addresses[queue.broker_name], PULL_MESSAGE, header, accept=(0, *nothing))
        except Rejected as error:
            if error.code == ResponseCode.NO_PERMISSION:
                raise ClientError(
                    f"{error}; dead letters of old brokers are write-only: roquet topic update '{self.topic}' --perm rw"
                ) from None
            raise
        following = answer.header.next_begin_offset
        records = decode_records(answer.body.data) if answer.ok else []
        return [ReceivedMessage(record, queue.broker_name) for record in records], following

    # Planning

    async def plan(self, choice: Choice, *, again: bool = False, progress: OnProgress = lambda count: None) -> Plan:
        """Which letters are chosen, where each would go, and which were sent before. `again`: as if none had been. Changes nothing."""
        starts = {} if again or self.to else await self._marks()
        plan = Plan(skipped=sum(max(0, starts.get(one.queue, 0) - one.min_offset) for one in await self.queues()))
        waiting: list[Step] = []
        async for letter in self.letters(starts):
            plan.looked_at += 1
            progress(1)
            if not choice.takes(letter):
                continue
            target = self.to or origin_topic(letter)
            step = Step(letter.queue, letter.queue_offset, letter.offset_message_id, letter.message_id, target)
            if not target:
                step.why_not = "it does not say which topic it came from; name one (--to)"
            plan.steps.append(step)
            if target and not again:
                waiting.append(step)
            if len(waiting) >= CHECKED_TOGETHER:
                await self._check(waiting)
                waiting = []
        await self._check(waiting)
        for target in {step.target for step in plan.to_send()}:
            why_not = await self._why_not(target, again)
            for step in plan.to_send() if why_not else ():
                if step.target == target:
                    step.why_not = why_not
        return plan

    async def _check(self, steps: Sequence[Step]) -> None:
        """Which of them were sent before, and when."""
        found = await gather_bounded([(step.target, step.key) for step in steps], self._sent_at)
        for step in steps:
            step.sent = found[step.target, step.key]

    async def _sent_at(self, target_and_key: tuple[str, str]) -> int:
        try:
            found = await self.admin.query_by_unique_key(*target_and_key)
        except NoRoute:
            return 0
        return max((message.store_timestamp for message in found), default=0)

    async def _why_not(self, target: str, again: bool) -> str:
        """Why nothing can be sent there, "" when it can."""
        try:
            await self._queues_of(target)
        except (NoRoute, ClientError) as error:
            return str(error)
        if again:
            return ""
        for address in await self.admin.masters_with(target):
            if (await self.admin.broker_config(address)).get("messageIndexEnable", "true") == "false":
                return f"broker {address} keeps no index (messageIndexEnable=false): nobody could tell what was sent. --again sends anyway"
        return ""

    async def sent_before(self, letters: Sequence[ReceivedMessage]) -> list[tuple[ReceivedMessage, int]]:
        """With each, when it was sent again (ms), 0 when it was not."""
        places = [(self.to or origin_topic(letter), letter.offset_message_id) for letter in letters]
        found = await gather_bounded([place for place in places if place[0]], self._sent_at)
        return [(letter, found.get(place, 0)) for letter, place in zip(letters, places, strict=True)]

    # The mark

    async def _marks(self) -> dict[MessageQueue, int]:
        marks: dict[MessageQueue, int] = {}
        for status in await self.queues():
            mark = await self.admin.consumer_offset(REDRIVE_GROUP, status.queue) or 0
            if not status.min_offset < mark <= status.max_offset:
                continue  # none yet, or of a topic that was deleted since
            found, _ = await self._pull(status.queue, mark - 1, 1)
            if found and await self._sent_at((origin_topic(found[0]), found[0].offset_message_id)):
                marks[status.queue] = mark
        return marks

    async def _raise_marks(self, plan: Plan, marks: dict[MessageQueue, int]) -> None:
        """Over all letters from the first on that are known to be sent. One that was not chosen, or failed, ends them."""
        if self.to:
            return
        reached = dict(marks)
        for status in await self.queues():
            reached.setdefault(status.queue, status.min_offset)
        for step in plan.steps:
            if step.sent and step.offset == reached.get(step.queue):
                reached[step.queue] += 1
        for queue, offset in reached.items():
            if offset > marks.get(queue, 0) and offset > 0:
                await self.admin.set_consumer_offset(REDRIVE_GROUP, queue, offset)

    # Sending

    async def replay(self, plan: Plan, progress: OnProgress = lambda count: None) -> Outcome:
        """Send what the plan has left, in order. Stops at the first failure; another run goes on from there."""
        outcome = Outcome()
        marks = {} if self.to else await self._marks()
        try:
            for number, step in enumerate(plan.to_send(), 1):
                if asyncio.get_running_loop().time() - self._locked_s > LOCK_RENEW_S:
                    await self._lock()
                found, _ = await self._pull(step.queue, step.offset, 1)
                if not found or found[0].offset_message_id != step.key:
                    outcome.failed = f"the letter {step.key} is no longer there"
                    break
                step.sent = await self._send(found[0], step.target)
                outcome.sent += 1
                progress(1)
                if number % MARK_EVERY == 0:
                    await self._raise_marks(plan, marks)
        except RoquetError as error:
            outcome.failed = str(error)
        if outcome.sent or any(step.sent for step in plan.steps):
            try:
                await self._raise_marks(plan, marks)
            except RoquetError as error:
                outcome.failed = outcome.failed or str(error)
        return outcome

    async def _send(self, letter: ReceivedMessage, target: str) -> int:
        """As it is stored: a compressed body stays compressed."""
        properties = sent_again(letter, target)
        try:
            text = encode_properties(properties)
        except InvalidMessage as error:
            raise ClientError(f"{letter.offset_message_id}: {error}") from None
        queues = await self._queues_of(target)
        sharding = properties.get(Property.SHARDING_KEY)
        if sharding is None:
            self._turn += 1
            address, queue_id, name = queues[self._turn % len(queues)]
        else:
            address, queue_id, name = queues[crc32(sharding.encode()) % len(queues)]  # one key, one queue
        header = SendHeader(
            PRODUCER_GROUP, target, DEFAULT_TOPIC, 4, queue_id, letter.sys_flag & 0x701, letter.born_timestamp, letter.flag, text, 0,
            False, 16, batch=False, broker_name=name,
        )  # fmt: skip
        await self.admin.call(address, SEND_MESSAGE, header, letter.record.body, accept=STORED)
        return int(time.time() * 1000)

    async def _queues_of(self, topic: str) -> list[tuple[str, int, str]]:
        """(master's address, queue, broker name) of every queue that takes messages."""
        known = self._targets.get(topic)
        if known is None:
            route = await self.admin.route(topic)
            masters = masters_of(route.broker_datas)
            queues = [queue for queue in write_queues(topic, route) if queue.broker_name in masters]
            known = self._targets[topic] = [(masters[queue.broker_name], queue.queue_id, queue.broker_name) for queue in queues]
        if not known:
            raise ClientError(f"no queue of {topic!r} takes messages now; see: roquet topic route {topic}")
        return known

    # The lock

    async def _lock(self) -> None:
        queues = {status.queue for status in await self.queues()}
        held: set[MessageQueue] = set()
        for answer in await self._each_broker(LOCK_BATCH_MQ, queues):
            held |= answer.lock_ok_mq_set
        if held != queues:
            raise ClientError(
                f"another replay of {self.group!r} is under way (or ended in the last minute without saying so); try again later"
            )
        self._locked_s = asyncio.get_running_loop().time()

    async def _each_broker(self, call: Call[Any, LockBody, Any, Answered], queues: Iterable[MessageQueue] | None = None) -> list[Answered]:
        wanted = {status.queue for status in await self.queues()} if queues is None else set(queues)
        answers = []
        for name in sorted({queue.broker_name for queue in wanted}):
            body = LockBody(REDRIVE_GROUP, self.client_id, {queue for queue in wanted if queue.broker_name == name})
            answers.append((await self.admin.call(self._addresses[name], call, body=body)).body)
        return answers
