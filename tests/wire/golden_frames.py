"""The recorded frames, read once."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import Framer

VECTORS = Path(__file__).parent.parent / "vectors"


@dataclass(frozen=True)
class Golden:
    number: int
    request_code: int
    response_code: int | None
    way: str
    form: str
    oneway: bool
    opaque: int
    version: int
    language: Any
    data: bytes

    @property
    def is_request(self) -> bool:
        return self.response_code is None

    @property
    def command(self) -> Command:
        (frame,) = Framer().feed(self.data)
        return commands.decode(frame)

    def __str__(self) -> str:
        kind = "request" if self.is_request else f"response-{self.response_code}"
        return f"{self.number}-{self.request_code}-{kind}-{self.form}"


@cache
def golden() -> tuple[Golden, ...]:
    made = []
    for number, line in enumerate((VECTORS / "frames.jsonl").read_text().splitlines()):
        row = json.loads(line)
        made.append(
            Golden(
                number, row["request_code"], row["response_code"], row["way"], row["form"], row["oneway"],
                row["opaque"], row["version"], row["language"], bytes.fromhex(row["hex"]),
            )
        )  # fmt: skip
    return tuple(made)


def store_files(name: str, under: str) -> Iterator[tuple[str, bytes]]:
    """(file name, content) of a recorded store directory, sorted."""
    with tarfile.open(VECTORS / name) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if member.isfile() and member.name.startswith(f"store/{under}"):
                opened = archive.extractfile(member)
                assert opened is not None
                yield member.name.removeprefix("store/"), opened.read()
