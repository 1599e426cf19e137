"""One GET, answered whole or not at all. No redirects, no compression, a new connection each time: enough for a line of text."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

HEAD_MAX = 16 * 1024


async def http_get(url: str, *, size_max: int, timeout_s: float) -> bytes:
    """The body of a 200. Raises OSError (TimeoutError too), or ValueError for an answer that is none."""
    async with asyncio.timeout(timeout_s):
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(
            parts.hostname, port, limit=HEAD_MAX, ssl=ssl.create_default_context() if secure else None
        )
        try:
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            # HTTP/1.0: the answer ends with the connection, and comes in one piece.
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: text/plain, */*\r\n\r\n".encode("ascii"))
            return await _answer(reader, size_max)
        finally:
            writer.close()


async def _answer(reader: asyncio.StreamReader, size_max: int) -> bytes:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        raise ValueError("the connection ended before an answer came") from None
    except asyncio.LimitOverrunError:
        raise ValueError(f"the answer begins with more than {HEAD_MAX} bytes of headers") from None
    version, _, status = head[0].partition(" ")
    if not version.startswith("HTTP/"):
        raise ValueError(f"the answer {head[0][:80]!r} is not HTTP")
    if not status.startswith("200"):
        raise ValueError(f"it answered {status[:80]}; expected is 200")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    if headers.get("transfer-encoding", "identity").lower() != "identity":
        raise ValueError(f"it answered in {headers['transfer-encoding'][:40]!r} to a question of HTTP/1.0")
    length = headers.get("content-length", "")
    wanted = int(length) if length.isdigit() and len(length) < 10 else None
    body = bytearray()
    while wanted is None or len(body) < wanted:
        if len(body) > size_max or (wanted or 0) > size_max:
            raise ValueError(f"the answer is longer than {size_max} bytes")
        piece = await reader.read(size_max + 1 if wanted is None else wanted - len(body))
        if not piece:
            if wanted is not None:
                raise ValueError(f"the answer ended after {len(body)} of {wanted} bytes")
            break
        body += piece
    return bytes(body)
