"""What the log can give back after a restart. Everything that puts a message is held to it, whatever way the message came.

The log's checksum covers the body alone. A torn write leaves zeros, so recovery takes a record with a zero in its topic or its
properties for damaged, and one that is not UTF-8 too (`scan.parse`): neither may ever be stored. Other limits are the layout's: lengths
that fit their fields, one record in one file, a queue id and hosts that a record can hold.
"""

from __future__ import annotations

from roquet.errors import Unstorable
from roquet.store.scan import TOPIC
from roquet.store.texts import is_text
from roquet.wire.layout import PROPERTIES_MAX, QUEUE_ID_MAX, TOPIC_MAX_V1


def check_properties(properties: bytes) -> None:
    """Raises Unstorable. `Store.put_derived` spells its first half out, for properties that were text: sends come by there."""
    if len(properties) > PROPERTIES_MAX or not is_text(properties):
        raise unstorable(properties)


def unstorable(properties: bytes) -> Unstorable:
    """What is wrong with these properties."""
    if len(properties) > PROPERTIES_MAX:
        return Unstorable(f"maybe msg properties length {len(properties)} exceeds the limit of {PROPERTIES_MAX} bytes.")
    at = properties.find(b"\0")
    if at >= 0:
        begin = properties.rfind(b"\x02", 0, at) + 1
        where = properties[begin : begin + 80].decode(errors="replace")
        return Unstorable(f"its properties contain a zero character, in {where!r}: remove it")
    return Unstorable("its properties are not UTF-8")


def check_place(topic: str, queue_id: int) -> None:
    """Raises Unstorable for a topic or a queue that no record can name, or whose name leads out of the directory of queues."""
    if len(topic) > TOPIC_MAX_V1 or not TOPIC.fullmatch(topic.encode(errors="replace")):
        raise Unstorable(f"no message can be stored for topic {topic[:40]!r}: 1 to {TOPIC_MAX_V1} letters, digits and signs but /")
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise Unstorable(f"no message can be stored for queue {queue_id} of {topic}: 0 to {QUEUE_ID_MAX} are allowed")
