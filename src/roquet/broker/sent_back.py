"""Messages that consumers send back (36), many in one read: what `Retries.send_back` does, for little more than the cost of their bytes.

Here are those that come again: of a group and with a retry topic that are known, in memory, as this broker stores them. Dead letters and
whatever is odd go through the handler; a test holds both to the same bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from roquet.broker.runs import Request, number
from roquet.broker.stored import Stored, take_apart
from roquet.broker.topics import Topic
from roquet.message import Property
from roquet.store.disk import Cold
from roquet.store.fanout import PREPARED
from roquet.store.records import LIKELY_SIZE
from roquet.store.scan import TOPIC
from roquet.store.staging import Row
from roquet.store.window import LogWindow
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.sends import CONSUMER_SEND_MSG_BACK
from roquet.wire.codes import Perm
from roquet.wire.ids import offset_message_id
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import SCHEDULE_TOPIC, retry_topic

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
ADDED = "".join(f"\x02{name}\x01%{kind}" for name, kind in zip(MARKS, "bbbdbd", strict=True)).encode()


class Way(NamedTuple):
    """Where messages go that a group sends back."""

    group: GroupConfig
    topic: Topic


class SentBack:
    """No state but what was read of the log last."""

    def __init__(self, retries: Retries) -> None:
        self.retries = retries
        self.store = retries.store
        self._window = LogWindow(self.store.log)

    def take(self, requests: list[Request]) -> int:
        """`runs.Take`."""
        retries = self.retries
        if not retries.settings.broker_permission & WRITE or self.store.trouble.refuse_writes():
            return 0
        places = [number(request.fields.get("offset")) for request in requests]
        if places:
            self._window.bring(min(places), max(places) + LIKELY_SIZE)
        ways: dict[str, Way | None] = {}
        rows: list[Row] = []
        origins: Counter[tuple[str, str]] = Counter()
        for request, place in zip(requests, places, strict=True):
            name = request.fields.get("group")
            if type(name) is not str:
                break
            way = ways[name] if name in ways else ways.setdefault(name, self._way_of(name))
            found = None if way is None else self._row_of(request, place, way)
            if found is None:
                break
            rows.append(found[0])
            origins[name, found[1]] += 1
        self.store.staging.put_rows(rows)
        for (name, origin), count in origins.items():
            retries.stats.sent_back(name, origin, count)
        for request in requests[: len(rows)]:
            retries.sender.answer_when_stored(request.command(CONSUMER_SEND_MSG_BACK.code))
        return len(rows)

    def _way_of(self, name: str) -> Way | None:
        """None: the group or its retry topic is not there, or may not be used."""
        group = self.retries.groups.find(name) if name in self.retries.groups else None
        topic = None if group is None or group.retry_queue_nums <= 0 else self.retries.topics.get(retry_topic(name))
        return Way(group, topic) if group is not None and topic is not None and topic.perm & WRITE and self.store.delays_ms else None

    def _row_of(self, request: Request, place: int, way: Way) -> tuple[Row, str] | None:
        """(the message that comes again, the topic it was sent to). None: look properly."""
        get, most = request.fields.get, way.group.retry_max_times
        asked, asked_max, failure = number(get("delayLevel")), get("maxReconsumeTimes"), get("failure")
        if asked_max is not None:
            asked_most = number(asked_max)
            if not 0 <= asked_most <= INT_MAX:
                return None
            if request.version >= SAYS_MAX_SINCE:
                most = asked_most
        if place < 0 or not 0 <= asked <= LEVELS_MAX or not (failure is None or type(failure) is str) or get("unitMode") not in NOT_UNIT:
            return None
        try:
            message = take_apart(self.store.raw_by(self._window.view, place), place)
        except (Cold, LookupError):
            return None
        if message is None or message.reconsumed >= most or message.sys_flag & PREPARED:
            return None
        origin = message.topic.encode()
        if not TOPIC.fullmatch(origin):
            return None
        delays_ms = self.store.delays_ms
        level, queue_id = min(asked or FIRST_LEVEL + message.reconsumed, len(delays_ms)), self.retries.queue_id(*way)
        if failure or not message.raw or not message.properties.keys().isdisjoint(MARKS):
            text, sent_to = self._changed(message, failure, level, way.topic.topic_name, queue_id)
        else:  # its first failure: its marks are only added
            message_id = offset_message_id(message.store_host, place).encode()
            added = ADDED % (origin, message_id, b"false", level, way.topic.topic_name.encode(), queue_id)
            text, sent_to = message.raw + added, message.topic
        if len(text) > PROPERTIES_MAX:
            return None
        row = (
            self.store.queue(SCHEDULE_TOPIC, level - 1), message.body, text, self.store.staging.now_ms + delays_ms[level - 1],
            message.sys_flag, message.flag, message.born_ms, message.born_host, message.reconsumed + 1, 0, message.store_host,
        )  # fmt: skip
        return row, sent_to

    def _changed(self, message: Stored, failure: str | None, level: int, topic: str, queue_id: int) -> tuple[bytes, str]:
        """(the properties of a message that has some of the marks already, the topic it was sent to)."""
        draft = message.draft()
        sent_to = self.retries.mark(draft, message.topic, message.offset, failure, len(message.raw))
        draft.properties[Property.DELAY] = str(level)
        draft.topic, draft.queue_id = topic, queue_id
        draft.divert_to(SCHEDULE_TOPIC, level - 1)
        return draft.text().encode(), sent_to
