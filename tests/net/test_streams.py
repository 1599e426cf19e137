"""Streams: bytes as they are between two ends, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from roquet.net import streams
from roquet.net.streams import NetDialer, StreamHost
from roquet.ports import Stream


class End:
    """Keeps what happens."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.data = b""
        self.losses: list[tuple[Stream | None, str]] = []
        self.fails = False

    def opened(self, stream: Stream) -> None:
        self.streams.append(stream)

    def received(self, stream: Stream, data: bytes) -> None:
        if self.fails:
            raise KeyError("a mistake of ours")
        self.data += data

    def lost(self, stream: Stream | None, why: str) -> None:
        self.losses.append((stream, why))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_both_ends_get_each_other_s_bytes_and_hear_of_the_end() -> None:
    async def play() -> None:
        here, there = End(), End()
        host, dialer = StreamHost(there), NetDialer()
        port = await host.listen("127.0.0.1", 0)
        dialer.dial(f"127.0.0.1:{port}", here, 1_000)
        await until(lambda: bool(here.streams and there.streams))
        here.streams[0].send(b"a" * 3_000_000)
        there.streams[0].send(b"b")
        await until(lambda: len(there.data) == 3_000_000 and here.data == b"b")
        there.streams[0].close("enough")
        await until(lambda: bool(here.losses and there.losses))
        assert there.losses == [(there.streams[0], "enough")]
        assert here.losses[0][0] is here.streams[0]
        assert here.streams[0].closed
        here.streams[0].send(b"nobody hears it")
        assert not host.streams
        host.close()

    asyncio.run(play())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "no port"])
def test_whoever_cannot_be_reached_is_lost(address: str) -> None:
    async def play() -> None:
        end = End()
        NetDialer().dial(address, end, 2_000)
        await until(lambda: bool(end.losses))
        assert end.losses[0][0] is None
        assert address in end.losses[0][1]

    asyncio.run(play())


def test_a_mistake_in_one_end_closes_its_stream_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        here, other, there = End(), End(), End()
        host, dialer = StreamHost(there), NetDialer()
        port = await host.listen("127.0.0.1", 0)
        dialer.dial(f"127.0.0.1:{port}", here, 1_000)
        await until(lambda: len(there.streams) == 1)
        dialer.dial(f"127.0.0.1:{port}", other, 1_000)
        await until(lambda: len(there.streams) == 2)
        there.fails = True
        here.streams[0].send(b"x")
        await until(lambda: bool(here.losses))
        assert not other.losses
        there.fails = False
        other.streams[0].send(b"y")
        await until(lambda: there.data == b"y")
        host.close()
        await until(lambda: bool(other.losses))

    asyncio.run(play())
    assert "could not be taken" in caplog.text


def test_no_more_than_so_many_streams_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 1)

    async def play() -> None:
        first, second, there = End(), End(), End()
        host, dialer = StreamHost(there), NetDialer()
        port = await host.listen("127.0.0.1", 0)
        dialer.dial(f"127.0.0.1:{port}", first, 1_000)
        await until(lambda: len(there.streams) == 1)
        dialer.dial(f"127.0.0.1:{port}", second, 1_000)
        await until(lambda: bool(second.losses))
        assert len(there.streams) == 1
        assert not first.losses
        host.close()

    asyncio.run(play())


def test_whoever_does_not_read_is_closed_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UNSENT_MAX", 100_000)

    async def play() -> None:
        there = End()
        host = StreamHost(there)
        port = await host.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        await until(lambda: bool(there.streams))
        async with asyncio.timeout(60):
            while not there.streams[0].closed:
                there.streams[0].send(bytes(1_000_000))
                await asyncio.sleep(0)
        await until(lambda: bool(there.losses))
        assert "does not read" in there.losses[0][1]
        writer.close()
        host.close()

    asyncio.run(play())
