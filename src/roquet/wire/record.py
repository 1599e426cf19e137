"""The stored record: what a segment of the log holds, and what pulls and queries answer with.

     0      4       8      12     16     20             28                36     40
     +------+-------+------+------+------+--------------+-----------------+------+---------------+
     | size | magic | crc  | queue| flag | queue offset | physical offset | sys  | born time     |
     +------+-------+------+------+------+--------------+-----------------+------+---------------+
     | born host 8|20 | store time 8 | store host 8|20 | reconsumed 4 | prepared 8 | body 4+n     |
     +----------------+--------------+-----------------+--------------+------------+--------------+
     | topic 1+n (V1) or 2+n (V2) | properties 2+n |
     +----------------------------+----------------+

A host is an ip of 4 bytes (16 when sys says so, bits 4 and 5) and a port of 4. The crc is of the body, without its top
bit. A file that has no room for the next record ends with `size 4 | BLANK_MAGIC 4` and whatever follows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from roquet.errors import Damaged, InvalidMessage
from roquet.speedups import native
from roquet.wire.layout import (
    BLANK_MAGIC,
    BORN_HOST_V6,
    FRONTS,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_START,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX,
    QUEUE_OFFSET_AT,
    RECORD_MIN,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    TOPIC_MAX_V1,
    TOPIC_MAX_V2,
)


class BadRecord(Damaged):
    """Bytes that are no record. Says what does not fit; the caller adds which file or which peer."""


def body_crc(body: bytes) -> int:
    """As stored: CRC-32 without its top bit, since Java keeps it in a signed int."""
    return crc32(body) & 0x7FFFFFFF


@dataclass(slots=True)
class Record:
    """One message in the log. `properties` stay as stored, so that a record encodes to the bytes it came from."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    """BORN_HOST_V6 and STORE_HOST_V6 must agree with the lengths of the hosts; `encode` sets them."""
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_timestamp: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = MAGIC_V1

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = True) -> Record:
        """The record that begins at `at`; its size is `record.size`. Raises BadRecord, for a blank end too."""
        left = len(buffer) - at
        if at < 0 or left < RECORD_MIN:
            raise BadRecord(f"{left} bytes left at {at}, the smallest record has {RECORD_MIN}")
        v6 = int.from_bytes(buffer[at + SYS_FLAG_AT : at + SYS_FLAG_AT + 4], "big") & HOSTS_V6
        front = FRONTS[v6]
        if left < front.size:
            raise BadRecord(f"{left} bytes left at {at}, the front of an IPv6 record has {front.size}")
        (
            size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
            store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body_size,
        ) = front.unpack_from(buffer, at)  # fmt: skip
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            raise BadRecord(f"magic {magic:#x} at {at}, " + ("the blank end of a file" if magic == BLANK_MAGIC else "no record's"))
        if size > left:
            raise BadRecord(f"record at {at} says {size} bytes, {left} are left")
        end = at + size
        width = 1 if magic == MAGIC_V1 else 2
        body_at = at + front.size
        topic_at = body_at + body_size + width
        if body_size < 0 or topic_at + 2 > end:
            raise BadRecord(f"record of {size} bytes at {at} says a body of {body_size}")
        body = bytes(buffer[body_at : body_at + body_size])
        # Lengths are signed in Java, so the top bit of each is never set in a sound record.
        topic_size = int.from_bytes(buffer[topic_at - width : topic_at], "big", signed=True)
        properties_at = topic_at + topic_size + 2
        if topic_size < 0 or properties_at > end:
            raise BadRecord(f"record of {size} bytes at {at} says a topic of {topic_size}")
        properties_size = int.from_bytes(buffer[properties_at - 2 : properties_at], "big", signed=True)
        if properties_size < 0 or properties_at + properties_size != end:
            raise BadRecord(f"record of {size} bytes at {at} says properties of {properties_size}, {end - properties_at} are left for them")
        if check_crc and body_crc(body) != crc:
            raise BadRecord(f"record at {at}: the body's checksum is {body_crc(body)}, stored is {crc}")
        try:
            topic = str(buffer[topic_at : topic_at + topic_size], "utf-8")
        except UnicodeDecodeError:
            raise BadRecord(f"record at {at}: the topic is not UTF-8") from None
        return cls(
            topic, queue_id, body, bytes(buffer[properties_at:end]), flag, queue_offset, physical_offset, sys_flag, born_timestamp,
            born_host, store_timestamp, store_host, reconsume_times, prepared_transaction_offset, magic,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of the encoded record."""
        hosts = len(self.born_host) + len(self.store_host)
        width = 1 if self.magic == MAGIC_V1 else 2
        return 72 + hosts + len(self.body) + width + len(self.topic.encode()) + 2 + len(self.properties)

    def encode(self) -> bytes:
        """The bytes as stored. Raises ValueError for a value the layout has no room for."""
        topic = self.topic.encode()
        limit = TOPIC_MAX_V1 if self.magic == MAGIC_V1 else TOPIC_MAX_V2
        if len(topic) > limit:
            raise ValueError(f"topic of {len(topic)} bytes, limit is {limit}")
        if len(self.properties) > PROPERTIES_MAX:
            raise ValueError(f"properties of {len(self.properties)} bytes, limit is {PROPERTIES_MAX}")
        v6 = 0
        for host, flag in ((self.born_host, BORN_HOST_V6), (self.store_host, STORE_HOST_V6)):
            if len(host) == 20:
                v6 |= flag
            elif len(host) != 8:
                raise ValueError(f"host of {len(host)} bytes, expected 8 or 20: ip and port")
        width = 1 if self.magic == MAGIC_V1 else 2
        try:
            head = FRONTS[v6].pack(
                self.size, self.magic, body_crc(self.body), self.queue_id, self.flag, self.queue_offset, self.physical_offset,
                self.sys_flag & ~HOSTS_V6 | v6, self.born_timestamp, self.born_host, self.store_timestamp, self.store_host,
                self.reconsume_times, self.prepared_transaction_offset, len(self.body),
            )  # fmt: skip
        except struct.error as error:
            raise ValueError(f"a number of this record does not fit: {error}") from None
        return b"".join(
            (head, self.body, len(topic).to_bytes(width, "big"), topic, len(self.properties).to_bytes(2, "big"), self.properties)
        )


def decode_records(data: bytes, *, check_crc: bool = True) -> list[Record]:
    """Records one after another with nothing between, as pulls and queries answer. Raises BadRecord."""
    records: list[Record] = []
    at, end = 0, len(data)
    while at < end:
        records.append(Record.decode(data, at, check_crc=check_crc))
        at += int.from_bytes(data[at : at + 4], "big")
    return records


def decode_readable(data: bytes) -> tuple[list[Record], list[str]]:
    """The same, where one that cannot be read does not take the others with it: the records, and what is wrong with those left out.

    Behind one whose length lies the next is looked for by its magic number.
    """
    records: list[Record] = []
    troubles: list[str] = []
    at, end = 0, len(data)
    while at < end:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        try:
            records.append(Record.decode(data, at))
            at += size
        except BadRecord as error:
            number = int.from_bytes(data[at + QUEUE_OFFSET_AT : at + QUEUE_OFFSET_AT + 8], "big", signed=True)
            troubles.append(f"queue offset {number} (as it says itself), {error}")
            at = at + size if size >= RECORD_MIN and _begins(data, at + size) else _next_record(data, at + 1)
    return records, troubles


Cut = tuple[bytes, int, int]
"""(a record, its offset in the queue, bytes of its body)."""


def cut_records(data: bytes, topic: bytes, queue_id: int) -> list[Cut] | None:
    """The same for records of one queue, which are not read yet. None: one is not sound, or of another queue."""
    found: list[Cut] = []
    at, end = 0, len(data)
    while at < end:
        try:
            record = Record.decode(data, at)
        except BadRecord:
            return None
        if record.queue_id != queue_id or record.topic.encode() != topic:
            return None
        stop = at + int.from_bytes(data[at : at + 4], "big")
        found.append((data[at:stop], record.queue_offset, len(record.body)))
        at = stop
    return found


cut = cut_records if native is None else native.cut_records


def stored_body(record: bytes, size: int) -> tuple[bytes, int]:
    """The body, of so many bytes, of a record that is sound; and its sys flag."""
    sys_flag = int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big", signed=True)
    at = FRONTS[sys_flag & HOSTS_V6].size
    return record[at : at + size], sys_flag


def _begins(data: bytes, at: int) -> bool:
    """May a record begin here, or do they end here?"""
    return at == len(data) or int.from_bytes(data[at + MAGIC_AT : at + MAGIC_AT + 4], "big") in (MAGIC_V1, MAGIC_V2)


def _next_record(data: bytes, at: int) -> int:
    """Where the next one begins that is whole, the end when none is."""
    place = data.find(MAGIC_START, at + 4)
    while place >= 0:
        try:
            Record.decode(data, place - 4)
        except BadRecord:
            place = data.find(MAGIC_START, place + 1)
        else:
            return place - 4
    return len(data)


# ---- properties -------------------------------------------------------------------------------------------------------

NAME_VALUE = "\x01"
PROPERTY = "\x02"


def decode_properties(data: bytes | str) -> dict[str, str]:
    """name 0x01 value 0x02 name 0x01 value, with or without a 0x02 at the end. Never fails.

    As upstream reads: entries without a name or a value are dropped, of two with one name the later counts,
    bytes that are not UTF-8 become U+FFFD.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    properties: dict[str, str] = {}
    for entry in text.split(PROPERTY):
        name, _, value = entry.partition(NAME_VALUE)
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> str:
    """The text of a send's `properties` field; without 0x02 at the end, as 4.9.1 and later write. Empty values are left out.

    Raises InvalidMessage when a name or a value holds one of the two separators, or what no broker can store: a zero
    character, or half of a surrogate pair.
    """
    text = join_properties(properties)
    count = len(properties)
    if text.count(NAME_VALUE) != count or text.count(PROPERTY) != count - 1:  # an empty value was left out, or one of them holds more
        for name, value in properties.items():
            if NAME_VALUE in name or PROPERTY in name or PROPERTY in value or NAME_VALUE in value:
                raise InvalidMessage(f"property {name!r} holds the character 0x01 or 0x02, which separate properties; remove it")
    if "\0" in text or not (text.isascii() or is_unicode(text)):
        bad = next(name for name, value in properties.items() if "\0" in name + value or not is_unicode(name + value))
        raise InvalidMessage(
            f"property {bad!r} holds a zero character or half of a surrogate pair, which cannot be stored; remove it, or put it into "
            "the body"
        )
    return text


def join_properties(properties: Mapping[str, str]) -> str:
    """The same for properties that were stored before: whatever they hold stays as it is."""
    return PROPERTY.join([f"{name}{NAME_VALUE}{value}" for name, value in properties.items() if name and value])


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
