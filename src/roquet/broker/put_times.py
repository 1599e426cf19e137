"""How long puts take: how many took how many milliseconds, in the last whole minute. Upstream shows the same, in the same spans."""

from __future__ import annotations

from collections import Counter

MINUTE_MS = 60_000
FINE_MS, COARSE_MS, LONGEST_MS = 1_000, 100, 60_000
"""Up to a second times are counted as they are, then by tenths of a second, from a minute on all together."""
KINDS_MAX = FINE_MS + (LONGEST_MS - FINE_MS) // COARSE_MS + 1
SPANS: tuple[tuple[str, int], ...] = (
    ("<=0ms", 0), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200), ("200~500ms", 500), ("500ms~1s", 1_000),
    ("1~2s", 2_000), ("2~3s", 3_000), ("3~4s", 4_000), ("4~5s", 5_000), ("5~10s", 10_000), ("10s~", 1 << 62),
)  # fmt: skip
"""What upstream calls a span, and where it ends. A time that is one of the ends belongs to the span after it, and 0 to the first."""


class PutTimes:
    """State: `now` and `_last`, counts by milliseconds of this minute and of the one before; `longest_ms` since the start."""

    def __init__(self, now_ms: int) -> None:
        self.now: Counter[int] = Counter()
        self.longest_ms = 0
        self._last: Counter[int] | None = None
        self._due_ms = now_ms + MINUTE_MS

    def note(self, took_ms: int, count: int) -> None:
        """So many messages were stored, and that took so long for each. Called for each read with sends, not for each of them."""
        if took_ms > self.longest_ms:
            self.longest_ms = took_ms
        if took_ms >= FINE_MS:
            took_ms = min(took_ms - took_ms % COARSE_MS, LONGEST_MS)
        self.now[took_ms] += count

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + MINUTE_MS
            self._last, self.now = self.now, Counter()

    def percentile(self, share: float) -> int:
        """The milliseconds that this share of the puts did not exceed."""
        counts = self._shown()
        left = share * counts.total()
        for took_ms in sorted(counts):
            left -= counts[took_ms]
            if left <= 0:
                return took_ms
        return 0

    def in_spans(self) -> str:
        """`[<=0ms]:12 [0~10ms]:3 ...`, as upstream writes it."""
        counts = dict.fromkeys((name for name, _ in SPANS), 0)
        for took_ms, count in self._shown().items():
            counts[next(name for name, end in SPANS if took_ms < end or took_ms == end == 0)] += count
        return "".join(f"[{name}]:{count} " for name, count in counts.items())

    def _shown(self) -> Counter[int]:
        return self.now if self._last is None else self._last

    def rows(self) -> dict[str, object]:
        return {
            "putMessageEntireTimeMax": self.longest_ms,
            "putMessageDistributeTime": self.in_spans(),
            "putLatency99": f"{self.percentile(0.99):.2f}",
            "putLatency999": f"{self.percentile(0.999):.2f}",
        }
