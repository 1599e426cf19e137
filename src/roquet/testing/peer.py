"""FakePeer: the other end of a connection, as a list."""

from __future__ import annotations

from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer


class FakePeer:
    """Keeps what was sent to it, decoded. The real one is `roquet.net.server.Connection`, which ignores what is sent to it after
    its end; here that fails, because it is work for nobody."""

    def __init__(self, address: str = "127.0.0.1:40001") -> None:
        self.address = address
        self.host = bytes(8)
        self.closed = self.unread = False
        self.principal = ""
        self.certificate_subject = ""
        self.close_reason = ""
        self.sent: list[Command] = []
        self.sends = 0

    def send(self, data: bytes | memoryview) -> None:
        assert not self.closed
        self.sends += 1
        self.sent += [decode(frame) for frame in Framer().feed(bytes(data))]

    def send_all(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.send(frame)

    def close(self, reason: str) -> None:
        self.closed = True
        self.close_reason = reason

    def take(self) -> list[Command]:
        sent, self.sent = self.sent, []
        return sent

    def __repr__(self) -> str:
        return f"<FakePeer {self.address}{' closed' if self.closed else ''}>"
