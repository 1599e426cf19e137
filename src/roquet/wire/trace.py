"""Message traces: what clients tell of each message in the trace topic, as bytes and back.

A payload is a row of records. Each ends with 0x02, its fields are separated by 0x01 (seen: rocketmq-client 4.9.8 and 5.5.0, Go 2.1.2):

    Pub             time region group topic id tags keys storeHost bodySize cost type [offsetId] success [clientHost]
    SubBefore       time region group requestId id retryTimes keys [clientHost]
    SubAfter        requestId id cost success keys [outcome [time [group]]]
    EndTransaction  time region group topic id tags keys storeHost type transactionId state fromCheck
    Recall          time region group topic id success                                      (5.x)

Java writes what is absent (a tag, a key, the region) as "null", and Go as nothing. Java's Pub of a batch names all its ids, with
commas between. `LAYOUTS` is the table of it, for `decode` here and for the columns that Spark reads (`spark/pipelines/trace_records.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

RECORD_END, FIELD_END = "\x02", "\x01"
NULL = "null"
"""How Java writes a text that is absent."""

TYPES = ("Normal", "TransHalf", "TransCommit", "Delay", "Order")
"""Upstream's MessageType, in its order. Order is 5.x only."""
OUTCOMES = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")
"""Upstream's ConsumeReturnType, in its order."""
STATES = ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")
"""Upstream's LocalTransactionState; the last is spelled so there."""
ORDINALS = {"type": TYPES, "outcome": OUTCOMES}
"""Fields that are written as the place of a name in its list."""

LAYOUTS: dict[tuple[str, int], str] = {
    ("Pub", 13): "time_ms region group topic unique_id tags keys store_host body_size cost_ms type success",
    ("Pub", 14): "time_ms region group topic unique_id tags keys store_host body_size cost_ms type message_id success client_host",
    ("SubBefore", 8): "time_ms region group request_id unique_id retry_times keys client_host",
    ("SubAfter", 6): "request_id unique_id cost_ms success keys outcome time_ms group",
    ("EndTransaction", 13): "time_ms region group topic unique_id tags keys store_host type transaction_id transaction_state from_check",
    ("Recall", 7): "time_ms region group topic unique_id success",
}
"""The fields behind the kind's name, in their order, of a record with at least so many fields, its kind included.

Further fields are optional; those that no layout names are of a later version and passed over, as upstream does.
"""
MAY_BE_EMPTY = frozenset({"time_ms", "outcome", "group"})
"""Of SubAfter: written only since 4.9.5, and not through Aliyun's channel."""
MAY_BE_NULL = frozenset({"region", "tags", "keys", "store_host", "message_id"})
"""Texts that Java may not have, and then writes as "null"."""
TIME_MAX_MS = 1 << 52
INT_MAX = 0x7FFFFFFF
LIMITS = {"time_ms": TIME_MAX_MS, "cost_ms": 10**18, "body_size": INT_MAX, "retry_times": INT_MAX}
"""Numbers, and how large they may be."""
FLAGS = frozenset({"success", "from_check"})
SHOWN_MAX = 200
"""Characters of a malformed record that are kept."""
NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


# Not to be changed once they are made. Not frozen, which would make them four times as slow: a client that traces makes three a message.


@dataclass(slots=True, unsafe_hash=True)
class Pub:
    """A message was sent and the broker answered. `time_ms`: when the send began."""

    kind: ClassVar[str] = "Pub"
    time_ms: int
    region: str | None
    group: str
    topic: str
    unique_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    body_size: int
    cost_ms: int
    type: str = "Normal"
    message_id: str | None = None
    success: bool = True
    client_host: str | None = None
    """Where the client says so; Java's do not."""

    def encode(self) -> str:
        """With 14 fields, as 4.9.8 and 5.5.0 write it; a client host is one more."""
        host = "" if self.client_host is None else FIELD_END + self.client_host
        return ended(
            f"Pub\1{self.time_ms}\1{text(self.region)}\1{self.group}\1{self.topic}\1{self.unique_id}\1{text(self.tags)}\1{text(self.keys)}\1"
            f"{text(self.store_host)}\1{self.body_size}\1{self.cost_ms}\1{TYPES.index(self.type)}\1{text(self.message_id)}\1"
            f"{flag(self.success)}{host}",
            self,
            14 if self.client_host is None else 15,
        )


@dataclass(slots=True, unsafe_hash=True)
class SubBefore:
    """A consumer was given a message. `request_id` joins it with its SubAfter."""

    kind: ClassVar[str] = "SubBefore"
    time_ms: int
    region: str | None
    group: str
    request_id: str
    unique_id: str
    retry_times: int
    keys: str | None
    client_host: str | None = None

    def encode(self) -> str:
        # Java's own reader fails on keys that are empty here: its split drops empty fields at the end.
        host = "" if self.client_host is None else FIELD_END + self.client_host
        return ended(
            f"SubBefore\1{self.time_ms}\1{text(self.region)}\1{self.group}\1{self.request_id}\1{self.unique_id}\1{self.retry_times}\1"
            f"{text(self.keys or None)}{host}",
            self,
            8 if self.client_host is None else 9,
        )


@dataclass(slots=True, unsafe_hash=True)
class SubAfter:
    """A consumer is done with a message. `cost_ms` is a message's share of the batch it was consumed in; `time_ms`: when it ended."""

    kind: ClassVar[str] = "SubAfter"
    request_id: str
    unique_id: str
    cost_ms: int
    success: bool
    keys: str | None
    outcome: str | None = None
    time_ms: int | None = None
    group: str | None = None

    def encode(self) -> str:
        """With 9 fields, as clients write it whose traces stay in their own cluster."""
        return ended(
            f"SubAfter\1{self.request_id}\1{self.unique_id}\1{self.cost_ms}\1{flag(self.success)}\1{text(self.keys)}\1"
            f"{OUTCOMES.index(self.outcome or OUTCOMES[0])}\1{self.time_ms or 0}\1{text(self.group)}",
            self,
            9,
        )


@dataclass(slots=True, unsafe_hash=True)
class EndTransaction:
    """A producer told the broker how a transaction ends, by itself or because the broker asked (`from_check`)."""

    kind: ClassVar[str] = "EndTransaction"
    time_ms: int
    region: str | None
    group: str
    topic: str
    unique_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    type: str
    transaction_id: str
    transaction_state: str
    from_check: bool

    def encode(self) -> str:
        return ended(
            f"EndTransaction\1{self.time_ms}\1{text(self.region)}\1{self.group}\1{self.topic}\1{self.unique_id}\1{text(self.tags)}\1"
            f"{text(self.keys)}\1{text(self.store_host)}\1{TYPES.index(self.type)}\1{self.transaction_id}\1{self.transaction_state}\1"
            f"{flag(self.from_check)}",
            self,
            13,
        )


@dataclass(slots=True, unsafe_hash=True)
class Recall:
    """A timed message was taken back."""

    kind: ClassVar[str] = "Recall"
    time_ms: int
    region: str | None
    group: str
    topic: str
    unique_id: str
    success: bool

    def encode(self) -> str:
        return ended(
            f"Recall\1{self.time_ms}\1{text(self.region)}\1{self.group}\1{self.topic}\1{self.unique_id}\1{flag(self.success)}", self, 7
        )


@dataclass(slots=True, unsafe_hash=True)
class Malformed:
    """What stands where a record should, and cannot be read: why, and its beginning."""

    kind: ClassVar[str] = "malformed"
    problem: str


TraceRecord: TypeAlias = Pub | SubBefore | SubAfter | EndTransaction | Recall
KINDS: dict[str, Callable[..., TraceRecord]] = {one.kind: one for one in (Pub, SubBefore, SubAfter, EndTransaction, Recall)}


def index_keys(record: TraceRecord) -> list[str]:
    """Under which its payload is found: the message's ids and each of its keys."""
    ids = [one for one in record.unique_id.split(",") if one] if "," in record.unique_id else [record.unique_id]
    keys = None if isinstance(record, Recall) else record.keys
    return ids + keys.split() if keys else ids


def decode(payload: bytes) -> list[TraceRecord | Malformed]:
    """Every record in its order. What is no record becomes a `Malformed` and harms no other."""
    lines = payload.decode("utf-8", "replace").split(RECORD_END)
    return [decode_record(line) for line in lines if line]


def decode_record(line: str) -> TraceRecord | Malformed:
    kind, *found = line.split(FIELD_END)
    layout = next((names for (name, least), names in LONGEST_FIRST if name == kind and len(found) + 1 >= least), None)
    if layout is None:
        return malformed(line, "unknown kind or too few fields")
    values: dict[str, Any] = {}
    for name, field in zip(layout, found, strict=False):
        try:
            values[name] = read(kind, name, field)
        except ValueError:
            return malformed(line, f"a field of {kind} is not the number it should be")
    return KINDS[kind](**values)


LONGEST_FIRST = [(key, layout.split()) for key, layout in sorted(LAYOUTS.items(), reverse=True)]


def read(kind: str, name: str, field: str) -> Any:
    """Raises ValueError."""
    if name in MAY_BE_EMPTY and kind == SubAfter.kind and not field:
        return None
    if name in MAY_BE_NULL:
        return None if field == NULL else field
    if name in FLAGS:
        return field.lower() == "true"  # upstream: whatever is not true is false
    if name not in LIMITS and name not in ORDINALS:
        return field
    if not NUMBER.fullmatch(field):
        raise ValueError(field)
    number = int(field)
    if name in ORDINALS:
        names = ORDINALS[name]
        if not 0 <= number < len(names):
            raise ValueError(field)
        return names[number]
    if abs(number) > LIMITS[name]:
        raise ValueError(field)
    return number


def malformed(line: str, why: str) -> Malformed:
    return Malformed(f"{why}: {line[:SHOWN_MAX].replace(FIELD_END, ' ')}")


# Writing


def text(value: str | None) -> str:
    return NULL if value is None else value


def flag(value: bool) -> str:
    return "true" if value else "false"


def ended(line: str, record: Any, count: int) -> str:
    """The record with its end. Separators inside a text become blanks: one odd text must not harm its neighbours."""
    if line.count(FIELD_END) == count - 1 and RECORD_END not in line:
        return line + RECORD_END
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    clean = {name: SEPARATORS.sub(" ", value) if isinstance(value, str) else value for name, value in values.items()}
    return str(type(record)(**clean).encode())


SEPARATORS = re.compile("[\x01\x02]")
