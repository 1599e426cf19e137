"""What became of a message: the records of the trace topic that tell of it, joined.

`tell` is a function of records; `Traces` asks brokers for them, by the index of the trace topic's keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from roquet.admin.messages import FAR_FUTURE_MS, Messages, place_of
from roquet.errors import NoRoute, RoquetError
from roquet.wire.names import TRACE_TOPIC
from roquet.wire.trace import EndTransaction, Malformed, Pub, Recall, SubAfter, SubBefore, TraceRecord, decode


class NoTraceTopic(NoRoute):
    """Nobody has written traces there."""


@dataclass(frozen=True, slots=True)
class TracedSend:
    """A producer sent it. `client`: the host that wrote the trace."""

    group: str
    client: str
    time_ms: int
    cost_ms: int
    success: bool
    type: str
    """Normal, TransHalf, Delay."""
    store_host: str | None
    offset_message_id: str | None
    body_size: int
    region: str | None


@dataclass(frozen=True, slots=True)
class TracedDelivery:
    """A consumer was given it, and what it made of it."""

    group: str
    client: str
    attempt: int | None
    """1 the first time; None: its beginning was not traced."""
    begun_ms: int | None
    ended_ms: int | None
    """None: it runs still, or its end was not traced."""
    cost_ms: int | None
    success: bool | None
    outcome: str | None
    """SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL, FAILED."""
    request_id: str


@dataclass(frozen=True, slots=True)
class TracedEnd:
    """A producer told how its transaction ends."""

    group: str
    client: str
    time_ms: int
    state: str
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    from_check: bool
    """A broker had asked."""


@dataclass(frozen=True, slots=True)
class TracedRecall:
    """A timed message was cancelled, or could not be."""

    group: str
    client: str
    time_ms: int
    success: bool


@dataclass(slots=True)
class MessageTrace:
    """Everything that traces tell of one message, each list in the order of time. Times are the clients' own clocks."""

    message_id: str
    topic: str | None = None
    """None: its sending was not traced."""
    tags: str | None = None
    keys: str | None = None
    sends: list[TracedSend] = field(default_factory=list)
    ends: list[TracedEnd] = field(default_factory=list)
    recalls: list[TracedRecall] = field(default_factory=list)
    deliveries: list[TracedDelivery] = field(default_factory=list)

    @property
    def begun_ms(self) -> int:
        """When the first thing happened that is known of it."""
        times = [send.time_ms for send in self.sends] + [end.time_ms for end in self.ends] + [recall.time_ms for recall in self.recalls]
        times += [time for one in self.deliveries for time in (one.begun_ms, one.ended_ms) if time is not None]
        return min(times, default=0)


Carried = tuple[TraceRecord, str]
"""A record, and the host of the client that wrote it."""


def tell(carried: Iterable[Carried]) -> list[MessageTrace]:
    """A trace of each message that these records name, the oldest first. Records that stand twice count once."""
    found: dict[str, MessageTrace] = {}
    joined: dict[tuple[str, str], tuple[SubBefore | None, SubAfter | None, str]] = {}
    for record, host in dict(carried).items():
        client = getattr(record, "client_host", None) or host
        for message_id in record.unique_id.split(","):  # Java's record of a batch names all its messages
            trace = found.setdefault(message_id, MessageTrace(message_id))
            trace.keys = trace.keys or (None if isinstance(record, Recall) else record.keys)
            if isinstance(record, SubBefore):
                _, after, _ = joined.get((record.request_id, message_id), (None, None, ""))
                joined[record.request_id, message_id] = (record, after, client)
            elif isinstance(record, SubAfter):
                before, _, known = joined.get((record.request_id, message_id), (None, None, ""))
                joined[record.request_id, message_id] = (before, record, known or client)
            else:
                note(trace, record, client)
    for (request_id, message_id), (before, after, client) in joined.items():
        found[message_id].deliveries.append(delivery(request_id, before, after, client))
    for trace in found.values():
        for told in (trace.sends, trace.ends, trace.recalls):
            told.sort(key=lambda one: one.time_ms)
        trace.deliveries.sort(key=lambda one: (one.begun_ms or one.ended_ms or 0, one.attempt or 0))
    return sorted(found.values(), key=lambda trace: (trace.begun_ms, trace.message_id))


def note(trace: MessageTrace, record: Pub | EndTransaction | Recall, client: str) -> None:
    trace.topic = trace.topic or record.topic
    if isinstance(record, Recall):
        trace.recalls.append(TracedRecall(record.group, client, record.time_ms, record.success))
        return
    trace.tags = trace.tags or record.tags
    if isinstance(record, EndTransaction):
        trace.ends.append(TracedEnd(record.group, client, record.time_ms, record.transaction_state, record.from_check))
        return
    trace.sends.append(
        TracedSend(
            record.group, client, record.time_ms, record.cost_ms, record.success, record.type, record.store_host, record.message_id,
            record.body_size, record.region,
        )
    )  # fmt: skip


def delivery(request_id: str, before: SubBefore | None, after: SubAfter | None, client: str) -> TracedDelivery:
    group = (before.group if before is not None else None) or (after.group if after is not None else None) or ""
    begun_ms, attempt = (before.time_ms, before.retry_times + 1) if before is not None else (None, None)
    if after is None:
        return TracedDelivery(group, client, attempt, begun_ms, None, None, None, None, request_id)
    ended_ms = after.time_ms
    if not ended_ms and begun_ms is not None:  # clients before 4.9.5 do not say
        ended_ms = begun_ms + after.cost_ms
    return TracedDelivery(group, client, attempt, begun_ms, ended_ms, after.cost_ms, after.success, after.outcome, request_id)


class Traces(Messages):
    async def trace(
        self, id_or_key: str, *, topic: str = TRACE_TOPIC, count_max: int = 64, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
    ) -> list[MessageTrace]:
        """What traces tell of the message with this id (the producer's or the broker's), or of all messages with this key, oldest first.

        `topic`: where traces are; `count_max`: messages of traces that are read from each broker at most, the newest; the times: when the
        traces were stored. Raises NoTraceTopic.
        """
        try:
            found = await self._told(id_or_key, topic, count_max, begin_ms, end_ms)
            if not found:
                unique = await self._unique_id(id_or_key)
                found = await self._told(unique, topic, count_max, begin_ms, end_ms) if unique not in ("", id_or_key) else []
        except NoRoute as error:
            raise NoTraceTopic(f"there is no topic {topic!r}, so no client has written traces there") from error
        return found

    async def _told(self, key: str, topic: str, count_max: int, begin_ms: int, end_ms: int) -> list[MessageTrace]:
        carried: list[Carried] = []
        for message in await self.query_by_key(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms):
            host = message.born_host
            for record in decode(message.body):
                if not isinstance(record, Malformed) and is_of(record, key):
                    carried.append((record, host))
        traces = tell(carried)
        by_id = [trace for trace in traces if trace.message_id == key]
        return by_id or traces

    async def _unique_id(self, offset_message_id: str) -> str:
        """Of the message with this broker's id, if that is one and the message is there; else ""."""
        try:
            address, _ = place_of(offset_message_id)
            # An id names an address that we would connect to: only to brokers of this cluster.
            if address not in {broker.address for broker in await self.brokers()}:
                return ""
            return (await self.view_message(offset_message_id)).message_id
        except RoquetError:
            return ""


def is_of(record: TraceRecord, key: str) -> bool:
    if key in record.unique_id.split(","):
        return True
    keys = None if isinstance(record, Recall) else record.keys
    return keys is not None and key in keys.split()


__all__ = ["MessageTrace", "NoTraceTopic", "TracedDelivery", "TracedEnd", "TracedRecall", "TracedSend", "Traces", "tell"]
