"""Streams between a test, a master and a slave, in memory: bytes arrive when the test says so."""

from __future__ import annotations

from roquet.ha.stream import TRANSFER
from roquet.ports import Stream, StreamEnd


class FakeStream:
    """One end; what is sent is in `sent` until somebody takes it."""

    def __init__(self, address: str = "127.0.0.1:50000") -> None:
        self.address = address
        self.closed = False
        self.reason = ""
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason

    def take(self) -> bytes:
        data, self.sent = b"".join(self.sent), []
        return data

    def transfers(self) -> list[tuple[int, bytes]]:
        """What a master sent since the last time: (offset, bytes)."""
        data, at, found = self.take(), 0, []
        while at < len(data):
            offset, size = TRANSFER.unpack_from(data, at)
            at += TRANSFER.size + size
            found.append((offset, data[at - size : at]))
        assert at == len(data)
        return found


class Wire:
    """Two ends and the bytes between them. Also a dialer: whoever dials gets one end, and `listener` the other."""

    def __init__(self, listener: StreamEnd) -> None:
        self.listener = listener
        self.up = True
        self.dialed: list[str] = []
        self._here: FakeStream | None = None
        self._there: FakeStream | None = None
        self._end: StreamEnd | None = None

    def dial(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        self.dialed.append(address)
        if not self.up:
            end.lost(None, "it is down")
            return
        self._here, self._there, self._end = FakeStream("127.0.0.1:10912"), FakeStream("127.0.0.1:40000"), end
        self.listener.opened(self._there)
        end.opened(self._here)

    def carry(self, rounds: int = 100) -> None:
        """Until nothing is under way."""
        for _ in range(rounds):
            here, there, end = self._here, self._there, self._end
            if here is None or there is None or end is None:
                return
            if here.closed or there.closed:
                self.cut()
                return
            to_master, to_slave = here.take(), there.take()
            if not to_master and not to_slave:
                return
            if to_master:
                self.listener.received(there, to_master)
            if to_slave:
                end.received(here, to_slave)
        raise AssertionError("it does not come to rest")

    def cut(self) -> None:
        here, there, end = self._here, self._there, self._end
        self._here = self._there = self._end = None
        if here is not None and there is not None and end is not None:
            reasons = [one.reason for one in (here, there) if one.reason]
            here.closed = there.closed = True
            self.listener.lost(there, reasons[0] if reasons else "cut")
            end.lost(here, reasons[0] if reasons else "cut")


def is_stream(stream: FakeStream) -> Stream:
    """For type checkers: it is one."""
    return stream
