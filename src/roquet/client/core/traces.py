"""What a client tells of its messages, by upstream's rules: events of middleware -> records -> messages of the trace topic.

    send           Pub, when the broker answered it (TRACE_ON is not "false"), and when it failed; not when it is oneway
    consume        SubBefore and SubAfter for each message without the property TRACE_ON=false, joined by a request id
    transaction    EndTransaction, when a broker was told

Nothing is told of the trace topic itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from roquet.client.core.transactions import TransactionState
from roquet.errors import InvalidMessage, NotStarted, RoquetError
from roquet.message import Message, Property
from roquet.wire.trace import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord, index_keys

if TYPE_CHECKING:
    from roquet.client.core.events import ConsumeEvent, SendEvent, TransactionEvent
    from roquet.message import ReceivedMessage

DEFAULT_REGION = "DefaultRegion"
"""Where a broker did not say, as upstream has it."""
BODY_MAX = 118_000
"""Bytes of one message of traces: upstream's 128,000, less its reserve."""
KEYS_MAX = 1_500
KEYS_BYTES = 24_000
"""Of one message of traces: brokers take properties of 32,767 bytes, and ours index 2,048 words."""
KEY_MAX = 1_000
"""Characters of a key by which records are found; such with control characters, which no property may hold, are left out too."""

TYPES = {"half": "TransHalf", "delay": "Delay", "timed": "Delay"}
"""By the kind of a send; all others are Normal. 5.x knows Order too, on which tools of 4.9 fail."""
STATES = {TransactionState.COMMIT: "COMMIT_MESSAGE", TransactionState.ROLLBACK: "ROLLBACK_MESSAGE", TransactionState.UNKNOWN: "UNKNOW"}
NEVER_SENT = (InvalidMessage, NotStarted)
"""With these errors nothing went to any broker."""


def of_send(event: SendEvent) -> Pub | None:
    """None: nothing is told of it."""
    receipt, message = event.receipt, event.message
    if receipt is None:
        if not isinstance(event.error, RoquetError) or isinstance(event.error, NEVER_SENT):
            return None
    elif not receipt.trace_on:
        return None
    properties = message.properties
    return Pub(
        event.begun_ms,
        (receipt.region if receipt is not None else None) or DEFAULT_REGION,
        event.group,
        event.topic,
        event.message_id,
        properties.get(Property.TAGS),
        properties.get(Property.KEYS),
        event.broker_address or None,
        len(message.body),
        event.duration_ms,
        TYPES.get(event.kind, "Normal"),
        None if receipt is None else receipt.offset_message_id,
        receipt is not None and receipt.ok,
    )


def of_beginning(event: ConsumeEvent, request_id: str) -> list[SubBefore]:
    return [
        SubBefore(
            event.begun_ms,
            message.properties.get(Property.MSG_REGION),
            event.group,
            request_id,
            message.message_id,
            message.reconsume_times,
            message.properties.get(Property.KEYS),
        )
        for message in traced(event)
    ]


def of_end(event: ConsumeEvent, request_id: str, timeout_ms: int) -> list[SubAfter]:
    """`timeout_ms`: from which on upstream calls consuming timed out."""
    failed = {id(message) for message in event.failed}
    share_ms = event.duration_ms // max(1, len(event.messages))
    return [
        SubAfter(
            request_id,
            message.message_id,
            share_ms,
            id(message) not in failed,
            message.properties.get(Property.KEYS),
            outcome(event, id(message) in failed, timeout_ms),
            event.begun_ms + event.duration_ms,
            event.group,
        )
        for message in traced(event)
    ]


def outcome(event: ConsumeEvent, failed: bool, timeout_ms: int) -> str:
    """In upstream's order."""
    if event.error is not None:
        return "EXCEPTION"
    if event.duration_ms >= timeout_ms:
        return "TIME_OUT"
    return "FAILED" if failed else "SUCCESS"


def traced(event: ConsumeEvent) -> list[ReceivedMessage]:
    return [message for message in event.messages if message.properties.get(Property.TRACE_ON) != "false"]


def of_transaction(event: TransactionEvent) -> EndTransaction | None:
    """None: the broker was not told."""
    if event.error is not None:
        return None
    properties = event.message.properties
    return EndTransaction(
        event.begun_ms,
        properties.get(Property.MSG_REGION) or DEFAULT_REGION,
        event.group,
        event.topic,
        event.message_id,
        properties.get(Property.TAGS),
        properties.get(Property.KEYS),
        event.broker_address or None,
        "TransCommit",
        event.transaction_id,
        STATES[event.state],
        event.from_check,
    )


class TraceMessage(NamedTuple):
    """One for the trace topic, and how many records are in it."""

    message: Message
    records: int


def messages_of(records: Iterable[TraceRecord], topic: str) -> Iterator[TraceMessage]:
    """The records, in their order, in messages as large as they may be. Each is found by the ids and keys of all its records."""
    lines: list[bytes] = []
    keys: dict[str, None] = {}
    size = keys_size = 0
    for record in records:
        line, own = record.encode().encode("utf-8", "replace"), usable_keys(record)
        own_size = size_of([key for key in own if key not in keys])
        if lines and (size + len(line) > BODY_MAX or keys_size + own_size > KEYS_BYTES or len(keys) + len(own) > KEYS_MAX):
            yield trace_message(topic, lines, keys)
            lines, keys, size, keys_size = [], {}, 0, 0
            own_size = size_of(own)
        lines.append(line)
        keys.update(dict.fromkeys(own))
        size, keys_size = size + len(line), keys_size + own_size
    if lines:
        yield trace_message(topic, lines, keys)


def usable_keys(record: TraceRecord) -> list[str]:
    """Its keys; of very many the first ones, which a message has room for."""
    keys = index_keys(record)
    text = " ".join(keys)
    if len(text) <= KEY_MAX and text.isprintable():  # nearly always
        return keys
    keys = [key for key in keys if len(key) <= KEY_MAX and key.isprintable()]
    sizes = accumulate(len(key.encode()) + 1 for key in keys)
    return [key for key, size in zip(keys[:KEYS_MAX], sizes, strict=False) if size <= KEYS_BYTES]


def size_of(keys: list[str]) -> int:
    """Bytes of them with a blank behind each."""
    text = " ".join(keys)
    return len(text) + 1 if text.isascii() else len(text.encode()) + 1


def trace_message(topic: str, lines: list[bytes], keys: dict[str, None]) -> TraceMessage:
    return TraceMessage(Message(topic, b"".join(lines), keys=" ".join(keys)), len(lines))
