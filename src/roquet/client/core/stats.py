"""What a producer or consumer has done so far: plain numbers to look at and to export. They only grow.

consumer.stats.consumed                         of all topics
consumer.stats.topics["orders"].durations.p99_ms
producer.stats.as_dict()                        everything, as JSON takes it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from roquet.client.core.held_back import HeldBack

LAST = 31
LONGEST_MS = 1 << (LAST - 1)
"""12 days. The last bucket holds everything from here on."""


class Durations:
    """How long things took, in ms, counted by powers of two: bucket 0 holds what took less than 1 ms, bucket n what took from 2 ** (n-1) to
    less than 2 ** n."""

    __slots__ = ("buckets", "total_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (LAST + 1)
        self.total_ms = 0

    def add(self, ms: int, times: int = 1) -> None:
        """`times` things took so long each."""
        self.total_ms += ms * times
        self.buckets[ms.bit_length() if ms < LONGEST_MS else LAST] += times

    def include(self, other: Durations) -> None:
        """Add what another one counted."""
        self.total_ms += other.total_ms
        self.buckets = [mine + its for mine, its in zip(self.buckets, other.buckets, strict=True)]

    @property
    def count(self) -> int:
        """Of how many it is known."""
        return sum(self.buckets)

    @property
    def mean_ms(self) -> float:
        """0.0 when there were none."""
        return self.total_ms / (self.count or 1)

    def percentile_ms(self, percent: float) -> float:
        """So many percent took less than this: estimated, as if those of a bucket were spread over it evenly. 0.0 when there were none."""
        left = self.count * percent / 100
        for place, count in enumerate(self.buckets):
            if count and left <= count:
                low = 1 << (place - 1) if place else 0
                return low + ((1 << place) - low) * left / count
            left -= count
        return 0.0

    @property
    def p50_ms(self) -> float:
        """Half of them took less: see percentile_ms."""
        return self.percentile_ms(50)

    @property
    def p99_ms(self) -> float:
        """99 of 100 took less: see percentile_ms."""
        return self.percentile_ms(99)

    def as_dict(self) -> dict[str, Any]:
        """`buckets`: how many took less than so many ms, and not less than the bucket before; empty ones are left out."""
        return {
            "count": self.count,
            "total_ms": self.total_ms,
            "mean_ms": round(self.mean_ms, 3),
            "p50_ms": round(self.p50_ms, 3),
            "p99_ms": round(self.p99_ms, 3),
            "buckets": {str(1 << place): count for place, count in enumerate(self.buckets) if count},
        }


class TopicSends:
    """What a producer sent to one topic."""

    __slots__ = ("durations", "failed", "oneway", "sent")

    def __init__(self) -> None:
        self.sent = 0
        """Messages that a broker stored."""
        self.failed = 0
        """Messages whose send ended with an error, or was withdrawn."""
        self.oneway = 0
        """Messages that were handed over without waiting for an answer."""
        self.durations = Durations()
        """From the call of send until the message was stored, one for each message that was."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"sent": self.sent, "failed": self.failed, "oneway": self.oneway, "durations": self.durations.as_dict()}


class TopicConsumes:
    """What a consumer did with the messages of one topic."""

    __slots__ = ("consumed", "dead_lettered", "durations", "given_up", "pull_durations", "pulled", "retried")

    def __init__(self) -> None:
        self.consumed = 0
        """Messages that a handler is done with; of a LitePullConsumer, those that poll returned."""
        self.retried = 0
        """Messages that failed and come again."""
        self.dead_lettered = 0
        """Messages that failed and became dead letters, as far as the client knows: the broker has the last word."""
        self.given_up = 0
        """Messages that failed and do not come again, as the consumer is broadcasting."""
        self.durations = Durations()
        """Of the calls of the handler, those that failed too."""
        self.pulled = 0
        """Messages that brokers sent here."""
        self.pull_durations = Durations()
        """Of the pulls that brought some, with the time in which they waited at the broker."""

    @property
    def failed(self) -> int:
        """Messages that a handler was not done with."""
        return self.retried + self.dead_lettered + self.given_up

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "consumed": self.consumed,
            "retried": self.retried,
            "dead_lettered": self.dead_lettered,
            "given_up": self.given_up,
            "pulled": self.pulled,
            "durations": self.durations.as_dict(),
            "pull_durations": self.pull_durations.as_dict(),
        }


T = TypeVar("T", TopicSends, TopicConsumes)


class Stats(Generic[T]):
    """Of one member of a group."""

    def __init__(self, group: str, kind: Callable[[], T]) -> None:
        self.group = group
        self.topics: dict[str, T] = {}
        """By topic, in the user's words."""
        self._kind: Callable[[], T] = kind

    def of(self, topic: str) -> T:
        """Of this topic; all zeros when nothing happened there."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = self._kind()
        return found

    def _merged(self, durations: Iterable[Durations]) -> Durations:
        merged = Durations()
        for one in durations:
            merged.include(one)
        return merged


class ProducerStats(Stats[TopicSends]):
    """What a producer has sent so far, in all and by topic."""

    def __init__(self, group: str) -> None:
        super().__init__(group, TopicSends)

    @property
    def sent(self) -> int:
        """Messages that a broker stored."""
        return sum(one.sent for one in self.topics.values())

    @property
    def failed(self) -> int:
        """Messages whose send ended with an error, or was withdrawn."""
        return sum(one.failed for one in self.topics.values())

    @property
    def oneway(self) -> int:
        """Messages that were handed over without waiting for an answer."""
        return sum(one.oneway for one in self.topics.values())

    @property
    def durations(self) -> Durations:
        """From the call of send until the message was stored."""
        return self._merged(one.durations for one in self.topics.values())

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {
            "group": self.group,
            "sent": self.sent,
            "failed": self.failed,
            "oneway": self.oneway,
            "durations": self.durations.as_dict(),
            "topics": {topic: one.as_dict() for topic, one in sorted(self.topics.items())},
        }


class ConsumerStats(Stats[TopicConsumes]):
    """What a consumer has consumed so far, in all and by topic, and how often a limit held a queue back."""

    def __init__(self, group: str) -> None:
        super().__init__(group, TopicConsumes)
        self.held_back = HeldBack(group)

    @property
    def consumed(self) -> int:
        """Messages that a handler is done with; of a LitePullConsumer, those that poll returned."""
        return sum(one.consumed for one in self.topics.values())

    @property
    def retried(self) -> int:
        """Messages that failed and come again."""
        return sum(one.retried for one in self.topics.values())

    @property
    def dead_lettered(self) -> int:
        """Messages that failed and became dead letters."""
        return sum(one.dead_lettered for one in self.topics.values())

    @property
    def given_up(self) -> int:
        """Messages that failed and do not come again, as the consumer is broadcasting."""
        return sum(one.given_up for one in self.topics.values())

    @property
    def pulled(self) -> int:
        """Messages that brokers sent here."""
        return sum(one.pulled for one in self.topics.values())

    @property
    def durations(self) -> Durations:
        """Of the calls of handlers."""
        return self._merged(one.durations for one in self.topics.values())

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {
            "group": self.group,
            "consumed": self.consumed,
            "retried": self.retried,
            "dead_lettered": self.dead_lettered,
            "given_up": self.given_up,
            "pulled": self.pulled,
            "durations": self.durations.as_dict(),
            "held_back": self.held_back.as_dict(),
            "topics": {topic: one.as_dict() for topic, one in sorted(self.topics.items())},
        }
