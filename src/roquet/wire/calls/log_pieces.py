"""A piece of a broker's commit log, or its checksum. Roquet's own: a slave compares its log with its master's before it copies.

RocketMQ does not know it and says so, which tells a slave what its master is.
"""

from __future__ import annotations

from roquet.wire.calls.call import Bytes, Call, Nothing
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class LogPieceHeader(Header):
    offset: int = wire("offset", bits=64)
    size: int = wire("size")
    with_bytes: bool | None = optional("withBytes")


class LogPieceResponseHeader(Header):
    """The log's first offset, its end, the size of its files, and the CRC-32 of the piece; -1: not all of the piece is there."""

    start: int = wire("start", bits=64)
    end: int = wire("end", bits=64)
    file_size: int = wire("fileSize", bits=64)
    checksum: int = wire("checksum", bits=64)
    slave: bool | None = optional("slave")
    """This broker is a slave: its topics, groups and progress are a copy, maybe an old one."""
    doubtful: str | None = optional("doubtful")
    """ "begin-end begin-end": what the master's last crash may have spoiled of its log."""


LOG_PIECE = Call(Code.LOG_PIECE, LogPieceHeader, Nothing, LogPieceResponseHeader, Bytes)
