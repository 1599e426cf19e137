"""How a received message is shown: as JSON, as one line, and in full."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from roquet.cli.render import moment, printable
from roquet.errors import RoquetError
from roquet.message import Property

if TYPE_CHECKING:
    from roquet.message import ReceivedMessage

BODY_SHOWN_MAX = 2_000


def as_json(message: ReceivedMessage) -> dict[str, Any]:
    """`body` when it is text, else `bodyBase64`."""
    shown: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
    }
    try:
        body = message.body
    except RoquetError as error:
        return shown | {"bodyError": str(error)}
    try:
        return shown | {"body": body.decode()}
    except UnicodeDecodeError:
        return shown | {"bodyBase64": base64.b64encode(body).decode()}


def body_text(message: ReceivedMessage, limit: int = BODY_SHOWN_MAX) -> str:
    """Text on one line, without control characters; of bytes that are not text, how many there are."""
    try:
        body = message.body
        text = body.decode()
    except UnicodeDecodeError:
        return f"<{len(message.body):,} bytes>"
    except RoquetError as error:
        return f"<{error}>"
    shown = printable(text[:limit])
    return shown if len(text) <= limit else f"{shown}... ({len(body):,} bytes)"


def one_line(message: ReceivedMessage) -> str:
    where = f"{message.queue.broker_name}:{message.queue_id} @{message.queue_offset}"
    extra = f" [{printable(message.tags)}]" if message.tags else ""
    extra += f" ({printable(' '.join(message.keys))})" if message.keys else ""
    return f"{moment(message.store_timestamp)}  {where}{extra}  {body_text(message)}"


def describe(message: ReceivedMessage) -> str:
    """Everything about it, one line each."""
    lines = [
        ("topic", message.topic),
        ("queue", f"{message.queue.broker_name or message.store_host} {message.queue_id} @{message.queue_offset}"),
        ("message id", message.message_id),
        ("offset id", message.offset_message_id),
        ("tags", message.tags or "-"),
        ("keys", " ".join(message.keys) or "-"),
        ("born", f"{moment(message.born_timestamp)} at {message.born_host}"),
        ("stored", f"{moment(message.store_timestamp)} at {message.store_host}"),
        ("attempts before", str(message.reconsume_times)),
    ]
    own = {name: value for name, value in message.properties.items() if name not in (Property.TAGS, Property.KEYS, Property.UNIQUE_KEY)}
    lines += [("property", f"{name} = {value}") for name, value in sorted(own.items())]
    lines.append(("body", body_text(message)))
    return "\n".join(f"{name:<16} {printable(value)}" for name, value in lines)
