"""Pieces of the commit log for a slave that compares its own with it (`ha/compare.py`)."""

from __future__ import annotations

from zlib import crc32

from roquet.broker.handler import answers
from roquet.broker.part import Part
from roquet.broker.roles import is_slave
from roquet.errors import Refused
from roquet.ha.compare import BLOCK
from roquet.ports import Peer
from roquet.store.store import Store
from roquet.wire.calls.log_pieces import LOG_PIECE, LogPieceResponseHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

STRETCHES_MAX = 1_000


def doubtful(store: Store) -> list[tuple[int, int]]:
    """Stretches of the log that the last crash may have spoiled: holes, and all that nothing vouched for when it was read back."""
    stretches = [(hole.offset, hole.offset + hole.size) for hole in store.holes]
    if store.crashed:
        stretches.append((store.recovered_from, store.recovered_to))
    return sorted(stretches)[:STRETCHES_MAX]


def read_doubtful(text: str | None) -> list[tuple[int, int]]:
    """As a master told it. What is none of it is passed over: less is compared then."""
    pairs = [pair.partition("-") for pair in (text or "").split()[:STRETCHES_MAX]]
    return sorted((int(begin), int(end)) for begin, _, end in pairs if begin.isdecimal() and end.isdecimal() and len(begin + end) < 40)


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
        header = LogPieceResponseHeader(
            log.start, log.written, log.segments.size, checksum, is_slave(self.settings),
            None if asked.size else " ".join(f"{begin}-{end}" for begin, end in doubtful(self.store)),
        )  # fmt: skip
        return LOG_PIECE.reply(command, header, data if asked.with_bytes else b"")
