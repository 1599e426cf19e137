"""Streams of master and slave over TLS, on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from roquet.net.connection import PLAIN, ConnectionOptions, Tls
from roquet.net.streams import STREAMS_MAX, NetDialer, StreamHost
from roquet.net.tls import ENFORCING, PERMISSIVE, ServerTls
from tests.certificates import authority, issued
from tests.net.test_streams import End
from tests.net.tls_line import LOOPS, server_files, until

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return LOOPS[request.param]


def member() -> ConnectionOptions:
    who = issued("/CN=member")
    return ConnectionOptions(tls=Tls(authority().file, who.cert, who.key))


@pytest.mark.parametrize("connection", [PLAIN, ConnectionOptions(tls=Tls(verify=False))], ids=["plain", "encrypted"])
def test_both_ends_get_each_other_s_bytes(run: Run, connection: ConnectionOptions) -> None:
    async def play() -> None:
        here, there = End(), End()
        host, dialer = StreamHost(there, ServerTls(PERMISSIVE)), NetDialer(connection)
        port = await host.listen("127.0.0.1", 0)
        dialer.dial(f"127.0.0.1:{port}", here, 60_000)
        await until(lambda: bool(here.streams))
        here.streams[0].send(bytes(8))  # who dials speaks first
        await until(lambda: bool(there.streams))
        there.streams[0].send(b"a" * 3_000_000)
        here.streams[0].send(b"b" * 3_000_000)
        await until(lambda: len(here.data) == 3_000_000 and len(there.data) == 3_000_008)
        there.streams[0].close("enough")
        await until(lambda: bool(here.losses and there.losses))
        assert there.losses == [(there.streams[0], "enough")]
        host.close()
        dialer.close()

    run(play())


@pytest.mark.parametrize("connection", [PLAIN, ConnectionOptions(tls=Tls(verify=False))], ids=["plain", "without a certificate"])
def test_a_member_that_cannot_say_who_it_is_is_not_heard(run: Run, connection: ConnectionOptions) -> None:
    async def play() -> None:
        here, good, there = End(), End(), End()
        host = StreamHost(there, ServerTls(ENFORCING, server_files(client_auth="require")))
        port = await host.listen("127.0.0.1", 0)
        stranger, known = NetDialer(connection), NetDialer(member())
        stranger.dial(f"127.0.0.1:{port}", here, 60_000)
        await until(lambda: bool(here.streams or here.losses))
        if here.streams:
            here.streams[0].send(bytes(8))
        await until(lambda: bool(here.losses))
        assert not there.streams
        known.dial(f"127.0.0.1:{port}", good, 60_000)
        await until(lambda: bool(good.streams))
        good.streams[0].send(bytes(8))
        await until(lambda: there.data == bytes(8))
        host.close()
        for dialer in (stranger, known):
            dialer.close()

    run(play())


def test_a_master_that_is_not_trusted_is_lost_with_a_sentence(run: Run) -> None:
    async def play() -> None:
        here, there = End(), End()
        host, dialer = StreamHost(there, ServerTls(ENFORCING, server_files())), NetDialer(ConnectionOptions(tls=Tls()))
        port = await host.listen("127.0.0.1", 0)
        dialer.dial(f"127.0.0.1:{port}", here, 60_000)
        await until(lambda: bool(here.losses))
        assert here.losses[0][0] is None
        assert "does its certificate fit?" in here.losses[0][1]
        host.close()

    run(play())


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["silent", "half a hello"])
def test_strangers_who_do_not_say_who_they_are_keep_no_member_out(run: Run, said: bytes) -> None:
    async def play() -> None:
        good, there = End(), End()
        host, dialer = StreamHost(there, ServerTls(ENFORCING, server_files(client_auth="require"))), NetDialer(member())
        port = await host.listen("127.0.0.1", 0)
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STREAMS_MAX + 20)]
        for _, writer in strangers:
            writer.write(said)
        await until(lambda: len(host.entrance) >= STREAMS_MAX)
        dialer.dial(f"127.0.0.1:{port}", good, 60_000)
        await until(lambda: bool(good.streams or good.losses))
        assert good.streams, good.losses
        good.streams[0].send(bytes(8))
        await until(lambda: there.data == bytes(8))
        assert len(host.entrance.silent) <= STREAMS_MAX
        host.close()
        dialer.close()
        for _, writer in strangers:
            writer.close()

    run(play())
