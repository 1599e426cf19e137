"""SQL filters of consumer groups: taken from heartbeats, compiled once, kept in config/consumerFilter.json as upstream does.

    {"filterDataByTopic":{"T":{"groupFilterData":{"g":{"expression":"a > 1",...}},"topic":"T"}}}

A group that leaves keeps its filters for a day (`filterDataCleanTimeSpan`), restarts included. A pull is judged by what is
kept here, and only when it is at least as new as what the puller knows. No code of a user is ever run: an expression can read
properties and compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from roquet.broker.bloom import positions, size_of
from roquet.broker.fragments import Fragments, member
from roquet.broker.part import Shared
from roquet.broker.saving import SavedDocument, SavedPart
from roquet.errors import Refused
from roquet.message import Property
from roquet.routing.sql92 import COST_MAX, BadSql, Filter, compiled
from roquet.routing.subscription import SQL92, is_tag_type
from roquet.settings import BrokerSettings
from roquet.wire import fastjson
from roquet.wire.calls.members import SubscriptionData
from roquet.wire.codes import ResponseCode
from roquet.wire.layout import BODY_AT, FRONTS, HOSTS_V6, MAGIC_V1, SYS_FLAG_AT
from roquet.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from roquet.broker.members import Members

SAVE_MS = 10_000
STALE_MS = 30_000
"""Upstream: who was alive in the file left half a minute before it was read."""
FILTERS_MAX = 100_000
EXPRESSIONS_MAX = 64 * 1024 * 1024
"""Characters of all expressions together."""
HEARTBEAT_COMPILES_MAX = 256 * 1024
"""Characters of expressions that one heartbeat makes us parse; the rest waits for the next, and its pulls are told 27."""
LEFT_A_TICK = 200
"""Groups that lost their last member whose filters one tick marks as dead."""
TEXTS_A_TURN = 200
"""Changed filters that one tick encodes for the file."""
RETRY_TOPIC = Property.RETRY_TOPIC.encode() + b"\x01"
RETRY_COST = COST_MAX
"""Which filters it will need is not known before."""

MAGIC_LOW = MAGIC_V1 & 0xFF


class Judge(Protocol):
    """Decides by a message's properties, which stand in data[start:stop]."""

    @property
    def cost(self) -> int:
        """Work of one judgement, in terms of an expression."""
        ...

    def takes(self, data: bytes, start: int, stop: int) -> bool: ...


@dataclass(slots=True, eq=False)
class GroupFilter:
    """One expression of a group for a topic. `filter` is None when it cannot be used; `trouble` then says why."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    born_ms: int
    dead_ms: int = 0
    filter: Filter | None = None
    trouble: str = ""

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms


class Filters(SavedPart):
    """State: the same filters by topic and group, and by group and topic; `_size` is the length of their expressions; `_left` are groups
    without a member, whose filters are yet to be marked as dead."""

    def __init__(self, shared: Shared, members: Members) -> None:
        super().__init__(shared)
        self._by_topic: dict[str, dict[str, GroupFilter]] = {}
        self._by_group: dict[str, dict[str, GroupFilter]] = {}
        self._left: dict[str, int] = {}  # and since when
        self._count = 0
        self._size = 0
        self.texts = Fragments[GroupFilter](self._text, TEXTS_A_TURN)
        self.saving = SavedDocument(
            shared, "consumerFilter.json", self._snapshot, pause=lambda awaited: SAVE_MS, prepare=self.texts.settle_in_portions
        )
        self._due_ms = self.clock.steady_ms() + SAVE_MS
        members.on_heard.append(self.heard)
        members.on_left.append(self.left)

    def open(self) -> None:
        """Load the file. One that nobody can read is begun anew: the next heartbeats bring everything again."""
        now_ms = self.clock.now_ms()
        for one in self.saving.load(self._parse, needed=False) or ():
            if one.dead_ms == 0:
                one.dead_ms = max(now_ms - STALE_MS, one.born_ms)
            if not one.filter:
                self.notices.warn(notice_key(one), one.trouble)
            elif self._has_room(one):
                self._put(one)

    # Heartbeats

    def heard(self, group: str, subscriptions: Sequence[SubscriptionData]) -> None:
        """A member of the group said what it subscribes to."""
        self._mark_left(group)
        wanted = [one for one in subscriptions if not is_tag_type(one.expression_type) and one.sub_string]
        known = self._by_group.get(group)
        if not wanted and not known:
            return
        now_ms = self.clock.now_ms()
        budget = HEARTBEAT_COMPILES_MAX
        for one in wanted:
            if budget > 0:
                budget -= self._register(group, one, now_ms)
        topics = {one.topic for one in subscriptions}
        for topic, filter in (known or {}).items():
            if topic not in topics and not filter.is_dead:
                self._mark_dead(filter, now_ms)

    def left(self, group: str) -> None:
        if group in self._by_group:
            self._left[group] = self.clock.now_ms()

    def _mark_left(self, group: str) -> None:
        left_ms = self._left.pop(group, None)
        if left_ms is not None:
            for filter in self._by_group.get(group, {}).values():
                if not filter.is_dead:
                    self._mark_dead(filter, left_ms)

    def topic_deleted(self, topic: str) -> None:
        """The topic is deleted. One of that name that comes later is another."""
        for filter in list(self._by_topic.get(topic, {}).values()):
            self._remove(filter)

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> int:
        """How many characters had to be parsed."""
        topic, version = subscription.topic, subscription.sub_version
        expression, kind = subscription.sub_string, subscription.expression_type
        known = self._by_topic.get(topic, {}).get(group)
        if known is not None and version <= known.client_version and not (known.is_dead and version < known.client_version):
            if known.is_dead:
                self._mark_alive(known)
            return 0
        if known is not None and known.expression == expression and known.expression_type == kind:
            known.client_version = version
            self._changed(known)
            if known.is_dead:
                self._mark_alive(known)
            return 0
        fresh = GroupFilter(topic, group, expression, kind, version, now_ms)
        make(fresh)
        if known is not None:
            self._remove(known)
        if not self._has_room(fresh):
            return len(expression)
        self._put(fresh)
        if fresh.filter is None:
            self.notices.warn(notice_key(fresh), fresh.trouble)
        else:
            self.notices.clear(notice_key(fresh))
        return len(expression)

    def _has_room(self, filter: GroupFilter) -> bool:
        if self._count < FILTERS_MAX and self._size + len(filter.expression) <= EXPRESSIONS_MAX:
            return True
        self.notices.warn(
            "filters full",
            f"{self._count} SQL filters with {self._size} characters are kept, limits are {FILTERS_MAX} and {EXPRESSIONS_MAX}: group "
            f"{filter.group} cannot filter {filter.topic}. Filters of groups that left go after filterDataCleanTimeSpan.",
        )
        return False

    def _put(self, filter: GroupFilter) -> None:
        self._by_topic.setdefault(filter.topic, {})[filter.group] = filter
        self._by_group.setdefault(filter.group, {})[filter.topic] = filter
        self._count += 1
        self._size += len(filter.expression)
        self._changed(filter)

    def _changed(self, filter: GroupFilter) -> None:
        self.texts.stale[filter] = None
        self.saving.unsaved = True

    def _remove(self, filter: GroupFilter) -> None:
        for table, one, other in ((self._by_topic, filter.topic, filter.group), (self._by_group, filter.group, filter.topic)):
            del table[one][other]
            if not table[one]:
                del table[one]
        self._count -= 1
        self._size -= len(filter.expression)
        self.texts.removed(filter)
        self.saving.unsaved = True

    def _mark_dead(self, filter: GroupFilter, now_ms: int) -> None:
        filter.dead_ms = max(now_ms, filter.born_ms)
        self._changed(filter)
        if filter.filter is None:
            self.notices.clear(notice_key(filter))

    def _mark_alive(self, filter: GroupFilter) -> None:
        filter.dead_ms = 0
        self._changed(filter)

    # Pulls

    def find(self, topic: str, group: str) -> GroupFilter | None:
        """None when there is none, or one that cannot be used."""
        found = self._by_topic.get(topic, {}).get(group)
        return None if found is None or found.filter is None else found

    def for_pull(self, topic: str, group: str, version: int) -> Judge:
        """The judge of a pull that comes without an expression of its own. Raises Refused 27, 28 and 1 in upstream's order."""
        found = self.find(topic, group)
        if found is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST, "The broker's consumer filter data is not exist!Your expression may be wrong!"
            )
        if found.client_version < version:
            raise Refused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        check_allowed(found.expression_type, self.settings)
        if self.settings.filter_support_retry and topic.startswith(RETRY_PREFIX):
            return RetryJudge(self, group)
        assert found.filter is not None
        return found.filter

    # The file

    def tick(self, now_ms: int) -> None:
        for group in list(islice(self._left, LEFT_A_TICK)):  # one connection may have been the last member of two thousand
            self._mark_left(group)
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + SAVE_MS
            self._clean(self.clock.now_ms())
        super().tick(now_ms)

    def save_now(self) -> None:
        for group in list(self._left):
            self._mark_left(group)
        super().save_now()

    def _clean(self, now_ms: int) -> None:
        oldest_ms = now_ms - self.settings.filter_data_clean_time_span
        gone = [one for table in self._by_topic.values() for one in table.values() if one.is_dead and one.dead_ms <= oldest_ms]
        for filter in gone:
            self._remove(filter)
        if self._count < FILTERS_MAX and self._size < EXPRESSIONS_MAX // 2:
            self.notices.clear("filters full")

    def encode(self) -> bytes:
        """The file as Java lays it out. What cannot be used is left out: Java would take it for a filter that takes all."""
        self.texts.members()
        return self._snapshot()()

    def _snapshot(self) -> Callable[[], bytes]:
        texts = self.texts.texts
        topics = [(topic, [text for one in table.values() if (text := texts.get(one))]) for topic, table in self._by_topic.items()]
        return lambda: encode_file([(topic, groups) for topic, groups in topics if groups])

    def _text(self, filter: GroupFilter) -> bytes:
        if filter.filter is None:
            return b""
        return member(filter.group, self._json(filter).replace(b"\n", b"\n\t\t\t\t"))

    def _json(self, filter: GroupFilter) -> bytes:
        k, m = size_of(self.settings.max_error_rate_of_bloom_filter, self.settings.expect_consumer_num_use_filter)
        return fastjson.dumps_pretty(to_json(filter, k, m))

    def text_of(self, group: str, topic: str) -> str:
        """A group's filter as the file has it; `null` when it has none."""
        found = self._by_group.get(group, {}).get(topic)
        return "null" if found is None else self._json(found).decode()

    def _parse(self, data: bytes) -> list[GroupFilter]:
        value = fastjson.loads(data)
        found: list[GroupFilter] = []
        for topic, inner in (value.get("filterDataByTopic") or {}).items():
            for group, one in (inner.get("groupFilterData") or {}).items():
                filter = GroupFilter(
                    str(topic), str(group), str(one["expression"]), str(one["expressionType"]),
                    int(one["clientVersion"]), int(one["bornTime"]), int(one["deadTime"]),
                )  # fmt: skip
                make(filter)
                found.append(filter)
        return found


def encode_file(topics: list[tuple[str, list[bytes]]]) -> bytes:
    """Topics, and the texts of their filters, laid out as `dumps_pretty` would lay out the whole."""
    if not topics:
        return fastjson.dumps_pretty({"filterDataByTopic": {}})
    parts: list[bytes] = []
    for topic, groups in topics:
        name = fastjson.dumps(topic)
        filters = b",\n\t\t\t\t".join(groups)
        parts.append(b'%s:{\n\t\t\t"groupFilterData":{\n\t\t\t\t%s\n\t\t\t},\n\t\t\t"topic":%s\n\t\t}' % (name, filters, name))
    return b'{\n\t"filterDataByTopic":{\n\t\t' + b",\n\t\t".join(parts) + b"\n\t}\n}"


def make(filter: GroupFilter) -> None:
    """Compile it, or say why not."""
    who = f"group {filter.group} subscribes to {filter.topic} with "
    if filter.expression_type != SQL92:
        filter.trouble = f"{who}an expression of type {filter.expression_type[:80]!r}; known are TAG and SQL92. It gets nothing."
        return
    try:
        filter.filter = compiled(filter.expression)
    except BadSql as error:
        filter.trouble = f"{who}a filter that cannot be used, and gets nothing: {error}"


def notice_key(filter: GroupFilter) -> str:
    return f"filter of {filter.group} for {filter.topic}"


def to_json(filter: GroupFilter, k: int, m: int) -> dict[str, Any]:
    return {
        "bloomFilterData": {"bitNum": m, "bitPos": positions(f"{filter.group}#{filter.topic}", k, m)},
        "bornTime": filter.born_ms,
        "clientVersion": filter.client_version,
        "consumerGroup": filter.group,
        "dead": filter.is_dead,
        "deadTime": filter.dead_ms,
        "expression": filter.expression,
        "expressionType": filter.expression_type,
        "topic": filter.topic,
    }


def check_allowed(kind: str | None, settings: BrokerSettings) -> None:
    if not settings.enable_property_filter:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {(kind or '')[:80]}")


def check_filter(kind: str | None, expression: str | None, settings: BrokerSettings) -> Filter:
    """The filter of an expression that comes with a request. Raises Refused with the place of the mistake."""
    check_allowed(kind, settings)
    if kind != SQL92:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"an expression of type {(kind or '')[:80]!r}; known are TAG and SQL92")
    try:
        return compiled(expression or "")
    except BadSql as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


class RetryJudge:
    """`filterSupportRetry`: a message in a retry topic is judged by the filter for the topic that it came from."""

    cost = RETRY_COST

    def __init__(self, filters: Filters, group: str) -> None:
        self.filters = filters
        self.group = group

    def takes(self, data: bytes, start: int, stop: int) -> bool:
        origin = ""
        for entry in data[start:stop].split(b"\x02"):
            if entry.startswith(RETRY_TOPIC):
                origin = entry[len(RETRY_TOPIC) :].decode("utf-8", "replace")
        found = self.filters.find(origin, self.group)
        return found is None or found.filter is None or found.filter.takes(data, start, stop)


def properties_at(data: bytes, at: int) -> int:
    """Where the properties begin of the record that begins at `at`; they go up to its end. IndexError when it is none."""
    hosts = data[at + SYS_FLAG_AT + 3] & HOSTS_V6
    body_at = at + (FRONTS[hosts].size if hosts else BODY_AT)
    topic_at = body_at + int.from_bytes(data[body_at - 4 : body_at], "big")
    if data[at + 7] == MAGIC_LOW:
        return topic_at + 3 + data[topic_at]
    return topic_at + 4 + (data[topic_at] << 8 | data[topic_at + 1])
