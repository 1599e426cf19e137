"""What a message is known by."""

from __future__ import annotations

from hashlib import blake2b
from json import dumps

from roquet.message import Property, ReceivedMessage


def business_key(message: ReceivedMessage) -> str:
    """Its keys, with topic and tag; of a message without keys its unique id.

    Two messages with the same keys are the same deed, whoever sent them and however often: a key must name one deed ("order-17 was paid")
    and not only a thing ("order-17"). Topic and tag belong to it, so that `created` and `paid` of one order are two deeds.
    """
    keys = message.keys
    return f"keys {dumps([message.topic, message.tags, *keys], ensure_ascii=False)}" if keys else message_key(message)


def message_key(message: ReceivedMessage) -> str:
    """The unique id that its producer gave it; of a message without one the id of its first record, which a retried one carries along."""
    properties = message.properties
    return properties.get(Property.UNIQUE_KEY) or properties.get(Property.ORIGIN_MESSAGE_ID) or message.offset_message_id


def digest(group: str, key: str) -> str:
    """32 characters for a key of any length, in which two keys never look alike to a database that ignores case or accents."""
    return blake2b(f"{group}\0{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def shown(key: str, length_max: int) -> str:
    """The key as every database can keep it for people to read, whatever its character set is."""
    text = "".join(char if char.isprintable() else "?" for char in key[:length_max])
    return text.encode("ascii", "backslashreplace").decode()[:length_max]
