"""How connections are made is said in one place, and what is not served there is refused."""

from __future__ import annotations

import asyncio

import pytest

from roquet.errors import ClientError, ConnectFailed
from roquet.net.blocking import BlockingCaller
from roquet.net.caller import AsyncCaller
from roquet.net.connection import ConnectionOptions
from roquet.wire.command import Command

NOBODY = "192.0.2.1:9876"
"""An address for documents: no packet to it is answered."""


@pytest.mark.parametrize("value", [0, -1, 3_600_001])
def test_a_time_that_makes_no_sense_is_refused(value: int) -> None:
    with pytest.raises(ClientError, match="connect_timeout_ms"):
        ConnectionOptions(connect_timeout_ms=value)


def test_both_kinds_of_connection_give_up_after_the_time_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def asked() -> object:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never, raising=False)
        caller = AsyncCaller(connection=ConnectionOptions(connect_timeout_ms=20))
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        caller.call(NOBODY, Command(11), 5_000, answer.set_result)
        try:
            return await answer
        finally:
            await caller.close()

    error = asyncio.run(asked())
    assert isinstance(error, ConnectFailed)
    assert "within 20 ms" in str(error)

    def slow(_: object, timeout_s: float) -> None:
        assert timeout_s == 0.02
        raise TimeoutError

    monkeypatch.setattr("socket.create_connection", slow)
    with pytest.raises(ConnectFailed, match=r"within 0\.02 s"):
        BlockingCaller(ConnectionOptions(connect_timeout_ms=20)).call(NOBODY, Command(11), 5)
