"""Golden frames of Apache's clients, by request code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer

FRAMES = Path(__file__).parent.parent / "vectors" / "frames.jsonl"


@pytest.fixture(scope="session")
def golden() -> Callable[[int], list[Command]]:
    """What clients sent for this code: requests, and answers to requests of brokers."""
    lines = [json.loads(line) for line in FRAMES.read_text().splitlines()]

    def of(code: int) -> list[Command]:
        chosen = [line for line in lines if line["request_code"] == code and line["way"] == "c->s"]
        return [decode(Framer().feed(bytes.fromhex(line["hex"]))[0]) for line in chosen]

    return of
