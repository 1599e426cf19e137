"""Rates: what a consumer did in about the last minute, for an operator who asks (GET_CONSUMER_RUNNING_INFO)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from roquet.client.core.stats import ConsumerStats, TopicConsumes
from roquet.wire.calls.consumers import ConsumeStatus

WINDOW_MS = 60_000


class Sample(NamedTuple):
    consumed: int = 0
    failed: int = 0
    calls: int = 0
    total_ms: int = 0
    pulled: int = 0
    pulls: int = 0
    pull_ms: int = 0


class Rates:
    """The numbers of a consumer as they were now and then. `sample` is called every few seconds."""

    def __init__(self, stats: ConsumerStats, now_ms: int) -> None:
        self._stats = stats
        self._samples: deque[tuple[int, dict[str, Sample]]] = deque([(now_ms, samples_of(stats))])

    def sample(self, now_ms: int) -> None:
        samples = self._samples
        samples.append((now_ms, samples_of(self._stats)))
        while len(samples) > 1 and now_ms - samples[1][0] >= WINDOW_MS:
            samples.popleft()

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """Averages over a minute, or since the start when that was later; ms and messages a second."""
        before_ms, samples = self._samples[0]
        before, now = samples.get(topic, Sample()), sample_of(self._stats.of(topic))
        past = Sample(*(new - old for new, old in zip(now, before, strict=True)))
        seconds = max(now_ms - before_ms, 1_000) / 1_000
        return ConsumeStatus(
            pull_rt=past.pull_ms / (past.pulls or 1),
            pull_tps=past.pulled / seconds,
            consume_rt=past.total_ms / (past.calls or 1),
            consume_ok_tps=past.consumed / seconds,
            consume_failed_tps=past.failed / seconds,
            consume_failed_msgs=now.failed,
        )


def samples_of(stats: ConsumerStats) -> dict[str, Sample]:
    return {topic: sample_of(one) for topic, one in stats.topics.items()}


def sample_of(one: TopicConsumes) -> Sample:
    calls, pulls = one.durations, one.pull_durations
    return Sample(one.consumed, one.failed, calls.count, calls.total_ms, one.pulled, pulls.count, pulls.total_ms)
