"""A stored message that is put once more: delivered after its delay, committed, sent back. Read and staged without the steps between.

`take_apart` reads what a broker usually stores. Anything else it leaves to `Record.decode` and a draft, which take what they are given,
and which say what is wrong with it; for what it does read, both ways put the same bytes, and a test holds that. `take_many_apart` does it
for many, where the few properties that decide are asked for by name: most messages of a run agree in them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from roquet.broker.writer import Draft, StoredAt
from roquet.message import Property
from roquet.store.disk import Cold
from roquet.store.fanout import UNIQUE_KEY_BYTES, index_keys, is_indexed, queue_tag
from roquet.store.queue import ConsumeQueue
from roquet.store.records import LIKELY_SIZE
from roquet.store.staging import Staging
from roquet.store.store import Store
from roquet.store.window import LogWindow
from roquet.wire.layout import FRONT, HOSTS_V6, MAGIC_V1, PROPERTIES_MAX, RECORD_MIN, TOPIC_MAX_V1

BODY_AT = FRONT.size

END = 12
"""Bytes at the end of a record by which others like it are found."""
LIKE_MAX, LIKES_MAX = 1_024, 1_000
"""Bytes behind the body of a record for which others like it are looked for, and how many such are kept."""

Again = tuple[bytes, int, int, int, int, bytes, bytes]
"""A message that may be put once more: (its topic and the values of the properties that were asked for, a 2 before each and nothing for
one that it has not; bytes of its record; number in its queue; sys flag; reconsumed; properties; what it keeps, see `staging.Row`)."""


class Stored(NamedTuple):
    """A record of this broker's own form: short hosts and topic, properties that read and write as the same text."""

    topic: str
    body: bytes
    raw: bytes
    """Its properties."""
    text: str
    """The same."""
    properties: dict[str, str]
    """The same. Whoever has it may change it."""
    flag: int
    sys_flag: int
    queue_offset: int
    offset: int
    """In the log."""
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsumed: int

    def draft(self) -> Draft:
        """As `Draft.again` would make it: its topic and queue are the caller's to fill in."""
        return Draft(
            "", 0, self.body, self.properties, self.sys_flag, self.flag, self.born_ms, self.born_host, self.reconsumed, 0,
            self.store_host, True,
        )  # fmt: skip


def take_apart(record: bytes | memoryview, offset: int) -> Stored | None:
    """The whole record that should begin at this log offset. None: it is none, or an unusual one."""
    length = len(record)
    if length < RECORD_MIN:
        return None
    (
        size, magic, crc, _, flag, queue_offset, physical, sys_flag, born_ms, born_host, _, store_host, reconsumed, _, body_size,
    ) = FRONT.unpack_from(record)  # fmt: skip
    topic_at = BODY_AT + body_size
    if size != length or magic != MAGIC_V1 or physical != offset or sys_flag & HOSTS_V6 or not 0 <= body_size < length - BODY_AT - 2:
        return None
    topic_stop = topic_at + 1 + record[topic_at]
    begin = topic_stop + 2
    raw, body = bytes(record[begin:]), bytes(record[BODY_AT:topic_at])
    if begin > length or len(raw) != record[topic_stop] << 8 | record[topic_stop + 1] or len(raw) > PROPERTIES_MAX:
        return None
    if topic_stop - topic_at > 1 + TOPIC_MAX_V1 or crc32(body) & 0x7FFFFFFF != crc:
        return None
    try:
        text, topic = raw.decode(), bytes(record[topic_at + 1 : topic_stop]).decode()
    except UnicodeDecodeError:
        return None
    # They read and write as the same text: no name stands twice, no name and no value is empty, and no separator stands at the end.
    items = text.split("\x02") if text else []
    try:
        properties = dict([item.split("\x01", 1) for item in items])
    except ValueError:  # there is no value
        return None
    if len(properties) != len(items) or "" in properties or "" in properties.values() or "\0" in text:
        return None
    return Stored(
        topic, body, raw, text, properties, flag, sys_flag, queue_offset, offset, born_ms, born_host,
        store_host, reconsumed,
    )  # fmt: skip


class Like(NamedTuple):
    """What follows the body of a usual record. One that has the same there, but for its unique key, is usual too, as most are."""

    key: bytes
    """Of `Again`."""
    before: bytes
    unique_stop: int
    behind: bytes
    """What stands before and behind the value of the unique key, and where that ends."""
    raw_at: int
    size: int

    @classmethod
    def of(cls, again: Again, record: bytes, unique: str) -> Like | None:
        """None: it has no unique key, or one unlike those of clients, or others would hardly be found by their ends."""
        key, _, _, _, _, raw, kept = again
        value, rest = unique.encode(), record[len(kept) :]
        if not value.isalnum() or len(rest) > LIKE_MAX:
            return None
        raw_at = len(rest) - len(raw)
        at = raw_at + (b"\x02" + raw).index(b"\x02" + UNIQUE_KEY_BYTES) + len(UNIQUE_KEY_BYTES)
        stop = at + len(value)
        return cls(key, rest[:at], stop, rest[stop:], raw_at, len(rest)) if len(rest) - stop >= END else None

    def again(self, record: bytes, place: int) -> Again | None:
        """The record that should begin at this log offset, if it is like this one."""
        if len(record) < RECORD_MIN:
            return None
        size, magic, crc, _, _, queue_offset, physical, sys_flag, _, _, _, _, reconsumed, _, body_size = FRONT.unpack_from(record)
        if size != len(record) or magic != MAGIC_V1 or physical != place or sys_flag & HOSTS_V6 or body_size < 0:
            return None
        if size - body_size != BODY_AT + self.size:
            return None
        rest, kept = record[-self.size :], record[: -self.size]
        if (
            not rest.startswith(self.before) or not rest.endswith(self.behind) or not rest[len(self.before) : self.unique_stop].isalnum()
            or crc32(kept[BODY_AT:]) & 0x7FFFFFFF != crc
        ):  # fmt: skip
            return None
        return self.key, size, queue_offset, sys_flag, reconsumed, rest[self.raw_at :], kept


LIKES: dict[tuple[bytes, bytes], Like] = {}
"""By the names of the properties that were asked for, and the last bytes of such a record: there stands where it goes to."""


def take_many_apart(data: bytes | memoryview, start: int, places: list[int], names: bytes) -> list[Again]:
    """The records that begin at these log offsets, up to the first that is unusual or not wholly among these bytes of the log, which begin
    at `start`. `names`: of properties, a 2 between them."""
    texts = names.decode().split("\x02")
    nothing = [""] * len(texts)
    found: list[Again] = []
    for place in places:
        at = place - start
        size = int.from_bytes(data[at : at + 4], "big", signed=True) if at >= 0 else 0
        record = bytes(data[at : at + size]) if size > 0 else b""
        like = LIKES.get((names, record[-END:]))
        again = None if like is None else like.again(record, place)
        if again is None:
            message = take_apart(record, place)
            if message is None:
                break
            topic, body, raw, _, properties, _, sys_flag, queue_offset, _, _, _, _, reconsumed = message
            key = "\x02".join([topic, *map(properties.get, texts, nothing)]).encode()
            again = key, size, queue_offset, sys_flag, reconsumed, raw, record[: BODY_AT + len(body)]
            # One that was sent back has one more id of its own: no other is like it.
            alone = Property.UNIQUE_KEY in texts or Property.ORIGIN_MESSAGE_ID in properties
            like = None if alone else Like.of(again, record, properties.get(Property.UNIQUE_KEY, ""))
            if like is not None:
                if len(LIKES) >= LIKES_MAX:
                    LIKES.clear()
                LIKES[names, record[-END:]] = like
        found.append(again)
    return found


def apart_for(staging: Staging) -> Callable[[bytes | memoryview, int, list[int], bytes], list[Again]]:
    """`take_many_apart`, compiled where what is put is."""
    return take_many_apart if staging.native is None else staging.native.take_many_apart


def take_from_log(store: Store, window: LogWindow, places: list[int], names: bytes) -> list[Again]:
    """The same of the log, up to the first that is unusual or not in memory. One read where they stand near each other."""
    if not places:
        return []
    first, half = min(places), len(places) // 2
    stretch = window.stretch(first, max(places) + LIKELY_SIZE)
    if stretch is None and half:
        found = take_from_log(store, window, places[:half], names)
        return found if len(found) < half else found + take_from_log(store, window, places[half:], names)
    found = [] if stretch is None else apart_for(store.staging)(stretch, first, places, names)
    for place in islice(places, len(found), None):
        try:
            one = take_many_apart(store.raw_by(window.view, place), place, [place], names)
        except (Cold, LookupError):
            break
        if not one:
            break
        found += one
    return found


def put_again(staging: Staging, queue: ConsumeQueue, message: Stored, sys_flag: int, prepared: int = 0) -> StoredAt:
    """Stage it for this queue, with the properties that it has. It happens with the store's next commit."""
    text = message.text
    keys = index_keys(text) if is_indexed(sys_flag) else ()
    offset, queue_offset = staging.put_derived(
        queue, message.body, message.raw, queue_tag(queue.topic, text, staging.now_ms, staging.delays_ms), keys, sys_flag, message.flag,
        message.born_ms, message.born_host, message.reconsumed, prepared, message.store_host,
    )  # fmt: skip
    return StoredAt(queue_offset, offset)
