"""Connections that have not shown who they are: how many one address may have, what they may send, and who makes room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from roquet.net import server, strangers
from roquet.net.entrance import FirstByte
from roquet.net.strangers import Strangers
from roquet.net.tls import DISABLED, PERMISSIVE
from roquet.testing import FakePeer
from roquet.wire.command import Command
from roquet.wire.frame import FRAME_SIZE_MAX, encode_frame
from tests.net.tls_line import LOOPS, Place, closed, serving, until

Run = Callable[[Coroutine[Any, Any, None]], None]
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return LOOPS[request.param]


def guarded(place: Place, frame_max: int = 1_000) -> Strangers:
    """Whoever asks with the body "known" is."""
    receive = place.core.receive

    def look(peer: Any, frames: Any, until_ms: int) -> Any:
        peer.principal = "account" if any(body == b"known" for _, _, body in frames) else peer.principal
        return receive(peer, frames, until_ms)

    place.core.receive = look  # type: ignore[method-assign]
    place.server.strangers = Strangers(lambda peer: bool(peer.principal), lambda address: address.rpartition(":")[0], frame_max)
    return place.server.strangers


async def line(place: Place, body: bytes = b"", host: str = "127.0.0.1") -> Line:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port, local_addr=(host, 0))
    if body:
        writer.write(Command(11, {}, body).encode())
        assert await reader.read(65_536)
    return reader, writer


def test_one_address_has_so_many_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(strangers, "STRANGERS_MAX", 4)

    async def work() -> None:
        async with serving(DISABLED) as place:
            found = guarded(place)
            known = [await line(place, b"known") for _ in range(6)]
            other = await line(place, b"unknown", "127.0.0.2")
            flood = [await line(place, b"unknown") for _ in range(7)]
            for reader, _ in flood[:3]:
                assert await closed(reader) == b""
            for one in (*known, other, *flood[3:]):
                one[1].write(Command(11, {}, b"still here").encode())
                assert await one[0].read(65_536)
            assert len(found) == 5
            for _, writer in (*known, other, *flood):
                writer.close()
            await until(lambda: not len(found))

    run(work())


def test_a_large_frame_is_taken_of_those_who_are_known_alone(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(DISABLED) as place:
            guarded(place)
            reader, writer = await line(place)
            writer.write(Command(11, {}, bytes(2_000)).encode()[:8])  # its length is enough
            assert await closed(reader) == b""
            writer.close()
            reader, writer = await line(place, b"known")
            writer.write(Command(11, {}, bytes(2_000)).encode())
            assert await reader.read(65_536)
            writer.close()

    run(work())
    assert "allowed are 4 to 1000" in caplog.text


def test_a_large_header_is_taken_of_those_who_are_known_alone_and_a_larger_one_of_nobody(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(DISABLED) as place:
            guarded(place, frame_max=FRAME_SIZE_MAX)
            reader, writer = await line(place)
            header = b'{"code":11}'.ljust(strangers.HEADER_MAX + 1)
            writer.write(encode_frame(0, header))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(65_536) == b""
            writer.close()
            reader, writer = await line(place, b"known")
            for size in (strangers.HEADER_MAX, server.HEADER_MAX - 1_000):
                writer.write(Command(11, {"field": "x" * size}).encode())
                assert await reader.read(65_536)
            writer.write(encode_frame(0, bytes(server.HEADER_MAX + 1), bytes(100))[:8])  # its length is enough
            assert await closed(reader) == b""
            writer.close()

    run(work())
    for limit in (strangers.HEADER_MAX, server.HEADER_MAX):
        assert f"closed: header length {limit + 1}, allowed are {limit}" in caplog.text


def test_a_server_that_wants_to_know_nobody_takes_no_larger_header_either(run: Run) -> None:
    async def work() -> None:
        async with serving(DISABLED) as place:
            reader, writer = await line(place)
            writer.write(Command(11, {f"f{number}": "" for number in range(100_000)}).encode())
            assert await closed(reader) == b""
            writer.close()
            assert not place.core.peers, "nobody took it apart"

    run(work())


def test_when_there_is_no_room_strangers_make_it_for_others(run: Run) -> None:
    async def work() -> None:
        async with serving(PERMISSIVE, connections_max=6) as place:
            guarded(place)
            known = [await line(place, b"known") for _ in range(2)]
            unknown = [await line(place, b"unknown") for _ in range(2)]
            silent = [await line(place) for _ in range(2)]
            await until(lambda: len(place.server.entrance) == 2)
            fresh = [await line(place, b"known") for _ in range(4)]
            for reader, _ in (*silent, *unknown):
                assert await closed(reader) == b""
            refused = await line(place)
            assert await closed(refused[0]) == b"", "all are known now"
            for one in (*known, *fresh):
                one[1].write(Command(11, {}, b"still here").encode())
                assert await one[0].read(65_536)
            for _, writer in (*known, *unknown, *silent, *fresh, refused):
                writer.close()

    run(work())


def test_one_address_has_so_many_that_say_nothing(run: Run) -> None:
    async def work() -> None:
        async with serving(PERMISSIVE) as place:
            place.server.entrance.of_one_max = 4
            other = await line(place, host="127.0.0.2")
            silent = [await line(place) for _ in range(6)]
            for reader, _ in silent[:2]:
                assert await closed(reader) == b""
            assert len(place.server.entrance) == 5
            for one in (other, *silent[2:]):
                one[1].write(Command(11, {}, b"at last").encode())
                assert await one[0].read(65_536)
            assert not len(place.server.entrance)
            for _, writer in (other, *silent):
                writer.close()

    run(work())


class Silent(asyncio.Transport):
    """Somebody who came from this address."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 40_001, 0, 0)})
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_one_network_of_64_bits_has_so_many_that_say_nothing(run: Run) -> None:
    """It may be one machine's."""

    async def work() -> None:
        async with serving(PERMISSIVE) as place:
            entrance = place.server.entrance
            entrance.of_one_max = 4
            hosts = ["2001:db8:0:1::1", *(f"2001:db8::{number:x}" for number in range(1, 7)), "::ffff:10.0.0.1", "10.0.0.2"]
            came = [Silent(host) for host in hosts]
            for transport in came:
                FirstByte(entrance, asyncio.Protocol).connection_made(transport)
            assert [hosts[at] for at, one in enumerate(came) if one.aborted] == ["2001:db8::1", "2001:db8::2"]
            entrance.send_oldest_away()
            assert came[3].aborted, "that network has most"

    run(work())


def test_whoever_became_known_is_dropped_when_somebody_looks() -> None:
    peers = [FakePeer(f"10.0.0.1:{number}") for number in range(3)]
    found = Strangers(lambda peer: bool(peer.principal), lambda address: address, 0)
    for peer in peers:
        found.came(peer)
    peers[0].principal = "account"
    assert found.send_one_away()
    assert found.send_one_away()
    assert not found.send_one_away()
    assert [peer.closed for peer in peers] == [False, True, True]


def test_lines_about_closed_connections_are_limited_and_those_left_out_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    closings = server.Closings()
    with caplog.at_level(logging.WARNING):
        for number in range(1_000):
            closings.say(f"10.0.0.1:{number}", "it lies")
        now += 1
        closings.say("10.0.0.2:1", "it lies, too")
    assert len(caplog.messages) == server.CLOSINGS_AT_ONCE + 1
    assert caplog.messages[-1] == "x 10.0.0.2:1 closed: it lies, too (and 900 others before)"
