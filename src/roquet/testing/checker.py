"""The checker: what the clients of a simulated cluster were told, each broker group by itself (`promises.py`), and what came of it."""

from __future__ import annotations

from collections.abc import Iterable

from roquet.message import Message, ReceivedMessage
from roquet.testing.decisions import Decisions
from roquet.testing.promises import Promises, Violation, name_of


class Checker:
    """State: what was sent and consumed by name, and the promises by broker name."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Message] = {}
        self.consumed: dict[str, set[bytes]] = {}
        self.failed: set[bytes] = set()
        """What a listener failed to consume at least once; the repetition is a record of its own, maybe in another broker group."""
        self.decisions = Decisions()
        self._promises: dict[str, Promises] = {}

    def add(self, broker_name: str, *, sync_flush: bool) -> Promises:
        promises = self._promises[broker_name] = Promises(self.sent, self.decisions, sync_flush=sync_flush)
        return promises

    def of(self, broker_name: str) -> Promises:
        if broker_name not in self._promises:
            raise Violation(f"a client was told of broker {broker_name!r}; there are {', '.join(self._promises)}")
        return self._promises[broker_name]

    @property
    def acked_count(self) -> int:
        return sum(len(promises.acked) for promises in self._promises.values())

    # What happens

    def sending(self, message: Message) -> None:
        self.sent[name_of(message.body)] = message

    def consume(self, group: str, message: ReceivedMessage) -> None:
        self.consumed.setdefault(group, set()).add(name_of(message.body))

    # The end

    def missing(self, group: str, broker_name: str) -> list[bytes]:
        """What this broker group acknowledged and this consumer group never consumed."""
        consumed = self.consumed.get(group, set())
        if any(promises.lossy for promises in self._promises.values()):
            consumed = consumed | self.failed
        return self.of(broker_name).missing(consumed)


def listed(names: Iterable[bytes], count_max: int = 10) -> str:
    found = [name.decode(errors="replace") for name in names]
    more = f" and {len(found) - count_max} more" if len(found) > count_max else ""
    return ", ".join(found[:count_max]) + more
