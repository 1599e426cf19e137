"""The properties of timed messages: what a producer asks for, and what the broker notes for itself."""

from __future__ import annotations

import base64
import binascii

from roquet.errors import Refused
from roquet.message import Property
from roquet.store.storable import check_place
from roquet.wire.codes import ResponseCode
from roquet.wire.names import check_topic

DELAYS = ((Property.TIMER_DELAY_SEC, 1_000), (Property.TIMER_DELAY_MS, 1))
MOMENTS = (Property.TIMER_DELIVER_MS, Property.START_DELIVER_TIME)
CANCEL = Property.TIMER_CANCELLED_KEY
ASKING = frozenset((*(name for name, _ in DELAYS), *MOMENTS, CANCEL))
"""The properties served here."""

REAL_TOPIC, REAL_QUEUE, DUE = Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.TIMER_OUT_MS
MOVES = Property.TIMER_ROLL_TIMES


def due_of(properties: dict[str, str], now_ms: int) -> int:
    """When the message is to be delivered; 0 for at once. Raises Refused for what is no number."""
    for name, unit in DELAYS:
        if properties.get(name):
            return now_ms + number_of(properties, name) * unit
    for name in MOMENTS:
        if properties.get(name):
            return number_of(properties, name)
    return 0


def number_of(properties: dict[str, str], name: str) -> int:
    text = properties[name].strip()
    if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 19:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {name}={text[:40]!r} is not a number of at most 19 digits")
    return int(text)


def read_handle(text: str) -> tuple[str, str]:
    """(topic or "", message id) of a recall handle of 5.x, or of a bare message id. Raises Refused."""
    if not text or len(text) > 1_024:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"recall failed, recallHandle has {len(text)} characters, expected 1 to 1024")
    try:
        parts = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
    except (binascii.Error, UnicodeError):
        parts = []
    if len(parts) == 5 and parts[0] == "v1":
        return parts[1], parts[4]
    if not text.isprintable() or " " in text:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"recall failed, handle is invalid: {text[:80]!r}")
    return "", text


def unwrap(properties: str) -> tuple[str, int, str]:
    """(real topic, real queue, properties as delivered) of a timer's properties. Raises Refused for a place that cannot be."""
    topic, queue = "", "0"
    kept: list[str] = []
    for item in properties.split("\x02"):
        name, _, value = item.partition("\x01")
        if name == REAL_TOPIC:
            topic = value
        elif name == REAL_QUEUE:
            queue = value
        elif name != MOVES:
            kept.append(item)
    check_topic(topic)
    queue_id = int(queue) if queue.isascii() and queue.isdigit() and len(queue) < 10 else 0
    check_place(topic, queue_id)
    return topic, queue_id, "\x02".join(kept)
