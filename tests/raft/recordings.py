"""What three Java members said to each other (tests/vectors/dledger-frames.jsonl)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FRAMES = Path(__file__).parent.parent / "vectors" / "dledger-frames.jsonl"


@dataclass(frozen=True)
class Frame:
    session: str
    phase: str
    way: str
    sender: str
    receiver: str
    code: int
    """Of the request; of an answer, that of its request."""
    status: int
    """Of an answer's header."""
    opaque: int
    conn: int | None
    header: str
    body: str
    shortened: bool

    @property
    def is_java(self) -> bool:
        return self.sender != "probe" and not self.shortened

    @property
    def value(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@cache
def frames() -> tuple[Frame, ...]:
    found = []
    for line in FRAMES.read_text().splitlines():
        row = json.loads(line)
        code = row.get("request_code") or row.get("code")
        if row["way"] not in ("request", "response") or not code or code < 50_000 or code == 59_999:
            continue
        found.append(
            Frame(
                row["session"],
                row["phase"],
                row["way"],
                row["from"],
                row["to"],
                code,
                row.get("code", 0),
                row["opaque"],
                row.get("conn"),
                row.get("header", ""),
                row.get("body") or "",
                "shortened" in row,
            )
        )
    return tuple(found)


def pairs(session: str, *phases: str) -> list[tuple[Frame, Frame]]:
    """Each request with its answer, in the order of the answers."""
    asked: dict[tuple[str, str, int], Frame] = {}
    found = []
    for frame in frames():
        if frame.session != session or (phases and frame.phase not in phases):
            continue
        if frame.way == "request":
            asked[frame.sender, frame.receiver, frame.opaque] = frame
        else:
            request = asked.pop((frame.receiver, frame.sender, frame.opaque), None)
            if request is not None:
                found.append((request, frame))
    return found
