"""The extension against Python: two brokers get the same reads, one with it and one without, and must do the same.

    python -m tests.broker.fuzzed_sends [READS] [SEED...]        (make sanitize)

Compared after every read: what was answered, byte for byte and in order, who was closed and why, the log's end, every queue. At the end:
every file of the two stores. Requests are usual ones, odd ones (numbers, escapes, missing and doubled fields, unknown topics, bad UTF-8)
and spoiled ones, in both header forms; single messages and batches, between other requests, over the ends of log files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from roquet.broker.runs import Take
from roquet.broker.topics import Topic
from roquet.errors import Broken
from roquet.ports import Read
from roquet.speedups import native
from roquet.store.disk import RealFile
from roquet.store.store import Store
from roquet.wire.batch import join_batch
from roquet.wire.command import Command
from roquet.wire.frame import Framer, encode_frame
from roquet.wire.names import HALF_TOPIC

from .usual_sends import GROUP, TOPIC, TRACES, USUAL
from .whole import Whole, long_names, pull_fields, send_fields

HOSTS = [bytes((127, 0, 0, 1, 0, 0, 0, 5)), bytes(15) + bytes((1, 0, 0, 0, 9))]
PROPERTIES = [
    "KEYS\x01k1", "KEYS\x01k1 k2  k3 ", "KEYS\x01 ", "KEYS\x01schlüssel", "TAGS\x01tagA", "TAGS\x01tagB", "TAGS\x01größe",
    "TAGS\x01\U0001f600x",
    "WAIT\x01true", "WAIT\x01false", "WAIT\x01TRUE", "DELAY\x010", "DELAY\x013", "TRAN_MSG\x01false", "TRAN_MSG\x01true",
    "a\x01b", "a\x01c",
    "x\x01y\x01z", "INSTANCE_ID\x01h@1", "CLUSTER\x01other", "UNIQ_KEY\x01", "empty\x01", "noseparator", "", "\x01v", 'q\x01a"b\\c/d<e>&f',
    "z\x01a\0b", "UNIQ_KEY\x01a\0b", "t\x01a\tb\nc\r\b\f", "\u2028\x01\u2029", "TIMER_DELAY_SEC\x010", "__STARTDELIVERTIME\x010",
    "MSG_REGION\x01here",
    "MYDELAY\x013", "WAITS\x01true", "KEYS\x01" + " ".join(map(str, range(2_100))), "TIMER_DEL_UNIQKEY\x01k", "TIMER_DELAY_MS\x010",
    "TIMER_DELIVER_MS\x010", "INNER_MULTI_DISPATCH\x01q", "TAGS\x01a\x01b", "aDELAY\x01b",
]  # fmt: skip
ELSEWHERE = [
    [], [], [], ["DELAY\x011"], ["DELAY\x014"], ["DELAY\x0199"], ["TRAN_MSG\x01true", "PGROUP\x01g"], ["TRAN_MSG\x01true", "PGROUP\x01g"],
    ["TRAN_MSG\x01true", "PGROUP\x01g", "CHECK_IMMUNITY_TIME_IN_SECONDS\x015"], ["DELAY\x01\u0661"], ["TRAN_MSG\x01TRUE"],
    ["DELAY\x012", "TRAN_MSG\x01true"], ["DELAY\x011", "DELAY\x012"], ["DELAY\x011", "REAL_TOPIC\x01x"], ["DELAY\x0100000000000000000001"],
]  # fmt: skip
"""What makes messages go elsewhere first, or looks as if."""
WHOLES = [
    "WAIT\x01true", "WAIT\x01true", "", "UNIQ_KEY\x01B\x02WAIT\x01true\x02", "WAIT\x01true\x02UNIQ_KEY\x01B", "TAGS\x01w",
    "KEYS\x01w\x02c\x01d",
    "WAIT\x01false", "DELAY\x011", "UNIQ_KEY\x01", "UNIQ_KEY\x01a\x01b", "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b", "\x02", "x",
    "UNIQ_KEY\x01aDELAY\x011",
    "UNIQ_KEY\x01schlüssel", "UNIQ_KEY\x01\0",
]  # fmt: skip


class BytesPeer:
    """Keeps what it is sent as it is."""

    def __init__(self, host: bytes) -> None:
        self.address, self.host, self.principal, self.certificate_subject = "127.0.0.1:40001", host, "", ""
        self.closed, self.unread, self.reason, self.out = False, False, "", bytearray()

    def send(self, data: bytes | memoryview) -> None:
        self.out += data

    def send_all(self, frames: list[bytes]) -> None:
        self.out += b"".join(frames)

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason


class Side:
    def __init__(self, root: Path, *, compiled: bool, **settings: Any) -> None:
        self.whole = Whole(root, mapped_file_size_commit_log=1 << 17, max_message_size=4_096, max_index_num=40_000, **settings)
        self.broker = self.whole.broker
        if not compiled:
            self.broker.sender.plain.native = self.broker.store.staging.native = None
            self.broker.runs.clear()
        self.together = 0
        self.broker.runs = {code: self.counted(take) for code, take in self.broker.runs.items()}
        for name in (TOPIC, TRACES, "T", "U", f"%RETRY%{GROUP}"):
            self.broker.topics.put(Topic(name, 4, 4))
        self.broker.groups.find(GROUP)
        self.connect(HOSTS[0])
        self.others = [BytesPeer(host) for host in (HOSTS[0], HOSTS[1], bytes((10, 0, 0, 9, 0, 0, 0, 7)))]

    def counted(self, take: Take) -> Take:
        def taken(requests: list[Command]) -> int:
            count = take(requests)
            self.together += count
            return count

        return taken

    def connect(self, host: bytes) -> None:
        """Anew; `others` stay as they are."""
        self.peer, self.framer = BytesPeer(host), Framer()

    def read(self, data: bytes, *others: bytes) -> None:
        """`others`: what further peers send in the same turn, in whole frames."""
        reads: list[Read] = []
        try:
            if frames := self.framer.feed(data):
                reads.append((self.peer, frames))
        except Broken as error:
            self.peer.close(str(error))
        for peer, more in zip(self.others, others, strict=False):
            with contextlib.suppress(Broken):
                reads.append((peer, Framer().feed(more)))
        if len(reads) == 1:
            self.broker.receive(*reads[0])
        else:
            self.broker.receive_all(reads)

    def state(self) -> tuple[object, ...]:
        """Takes what was answered."""
        out = [bytes(peer.out) for peer in (self.peer, *self.others)]
        for peer in (self.peer, *self.others):
            peer.out.clear()
        for peer in self.others:
            peer.closed = False
        store = self.broker.store
        queues = {key: (queue.first, queue.visible, queue.next, bytes(queue.tail)) for key, queue in store.queues.items()}
        ways = self.broker.sender.fast, self.broker.sender.general
        return out, self.peer.closed, self.peer.reason, store.log.end, store.log.written, store.index.waiting, ways, queues

    def files(self) -> dict[str, bytes]:
        root = self.whole.root
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def properties(rnd: random.Random) -> str:
    if rnd.random() < 0.6:  # as clients send them
        items = [
            f"KEYS\x01k{rnd.randrange(99)}",
            f"UNIQ_KEY\x01{rnd.getrandbits(128):032X}",
            "WAIT\x01true",
            f"TAGS\x01tag{rnd.randrange(5)}",
        ]
        rnd.shuffle(items)
        items = items[: rnd.randrange(1, 5)]
    else:
        items = rnd.sample(PROPERTIES, rnd.randrange(0, 6)) + [f"UNIQ_KEY\x01{rnd.getrandbits(64):016X}"] * rnd.choice((0, 1, 1, 2))
        rnd.shuffle(items)
        if rnd.random() < 0.02:
            items.append("long\x01" + "v" * rnd.choice((32_600, 32_700, 32_767, 40_000)))
    return "\x02".join(items) + ("\x02" if rnd.random() < 0.3 else "")


def odd(rnd: random.Random, usual: Any, *others: Any, share: float = 0.03) -> Any:
    return rnd.choice(others) if rnd.random() < share else usual


def batch_body(rnd: random.Random) -> bytes:
    inner = [
        (rnd.choice((0, 7, -1)), rnd.randbytes(rnd.randrange(90)), odd(rnd, properties(rnd).encode()[:32_767], b"TAGS\x01\xff", share=0.02))
        for _ in range(rnd.randrange(1, 12))
    ]
    if rnd.random() < 0.7:  # as clients send them
        inner = [(flag, body, b"UNIQ_KEY\x01%032X\x02WAIT\x01true" % number) for number, (flag, body, _) in enumerate(inner)]
    body = join_batch(inner)
    kind = rnd.random()
    if kind < 0.1:
        at = rnd.randrange(len(body))
        return body[:at] + bytes((rnd.randrange(256),)) + body[at + 1 :]
    return body[: rnd.randrange(len(body))] if kind < 0.13 else b"" if kind < 0.15 else body


def header(rnd: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = dict(send_fields(properties=properties(rnd)))
    fields["b"] = odd(
        rnd, rnd.choice(("T", "U")), "new1", "new2", "%RETRY%g", f"%RETRY%{GROUP}", "a b", "", 5, "TBW102", "SCHEDULE_TOPIC_XXXX"
    )
    fields["e"] = odd(rnd, str(rnd.randrange(4)), "7", "00", "+1", " 1", "１", "1_0", "x", 2, "", None, True, -1)
    fields["f"] = odd(rnd, "0", "1", "1795", "4", "8", "16", "-1", "0x1", " 0", "007", 0, "99999999999999999999")
    fields["g"] = odd(
        rnd, str(1_794_732_520_853 + rnd.randrange(999)), "-1", "0", "9223372036854775807", "9223372036854775808", "x", "1_0", 5
    )
    fields["h"] = odd(rnd, "0", "7", "-1", "-2147483648", "2147483648", "-0", "+1", "--1", "-", "", 3)
    fields["d"] = odd(rnd, "4", 4, "x", "", "-1", "４")
    fields["j"] = odd(rnd, "0", "1", "00", 0, "", "-1", "2147483648", "3")
    fields["m"] = odd(rnd, "false", "true", "False", False, "", True)
    if rnd.random() < 0.05:  # as Node and C++
        for name in "defhjkm":
            with_text = fields[name]
            fields[name] = (
                json.loads(with_text)
                if isinstance(with_text, str) and with_text in ("true", "false", "0", "1", "2", "3", "4")
                else with_text
            )
    for name in list(fields):
        if rnd.random() < 0.004:
            del fields[name]
    if rnd.random() < 0.1:
        fields["AccessKey"] = rnd.choice(("key", "schlüssel\x01", 5, True, None, 1.5, [1], {"a": 1}))
    if rnd.random() < 0.02:
        fields["l"] = rnd.choice(("3", "x", 16))
    if rnd.random() < 0.02:
        fields["topic"] = "U"
    return fields


def request(rnd: random.Random, opaque: int) -> bytes:
    kind = rnd.random()
    if kind < 0.05:
        return rnd.choice(list(USUAL.values()))
    if kind < 0.08:
        code = rnd.choice((11, 34, 30, 9_999, 105))
        fields = pull_fields(rnd.choice("TU"), rnd.randrange(4)) | {"sysFlag": "0"} if code == 11 else {}
        return Command(code, fields, b"", opaque=opaque, binary=rnd.random() < 0.3).encode()
    head_fields = header(rnd)
    body = rnd.randbytes(odd(rnd, rnd.randrange(300), 0, 4_096, 4_097, 6_000))
    if rnd.random() < 0.2:
        head_fields["m"], head_fields["i"], body = "true", rnd.choice(WHOLES), batch_body(rnd)
    code, flag = odd(rnd, 310, 320), odd(rnd, 0, 2, 1, 3, share=0.03)
    if rnd.random() < 0.1:
        code, head_fields = (
            10,
            {long_names({name: ""}).popitem()[0] if name in "abcdefghijkmn" else name: v for name, v in head_fields.items()},
        )
    if kind < 0.45:
        texts = [(name, value) for name, value in head_fields.items() if isinstance(value, str)]
        rnd.shuffle(texts)
        return Command(code, dict(texts), body, opaque=opaque, flag=flag, binary=True, language=rnd.choice(("JAVA", "GO"))).encode()
    names = list(head_fields)
    if rnd.random() < 0.5:
        rnd.shuffle(names)
    head: dict[str, Any] = {"code": code, "extFields": {name: head_fields[name] for name in names}, "flag": flag, "language": "JAVA",
        "opaque": odd(rnd, opaque, -opaque, 2**31, -(2**31), 1.5, "1", True, None, share=0.01), "serializeTypeCurrentRPC": "JSON",
        "version": 399}  # fmt: skip
    if rnd.random() < 0.3:
        head["remark"] = rnd.choice(("", None, "r\n", 5, 1.5, [], 2**70))
    if rnd.random() < 0.01:
        head["flag"] = rnd.choice((None, False, 0.0, "", "0", True, 2.0))
    order = list(head)
    if rnd.random() < 0.5:
        rnd.shuffle(order)
    if rnd.random() < 0.01:
        order.remove(rnd.choice(order))
    return encode_frame(0, spelled(rnd, {name: head[name] for name in order}), body)


def spelled(rnd: random.Random, head: dict[str, Any]) -> bytes:
    style = rnd.random()
    if style < 0.4 and "remark" not in head:
        raw = orjson.dumps(head)
    elif style < 0.8:
        raw = json.dumps(head, separators=(",", ":"), ensure_ascii=rnd.random() < 0.5).encode()
        if rnd.random() < 0.5:  # as Go writes
            raw = raw.replace(b"<", b"\\u003c").replace(b">", b"\\u003E").replace(b"/", b"\\/")
    else:
        raw = json.dumps(head).encode()
    return raw.replace(b'"b"', b'"b":"T","b"', 1) if rnd.random() < 0.01 else raw


def spoiled(rnd: random.Random, frame: bytes) -> bytes:
    """One byte of the header changed, the frame still whole: whatever Python makes of it."""
    size = int.from_bytes(frame[5:8], "big")
    at = 8 + rnd.randrange(max(1, size))
    return frame[:at] + bytes((rnd.choice((rnd.randrange(256), 0x22, 0x5C, 0x2C, 0x30, 0xED, 0xF0, 0x7F)),)) + frame[at + 1 :]


def one_read(rnd: random.Random, opaque: int) -> bytes:
    usual, spoil = rnd.random() < 0.3, rnd.random() < 0.3
    frames = []
    for number in range(rnd.randrange(1, 24)):
        if usual:
            items = [f"KEYS\x01k{number}", f"UNIQ_KEY\x01{opaque + number:032X}", "WAIT\x01true", "TAGS\x01t", *rnd.choice(ELSEWHERE)]
            if rnd.random() < 0.2:
                rnd.shuffle(items)
            fields = send_fields(rnd.choice("TU"), rnd.randrange(4), "\x02".join(items))
            frames.append(Command(310, fields, rnd.randbytes(99), opaque=opaque + number, binary=rnd.random() < 0.5).encode())
        else:
            frame = request(rnd, opaque + number)
            frames.append(spoiled(rnd, frame) if spoil and rnd.random() < 0.1 else frame)
    return b"".join(frames) + (b"\0\0\0\x02junkjunk" if rnd.random() < 0.005 else b"")


def journey(rnd: random.Random, store: Store, opaque: int) -> bytes:
    """Ends of transactions, or messages that are sent back: many of one kind, of what is stored, now and then an odd one."""
    ends = rnd.random() < 0.5
    queues = [queue for queue in store.queues.values() if queue.visible > queue.first and (queue.topic == HALF_TOPIC or not ends)]
    if not queues:
        return b""
    queue, frames = rnd.choice(queues), []
    at = rnd.randrange(queue.first, queue.visible)
    for number in range(rnd.randrange(1, 30)):
        entry = queue.entry(at)
        place = str(odd(rnd, entry[0] if entry else 0, 0, 7, 1 << 62, -1, share=0.02))
        if ends:
            code, flag = 37, odd(rnd, 2, 0, share=0.3)
            fields = {
                "producerGroup": odd(rnd, "g", "h", "", None, 5), "tranStateTableOffset": odd(rnd, str(at), "0", "x", 7, None),
                "commitLogOffset": odd(rnd, place, "x", 5, [1]), "commitOrRollback": odd(rnd, "8", "12", "12", "0", "9", 8, share=0.2),
                "msgId": odd(rnd, "id", None, 5), "fromTransactionCheck": odd(rnd, "false", "true", None, "x", True), "bname": "broker-a",
            }  # fmt: skip
        else:
            code, flag = 36, odd(rnd, 0, 2)
            fields = {
                "offset": odd(rnd, place, "x", 5, "1_0"), "group": odd(rnd, GROUP, "other", "a b", None, ["g"]), "originTopic": "T",
                "delayLevel": odd(rnd, "0", "1", "1", "99", "-1", "x", 1, share=0.3), "unitMode": odd(rnd, "false", "true", None, False),
                "maxReconsumeTimes": odd(rnd, "16", "1", "0", None, "-1", "99999999999", 3, share=0.2), "originMsgId": "id",
            }  # fmt: skip
            if rnd.random() < 0.1:
                fields["failure"] = rnd.choice(("ValueError: größe", "", "x" * 5_000, 5))
        if rnd.random() < 0.3:
            texts = {name: value for name, value in fields.items() if isinstance(value, str)}
            frames.append(Command(code, texts, b"", opaque=opaque + number, flag=flag, binary=True).encode())
        else:
            head = {
                "code": code,
                "extFields": fields,
                "flag": flag,
                "language": "JAVA",
                "opaque": opaque + number,
                "version": odd(rnd, 407, 120, 0),
            }
            frames.append(encode_frame(0, orjson.dumps(head), b""))
        at = at + odd(rnd, 1, 0, 3, share=0.2)
        if at >= queue.visible:
            break
    return b"".join(frames)


@dataclass
class Report:
    reads: int
    messages: int = 0
    sends: int = 0
    compiled: int = 0
    closed: int = 0
    together: int = 0
    """Ends of transactions and messages sent back that were taken in runs."""


def play(reads: int, seed: int, base: Path, **settings: Any) -> Report:
    """Raises AssertionError at the first difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealFile, "read_now", RealFile.read)  # whether a page is in memory must not decide what comes first
        return _play(Report(reads), random.Random(seed), base, settings)


def _play(report: Report, rnd: random.Random, base: Path, settings: dict[str, Any]) -> Report:
    sides = [Side(base / "python", compiled=False, **settings), Side(base / "compiled", compiled=True, **settings)]
    for number in range(report.reads):
        data = one_read(rnd, number * 32)
        if rnd.random() < 0.3:
            data = journey(rnd, sides[0].broker.store, number * 32) + data
        cut = rnd.randrange(len(data)) if rnd.random() < 0.2 else len(data)
        others = [one_read(rnd, number * 32) for _ in range(rnd.choice((0, 0, 1, 3)))]
        for piece in (data[:cut], data[cut:]):
            for side in sides:
                if piece and not side.peer.closed:
                    side.read(piece, *others)
            one, other = (side.state() for side in sides)
            assert one == other, f"read {number}"
        for side in sides:
            side.whole.clock.ms += 7
            if number % 50 == 49:
                side.whole.tick(1_000)
            elif number % 5 == 4:
                side.whole.tick(1)
        if sides[0].peer.closed:
            report.closed += 1
            host = rnd.choice(HOSTS)
            for side in sides:
                side.connect(host)
    report.messages = sum(queue.next for queue in sides[0].broker.store.queues.values())
    report.together = sides[1].together
    report.sends, report.compiled = sides[1].broker.sender.fast, sides[1].broker.sender.plain.compiled
    for side in sides:
        side.whole.close()
    python, compiled = (side.files() for side in sides)
    assert sorted(python) == sorted(compiled)
    assert [name for name in python if python[name] != compiled[name]] == []
    return report


def main() -> None:
    logging.disable(logging.CRITICAL)
    if native is None:
        sys.exit("the extension is not built")
    reads, seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 500, [int(word) for word in sys.argv[2:]] or [1]
    for seed in seeds:
        base = Path(tempfile.mkdtemp())
        print(f"seed {seed}: {play(reads, seed, base)}", flush=True)
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
