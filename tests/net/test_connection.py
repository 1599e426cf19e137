"""How connections are made is said in one place, and what is not served there is refused."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from roquet.errors import ClientError, ConnectFailed
from roquet.net.blocking import BlockingCaller
from roquet.net.caller import AsyncCaller
from roquet.net.connection import ConnectionOptions, Contexts, Tls
from roquet.wire.command import Command
from tests.certificates import authority

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


def test_clients_that_say_the_same_share_what_they_read_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A program with fifty clients would read the authorities fifty times, 30 ms each, and its loop stands still meanwhile."""
    file = tmp_path / "authority.pem"
    shutil.copy(authority().file, file)
    first, second = Contexts(Tls(str(file))), Contexts(Tls(str(file)))
    assert first.current() is second.current()
    assert Contexts(Tls(str(file), check_host=False)).current() is not first.current()
    before = first.current()
    file.write_text(file.read_text() + "\n")
    assert first.current() is not before
    assert first.current() is second.current()


def test_who_trusts_any_server_reads_no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", None)
    context = Tls(verify=False).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
