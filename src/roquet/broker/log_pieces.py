"""Pieces of the commit log for a slave that compares its own with it (`ha/compare.py`)."""

from __future__ import annotations

from zlib import crc32

from roquet.broker.handler import answers
from roquet.broker.part import Part
from roquet.broker.roles import is_slave
from roquet.errors import Refused
from roquet.ha.compare import BLOCK
from roquet.ports import Peer
from roquet.wire.calls.log_pieces import LOG_PIECE, LogPieceResponseHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command


class LogPieces(Part):
    @answers(LOG_PIECE)
    def piece(self, peer: Peer, command: Command) -> Command:
        asked = LOG_PIECE.read_header(command)
        if asked.offset < 0 or not 0 <= asked.size <= BLOCK:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"{asked.size} bytes of the log from {asked.offset} on; allowed are 0 to {BLOCK} from 0 or more"
            )
        log = self.store.log
        try:
            data = log.read(asked.offset, asked.size) if asked.size else b""
            checksum = crc32(data)
        except LookupError:
            data, checksum = b"", -1
        header = LogPieceResponseHeader(log.start, log.written, log.segments.size, checksum, is_slave(self.settings))
        return LOG_PIECE.reply(command, header, data if asked.with_bytes else b"")
