"""Cutting many messages into batches that a broker takes.

A batch is of one topic and one way of waiting, without delays and transactions, and smaller than the largest message.
Upstream's broker counts what it stores, not what we send, so that is what is counted here: 91 bytes and the topic for
every message, and what the broker adds to its properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roquet.errors import InvalidMessage
from roquet.message import Message, Property
from roquet.wire.names import RETRY_PREFIX
from roquet.wire.record import encode_properties

MESSAGE_SIZE_MAX = 4 * 1024 * 1024
BATCH_MARGIN = 64 * 1024
BATCH_SIZE_MAX = MESSAGE_SIZE_MAX - BATCH_MARGIN

RECORD_SIZE = 91
ADDED_SIZE = 96
"""Room for UNIQ_KEY, which this client adds, and for CLUSTER, which the broker does."""


def stored_size(message: Message) -> int:
    """Not less than what the broker's record of this message will take. Raises InvalidMessage for properties that none can hold."""
    properties = len(encode_properties(message.properties).encode()) + 2 * bool(message.properties)
    return RECORD_SIZE + len(message.topic.encode()) + len(message.body) + properties + ADDED_SIZE


def check_batchable(message: Message) -> None:
    """Raises InvalidMessage for what no batch may hold."""
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"{message!r} is for a retry topic, which takes no batches; send it alone")
    if not message.properties:
        return
    for name in (Property.DELAY, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELIVER_MS):
        if message.properties.get(name, "0") != "0":
            raise InvalidMessage(f"{message!r} is delayed ({name}), which a batch cannot be; send it alone")
    if Property.TRANSACTION_PREPARED in message.properties:
        raise InvalidMessage(f"{message!r} is transactional, which a batch cannot be; send it alone")


def split_messages(messages: Iterable[Message], size_max: int = BATCH_SIZE_MAX) -> list[list[Message]]:
    """Batches in the order of their first message; messages of one topic keep their order.

    A message that is larger than `size_max` by itself makes a batch of one.
    """
    listed = list(messages)
    return [[listed[place] for place in places] for places in split_places(listed, size_max)]


def split_places(messages: Sequence[Message], size_max: int = BATCH_SIZE_MAX) -> list[list[int]]:
    """The same as indexes into `messages`."""
    batches: list[list[int]] = []
    open_batches: dict[tuple[str, bool], tuple[list[int], int]] = {}  # (topic, waits) -> (batch, size so far)
    for place, message in enumerate(messages):
        key = (message.topic, not message.properties or message.wait_store_ok)
        size = stored_size(message)
        batch, have = open_batches.get(key, ([], 0))
        if not batch or have + size > size_max:
            batch, have = [], 0
            batches.append(batch)
        batch.append(place)
        open_batches[key] = (batch, have + size)
    return batches
