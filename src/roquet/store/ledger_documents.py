"""The two small files of DLedger beside its log, in the text of Java properties:

    currterm      voteLeader=n2 / currTerm=4             the term, and whom this member gave its vote in it
    checkpoint    committedIndex=34 / endIndex=34        how far the group had come, as far as was known here

A checkpoint of ours may also have `beginPos=84475`, which Java does not read: the ledger began anew there, in the middle of a file.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from roquet.errors import Damaged
from roquet.store.disk import Disk
from roquet.store.documents import Document

log = logging.getLogger("roquet.store")

SIZE_MAX = 64 * 1024


def _fields(data: bytes) -> dict[str, str]:
    lines = (line.strip() for line in data.decode().splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


class TermFile:
    """Term and vote are on disk before anything is answered with them (E5)."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._document = Document(disk, f"{directory}/currterm", SIZE_MAX)
        self._disk = disk
        self._directory = directory

    def load(self) -> tuple[int, str]:
        """(term, whom the vote was given: "" for nobody). Raises Damaged: with an older vote this member could give two in one term."""
        found = self._document.load(_read_term)
        if self._document.warning and self._disk.exists(self._document.path):
            raise Damaged(
                f"{self._document.warning}. It says whom this member voted for; without it two members could lead in one term. Bring it "
                "back from a backup, or remove the whole directory of the ledger: then this member begins anew, from what the others have"
            )
        return found or (0, "")

    def save(self, term: int, vote: str) -> None:
        """Durable when this returns. Raises OSError, and then the old one counts."""
        self._disk.make_dir(self._directory)
        self._document.save(f"voteLeader={vote}\ncurrTerm={term}\n".encode())


def _read_term(data: bytes) -> tuple[int, str]:
    fields = _fields(data)
    term = int(fields["currTerm"])
    if term < 0:
        raise ValueError(f"currTerm is {term}, a number from 0 on is expected")
    return term, fields.get("voteLeader", "")


class Told(NamedTuple):
    """What the checkpoint says."""

    committed: int = -1
    """The last entry that is committed, and on this disk; -1 when nobody knows: then the group tells."""
    anew_at: int = -1
    """Where the ledger began anew, -1 when it never did."""


class LedgerCheckpoint:
    def __init__(self, disk: Disk, directory: str) -> None:
        self.document = Document(disk, f"{directory}/checkpoint", SIZE_MAX)
        self._disk = disk
        self._directory = directory

    def load(self) -> Told:
        found = self.document.load(_read_told)
        if self.document.warning:
            log.warning("%s. What is committed comes from the group again.", self.document.warning)
        return found or Told()

    def save(self, told: Told, end: int) -> None:
        """May block. Raises OSError."""
        self._disk.make_dir(self._directory)
        self.document.save(encode_told(told, end))


def encode_told(told: Told, end: int) -> bytes:
    anew = f"beginPos={told.anew_at}\n" if told.anew_at >= 0 else ""
    return f"committedIndex={told.committed}\nendIndex={end}\n{anew}".encode()


def _read_told(data: bytes) -> Told:
    fields = _fields(data)
    return Told(max(int(fields["committedIndex"]), -1), int(fields.get("beginPos", -1)))
