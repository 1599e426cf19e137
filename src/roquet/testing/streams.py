"""Streams over the simulated network: connections whose bytes mean something to their two ends alone, a master and its slave."""

from __future__ import annotations

from roquet.errors import ConnectFailed
from roquet.ports import Peer, StreamEnd
from roquet.testing.network import CONNECT_TIMEOUT_US, SimNetwork, Wire, host_of
from roquet.wire.frame import Frame


class StreamDoor:
    """What listens for streams, in the place of a core."""

    def __init__(self, end: StreamEnd) -> None:
        self._end = end

    def accept(self, wire: Wire, other: str) -> AcceptedStream:
        stream = AcceptedStream(wire, other, self._end, self)
        self._end.opened(stream)
        return stream

    def receive(self, peer: Peer, frames: list[Frame]) -> list[Frame] | None:
        raise NotImplementedError("bytes of a stream are no frames")

    def disconnected(self, peer: Peer) -> None:
        raise NotImplementedError("a stream has no peer")


class AcceptedStream:
    """ports.Stream, where it was accepted."""

    def __init__(self, wire: Wire, address: str, end: StreamEnd, door: StreamDoor) -> None:
        self.address = address
        self.closed = False
        self._wire = wire
        self._door = door
        self._end: StreamEnd | None = end
        self._why = "the other end closed it"

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._wire.send(data, to_server=False)

    def received(self, data: bytes) -> None:
        if not self.closed and self._end is not None:
            self._end.received(self, data)

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._why = reason
            self._wire.cut(1_000)

    def disconnected(self) -> None:
        end, self._end = self._end, None
        self.closed = True
        if end is not None and self._wire.network.core_at(self._wire.address) is self._door:
            end.lost(self, self._why)


class DialedStream:
    """ports.Stream, where it was opened."""

    def __init__(self, dialer: SimDialer, address: str, end: StreamEnd) -> None:
        self.address = address
        self.closed = True
        self.ended = False
        self.wire: Wire | None = None
        self._dialer = dialer
        self._end = end
        self._why = "the other end closed it"

    def connect(self) -> None:
        network = self._dialer.network
        if self._dialer.dead:
            return
        if network.core_at(self.address) is None:
            self._end.lost(None, f"{self.address} cannot be reached: refused")
            return
        self.closed = False
        self.wire = network.connect(self._dialer.host, self.address, self)
        self._dialer.streams.append(self)
        self._end.opened(self)

    def send(self, data: bytes) -> None:
        if not self.closed and self.wire is not None:
            self.wire.send(data, to_server=True)

    def received(self, data: bytes) -> None:
        if not self.closed and not self._dialer.dead:
            self._end.received(self, data)

    def close(self, reason: str) -> None:
        if not self.closed and self.wire is not None:
            self.closed = True
            self._why = reason
            self.wire.cut(1_000)

    def end(self, error: ConnectFailed) -> None:
        if not self.ended:
            self.ended = self.closed = True
            if not self._dialer.dead:
                self._end.lost(self, self._why)


class SimDialer:
    """ports.Dialer; the real one is `roquet.net.streams.NetDialer`."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self.network = network
        self.host = host
        self.dead = False
        self.streams: list[DialedStream] = []

    def dial(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        network, host, server = self.network, self.host, host_of(address)
        if network.parted(host, server):
            delay_us = min(CONNECT_TIMEOUT_US, timeout_ms * 1_000)
            network.simulation.after(delay_us, lambda: network.when_awake(host, lambda: self._unreachable(address, end)))
        else:
            stream = DialedStream(self, address, end)
            network.simulation.after(network.delay_us(host, server), lambda: network.when_awake(host, stream.connect))

    def _unreachable(self, address: str, end: StreamEnd) -> None:
        if not self.dead:
            end.lost(None, f"{address} cannot be reached: it does not answer")

    def kill(self) -> None:
        """The process is gone: its streams are closed, and it hears of nothing any more."""
        self.dead = True
        for stream in self.streams:
            if stream.wire is not None:
                stream.wire.cut()
