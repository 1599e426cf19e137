"""The network between machines: a thread that hands each packet on, later, or not at all.

It is a program and no bridge with filters, since kernels without netem and iptables are common, and since a packet that is dropped
here is just gone: no machine is told, as in a real network.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from chaos.namespaces import MTU, Machine

PACKETS_A_TURN = 64
"""Of one machine, before the others are looked at."""
ADDRESSES = slice(12, 20)
"""Sender and receiver, in the head of an IPv4 packet."""
QUICK = -5
"""The thread's niceness: what it forwards late would be a delay that nobody asked for."""


class Trouble(NamedTuple):
    """What happens to packets of one direction."""

    cut: bool = False
    loss: float = 0.0
    """The share that is dropped."""
    delay_s: float = 0.0

    def joined(self, other: Trouble) -> Trouble:
        return Trouble(self.cut or other.cut, 1 - (1 - self.loss) * (1 - other.loss), self.delay_s + other.delay_s)


class Directed(NamedTuple):
    """A trouble of the packets from one machine to another."""

    sender: str
    receiver: str
    trouble: Trouble


def both_ways(one: str, others: Iterable[str], trouble: Trouble) -> list[Directed]:
    return [*outward(one, others, trouble), *inward(one, others, trouble)]


def outward(one: str, others: Iterable[str], trouble: Trouble) -> list[Directed]:
    return [Directed(one, other, trouble) for other in others if other != one]


def inward(one: str, others: Iterable[str], trouble: Trouble) -> list[Directed]:
    return [Directed(other, one, trouble) for other in others if other != one]


def by_addresses(troubles: Iterable[Directed], packed: Mapping[str, bytes]) -> dict[bytes, Trouble]:
    """What to do by the two addresses that stand in a packet; troubles of the same direction add up."""
    table: dict[bytes, Trouble] = {}
    for sender, receiver, trouble in troubles:
        key = packed[sender] + packed[receiver]
        table[key] = table.get(key, Trouble()).joined(trouble)
    return table


class Links:
    """`with` runs it. `troubles` is what is wrong now; assigning another list changes it for the packets that come then."""

    def __init__(self, machines: Sequence[Machine], random: Random) -> None:
        self._packed = {machine.name: machine.packed for machine in machines}
        self._devices = {machine.packed: machine.device for machine in machines}
        self._random = random
        self._table: dict[bytes, Trouble] = {}
        self._late: list[tuple[float, int, bytes]] = []
        self._numbers = itertools.count()
        self.forwarded = self.dropped = 0
        self.error: BaseException | None = None
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="links", daemon=True)

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._woken)
        self._thread.join()
        os.close(self._wake)

    def set(self, troubles: Iterable[Directed]) -> None:
        self._table = by_addresses(troubles, self._packed)

    def _work(self) -> None:
        try:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), QUICK)
            self._forward_until_closed()
        except BaseException as error:
            self.error = error

    def _forward_until_closed(self) -> None:
        with select.epoll() as ready:
            ready.register(self._wake, select.EPOLLIN)
            for device in self._devices.values():
                ready.register(device, select.EPOLLIN)
            while True:
                for descriptor, _ in ready.poll(self._wait_s()):
                    if descriptor == self._wake:
                        return
                    self._take(descriptor)
                self._send_late()

    def _wait_s(self) -> float:
        return max(0.0, self._late[0][0] - time.monotonic()) if self._late else -1

    def _take(self, device: int) -> None:
        for _ in range(PACKETS_A_TURN):
            try:
                packet = os.read(device, MTU + 64)
            except BlockingIOError:
                return
            trouble = self._table.get(packet[ADDRESSES])
            if trouble is None:
                self._hand_on(packet)
            elif trouble.cut or self._random.random() < trouble.loss:
                self.dropped += 1
            elif trouble.delay_s:
                heapq.heappush(self._late, (time.monotonic() + trouble.delay_s, next(self._numbers), packet))
            else:
                self._hand_on(packet)

    def _send_late(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            self._hand_on(heapq.heappop(self._late)[2])

    def _hand_on(self, packet: bytes) -> None:
        device = self._devices.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        try:
            if device is not None:
                os.write(device, packet)
                self.forwarded += 1
        except OSError:
            self.dropped += 1  # the machine has no room for it, as a real one at times
