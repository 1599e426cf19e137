"""Large pulls, for readers that want all of a queue: up to maxScanBytes in one answer instead of 32 messages.

An ordinary pull (11) asks for one with two more fields; a broker that does not know them answers as ever:

    scanBytes    bytes of records that the reader takes at most; the broker's own limit may be lower
    scanStop     optional: no message at or behind this offset

The answer says in `scanCount` how many records its body holds, and after the records stand their sizes (int32, big-endian):

    +----------+----------+-- ... --+----------+----+----+-- .. --+----+
    | record 0 | record 1 |         | record n | s0 | s1 |        | sn |
    +----------+----------+-- ... --+----------+----+----+-- .. --+----+

All other rules are those of a pull. Nothing here is done per message: entries are chosen with numpy, records that stand near
each other come with one read. One answer is one turn of the loop, so its work is bounded, not only its size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from roquet.errors import Refused
from roquet.ports import Peer
from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.mending import Odd
from roquet.wire.arrays import layout, np
from roquet.wire.calls.pulls import PullHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.columns import ENTRIES
from roquet.wire.frame import FRAME_SIZE_MAX
from roquet.wire.layout import BLANK_LENGTH, MAGIC_AT, MAGIC_V1, MAGIC_V2, OFFSET_AT, QUEUE_OFFSET_AT, RECORD_MIN

if TYPE_CHECKING:
    import numpy.typing as npt

Numbers: TypeAlias = "npt.NDArray[np.int64]"

ENTRIES_MAX = 8_192
"""Queue entries one answer looks at; with a tag filter, which costs less a message, more."""
FILTERED_MAX = 32_768
GAP_MAX = 32 * 1024
"""Reading over so many bytes of other queues costs as much as one more read."""
SPAN_MAX = 512 * 1024
"""Of one read: small enough to stay in the processor's cache."""
READ_BYTES_MAX = 4 * 1024 * 1024
"""Of the log that one answer reads: with many queues most of it is foreign. About half a millisecond."""
READS_MAX = 128
PROBED = 32
"""Entries from whose sizes is told how many an answer may hold: looking at thousands costs as much as reading some hundred kilobytes."""
BUSY_BYTES = 1024 * 1024
"""Of an answer while messages are sent to this broker: some 0.6 ms, about as long as two reads full of sends. A quarter of it would cost a
stream from topic to topic half as much again a message."""
UNREAD_MAX = 64 * 1024 * 1024
"""Of all answers that readers may not have read yet: far below what the server bears (net/server.py)."""
SHARE_MIN = 1024 * 1024
"""Of an answer however many scan."""
AWAY_MS = 60_000
"""A reader that asked for nothing for so long counts no more."""
HEAD_ROOM = 512
"""Before the records of an answer: for its header, which has about 250 bytes."""
FRONT = layout(
    {
        "names": ["size", "magic", "number"],
        "formats": [">i4", ">u4", ">i8"],
        "offsets": [0, MAGIC_AT, QUEUE_OFFSET_AT],
        "itemsize": OFFSET_AT,
    }
)
FRONT_BYTES = f"V{OFFSET_AT}"
"""What tells of a record that it is the one its entry means; gathered as bytes, which costs a tenth."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a reader asked for."""

    bytes_max: int
    stop: int | None

    @classmethod
    def read(cls, text: str, header: PullHeader, limit: int) -> Scan | None:
        """`text`: its scanBytes. None: this broker has large pulls turned off with maxScanBytes=0. Raises Refused."""
        size = whole_number(text)
        if size is None or not 1 <= size <= FRAME_SIZE_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"scanBytes={text[:40]!r}: bytes of records to answer at most, 1 to {FRAME_SIZE_MAX} are allowed"
            )
        stop_text, queue_offset = header.scan_stop, header.queue_offset
        stop = None
        if stop_text is not None:
            stop = whole_number(stop_text)
            if stop is None or stop <= queue_offset:
                text = f"scanStop={stop_text[:40]!r}: the first offset not to answer, it must be larger than queueOffset={queue_offset}"
                raise Refused(ResponseCode.SYSTEM_ERROR, text)
        return cls(min(size, limit), stop) if limit else None

    def entries_max(self, offset: int, end: int, *, filtered: bool) -> int:
        """How many entries to look at, of those before `end`."""
        stop = end if self.stop is None else min(self.stop, end)
        return min(FILTERED_MAX if filtered else min(ENTRIES_MAX, self.bytes_max // RECORD_MIN + 1), stop - offset)


class Readers:
    """Who scans now. Each may leave an answer unread while it works on the last one, so the more there are, the smaller answers become.

    State: when each asked last, the longest ago first.
    """

    def __init__(self) -> None:
        self._asked: dict[Peer, int] = {}

    def share(self, peer: Peer, now_ms: int) -> int:
        """Bytes of an answer to this one, who asks now."""
        asked = self._asked
        asked.pop(peer, None)
        asked[peer] = now_ms
        while asked[first := next(iter(asked))] + AWAY_MS < now_ms:
            del asked[first]
        return max(SHARE_MIN, UNREAD_MAX // len(asked))

    def forget(self, peer: Peer) -> None:
        self._asked.pop(peer, None)


def whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


@dataclass(slots=True)
class Records:
    """Records one after another, in memory that has room for the rest of their frame around them: nothing is copied again."""

    room: memoryview
    sizes: Numbers
    size: int
    """Of all of them."""
    judged: int
    """How many entries were."""

    @property
    def body(self) -> memoryview:
        """The records, then the size of each."""
        end = HEAD_ROOM + self.size
        after = end + 4 * len(self.sizes)
        self.room[end:after] = self.sizes.astype(">i4").tobytes()
        return self.room[HEAD_ROOM:after]

    def frame(self, header: bytes) -> memoryview:
        """With this header and what stands before it."""
        size = len(self.body)
        start = HEAD_ROOM - len(header) - 8
        front = (4 + len(header) + size).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        self.room[start:HEAD_ROOM] = front
        return self.room[start : HEAD_ROOM + size]


def likely_count(raw: bytes, bytes_max: int, count_max: int) -> int:
    """How many entries to look at, going by the first ones: a third more than would fill the answer if all were like these. If those
    that follow are smaller, the answer is not quite full; nothing else depends on it."""
    sizes = np.frombuffer(raw, ENTRIES)["size"]
    sizes = sizes[(sizes < BLANK_LENGTH) & (sizes > 0)]
    mean = int(sizes.sum(dtype=np.int64)) // max(1, len(sizes))
    return min(count_max, bytes_max * 4 // (3 * mean) + PROBED) if mean else count_max


def collect(log: Log, raw: bytes, codes: Collection[int] | None, bytes_max: int, first: int) -> Records:
    """The records of these queue entries, as many as one answer may hold; the first whatever its size.

    `codes`: tag hashes that are wanted, None for all. Stops before what must be read from disk, and raises Cold when that is
    the first record. `first` is the number of the first entry; raises Odd when a record is not what its entry says.
    """
    entries = np.frombuffer(raw, ENTRIES)
    offsets, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    if (sizes < RECORD_MIN).any() or not in_a_row(offsets, sizes, log):
        raise Odd
    keep = (offsets >= log.start) & (sizes < BLANK_LENGTH)
    if codes is not None:
        # Java narrows the stored 64 bits to 32 before it looks.
        keep &= np.isin(entries["tag"] & 0xFFFFFFFF, [code & 0xFFFFFFFF for code in codes])
    chosen = np.flatnonzero(keep)
    if len(chosen) < len(entries):
        offsets, sizes = offsets[chosen], sizes[chosen]
    count = max(1, int(np.cumsum(sizes).searchsorted(bytes_max, "right")))
    count = min(count, len(chosen))
    offsets, sizes, numbers = offsets[:count], sizes[:count], chosen[:count] + first
    parts = list(bounded(spans(offsets, sizes, log.segments.size)))
    total = sum([span.size for span in parts])
    room = np.empty(HEAD_ROOM + total + 4 * count, np.uint8).data
    at, end = 0, HEAD_ROOM
    for span in parts:
        target = room[end : end + span.size]
        try:
            if span.length == span.size:
                log.read_into(span.start, target)  # nothing foreign between them
            else:
                data = log.read(span.start, span.length)
                if len(data) < span.length:
                    raise Odd  # somebody cut the file
                target[:] = cut(data, offsets[at : span.stop] - span.start, sizes[at : span.stop])
        except Cold as cold:
            if at:
                break
            after = bounded(spans(offsets[span.stop :], sizes[span.stop :], log.segments.size))
            raise log.together(cold, [(one.start, one.length) for one in after]) from None
        at, end = span.stop, end + span.size
    judged = int(chosen[at]) if at < len(chosen) else len(entries)
    sizes = sizes[:at]
    if at:
        check(room[HEAD_ROOM:end], np.cumsum(sizes) - sizes, sizes, numbers[:at])
    return Records(room, sizes, end - HEAD_ROOM, judged)


def in_a_row(offsets: Numbers, sizes: Numbers, log: Log) -> bool:
    """Do these records stand one behind the other in the log, each in one file?"""
    if (sizes == BLANK_LENGTH).any():
        stored = sizes != BLANK_LENGTH
        offsets, sizes = offsets[stored], sizes[stored]
    if not len(offsets):
        return True
    rising = bool((offsets[1:] - offsets[:-1] >= sizes[:-1]).all() and (sizes <= log.segments.size).all())
    return rising and int(offsets[0]) >= 0 and int(offsets[-1]) <= log.written


def check(data: bytes | memoryview, starts: Numbers, sizes: Numbers, numbers: Numbers) -> None:
    """Raises Odd unless records of these sizes and numbers begin at these places."""
    fronts = np.ndarray((len(data) - OFFSET_AT + 1,), FRONT_BYTES, data, 0, (1,))[starts].view(FRONT)
    magic = fronts["magic"]
    if (fronts["size"] != sizes).any() or (fronts["number"] != numbers).any() or not ((magic == MAGIC_V1) | (magic == MAGIC_V2)).all():
        raise Odd


class Span(NamedTuple):
    """Records that are read together."""

    stop: int
    """The number of the first record that is not among them."""
    start: int
    """In the log."""
    length: int
    size: int
    """Of the records alone."""


def spans(offsets: Numbers, sizes: Numbers, file_size: int) -> Iterator[Span]:
    """Records that stand near each other in one file, not too many bytes at a time."""
    if not len(offsets):
        return iter(())
    ends, sums = offsets + sizes, np.cumsum(sizes)
    gaps = offsets[1:] - ends[:-1]
    files = np.arange(int(offsets[0]) // file_size + 1, int(ends[-1] - 1) // file_size + 1) * file_size
    stops = np.concatenate((np.flatnonzero((gaps > GAP_MAX) | (gaps < 0)) + 1, offsets.searchsorted(files), (len(offsets),)))
    stops = np.unique(stops)
    begins = np.append(0, stops[:-1])
    if int((ends[stops - 1] - offsets[begins]).max()) > SPAN_MAX:
        stops = shorter(offsets, ends, begins.tolist(), stops.tolist())
        begins = np.append(0, stops[:-1])
    starts = offsets[begins]
    lengths, taken = ends[stops - 1] - starts, np.diff(sums[stops - 1], prepend=0)
    return map(Span, stops.tolist(), starts.tolist(), lengths.tolist(), taken.tolist())


def shorter(offsets: Numbers, ends: Numbers, begins: list[int], stops: list[int]) -> Numbers:
    """The same runs, with those that are too long cut where they become so."""
    found: list[int] = []
    for begin, stop in zip(begins, stops, strict=True):
        while begin < stop:
            # Offsets rise inside a run, so the place is found by halving.
            begin += max(1, int(ends[begin:stop].searchsorted(int(offsets[begin]) + SPAN_MAX, "right")))
            found.append(begin)
    return np.array(found, np.int64)


def bounded(all_spans: Iterator[Span]) -> Iterator[Span]:
    """As many as one answer may read; the first whatever its length."""
    read = 0
    for number, span in enumerate(all_spans):
        read += span.length
        if number and (number >= READS_MAX or read > READ_BYTES_MAX):
            return
        yield span


def cut(data: bytes | memoryview, starts: Numbers, sizes: Numbers) -> bytes | memoryview:
    """The records at these places of `data`, one after another."""
    size = int(sizes[0])
    if (sizes == size).all():
        # Equal ones are gathered by numpy, an eighth of the cost: every byte of `data` seen as the begin of a record.
        everywhere = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
        return everywhere[starts].view(np.uint8).data
    return b"".join([data[start:stop] for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)])
