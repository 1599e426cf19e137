"""An entry of DLedger's log, as it stands in a data file and in a push."""

from __future__ import annotations

from typing import NamedTuple

from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC, LEDGER_UNIT, MAGICS, OFFSET_AT, RECORD_MIN


class Misplaced(Exception):
    """An entry does not fit behind what is held: another index, another position, or no entry at all. Nothing was written."""


class Head(NamedTuple):
    """What stands before a record."""

    magic: int
    size: int
    index: int  # type: ignore[assignment]  # tuples have a method of that name
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int

    @property
    def adds_up(self) -> bool:
        """Whatever it stands before."""
        return (
            self.magic == LEDGER_MAGIC
            and self.size == self.body_size + LEDGER_HEAD.size
            and self.body_size >= RECORD_MIN
            and self.index >= 0
            and self.term >= 0
        )

    @property
    def end(self) -> int:
        return self.pos + self.size


class Entry(NamedTuple):
    """`size` counts the head too. `body` is one record."""

    magic: int
    size: int
    index: int  # type: ignore[assignment]  # tuples have a method of that name
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body: bytes

    @property
    def head(self) -> Head:
        return Head(*self[:8], len(self.body))


class Unit(NamedTuple):
    """What the ledger's index says of an entry."""

    magic: int
    pos: int
    size: int
    index: int  # type: ignore[assignment]  # tuples have a method of that name
    term: int


def read_head(data: bytes | bytearray | memoryview, at: int = 0) -> Head:
    return Head(*LEDGER_HEAD.unpack_from(data, at))


def read_entry(data: bytes, at: int = 0) -> Entry:
    head = read_head(data, at)
    return Entry(*head[:8], data[at + LEDGER_HEAD.size : at + head.size])


def read_unit(data: bytes | bytearray | memoryview, at: int = 0) -> Unit:
    return Unit(*LEDGER_UNIT.unpack_from(data, at))


def unit_of(head: Head) -> bytes:
    return LEDGER_UNIT.pack(head.magic, head.pos, head.size, head.index, head.term)


def holds_its_record(body: bytes | memoryview, pos: int) -> bool:
    """Is this one record, by its own length and place? An entry of that position holds nothing else."""
    place = int.from_bytes(body[OFFSET_AT : OFFSET_AT + 8], "big")
    return int.from_bytes(body[:4], "big") == len(body) >= RECORD_MIN and bytes(body[4:8]) in MAGICS and place == pos + LEDGER_HEAD.size
