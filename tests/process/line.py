"""A raw connection: bytes out, frames in, with a deadline on everything. And requests spelled out as clients send them."""

from __future__ import annotations

import itertools
import socket
import struct
from collections import deque
from types import TracebackType

from roquet.wire import command as commands
from roquet.wire import headers
from roquet.wire.calls.pulls import PullHeader, QueryMessageHeader
from roquet.wire.calls.sends import SendHeader
from roquet.wire.calls.topics import CreateTopicHeader
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.record import Record, decode_records, encode_properties

TIMEOUT_S = 180.0

opaques = itertools.count(1)


class Line:
    """One connection. `drop` resets it, so that ten thousand of them leave nothing behind."""

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        try:
            if receive_buffer:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.settimeout(timeout_s)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.connect(address)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self.socket.close()
            raise
        self._framer = Framer()
        self._arrived: deque[Command] = deque()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> Command | None:
        """The next frame; None when the other end closed the connection. TimeoutError past the deadline."""
        while not self._arrived:
            try:
                data = self.socket.recv(1 << 18)
            except (ConnectionResetError, BrokenPipeError):
                return None
            if not data:
                return None
            self._arrived += map(commands.decode, self._framer.feed(data))
        return self._arrived.popleft()

    def receive_until_closed(self) -> list[Command]:
        """Every frame up to the end of the connection."""
        return list(iter(self.receive, None))

    def ask(self, command: Command) -> Command:
        """The answer to this request. Other frames that come meanwhile are dropped."""
        command.opaque = next(opaques)
        self.send(command.encode())
        while True:
            answer = self.receive()
            assert answer is not None, f"the connection was closed instead of answering {command}"
            if answer.is_response and answer.opaque == command.opaque:
                return answer

    def drop(self) -> None:
        self.socket.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.drop()


def send_message(topic: str, body: bytes, queue_id: int = 0, *, properties: dict[str, str] | None = None, **more: str) -> Command:
    """310, as the Java client sends it. `more` replaces fields by their letter."""
    header = SendHeader(
        "hostile", topic, "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, encode_properties(properties or {}), 0, False, 0, False
    )
    return Command(RequestCode.SEND_MESSAGE_V2, headers.encode(header, short=True) | more, body)


def pull(topic: str, offset: int, queue_id: int = 0, *, count: int = 32, suspend_ms: int = 0, group: str = "puller") -> Command:
    """11, with its subscription, and long polling when `suspend_ms` says so."""
    header = PullHeader(group, topic, queue_id, offset, count, 4 | (2 if suspend_ms else 0), 0, suspend_ms, 0, "*", "TAG")
    return Command(RequestCode.PULL_MESSAGE, headers.encode(header))


def max_offset(topic: str, queue_id: int = 0) -> Command:
    return Command(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})


def create_topic(name: str, queues: int = 4) -> Command:
    header = CreateTopicHeader(name, "TBW102", queues, queues, 6, "SINGLE_TAG", False)
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, headers.encode(header))


def query_key(topic: str, key: str, *, unique: bool = False, count: int = 32) -> Command:
    header = QueryMessageHeader(topic, key, count, 0, (1 << 62), unique or None)
    return Command(RequestCode.QUERY_MESSAGE, headers.encode(header))


def records(answer: Command) -> list[Record]:
    return decode_records(answer.body)
