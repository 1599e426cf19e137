"""Requests as a Java 4.9.7 client writes them: JSON headers, fields in fastjson's order, nulls left out.

Frames of one kind are equally long (the numbers in them have a fixed width), so that a load generator can lay a
whole round out in one buffer beforehand and send any run of them as one slice.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, PULL_MESSAGE = 310, 320, 11
QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, CREATE_TOPIC, GET_BROKER_RUNTIME_INFO, GET_MAX_OFFSET, GET_ROUTE = 14, 15, 17, 28, 30, 105
VERSION = 407  # 4.9.7
FIRST_OPAQUE = 1_000_000  # seven digits for the next nine million requests
ONEWAY_OPAQUE = 9_999_999  # nobody answers
BODY = (b"The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 4)[:128]
PREPARED, COMMIT = 4, 8  # sysFlag of a half message, and how its transaction ends
RETRY_GROUP, RETRY_TOPIC = "bench_retry", "%RETRY%bench_retry"
KEY_HEAD = b"7F000001A30818B4AAC2"  # address, process and class loader of a client's unique key; twelve digits follow

_TAIL = b'},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":407}'
_SEND = (
    b'{"code":%d,"extFields":{"a":"bench_producer","b":"%b","c":"TBW102","d":"4","e":"%%d","f":"%d","g":"%d","h":"0",'
    b'"i":"%b","j":"0","k":"false","m":"%b","n":"%b"' + _TAIL.replace(b"%d", b"%%d")
)
_PULL = (
    b'{"code":11,"extFields":{"queueId":"%%d","maxMsgNums":"%d","sysFlag":"4","suspendTimeoutMillis":"15000","commitOffset":"0",'
    b'"bname":"%b","topic":"%b","queueOffset":"%%d","expressionType":"%b","subVersion":"%d","subscription":"%b",'
    b'"consumerGroup":"bench_consumer"' + _TAIL.replace(b"%d", b"%%d")
)

_END = (
    b'{"code":37,"extFields":{"producerGroup":"bench_producer","bname":"%b","commitLogOffset":"%d","msgId":"%b","tranStateTableOffset":"%d",'
    b'"commitOrRollback":"%d","fromTransactionCheck":"false"},"flag":2,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)
_BACK = (
    b'{"code":36,"extFields":{"maxReconsumeTimes":"16","offset":"%%012d","bname":"%b","delayLevel":"1","originTopic":"%b",'
    b'"originMsgId":"' + KEY_HEAD + b'000000000000","unitMode":"false","group":"%b"' + _TAIL.replace(b"%d", b"%%d")
)


def frame(header: bytes, body: bytes = b"") -> bytes:
    """Total length (not counting itself), header length, header, body."""
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def request(code: int, fields: dict[str, str], opaque: int = 0, body: bytes = b"") -> bytes:
    header = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION,
    }
    return frame(json.dumps(header, separators=(",", ":")).encode(), body)


@dataclass(frozen=True)
class Stream:
    """Where messages go to: what is the same in every request of a round."""

    topic: str
    queues: int
    broker_name: str = "broker-a"
    sys_flag: int = 0
    properties: tuple[tuple[str, str], ...] = ()  # of single sends, beside the unique key and WAIT
    rare: tuple[tuple[str, str], ...] = ()  # in their place in one message of a hundred, in every queue alike; equally long
    keys: tuple[str, str] | None = None  # access key and secret: every single send is signed
    wait: bool = True  # WAIT=true: answer only when the message is as safe as the broker's flushDiskType says

    def sends(self, count: int, first_key: int, first_opaque: int = FIRST_OPAQUE) -> tuple[bytes, int]:
        """`count` single sends one after the other in one buffer, and the size of each."""
        if self.keys is not None:
            return self._signed(self.keys, count, first_key, first_opaque)
        whole, size = self._single(self.properties, first_key, first_opaque)
        queues = self.queues
        if not self.rare:
            return b"".join([whole % (i % queues, first_key + i, first_opaque + i) for i in range(count)]), size
        rare, rare_size = self._single(self.rare, first_key, first_opaque)
        assert rare_size == size, "frames of one kind are equally long"
        frames = []
        for i in range(count):
            template = rare if i // queues % 100 == 50 + i % queues else whole
            frames.append(template % (i % queues, first_key + i, first_opaque + i))
        return b"".join(frames), size

    def _signed(self, keys: tuple[str, str], count: int, first_key: int, first_opaque: int) -> tuple[bytes, int]:
        """The same, each with its own signature: of the values of all fields in the order of their names, and the body."""
        access_key, secret = keys[0], keys[1].encode()
        template = self._header(self.properties)
        fields = json.loads(template % (0, first_key, first_opaque))["extFields"]
        properties = fields["i"].replace(f"{first_key:012X}", "%012X")
        values = fields | {"AccessKey": access_key, "e": "%d", "i": properties}
        text = "".join(values[name] for name in sorted(values)).encode() + BODY
        template = template.replace(b'"extFields":{', f'"extFields":{{"AccessKey":"{access_key}","Signature":"%b",'.encode())
        header_size = len(template % (bytes(28), 0, first_key, first_opaque))
        head = struct.pack(">ii", 4 + header_size + len(BODY), header_size)
        out = []
        for i in range(count):
            queue, key = i % self.queues, first_key + i
            signature = base64.b64encode(hmac.digest(secret, text % (queue, key), "sha1"))
            out.append(b"%b%b%b" % (head, template % (signature, queue, key, first_opaque + i), BODY))
        return b"".join(out), 8 + header_size + len(BODY)

    def _header(self, properties: tuple[tuple[str, str], ...]) -> bytes:
        """Of a single send, with places for queue, key and opaque."""
        text = b"UNIQ_KEY\\u0001" + KEY_HEAD + b"%012X\\u0002WAIT\\u0001" + self._wait
        for name, value in properties:
            text += f"\\u0002{name}\\u0001{value}".encode()
        return self._send(SEND_MESSAGE_V2, text, b"false")

    def _single(self, properties: tuple[tuple[str, str], ...], key: int, opaque: int) -> tuple[bytes, int]:
        """A single send with places for queue, key and opaque, and its size."""
        template = self._header(properties)
        header_size = len(template % (0, key, opaque))
        head = struct.pack(">ii", 4 + header_size + len(BODY), header_size)
        return head.replace(b"%", b"%%") + template + BODY.replace(b"%", b"%%"), 8 + header_size + len(BODY)

    def end(self, key: int, half_offset: int, commit_log_offset: int) -> bytes:
        """The oneway word that the transaction of the half message with this key is committed."""
        unique_key = KEY_HEAD + b"%012X" % key
        return frame(_END % (self.broker_name.encode(), commit_log_offset, unique_key, half_offset, COMMIT, ONEWAY_OPAQUE))

    def backs(self, offsets: list[int], first_opaque: int = FIRST_OPAQUE) -> tuple[bytes, int]:
        """Send-backs of the messages at these physical offsets, to be delivered again after a second."""
        template = _BACK % (self.broker_name.encode(), self.topic.encode(), RETRY_GROUP.encode())
        frames = [frame(template % (offset, first_opaque + i)) for i, offset in enumerate(offsets)]
        return b"".join(frames), len(frames[0])

    def batches(self, count: int, batch: int, first_key: int, first_opaque: int = FIRST_OPAQUE) -> tuple[bytes, int]:
        """`count` batches of `batch` messages in one buffer, and the size of each."""
        template = self._send(SEND_BATCH_MESSAGE, b"WAIT\\u0001" + self._wait, b"true")
        properties = b"UNIQ_KEY\x01" + KEY_HEAD + b"%012X\x02WAIT\x01" + self._wait
        properties_size = len(properties % 0)
        # size, magic 0, crc 0, flag 0, body size, body, properties size, properties
        fixed = struct.pack(">iiiii", 22 + len(BODY) + properties_size, 0, 0, 0, len(BODY)) + BODY + struct.pack(">h", properties_size)
        message = fixed.replace(b"%", b"%%") + properties
        message_size = len(message % 0)
        bodies = message * batch
        header_size = len(template % (0, first_opaque))
        head = struct.pack(">ii", 4 + header_size + batch * message_size, header_size)
        whole = head.replace(b"%", b"%%") + template + bodies
        out = []
        for i in range(count):
            key = first_key + i * batch
            out.append(whole % (i % self.queues, first_opaque + i, *range(key, key + batch)))
        return b"".join(out), 8 + header_size + batch * message_size

    def pull_template(self, most: int, expression: str = "*", kind: str = "TAG") -> bytes:
        """A pull's header with three places: queue, offset, opaque. It carries its subscription (sysFlag 4): no heartbeat is needed."""
        now = int(time.time() * 1000)
        return _PULL % (most, self.broker_name.encode(), self.topic.encode(), kind.encode(), now, expression.encode())

    @property
    def _wait(self) -> bytes:
        return b"true" if self.wait else b"false"

    def _send(self, code: int, properties: bytes, is_batch: bytes) -> bytes:
        """A send's header with places for the queue, the key (if `properties` has one) and the opaque."""
        now = int(time.time() * 1000)
        return _SEND % (code, self.topic.encode(), self.sys_flag, now, properties, is_batch, self.broker_name.encode())


# ---------------------------------------------------------------- one question at a time


class Refused(RuntimeError):
    """A server answered with a code that means no."""


def read_frame(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(_exactly(connection, 4), "big")
    data = _exactly(connection, size)
    header_end = 4 + (int.from_bytes(data[:4], "big") & 0xFFFFFF)
    header = json.loads(data[4:header_end])
    assert isinstance(header, dict)
    return header, data[header_end:]


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError("closed in the middle of an answer")
        data += chunk
    return bytes(data)


class Admin:
    """A connection to a server for the questions a benchmark asks before and after its rounds."""

    def __init__(self, address: str, timeout_s: float = 10.0, source: str = "") -> None:
        """`source`: connect from this address."""
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s, source_address=(source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def ask(self, code: int, fields: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        self._socket.sendall(request(code, fields))
        header, body = read_frame(self._socket)
        if header["code"] != 0:
            raise Refused(f"request {code} {fields} was answered {header['code']}: {header.get('remark')}")
        return header, body

    def send(self, topic: str, body: bytes) -> None:
        """One message, its topic created on the way if need be."""
        self._socket.sendall(frame(Stream(topic, 1).sends(1, time.time_ns() & 0xFFFFFFFFFFFF)[0][8:-128], body))
        header, _ = read_frame(self._socket)
        if header["code"] != 0:
            raise Refused(f"a send to {topic} was answered {header['code']}: {header.get('remark')}")

    def create_topic(self, topic: str, queues: int) -> None:
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
        self.ask(CREATE_TOPIC, fields | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})

    def stored(self, topic: str, queues: int) -> int:
        """Messages in the topic so far: the sum of its queues' ends."""
        return sum(self.ends(topic, queues))

    def ends(self, topic: str, queues: int) -> list[int]:
        return [self._offset(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}) for queue in range(queues)]

    def consumed(self, group: str, topic: str, queues: int) -> int:
        """The sum of the group's committed offsets."""
        fields = {"consumerGroup": group, "topic": topic}
        return sum(self._offset(QUERY_CONSUMER_OFFSET, fields | {"queueId": str(queue)}) for queue in range(queues))

    def rewind(self, group: str, topic: str, queues: int, last: int | None = None) -> int:
        """Let the group begin at the first message of every queue, or with so many of the last ones of all of them. Returns where that
        is, as `consumed` counts."""
        starts = [0 if last is None else max(0, end - last // queues) for end in self.ends(topic, queues)]
        for queue, start in enumerate(starts):
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(start)}
            self.ask(UPDATE_CONSUMER_OFFSET, fields)
        return sum(starts)

    def sends(self) -> tuple[int, int]:
        """How many sends took the short way so far, and how many the general one; zeros of a broker that does not count them."""
        _, body = self.ask(GET_BROKER_RUNTIME_INFO, {})
        table = json.loads(body)["table"]
        return int(table.get("roquetSendsFast", 0)), int(table.get("roquetSendsGeneral", 0))

    def has_route(self, topic: str, brokers: int = 1) -> bool:
        """Of a name server: does it know the topic, on so many brokers?"""
        try:
            _, body = self.ask(GET_ROUTE, {"topic": topic})
        except Refused:
            return False
        return body.count(b"brokerAddrs") >= brokers

    def _offset(self, code: int, fields: dict[str, str]) -> int:
        header, _ = self.ask(code, fields)
        return int(header["extFields"]["offset"])
