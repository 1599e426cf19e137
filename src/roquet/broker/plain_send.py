"""Plain sends: what clients send all day, at the least cost. A request is one when everybody would let it in, its topic is known and
writable, and its properties ask for nothing but storing it. Then it costs no typed header and no `Draft`; what is not plain, or not sure,
goes through `Sender.accept`, which makes every check in upstream's order.

`take` gets all frames of a read. Messages of batch requests that follow each other are columns together. With the extension
(`roquet.speedups`) runs of plain sends are done in C, and what that leaves comes here.

Both header forms, answered in the same one; codes 310 and 320 with letters, 10 with long names; numbers and booleans in place of texts,
as Node and C++ send them; further fields (access keys, the broker's name) whatever they say; oneway requests.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import orjson

from roquet.broker.batches import BatchSend, Suffixes, columns_of, go_together, messages_of
from roquet.broker.send_properties import (
    KEPT_FLAGS,
    SPECIAL_MARKS,
    WAITS_NOT,
    added_properties,
    may_ask_for_more,
    region_fields,
)
from roquet.broker.send_texts import SendTexts
from roquet.broker.topics import Topics
from roquet.broker.usual_sends import NO_ANSWER, USED, Asked, UsualSends
from roquet.errors import Broken, Refused, StoreUnavailable
from roquet.message import Property
from roquet.ports import Peer, Read
from roquet.settings import BrokerSettings
from roquet.speedups import native
from roquet.store.batch import Longs
from roquet.store.fanout import PREPARED
from roquet.store.queue import ConsumeQueue
from roquet.store.store import Store
from roquet.wire.arrays import np
from roquet.wire.batch import split_batch
from roquet.wire.binary import read_header
from roquet.wire.codes import RequestCode
from roquet.wire.command import ONEWAY, VERSION, Head, texts_of
from roquet.wire.frame import BINARY, JSON, Frame, cut, encode_frame
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import RETRY_PREFIX

log = logging.getLogger("roquet.broker")

LONG_NAMES = int(RequestCode.SEND_MESSAGE)
CODES = frozenset((int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE), LONG_NAMES))
LETTERS = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e", "sysFlag": "f",
    "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j", "unitMode": "k", "maxReconsumeTimes": "l", "batch": "m",
    "bname": "n",
}  # fmt: skip
NOT_SENT = {"i": "", "j": "0", "m": "false"}
"""What those mean that some clients leave out."""
TOGETHER_MAX = 32
"""Batch requests whose messages are columns together. Were one of them odd, those behind it are read again: so not all that came."""
NOT_WITH_DIVERSIONS = frozenset((Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.TRANSACTION_PREPARED_QUEUE_OFFSET))
DIVERSION_ROOM = 2_048
"""Bytes of properties that are enough for all that the broker adds to a diverted message."""
KNOWN_MAX = 10_000
INT_MAX = 0x7FFFFFFF

Plain = tuple[int, int, int, int, bytes]
"""To be answered: (header form, opaque, queue id, first queue offset, message ids)."""
RUN = -2
"""Of a run of sends that the extension took: (RUN, how many, 0, 0, all answers to them)."""

PlainDiversion = Callable[[str, str], tuple[ConsumeQueue, str, int | None] | None]
"""(topic, the property's value) -> (where it goes first, the value as it is stored, the queue entry's third number if that is not the tag's
hash). None: look properly."""

RetryQueues = Callable[[str, int, str | None], dict[str, ConsumeQueue] | None]
"""(retry topic, times consumed, the most that the client asks for) -> where plain sends to it go; None: look properly."""


def prefix(size: int) -> bytes:
    """What stands before a JSON header of this size in a frame without a body."""
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big")


PREFIXES = [prefix(size) for size in range(1_500)]
BINARY_FRONT = struct.Struct(">IIhbhiiii")
"""Of an answer: both sizes; code, language, version, opaque, flag; the sizes of the remark and of the fields."""
OPAQUE_AT = 13
"""In it."""
REMARK_AT = 13
"""In a binary header: where the size of the remark stands, before that of the fields."""
JSON_FRONT = b'{"code":0,'


def digits(text: str) -> int:
    """What Java's parseInt takes of a number that is not negative; int() takes 1_000, " 1" and other scripts. Raises ValueError."""
    if not (text.isdigit() and text.isascii()):
        raise ValueError(text)
    return int(text)


class BatchParts(NamedTuple):
    """Where the messages of a batch were put."""

    first: int
    ids: bytes


class PlainSends:
    """State: `answers` is that of the batch of frames under way."""

    def __init__(self, store: Store, topics: Topics, settings: BrokerSettings) -> None:
        self.store = store
        self.topics = topics
        self._queues = topics.plain_queues
        self.settings = settings
        self.answers: list[Plain] = []
        self.in_runs = 0
        """Of the sends in `answers`, those that have no row of their own."""
        self.native = native
        self.retry_queues: RetryQueues = lambda topic, consumed, asked_max: None
        self.diversions: dict[str, PlainDiversion] = {}
        """By the property that asks for it: messages that go elsewhere first, and are plain else."""
        self.failed_at = -1
        """Which frame `take` was at when an exception left it. Whoever catches that sets it back."""
        self.added = "\x02".join([f"{name}\x01{value}" for name, value in added_properties(settings).items()])
        """The text of what the broker adds to each message's properties."""
        self.suffixes = Suffixes(self.added)
        self.texts = SendTexts(self.added)
        self.usual = UsualSends(topics.plain_queues, self.texts, settings)
        self.compiled = 0
        """Sends that the extension took since the start."""
        self.write_host()

    def write_host(self) -> None:
        """The address that message ids carry is known, or another one."""
        self.host_id = self.store.staging.store_host.hex().upper()
        self._id = self.host_id.encode() + b"%016X"
        region, trace_on = [value.encode() for value in region_fields(self.settings).values()]
        self._json_back = (
            b'","MSG_REGION":"%b","TRACE_ON":"%b"},"flag":1,"language":"JAVA","serializeTypeCurrentRPC":"JSON","version":%d,"opaque":'
            % (orjson.dumps(region.decode())[1:-1], trace_on, VERSION)
        )
        self._json_rest = self._json_back[self._json_back.rindex(b'"flag":') : -1]
        """Of an answer without fields: what stands before the colon and the opaque."""
        more = ((Property.MSG_REGION.encode(), region), (Property.TRACE_ON.encode(), trace_on))
        self._binary_back = b"".join(
            [b"%b%b%b%b" % (len(name).to_bytes(2, "big"), name, len(value).to_bytes(4, "big"), value) for name, value in more if value]
        )
        self._json_answer = b'{"code":0,"extFields":{"msgId":"%b%%016X","queueId":"%%d","queueOffset":"%%d%b%%d}' % (
            self.host_id.encode(), self._json_back.replace(b"%", b"%%"),
        )  # fmt: skip
        self._binary_answers: dict[tuple[int, int], bytes] = {}
        """By the queue's number and the digits of the message's there: see `_binary_answer`."""
        self._fixed = (
            self.added.encode(), self.store.staging.store_host, self.host_id.encode(), self._json_back,
            BINARY_FRONT.pack(0, 0, 0, 0, VERSION, 0, 0, 0, 0)[8:13], self._binary_back, self.store.log.lead,
        )  # fmt: skip

    # Taking

    def take(self, peer: Peer, frames: list[Frame], at: int) -> tuple[int, Head | None]:
        """Stage the plain sends that stand from here on. Returns where the first frame stands that is none, and its header if that was
        read."""
        stop, native, loads, stage, host = len(frames), self.native, orjson.loads, self._stage, peer.host
        begun = at - len(self.answers) - self.in_runs
        try:
            while at < stop:
                while native is not None and at < stop:
                    at, told, again = self.take_reads([(peer, frames)], at)
                    ((sends, answers),) = told
                    if sends:
                        self.answers.append((RUN, sends, 0, 0, answers))
                        self.in_runs += sends - 1
                    if not again:
                        break
                head: Any = None
                if native is None:
                    at, head = self._take_usual(frames, at, host)
                if at == stop:
                    break
                form, header, body = frames[at]
                try:
                    if form == JSON:
                        if head is None:
                            head = loads(header)
                        get = head.get
                        code, opaque, flag, fields = get("code"), get("opaque"), get("flag", 0), get("extFields")
                    else:
                        head = read_header(header)
                        code, opaque, flag, fields, _, _, _ = head
                    if code not in CODES:
                        return at, head
                except (Broken, ValueError, AttributeError, TypeError):
                    return at, None  # whoever reads it again says what is wrong
                taken = stage(code, fields, opaque, flag, form, body, host)
                if taken is True:
                    at += 1
                    continue
                done = self._take_batches(frames, at, taken, host) if taken else 0
                if not done:
                    return at, head
                at += done
        except BaseException:
            self.failed_at = begun + len(self.answers) + self.in_runs  # each that was taken before it has its answer there
            raise
        return at, None

    def take_reads(self, reads: list[Read], at: int = 0) -> tuple[int, list[tuple[int, bytes]], int]:
        """What the extension takes of several reads, of the first from `at` on, up to the first frame that is not a plain send: (where that
        frame stands in its read, (sends, answers) of each read up to that one, whether it is only that these touch too many queues)."""
        if self.native is None:
            return at, [(0, b"")], 0
        log, staging = self.store.log, self.store.staging
        at, again, records, told, staged, tails, keys = self.native.take_sends(
            reads, at, self._queues, self.diversions, self._fixed, self.settings.max_message_size, log.end, log.room, staging.now_ms
        )
        if records:
            staging.put_run(records, staged, tails, keys)
        for sends, _ in told:
            self.compiled += sends
        return at, told, again

    def _take_usual(self, frames: list[Frame], at: int, host: bytes) -> tuple[int, Any]:
        """Stage those that are as nearly all are. Returns where the first stands that is another, and its header if that was read."""
        sends, asked, head = self.usual.read(frames, at)
        if not sends:
            return at, head
        store = self.store
        mark = store.log.end
        try:
            placed = store.put_sends(sends, host)
        except Exception:  # a mistake of ours
            log.exception("! %d sends, staged together, failed: they are looked at one by one", len(sends))
            store.undo(mark)
            return at, None
        if placed:
            self.answers.append((RUN, len(placed), 0, 0, self._answers_of(asked, placed)))
            self.in_runs += len(placed) - 1
        return at + len(placed), head if len(placed) == len(sends) else None

    def _stage(
        self, code: int, fields: dict[str, Any], opaque: Any, flag: Any, form: int, body: bytes, host: bytes, alone: bool = True
    ) -> BatchSend | bool:
        """Stage one. A batch is returned and not staged. False: not plain, or not sure; then nothing has happened. `alone` False: only a
        batch is wanted."""
        try:
            if code == LONG_NAMES:
                fields = {LETTERS.get(name, name): value for name, value in fields.items()}
            try:
                _, topic, _, nums, queue_text, sys_text, born_text, flag_text, text, consumed_text, batch = USED(fields)
                if type(queue_text) is not str:
                    raise TypeError
            except (KeyError, TypeError):
                fields = NOT_SENT | texts_of(fields)
                _, topic, _, nums, queue_text, sys_text, born_text, flag_text, text, consumed_text, batch = USED(fields)
            sys_flag = consumed = user_flag = 0  # as nearly all say
            if sys_text != "0":
                sys_flag = digits(sys_text)
            if consumed_text != "0":
                consumed = digits(consumed_text)
            if flag_text != "0":
                user_flag = -digits(flag_text[1:]) if flag_text[:1] == "-" else digits(flag_text)
            queues = self._queues.get(topic)
            if queues is None:
                queues = self.retry_queues(topic, consumed, fields.get("l"))
                if queues is None:
                    return False
            queue, born_ms, most = queues[queue_text], int(born_text), fields.get("l")
            if (
                sys_flag & ~(KEPT_FLAGS | PREPARED) or not (born_text.isdigit() and born_text.isascii()) or born_ms >= 1 << 63
                or consumed > INT_MAX
                or type(opaque) is not int or not -0x80000000 <= opaque <= INT_MAX or not -0x80000000 <= user_flag <= INT_MAX
                or len(body) > self.settings.max_message_size or not (nums.isdigit() and nums.isascii())
                or (most is not None and not (most.isdigit() and most.isascii()))
            ):  # fmt: skip
                return False
            sys_flag &= KEPT_FLAGS
            if flag or type(flag) is not int:
                if flag != ONEWAY or type(flag) is not int:
                    return False
                form = NO_ANSWER
            if batch != "false":
                if batch != "true" or consumed or topic.startswith(RETRY_PREFIX):
                    return False
                return self._batch_send(form, opaque, queue, text, body, sys_flag, born_ms)
            if not alone:
                return False
            items = self.texts.take_apart(text, self.diversions)
            if items is None:
                return False
            kept, tag, keys, diverted = items
            place, due = queue, tag
            if diverted is not None:
                found = self._divert(topic, queue, text.removesuffix("\x02"), *diverted)
                if found is None:
                    return False
                place, kept, due = found[0], found[1], tag if found[2] is None else found[2]
            else:
                kept.append(self.added)
            properties = "\x02".join(kept).encode()
        except (KeyError, ValueError, AttributeError, TypeError, Broken):
            return False
        try:
            offset, queue_offset = self.store.put_derived(
                place, body, properties, due, keys, sys_flag, user_flag, born_ms, host, consumed
            )  # fmt: skip
        except (Refused, StoreUnavailable):
            return False
        self.answers.append((form, opaque, queue.queue_id, queue_offset, self._id % offset))
        return True

    def _divert(
        self, topic: str, queue: ConsumeQueue, text: str, name: str, value: str
    ) -> tuple[ConsumeQueue, list[str], int | None] | None:
        """(where it goes first, its properties, see PlainDiversion), as `Draft.divert_to` would have it. None: look properly."""
        items = text.split("\x02")
        if len({item.partition("\x01")[0] for item in items} | NOT_WITH_DIVERSIONS) != len(items) + len(NOT_WITH_DIVERSIONS):
            return None  # one stands twice, or is the broker's own
        found = None if topic.startswith(RETRY_PREFIX) else self.diversions[name](topic, value)
        if found is None or 4 * len(text) + DIVERSION_ROOM > PROPERTIES_MAX:
            return None
        place, stored, due = found
        items[items.index(f"{name}\x01{value}")] = f"{name}\x01{stored}"
        items += (self.added, f"{Property.REAL_TOPIC}\x01{topic}", f"{Property.REAL_QUEUE_ID}\x01{queue.queue_id}")
        return place, items, due

    # Batches

    def _batch_send(
        self, form: int, opaque: int, queue: ConsumeQueue, text: str, body: bytes, sys_flag: int, born_ms: int
    ) -> BatchSend | bool:
        if WAITS_NOT in text or any(mark in text for mark in SPECIAL_MARKS):
            return False
        return BatchSend(form, opaque, queue, self.suffixes.of(text), body, sys_flag, born_ms)

    def _take_batches(self, frames: list[Frame], at: int, first: BatchSend, host: bytes) -> int:
        """Stage this one, which stands at `at`, and the batches behind it that go together with it. Returns how many were staged."""
        sends = [first]
        for frame in islice(frames, at + 1, at + TOGETHER_MAX):
            send = self._read_batch(frame, host)
            if send is None or not go_together(first, send):
                break
            sends.append(send)
        try:
            placed = self.put_many(sends, host)
        except (Refused, StoreUnavailable):
            placed = None
        if placed is not None:
            for send, (offset, ids) in zip(sends, placed, strict=True):
                self.answers.append((send.form, send.opaque, send.queue.queue_id, offset, ids))
            return len(sends)
        for done, send in enumerate(sends):
            if not self._take_batch(send, host):
                return done
        return len(sends)

    def _read_batch(self, frame: Frame, host: bytes) -> BatchSend | None:
        form, header, body = frame
        try:
            if form == JSON:
                head = orjson.loads(header)
                code, opaque, flag, fields = head["code"], head.get("opaque"), head.get("flag", 0), head.get("extFields")
            else:
                code, opaque, flag, fields, _, _, _ = read_header(header)
            if code not in CODES:
                return None
        except (Broken, ValueError, KeyError, AttributeError, TypeError):
            return None
        found = self._stage(code, fields, opaque, flag, form, body, host, alone=False)
        return found if isinstance(found, BatchSend) else None

    def _take_batch(self, send: BatchSend, host: bytes) -> bool:
        """Message by message."""
        try:
            parts = split_batch(send.body)
            if may_ask_for_more(b"\x02".join([properties for _, _, properties in parts])):
                return False
            places, first = self.store.put_batch(send.queue, messages_of(parts, send.suffix), send.sys_flag, send.born_ms, host)
        except (Refused, StoreUnavailable):
            return False
        ids = b",".join([self._id % offset for offset in places])
        self.answers.append((send.form, send.opaque, send.queue.queue_id, first, ids))
        return True

    def put_many(self, sends: Sequence[BatchSend], host: bytes) -> list[BatchParts] | None:
        """The messages of all these as columns: where those of each were put. None: few, or not sure; then nothing has happened, and one
        message goes after another."""
        found = columns_of(sends)
        placed = None if found is None else self.store.put_columns(*found, host)
        if found is None or placed is None:
            return None
        ids, at = self._ids(placed[0]), 0
        parts: list[BatchParts] = []
        for portion, first in zip(found[0], placed[1], strict=True):
            stop = at + ID_SIZE * portion.messages
            parts.append(BatchParts(first, ids[at : stop - 1]))
            at = stop
        return parts

    def _ids(self, offsets: Longs) -> bytes:
        """Message ids of these places in the log, with a comma behind each."""
        ids = bytearray(b"%b%016d," % (self.host_id.encode(), 0) * len(offsets))
        hexes = offsets.astype(">u8").tobytes().hex().upper().encode()
        np.ndarray((len(offsets),), "V16", ids, 16, (ID_SIZE,))[:] = np.frombuffer(hexes, "V16")
        return bytes(ids)

    # Answering

    def _answers_of(self, asked: list[Asked], placed: list[tuple[int, int]]) -> bytes:
        """`encode` of single messages."""
        pieces: list[bytes] = []
        json_answer, binary_answers = self._json_answer, self._binary_answers
        for (form, opaque, queue_id), (offset, queue_offset) in zip(asked, placed, strict=False):
            if form == JSON:
                head = json_answer % (offset, queue_id, queue_offset, opaque)
                pieces += (PREFIXES[len(head)] if len(head) < len(PREFIXES) else prefix(len(head)), head)
            elif form == BINARY:
                place = b"%d" % queue_offset
                answer = binary_answers.get((queue_id, len(place))) or self._binary_answer(queue_id, len(place))
                pieces.append(answer % (opaque.to_bytes(4, "big", signed=True), offset, place))
        return b"".join(pieces)

    def _binary_answer(self, queue_id: int, digits: int) -> bytes:
        """What answers to sends to this queue say, with room for the opaque, the log offset and the queue offset of so many digits."""
        sample = b"".join(self.encode([(BINARY, 0, queue_id, 10 ** (digits - 1), self._id % 0)]))
        id_at, place_at = sample.index(self._id % 0) + len(self.host_id), sample.index(b"queueOffset") + len("queueOffset") + 4
        fixed = [sample[:OPAQUE_AT], sample[OPAQUE_AT + 4 : id_at], sample[id_at + 16 : place_at], sample[place_at + digits :]]
        one, two, three, four = [piece.replace(b"%", b"%%") for piece in fixed]
        if len(self._binary_answers) >= KNOWN_MAX:
            self._binary_answers.clear()
        self._binary_answers[queue_id, digits] = answer = one + b"%b" + two + b"%016X" + three + b"%b" + four
        return answer

    def encode_not_safe(self, plain: Sequence[Plain], code: int, remark: str, *, place: bool) -> list[bytes]:
        """What `encode` says with another code and a remark, and only if it says so with the places. Thousands may wait when a disk hangs
        or a leader is replaced, and all hear it in one turn: so the answers that were made are changed, not made once more."""
        made = b"".join(self.encode(plain))
        binary_remark = len(remark.encode()).to_bytes(4, "big") + remark.encode()
        front = b'{"code":%d,"remark":%b,' % (code, orjson.dumps(remark))
        pieces: list[bytes] = []
        for form, head, _ in cut(made, len(made))[0]:
            if form == BINARY:
                head = code.to_bytes(2, "big") + head[2:REMARK_AT] + binary_remark + (head[REMARK_AT + 4 :] if place else bytes(4))
            elif place:
                head = front + head[len(JSON_FRONT) :]
            else:
                head = front + self._json_rest + head[head.rindex(b":") :]
            pieces.append(encode_frame(form, head))
        return pieces

    def encode(self, plain: Sequence[Plain]) -> list[bytes]:
        """That they are stored, in pieces."""
        pieces: list[bytes] = []
        json_back, binary_back = self._json_back, self._binary_back
        for form, opaque, queue_id, queue_offset, ids in plain:
            if form == JSON:
                head = b'{"code":0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d%b%d}' % (
                    ids, queue_id, queue_offset, json_back, opaque,
                )  # fmt: skip
                pieces += (PREFIXES[len(head)], head) if len(head) < len(PREFIXES) else (prefix(len(head)), head)
            elif form == BINARY:
                number, place = b"%d" % queue_id, b"%d" % queue_offset
                fields = b"\0\5msgId%b%b\0\7queueId\0\0\0%c%b\0\x0bqueueOffset\0\0\0%c%b%b" % (
                    len(ids).to_bytes(4, "big"), ids, len(number), number, len(place), place, binary_back,
                )  # fmt: skip
                size = len(fields)
                pieces += (BINARY_FRONT.pack(size + 25, BINARY << 24 | (size + 21), 0, 0, VERSION, opaque, 1, 0, size), fields)
            elif form == RUN:
                pieces.append(ids)
        return pieces


ID_SIZE = 33
"""Of a message id and a comma."""
