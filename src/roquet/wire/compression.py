"""Bodies that a client compressed: zlib, an LZ4 frame or zstd, named by bits of the sys flag.

The broker never looks inside. Whoever does gets at most `limit` bytes: a few kilobytes can expand to gigabytes.
"""

from __future__ import annotations

import zlib
from typing import Any

import lz4.frame
import zstandard

from roquet.errors import InvalidMessage
from roquet.wire.codes import SysFlag

DECOMPRESSED_MAX = 64 * 1024 * 1024
"""Default cap of what a compressed body may expand to; sixteen times the largest body a broker takes uncompressed."""

ZLIB = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
LZ4 = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4)
ZSTD = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD)

KINDS = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}
"""Name -> the bits that a message compressed that way carries in its sys flag."""


def compress(data: bytes, kind: str = "zlib", level: int = 5) -> bytes:
    """`kind` is a key of KINDS; OR its bits into the sys flag."""
    if kind == "zlib":
        return zlib.compress(data, level)
    if kind == "lz4":
        made: bytes = lz4.frame.compress(data, compression_level=level)
        return made
    if kind == "zstd":
        return zstandard.ZstdCompressor(level=level).compress(data)
    raise ValueError(f"compression {kind!r}, known are {', '.join(KINDS)}")


COMPRESSED = int(SysFlag.COMPRESSED)
"""A number, since every body is asked and flags of an enumeration are slow."""


def decompress(data: bytes, sys_flag: int, limit: int = DECOMPRESSED_MAX) -> bytes:
    """The body as the producer gave it; as it is when the sys flag says it is not compressed.

    Raises InvalidMessage when it is damaged, of an unknown kind, or larger than `limit`.
    """
    if not sys_flag & COMPRESSED:
        return data
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind in (0, SysFlag.COMPRESSION_ZLIB):
        return _expand(zlib.decompressobj(), data, limit, "zlib")
    if kind == SysFlag.COMPRESSION_LZ4:
        return _expand(lz4.frame.LZ4FrameDecompressor(), data, limit, "LZ4")
    if kind == SysFlag.COMPRESSION_ZSTD:
        return _expand_zstd(data, limit)
    raise InvalidMessage(f"body compressed in an unknown way, sys flag {sys_flag:#x}; known are zlib, LZ4 and zstd")


def _expand(engine: Any, data: bytes, limit: int, name: str) -> bytes:
    try:
        # One byte more than allowed tells "exactly the limit" from "too large"; zlib takes 0 for "no cap".
        made: bytes = engine.decompress(data, limit + 1)
    except (zlib.error, RuntimeError, EOFError, MemoryError) as error:
        raise InvalidMessage(f"{name} body of {len(data)} bytes does not decompress: {error}") from None
    if len(made) > limit:
        raise _too_large(name, data, limit)
    if not engine.eof:
        raise InvalidMessage(f"{name} body of {len(data)} bytes ends too early")
    return made


def _expand_zstd(data: bytes, limit: int) -> bytes:
    try:
        # The size that a frame declares is allocated at once, so it is looked at first. Upstream's streams declare none.
        size = zstandard.frame_content_size(data)
        if size > limit:
            raise _too_large("zstd", data, limit)
        made = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(data, max_output_size=max(limit, 1))
    except (zstandard.ZstdError, MemoryError) as error:
        raise InvalidMessage(
            f"zstd body of {len(data)} bytes does not decompress, ends too early or expands to more than {limit}: {error}"
        ) from None
    if len(made) > limit:
        raise _too_large("zstd", data, limit)
    return made


def _too_large(name: str, data: bytes, limit: int) -> InvalidMessage:
    return InvalidMessage(f"{name} body of {len(data)} bytes expands to more than {limit}")
