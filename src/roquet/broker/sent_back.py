"""Messages that consumers send back (36), many in one read: what `Retries.send_back` does, for little more than the cost of their bytes.

Here are those that come again: of a group and with a retry topic that are known, in memory, as this broker stores them. Dead letters and
whatever is odd go through the handler; a test holds both to the same bytes.
"""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from roquet.broker.runs import number
from roquet.broker.stored import Again, take_from_log
from roquet.broker.topics import Topic
from roquet.broker.writer import Draft
from roquet.message import Property
from roquet.store.fanout import PREPARED
from roquet.store.queue import ConsumeQueue
from roquet.store.scan import TOPIC
from roquet.store.staging import Row
from roquet.store.window import LogWindow
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import Perm
from roquet.wire.command import Command
from roquet.wire.layout import HOST, PROPERTIES_MAX, STORE_TIME_AT
from roquet.wire.names import SCHEDULE_TOPIC, retry_topic
from roquet.wire.record import decode_properties

if TYPE_CHECKING:
    from roquet.broker.retry import Retries

WRITE = int(Perm.WRITE)
INT_MAX = 0x7FFFFFFF
NOT_UNIT = (None, "false")
LEVELS_MAX = 1_000
"""A larger delay level is read properly."""
FIRST_LEVEL = 3
"""Delay level after the first failure; each further one is a level up."""
SAYS_MAX_SINCE = 121
"""Clients of this version (3.4.9) and later say themselves how often a message is tried."""

MARKS = (
    Property.RETRY_TOPIC, Property.ORIGIN_MESSAGE_ID, Property.WAIT, Property.DELAY, Property.REAL_TOPIC, Property.REAL_QUEUE_ID,
)  # fmt: skip
"""What a message that comes again has besides its own properties, in the order in which they are added."""
NAMES = "\x02".join(MARKS).encode()
BEFORE = b"\x02%b\x01%%b\x02%b\x01%%b" % tuple(NAMES.split(b"\x02")[:2])
BEHIND = b"\x02%b\x01false\x02%b\x01%%d\x02%b\x01%%b\x02%b\x01" % tuple(NAMES.split(b"\x02")[2:])
"""What is added before and behind the log offset, which ends the message's id; the queue's number comes last."""
STORE_HOST = slice(STORE_TIME_AT + 8, STORE_TIME_AT + 8 + HOST)
"""Of what a message keeps."""


class Way(NamedTuple):
    """Where messages go that a group sends back."""

    group: GroupConfig
    topic: Topic


class Plan(NamedTuple):
    """What becomes of messages that agree in all but their ids and bodies, and are sent back in the same words."""

    way: Way
    level: int
    queue: ConsumeQueue
    """Of the delay level."""
    due_ms: int
    queues: int
    """Of the retry topic, over which they are spread."""
    origin: str
    """The topic that the message at hand stood in."""
    before: bytes
    behind: bytes
    """What is added to their properties (BEFORE, BEHIND). Empty: they have some of the marks already, or a reason is to be noted."""


class SentBack:
    """No state but what was read of the log last."""

    def __init__(self, retries: Retries) -> None:
        self.retries = retries
        self.store = retries.store
        self._window = LogWindow(self.store.log)

    def take(self, requests: list[Command]) -> int:
        """`runs.Take`."""
        retries = self.retries
        if not retries.settings.broker_permission & WRITE or self.store.trouble.refuse_writes():
            return 0
        places = list(takewhile(is_place, [number(request.fields.get("offset")) for request in requests]))
        messages = take_from_log(self.store, self._window, places, NAMES)
        plans: dict[object, Plan] = {}
        rows: list[Row] = []
        origins: list[tuple[str, str]] = []
        randrange = retries.shared.random.randrange
        for request, place, message in zip(requests, places, messages, strict=False):
            get = request.fields.get
            key, _, _, sys_flag, reconsumed, raw, kept = message
            alike = (
                request.version, get("group"), get("delayLevel"), get("maxReconsumeTimes"), get("failure"), get("unitMode"), key, sys_flag,
                reconsumed, kept[STORE_HOST],
            )  # fmt: skip
            try:
                plan = plans.get(alike)
            except TypeError:  # a value that is neither text nor number
                break
            if plan is None:
                plan = self._plan_of(request, message)
                if plan is None:
                    break
                plans[alike] = plan
            queue_id = randrange(plan.queues) if plan.queues > 1 else 0
            if plan.before:
                text, origin = b"%b%b%016X%b%d" % (raw, plan.before, place, plan.behind, queue_id), plan.origin
            else:
                text, origin = self._changed(message, place, plan, get("failure"), queue_id)
            if len(text) > PROPERTIES_MAX:
                break
            rows.append((plan.queue, text, plan.due_ms, sys_flag, reconsumed + 1, 0, kept))
            origins.append((plan.way.group.group_name, origin))
        self.store.staging.put_rows(rows)
        for (name, origin), count in Counter(origins).items():
            retries.stats.sent_back(name, origin, count)
        retries.sender.answer_all_when_stored(requests[: len(rows)])
        return len(rows)

    def _plan_of(self, request: Command, message: Again) -> Plan | None:
        """None: look properly."""
        get, (key, _, _, sys_flag, reconsumed, raw, kept) = request.fields.get, message
        name, failure, asked, asked_max = get("group"), get("failure"), number(get("delayLevel")), get("maxReconsumeTimes")
        way = self._way_of(name) if type(name) is str else None
        if way is None or not 0 <= asked <= LEVELS_MAX or not (failure is None or type(failure) is str) or get("unitMode") not in NOT_UNIT:
            return None
        most = way.group.retry_max_times
        if asked_max is not None:
            asked_most = number(asked_max)
            if not 0 <= asked_most <= INT_MAX:
                return None
            if request.version >= SAYS_MAX_SINCE:
                most = asked_most
        origin, *marks = key.split(b"\x02")
        if not 0 <= reconsumed < most or sys_flag & PREPARED or len(marks) != len(MARKS) or not TOPIC.fullmatch(origin):
            return None
        delays_ms = self.store.delays_ms
        level = min(asked or FIRST_LEVEL + reconsumed, len(delays_ms))
        before = behind = b""
        if not failure and raw and not any(marks):  # its first failure: its marks are only added
            before, behind = BEFORE % (origin, kept[STORE_HOST].hex().upper().encode()), BEHIND % (level, way.topic.topic_name.encode())
        queue, due_ms = self.store.queue(SCHEDULE_TOPIC, level - 1), self.store.staging.now_ms + delays_ms[level - 1]
        return Plan(way, level, queue, due_ms, self.retries.queue_count(*way), origin.decode(), before, behind)

    def _way_of(self, name: str) -> Way | None:
        """None: the group or its retry topic is not there, or may not be used."""
        group = self.retries.groups.find(name) if name in self.retries.groups else None
        topic = None if group is None or group.retry_queue_nums <= 0 else self.retries.topics.get(retry_topic(name))
        return Way(group, topic) if group is not None and topic is not None and topic.perm & WRITE and self.store.delays_ms else None

    def _changed(self, message: Again, place: int, plan: Plan, failure: str | None, queue_id: int) -> tuple[bytes, str]:
        """(the properties of a message that has some of the marks already, the topic it was sent to)."""
        _, _, _, _, _, raw, kept = message
        draft = Draft("", 0, b"", decode_properties(raw), store_host=kept[STORE_HOST], wait_kept=True)
        sent_to = self.retries.mark(draft, plan.origin, place, failure, len(raw))
        draft.properties[Property.DELAY] = str(plan.level)
        draft.topic, draft.queue_id = plan.way.topic.topic_name, queue_id
        draft.divert_to(SCHEDULE_TOPIC, plan.level - 1)
        return draft.text().encode(), sent_to


def is_place(place: int) -> bool:
    return place >= 0
