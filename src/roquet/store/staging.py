"""Messages on their way into the log: records at their places, entries of their queues, keys for the index. All of it is in memory, and
happens with the next commit or, undone, not at all.

Three ways lead here, for one message, some, and many as columns; `pack`, `store.batch` and `store.alike` spell one record. A log may
want room before each record (`Log.lead`): the record's place is behind it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from zlib import crc32

from roquet.errors import StoreUnavailable
from roquet.speedups import native
from roquet.store.alike import Alike
from roquet.store.batch import Batch, Longs, Portion
from roquet.store.fanout import KEYS_BYTES, TRANSACTION_MASK, UNIQUE_KEY_BYTES, index_keys, is_indexed, is_queued, queue_tag
from roquet.store.index import KeyIndex
from roquet.store.log import Log
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.store.storable import unstorable
from roquet.store.texts import is_text
from roquet.wire.layout import (
    BORN_HOST_V6,
    ENTRY,
    FRONT,
    FRONTS,
    FRONTS_ALIKE,
    HOST,
    HOST_V6,
    HOSTS_V6,
    MAGIC_V1,
    PROPERTIES_MAX,
    RECORD_FIXED,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    alike,
    place,
)

Staged = tuple[ConsumeQueue, int, int, int]
"""(queue, its `next` before and after, the log's end after): what one put changed."""

BatchedMessage = tuple[int, bytes, bytes, int, Iterable[str]]
"""(flag, body, properties, tag hash, keys) of a message in a batch."""

Row = tuple[ConsumeQueue, bytes, int | None, int, int, int, bytes]
"""(queue, properties, the entry's third number or None for the tag's hash, sys flag, reconsumed, prepared, what it keeps) of a message.

What it keeps stands as in a record, from its beginning to the end of its body; of the front flag, born time and hosts count."""


Send = tuple[ConsumeQueue, bytes, bytes, int, Sequence[str], int, int, int]
"""(queue, body, properties, tag hash, keys, sys flag, flag, born time) of a message that was not consumed before and is no part of a
transaction."""

KEPT_FRONT = struct.Struct(">iIii4sqqi16sq8siqi")
"""layout.FRONT, with what a row keeps as it stands there: these three."""
FLAG = slice(place("flag"), place("queue_offset"))
BORN = slice(place("born_ms"), place("store_ms"))
STORE_HOST = slice(place("store_host"), place("reconsumed"))


def pack(
    staged: list[bytes], queue: ConsumeQueue, offset: int, queue_offset: int, size: int, front: struct.Struct, body: bytes,
    properties: bytes, flag: int, sys_flag: int, born_ms: int, born_host: bytes, store_ms: int, store_host: bytes, reconsumed: int,
    prepared: int,
) -> None:  # fmt: skip
    """One record, which will stand at `offset`, behind what is staged."""
    staged += (
        front.pack(
            size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, queue_offset, offset, sys_flag,
            born_ms, born_host, store_ms, store_host, reconsumed, prepared, len(body),
        ),
        body,
        b"%b%b%b" % (queue.topic_field, len(properties).to_bytes(2, "big"), properties),
    )  # fmt: skip


class Staging:
    """State: `staged` is what each put changed since the last commit."""

    def __init__(
        self, log: Log, index: KeyIndex, delays_ms: Sequence[int], now_ms: int, cannot_roll: Callable[[OSError], StoreUnavailable]
    ) -> None:
        """`cannot_roll`: told that no new log file could be made; what it returns is raised."""
        self.log = log
        self.index = index
        self.delays_ms = delays_ms
        self.cannot_roll = cannot_roll
        self.now_ms = now_ms
        """Wall time of this tick: the store time of its messages."""
        self.store_host = bytes(HOST)
        self.staged: list[Staged] = []
        self._lead = len(log.lead)
        self.native = native

    def put(
        self,
        queue: ConsumeQueue,
        body: bytes,
        properties: str,
        *,
        sys_flag: int,
        flag: int,
        born_ms: int,
        born_host: bytes,
        reconsumed: int = 0,
        prepared: int = 0,
        store_host: bytes | None = None,
    ) -> tuple[int, int]:
        """Stage one message; returns (log offset, queue offset). It happens with the next `commit`."""
        tag = queue_tag(queue.topic, properties, self.now_ms, self.delays_ms)
        keys = index_keys(properties) if is_indexed(sys_flag) else ()
        return self.put_derived(
            queue, body, properties.encode(), tag, keys, sys_flag, flag, born_ms, born_host, reconsumed, prepared, store_host
        )

    def put_derived(
        self,
        queue: ConsumeQueue,
        body: bytes,
        properties: bytes,
        tag: int,
        keys: Iterable[str],
        sys_flag: int,
        flag: int,
        born_ms: int,
        born_host: bytes,
        reconsumed: int = 0,
        prepared: int = 0,
        store_host: bytes | None = None,
    ) -> tuple[int, int]:
        """The same, where the caller has the tag and the keys already, as `fanout` would find them: the send path does."""
        if store_host is None:
            store_host = self.store_host
        front, size = FRONT, RECORD_FIXED + len(body) + len(queue.topic_field) + len(properties)
        if len(born_host) != HOST or len(store_host) != HOST:
            hosts = (BORN_HOST_V6 if len(born_host) == HOST_V6 else 0) | (STORE_HOST_V6 if len(store_host) == HOST_V6 else 0)
            front = FRONTS[hosts]
            size += front.size - FRONT.size
            sys_flag |= hosts
        if 0 in properties or len(properties) > PROPERTIES_MAX:
            raise unstorable(properties)
        log, now_ms, lead = self.log, self.now_ms, self._lead
        try:
            offset = log.reserve(size + lead) + lead
        except OSError as error:
            raise self.cannot_roll(error) from error
        queued = not sys_flag & TRANSACTION_MASK or is_queued(sys_flag)
        queue_offset = queue.next if queued else 0
        try:
            if lead:
                log.staged.append(log.lead)
            pack(
                log.staged, queue, offset, queue_offset, size, front, body, properties, flag, sys_flag, born_ms, born_host, now_ms,
                store_host, reconsumed, prepared,
            )  # fmt: skip
        except (struct.error, OverflowError):
            log.rollback(offset - lead)  # a number that no record can hold; callers check, but a hole would end the log for every reader
            raise
        if queued:
            after = queue_offset + 1
            self.staged.append((queue, queue_offset, after, offset + size))  # first: what follows can be undone from here on
            queue.tail += ENTRY.pack(offset, size, tag)
            queue.next = after
        for key in keys:
            if key:
                self.index.pending.append((queue.topic, key, offset, now_ms))
        return offset, queue_offset

    def put_sends(self, sends: Iterable[Send], born_host: bytes) -> list[tuple[int, int]]:
        """`put_derived` of each, up to the first for which the present file of the log has no room, or that cannot be stored; returns
        (log offset, queue offset) of those that were put."""
        log, store_host, now_ms, lead, pending = self.log, self.store_host, self.now_ms, self._lead, self.index.pending
        hosts = (BORN_HOST_V6 if len(born_host) == HOST_V6 else 0) | (STORE_HOST_V6 if len(store_host) == HOST_V6 else 0)
        front, entry, common = FRONTS_ALIKE[hosts].pack, ENTRY.pack, alike(born_host, now_ms, store_host)
        fixed, pieces, staged, end = RECORD_FIXED + FRONTS[hosts].size - FRONT.size, log.staged, self.staged, log.end
        stop = end + log.room
        placed: list[tuple[int, int]] = []
        for queue, body, properties, tag, keys, sys_flag, flag, born_ms in sends:
            topic_field, properties_size, queue_offset = queue.topic_field, len(properties), queue.next
            offset = end + lead
            size = fixed + len(body) + len(topic_field) + properties_size
            if offset + size > stop or properties_size > PROPERTIES_MAX or 0 in properties:
                break
            begin = front(
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, queue_offset, offset, sys_flag | hosts, born_ms, common,
                len(body),
            )  # fmt: skip
            place = entry(offset, size, tag)
            if lead:
                pieces.append(log.lead)
            pieces += (begin, body, topic_field, properties_size.to_bytes(2, "big"), properties)
            log.end = end = offset + size
            after = queue_offset + 1
            staged.append((queue, queue_offset, after, end))  # first: what follows can be undone from here on
            queue.tail += place
            queue.next = after
            for key in keys:
                if key:
                    pending.append((queue.topic, key, offset, now_ms))
            placed.append((offset, queue_offset))
        return placed

    def put_rows(self, rows: list[Row]) -> None:
        """`put_derived` of each, in this order: all of them or, when an exception leaves, none."""
        with self.together():
            if self.native is None and self._put_behind_each_other(rows):
                return
            at = 0
            while at < len(rows):
                at = self._put_compiled(rows, at)
                if at < len(rows):
                    self._put_row(*rows[at])
                    at += 1

    def _put_behind_each_other(self, rows: list[Row]) -> bool:
        """The same where nothing about them is unusual, and they stand together in the present file. False: nothing has happened."""
        log, now_ms, lead, pending = self.log, self.now_ms, self._lead, self.index.pending
        total = 0
        for queue, properties, _, _, _, _, kept in rows:
            if kept[SYS_FLAG_AT + 3] & HOSTS_V6 or 0 in properties or len(properties) > PROPERTIES_MAX:
                return False
            total += lead + len(kept) + len(queue.topic_field) + 2 + len(properties)
        if not log.has_room(total):
            return False
        at = log.reserve(total)
        staged, put = log.staged, self.staged.append
        for queue, properties, tag, sys_flag, reconsumed, prepared, kept in rows:
            body, offset, topic_field = kept[FRONT.size :], at + lead, queue.topic_field
            size = len(kept) + len(topic_field) + 2 + len(properties)
            at = offset + size
            queued = not sys_flag & TRANSACTION_MASK or is_queued(sys_flag)
            queue_offset = queue.next if queued else 0
            front = KEPT_FRONT.pack(
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue.queue_id, kept[FLAG], queue_offset, offset, sys_flag, kept[BORN], now_ms,
                kept[STORE_HOST], reconsumed, prepared, len(body),
            )  # fmt: skip
            staged.append(b"%b%b%b%b%b%b" % (log.lead, front, body, topic_field, len(properties).to_bytes(2, "big"), properties))
            if tag is None:
                tag = queue_tag(queue.topic, properties.decode(errors="replace"), now_ms, self.delays_ms)
            if queued:
                put((queue, queue_offset, queue_offset + 1, at))
                queue.tail += ENTRY.pack(offset, size, tag)
                queue.next = queue_offset + 1
            if (UNIQUE_KEY_BYTES in properties or KEYS_BYTES in properties) and is_indexed(sys_flag):
                for key in index_keys(properties.decode(errors="replace")):
                    pending.append((queue.topic, key, offset, now_ms))
        return True

    def _put_compiled(self, rows: list[Row], at: int) -> int:
        """Those from here on that the extension takes; returns where the first stands that it does not."""
        again, log = self.native is not None, self.log
        while again:
            assert self.native is not None
            at, again, records, _, staged, tails, keys = self.native.put_messages(rows, at, log.lead, log.end, log.room, self.now_ms)
            if staged:
                self.put_run(records, staged, tails, keys)
        return at

    def _put_row(
        self, queue: ConsumeQueue, properties: bytes, tag: int | None, sys_flag: int, reconsumed: int, prepared: int, kept: bytes
    ) -> None:
        front = FRONTS[kept[SYS_FLAG_AT + 3] & HOSTS_V6]
        _, _, _, _, flag, _, _, _, born_ms, born_host, _, store_host, _, _, _ = front.unpack_from(kept)
        body = kept[front.size :]
        text = properties.decode(errors="replace")
        keys = index_keys(text) if is_indexed(sys_flag) else ()
        if tag is None:
            tag = queue_tag(queue.topic, text, self.now_ms, self.delays_ms)
        self.put_derived(queue, body, properties, tag, keys, sys_flag, flag, born_ms, born_host, reconsumed, prepared, store_host)

    def put_batch(
        self, queue: ConsumeQueue, messages: list[BatchedMessage], sys_flag: int, born_ms: int, born_host: bytes
    ) -> tuple[list[int], int]:
        """Many plain messages for one queue; returns (their log offsets, the first queue offset). Stored whole or not at all."""
        log, store_host, now_ms, first, lead = self.log, self.store_host, self.now_ms, queue.next, self._lead
        topic = queue.topic
        fixed = RECORD_FIXED + len(queue.topic_field)
        total = (fixed + lead) * len(messages) + sum([len(body) + len(properties) for _, body, properties, _, _ in messages])
        for _, _, properties, _, _ in messages:
            if 0 in properties or len(properties) > PROPERTIES_MAX:
                raise unstorable(properties)
        if len(born_host) != HOST or len(store_host) != HOST or not log.has_room(total):
            with self.together():
                return [
                    self.put_derived(queue, body, properties, tag, keys, sys_flag, flag, born_ms, born_host)[0]
                    for flag, body, properties, tag, keys in messages
                ], first
        offset, queue_offset = log.reserve(total) + lead, first
        staged, pending, entry = log.staged, self.index.pending, ENTRY.pack
        offsets, entries = [], []
        for flag, body, properties, tag, keys in messages:
            size = fixed + len(body) + len(properties)
            if lead:
                staged.append(log.lead)
            pack(
                staged, queue, offset, queue_offset, size, FRONT, body, properties, flag, sys_flag, born_ms, born_host, now_ms, store_host,
                0, 0,
            )  # fmt: skip
            entries.append(entry(offset, size, tag))
            for key in keys:
                if key:
                    pending.append((topic, key, offset, now_ms))
            offsets.append(offset)
            offset += size + lead
            queue_offset += 1
        self.staged.append((queue, first, queue_offset, log.end))
        queue.tail += b"".join(entries)
        queue.next = queue_offset
        return offsets, first

    def put_columns(self, portions: Sequence[Portion], batch: Batch | Alike, born_host: bytes) -> tuple[Longs, list[int]] | None:
        """`put_batch` for the messages of all these portions, which are columns: (their log offsets, the first queue offset of each
        portion). None: not here (another size of host, the end of a file); nothing has happened."""
        log, store_ms, topic_field = self.log, self.now_ms, portions[0].queue.topic_field
        if not is_text(batch.suffix):  # what the messages bring themselves was looked at when they became columns
            raise unstorable(batch.suffix)
        offsets, ends = batch.places(topic_field, log.end, self._lead)
        total = int(ends[-1]) - log.end
        if len(born_host) != HOST or len(self.store_host) != HOST or not log.has_room(total):
            return None
        nexts: dict[ConsumeQueue, int] = {}
        firsts: list[int] = []
        for queue, count, _, _ in portions:
            firsts.append(nexts.get(queue, queue.next))
            nexts[queue] = firsts[-1] + count
        records = batch.records(offsets, ends, portions, firsts, born_host, store_ms, self.store_host, log.lead)
        entries = batch.entries(offsets, ends)
        # From here on nothing can fail.
        log.reserve(total)
        log.staged.append(records)
        start = 0
        for (queue, count, _, _), first in zip(portions, firsts, strict=True):
            stop = start + count
            self.staged.append((queue, first, first + count, int(ends[stop - 1])))
            queue.tail += entries[start * ENTRY_SIZE : stop * ENTRY_SIZE]
            queue.next = first + count
            start = stop
        batch.add_keys(self.index, portions[0].queue.topic, offsets, store_ms)
        return offsets, firsts

    def put_run(self, records: bytes, staged: list[Staged], tails: list[bytes], keys: bytes) -> None:
        """Plain messages that the extension made for the present file of the log: what is staged in each queue, its entries, index.KEYS."""
        log = self.log
        log.staged.append(records)
        log.end += len(records)  # they fit: the extension knows how much room there is
        self.staged += staged  # first: what follows can be undone from here on
        for (queue, _, after, _), entries in zip(staged, tails, strict=False):
            queue.tail += entries
            queue.next = after
        if keys:
            self.index.add_run(keys)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is put inside is staged whole or, when an exception leaves, not at all."""
        mark = self.log.end
        try:
            yield
        except BaseException:
            self.undo(mark)
            raise

    def undo(self, mark: int = 0) -> None:
        """Forget what was put since the log's end was here; by default all that is not committed. Queues and index forget it too.
        Nothing of it has left memory: only what is committed is written into their files."""
        mark = max(mark, self.log.written)
        staged = self.staged
        while staged and staged[-1][3] > mark:
            queue, before, _, _ = staged.pop()
            queue.next = before
            del queue.tail[(before - queue.tail_start) * ENTRY_SIZE :]
        self.index.forget_from(mark)
        self.log.rollback(mark)
