"""TLS between a transport of the loop and the protocol of a server: bytes go through OpenSSL's memory, and no loop has to know of it.

    socket --ciphertext--> data_received --> OpenSSL --> protocol.data_received
           <-------------- transport.write <-- OpenSSL <-- write

To the protocol it is a transport like the plain one: what waits to be written, pauses and ends are those of the transport below.
One read is decrypted at once, so that nothing stays behind when reading pauses. The handshake comes first, in turns that somebody
else gives (net/entrance.py); the protocol is made when it has succeeded, and never hears of peers that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol

RECORD = 16 * 1024
"""Bytes that OpenSSL gives or takes at once."""
HANDSHAKE_MAX = 128 * 1024
"""Bytes that a peer may send before its handshake has ended. Certificates with their authorities are some ten thousand."""


class Gatekeeper(Protocol):
    """Who gives handshakes their turns, and hears how they end."""

    def due(self, one: EncryptedTransport) -> None: ...

    def passed(self, one: EncryptedTransport) -> None: ...

    def failed(self, one: EncryptedTransport, why: str) -> None: ...


class EncryptedTransport(asyncio.Transport, asyncio.Protocol):
    """The server's end of one TLS connection: the protocol of the transport below, the transport of the protocol above."""

    def __init__(
        self, below: asyncio.Transport, context: ssl.SSLContext, make: Callable[[], asyncio.BaseProtocol], keeper: Gatekeeper
    ) -> None:
        super().__init__()
        self._below = below
        self._make = make
        self._keeper = keeper
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._protocol: Any = None
        """Above. None: the handshake has not ended."""
        self._came = 0
        self._closing = False
        self._ended = False  # the peer has said goodbye

    # -- the handshake

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._protocol is not None:
            self._take()
            return
        self._came += len(data)
        if self._came > HANDSHAKE_MAX:
            self._fail(f"{self._came} bytes came before it ended, limit is {HANDSHAKE_MAX}")
        else:
            self._keeper.due(self)

    def shake_hands(self) -> None:
        """A step of the handshake, with what has come. It costs up to a millisecond."""
        if self._closing or self._protocol is not None:
            return
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._push()
            return
        except (ssl.SSLError, OSError, ValueError) as error:
            self._push()  # it tells the peer what is wrong
            self._fail(getattr(error, "verify_message", "") or getattr(error, "reason", None) or str(error))
            return
        self._push()
        self._protocol = self._make()
        self._keeper.passed(self)
        self._protocol.connection_made(self)
        if not self.is_closing():
            self._take()  # the first request may have come with the end of the handshake

    def _fail(self, why: str) -> None:
        if not self._closing:
            self._closing = True
            self._keeper.failed(self, why)
            self._below.close()

    # -- reading

    def _take(self) -> None:
        """Everything that can be decrypted, as one read."""
        pieces: list[bytes] = []
        broken, ended = False, False
        try:
            while not ended and (self._incoming.pending or self._ssl.pending()):
                piece = self._ssl.read(RECORD)
                pieces.append(piece)
                ended = not piece
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, OSError):
            broken = True  # bytes that nobody with the keys has sent, or another handshake: that is not offered
        self._push()
        if pieces and not self._closing:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if data:
                self._protocol.data_received(data)
        if broken:
            self.abort()
        elif ended:
            self._ended = True
            asyncio.get_running_loop().call_soon(self._end)  # behind the answer to what came with the end

    def _end(self) -> None:
        """While reading pauses, what came before the end is not done yet."""
        if self._below.is_reading():
            self.close()

    def eof_received(self) -> bool | None:
        return None  # the transport below closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        else:
            self._keeper.failed(self, "")

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._ended:
            self.close()
        else:
            self._below.resume_reading()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[self._ssl.write(view) :]
        except (ssl.SSLError, OSError):
            self.abort()
            return
        self._push()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _push(self) -> None:
        if self._outgoing.pending and not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        return False

    # -- ending

    def close(self) -> None:
        """After what was written, with a goodbye that tells the peer that nothing was cut off."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(ssl.SSLError, OSError, ValueError):
            self._ssl.unwrap()  # it never waits for the peer's goodbye: that would be in the way of a stop
        self._push()
        self._below.close()

    def abort(self) -> None:
        self._closing = True
        self._below.abort()

    def is_closing(self) -> bool:
        return self._closing or self._below.is_closing()

    # -- the rest of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._ssl.getpeercert()
        if name == "ssl_object":
            return self._ssl
        return self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return] # whatever was set

    def __repr__(self) -> str:
        return f"<EncryptedTransport over {self._below!r}>"
