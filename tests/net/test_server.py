"""What the server of connections decides by itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from roquet.net import server as serving
from roquet.net.server import Connection, Server


class Line:
    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self._waiting = 0

    def waits(self, size: int) -> int:
        change, self._waiting = size - self._waiting, size
        return change

    def close(self, reason: str) -> None:
        self.closed = True


def test_when_too_much_waits_to_be_read_the_peer_with_most_goes_and_not_the_one_that_came_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "WAITING_MAX", 100)

    async def play() -> None:
        server = Server(cast(Any, None), cast(Any, None), idle_s=1, connections_max=1)
        greedy, lazy, honest = (Line(name) for name in ("greedy", "lazy", "honest"))
        for line, size in ((greedy, 60), (lazy, 30), (honest, 11)):
            server.note_waiting(cast(Connection, line), size)
        assert [line.closed for line in (greedy, lazy, honest)] == [True, False, False]
        server.note_waiting(cast(Connection, honest), 70)
        assert not lazy.closed, "what the one that went had counts no more"

    asyncio.run(play())
