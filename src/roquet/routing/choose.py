"""Which queue a producer's next message goes to.

Round robin over the topic's writable queues. A retry avoids the broker that has just failed. With fault avoidance on
(upstream's sendLatencyFaultEnable, off by default), a broker that answered slowly or not at all is left alone for a
while:

    answered after, ms     50   100   550   1000   2000   3000   15000
    left alone for, s       0     0    30     60    120    180     600

A broker that did not answer counts as 30 s. When every broker is being left alone, the better half of them is tried in
turn: a producer never refuses to send because of what it remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from roquet.message import MessageQueue

PENALTIES = ((15_000, 600_000), (3_000, 180_000), (2_000, 120_000), (1_000, 60_000), (550, 30_000), (100, 0), (50, 0))
"""(latency in ms from which it applies, ms to leave the broker alone), the worst first."""

NO_ANSWER_MS = 30_000
"""What a broker that did not answer is taken to have needed."""


@dataclass(slots=True)
class Fault:
    latency_ms: int
    good_from_ms: int


@dataclass(slots=True)
class Faults:
    """What one producer remembers of its brokers, by broker name. Bounded by the brokers it sends to; `forget` those that are gone."""

    table: dict[str, Fault] = field(default_factory=dict)

    def observe(self, broker_name: str, latency_ms: int, now_ms: int, *, failed: bool = False) -> None:
        """A send to this broker took so long. `failed`: there was no answer, or one that says the broker is unwell."""
        self.table[broker_name] = Fault(latency_ms, now_ms + penalty_ms(NO_ANSWER_MS if failed else latency_ms))

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        fault = self.table.get(broker_name)
        return fault is None or now_ms >= fault.good_from_ms

    def ranked(self, broker_names: Sequence[str], now_ms: int) -> list[str]:
        """The best first: available ones, then the quicker, then the sooner available. Ties keep the order given."""

        def badness(name: str) -> tuple[bool, int, int]:
            fault = self.table.get(name)
            return (False, 0, 0) if fault is None else (now_ms < fault.good_from_ms, fault.latency_ms, fault.good_from_ms)

        return sorted(dict.fromkeys(broker_names), key=badness)

    def forget(self, broker_name: str) -> None:
        self.table.pop(broker_name, None)


def penalty_ms(latency_ms: int) -> int:
    """How long a broker that answered after `latency_ms` is left alone."""
    return next((penalty for least, penalty in PENALTIES if latency_ms >= least), 0)


class QueueChoice:
    """The turn of one topic in one producer. Start it at a random number, so that many producers do not begin at the same queue."""

    __slots__ = ("_turn", "_worst_turn", "faults")

    def __init__(self, start: int = 0, faults: Faults | None = None) -> None:
        """`faults` is shared by all topics of a producer; None: do not avoid slow brokers."""
        self.faults = faults
        self._turn = start
        self._worst_turn = 0

    def next(self, queues: Sequence[MessageQueue], now_ms: int, avoid: str | None = None) -> MessageQueue:
        """The next queue, on another broker than `avoid` if there is one. `queues` may differ from call to call, but not be empty."""
        if not queues:
            raise ValueError("no queue to choose from; ask for the route of the topic first")
        turn = self._turn
        count = len(queues)
        faults = self.faults
        for ahead in range(count):
            queue = queues[(turn + ahead) % count]
            name = queue.broker_name
            if name != avoid and (faults is None or faults.is_available(name, now_ms)):
                self._turn = turn + ahead + 1
                return queue
        self._turn = turn + 1
        if faults is None or len({queue.broker_name for queue in queues}) == 1:
            return queues[turn % count]  # every queue is on the broker that failed: trying it again beats giving up
        ranked = faults.ranked([queue.broker_name for queue in queues if queue.broker_name != avoid], now_ms)
        broker_name = ranked[self._worst_turn % max(1, len(ranked) // 2)]
        self._worst_turn += 1
        on_broker = [queue for queue in queues if queue.broker_name == broker_name]
        return on_broker[turn % len(on_broker)]
