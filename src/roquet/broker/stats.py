"""Counters: how many messages and bytes come in and go out, in all, per topic, and per group and topic.

Counting is a few integer additions per batch. Rates are made in `tick` from samples: the counters of now against those of
a while ago. Upstream's windows are kept, since its tools print them:

    minute    7 samples, one every 10 s         hour    7 samples, one every 10 min         day    25 samples, one an hour
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice

from roquet.broker.handler import answers
from roquet.broker.part import Part
from roquet.broker.put_times import PutTimes
from roquet.errors import Refused
from roquet.ports import Clock, Peer
from roquet.store.store import Store
from roquet.wire.calls.brokers import VIEW_BROKER_STATS_DATA, BrokerStats, StatsItem
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

ROWS_MAX = 20_000
"""Topics, and as many pairs of group and topic, that are counted one by one. What comes beyond counts in the totals alone."""

SAMPLES = 2_000
"""Rows that one tick samples."""

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

Reading = tuple[int, int, int]
"""(messages, times, bytes)."""
ZERO: Reading = (0, 0, 0)


class Samples:
    """Samples of one row over a stretch of time. Empty while nothing happens, so that thousands of idle topics cost nothing."""

    __slots__ = ("last", "samples")

    def __init__(self, length: int) -> None:
        self.samples: deque[tuple[int, Reading]] = deque(maxlen=length)
        self.last: Reading = ZERO

    def sample(self, now_ms: int, reading: Reading, period_ms: int) -> None:
        samples = self.samples
        if not samples:
            if reading == self.last:
                return
            samples.append((now_ms - period_ms, self.last))
        samples.append((now_ms, reading))
        self.last = reading
        if samples[0][1] == reading:
            samples.clear()

    def moved(self) -> tuple[int, Reading]:
        """(ms, what was counted in them)."""
        if not self.samples:
            return 0, ZERO
        (then_ms, then), (now_ms, now) = self.samples[0], self.samples[-1]
        return now_ms - then_ms, (now[0] - then[0], now[1] - then[1], now[2] - then[2])


class Counters:
    """The counters of one topic, or of one group in one topic."""

    __slots__ = ("count", "day", "hour", "minute", "size", "times")

    def __init__(self) -> None:
        self.count = self.times = self.size = 0
        self.minute = Samples(7)
        self.hour = Samples(7)
        self.day = Samples(25)

    def reading(self) -> Reading:
        return self.count, self.times, self.size


@dataclass(slots=True)
class Sampling:
    """A round over all rows that is under way."""

    left: Iterator[Counters]
    now_ms: int
    hour: bool
    day: bool


Totals = tuple[int, int, int, int, int]
"""(steady time, messages put, messages got, pulls that found some, pulls that found none)."""


class Stats(Part):
    """State: `_puts` by topic, `_gets` by "topic@group"; the totals are plain attributes that others may read."""

    def __init__(self, clock: Clock, cluster: str, store: Store | None = None) -> None:
        """`store`: whose messages are counted; None: those of nobody."""
        if store is not None:
            store.on_counted = self.put
        self.clock = clock
        self.cluster = cluster
        self.started_ms = clock.now_ms()
        """Wall time, for people."""
        self.started_steady_ms = now_ms = clock.steady_ms()

        self.puts = Counters()
        self.gets = Counters()
        self.get_missed = 0
        """Pulls that found nothing. The pull part adds to it directly."""
        self.longest_get_ms = 0
        """That looking for the messages of one pull took."""

        self.put_times = PutTimes(now_ms)
        """Whoever stores what clients sent notes how long that took."""
        self._puts: dict[str, Counters] = {}
        self._gets: dict[str, Counters] = {}
        self._backs: dict[str, Counters] = {}
        self._unlisted = Counters()
        self._recent: deque[Totals] = deque([(now_ms, 0, 0, 0, 0)], maxlen=601)
        self._sampling: Sampling | None = None
        self._due_second = now_ms + SECOND
        self._due_minute = now_ms + 10 * SECOND
        self._due_hour = now_ms + 10 * MINUTE
        self._due_day = now_ms + HOUR
        self._today = self._date()
        # Totals as they stood when the day began (puts, gets), and when yesterday did.
        self.this_morning = (0, 0)
        self.yesterday_morning = (0, 0)

    # Counting: the hot path

    def put(self, topic: str, count: int, size: int) -> None:
        """`count` messages of together `size` bytes were stored."""
        row = self._puts.get(topic)
        if row is None:
            row = self._row(self._puts, topic)
        for one in (row, self.puts):
            one.count += count
            one.times += 1
            one.size += size

    def got(self, group: str, topic: str, count: int, size: int) -> None:
        """A pull was answered with `count` messages of together `size` bytes."""
        self.got_as(f"{topic}@{group}", count, size)

    def got_as(self, key: str, count: int, size: int, times: int = 1) -> None:
        """The same for so many pulls of one group ("topic@group")."""
        row = self._gets.get(key)
        if row is None:
            row = self._row(self._gets, key)
        for one in (row, self.gets):
            one.count += count
            one.times += times
            one.size += size

    def note_get(self, took_ms: int) -> None:
        if took_ms > self.longest_get_ms:
            self.longest_get_ms = took_ms

    def sent_back(self, group: str, topic: str, count: int = 1) -> None:
        """Consumers of the group failed so many messages of the topic."""
        key = f"{topic}@{group}"
        row = self._backs.get(key)
        if row is None:
            row = self._row(self._backs, key)
        row.count += count
        row.times += count

    def _row(self, rows: dict[str, Counters], key: str) -> Counters:
        if len(rows) >= ROWS_MAX:
            return self._unlisted
        return rows.setdefault(key, Counters())

    # Time

    def tick(self, now_ms: int) -> None:
        if self._sampling is not None:
            self._sample_some()
        if now_ms < self._due_second:
            return
        self._due_second = now_ms + SECOND
        self.put_times.tick(now_ms)
        self._recent.append((now_ms, self.puts.count, self.gets.count, self.gets.times, self.get_missed))
        if now_ms < self._due_minute:
            return
        self._due_minute = now_ms + 10 * SECOND
        hour, day = now_ms >= self._due_hour, now_ms >= self._due_day
        rows = [self.puts, self.gets, *self._puts.values(), *self._gets.values(), *self._backs.values()]
        self._sampling = Sampling(iter(rows), now_ms, hour, day)
        self._sample_some()
        if hour:
            self._due_hour = now_ms + 10 * MINUTE
        if day:
            self._due_day = now_ms + HOUR
        today = self._date()
        if today != self._today:
            self._today = today
            self.yesterday_morning, self.this_morning = self.this_morning, (self.puts.count, self.gets.count)

    def _date(self) -> date:
        return datetime.fromtimestamp(self.clock.now_ms() // 1000).date()

    def _sample_some(self) -> None:
        """SAMPLES of the rows; the next ticks go on."""
        sampling = self._sampling
        assert sampling is not None
        now_ms, count = sampling.now_ms, 0
        for row in islice(sampling.left, SAMPLES):
            reading = row.reading()
            row.minute.sample(now_ms, reading, 10 * SECOND)
            if sampling.hour:
                row.hour.sample(now_ms, reading, 10 * MINUTE)
            if sampling.day:
                row.day.sample(now_ms, reading, HOUR)
            count += 1
        if count < SAMPLES:
            self._sampling = None
            if sampling.day:
                self._drop_idle()

    def _drop_idle(self) -> None:
        """Make room for others: rows that stood still for a day."""
        for rows in (self._puts, self._gets, self._backs):
            if len(rows) >= ROWS_MAX // 2:
                for key in [key for key, row in rows.items() if not row.day.samples and row.day.last == row.reading()]:
                    del rows[key]

    def topic_deleted(self, topic: str) -> None:
        self._puts.pop(topic, None)
        for rows in (self._gets, self._backs):
            for key in [key for key in rows if key.startswith(topic + "@")]:
                del rows[key]

    # Asking

    def rates(self, seconds: int) -> tuple[float, float, float, float]:
        """Per second over the last so many seconds: messages put, messages got, pulls that found some, pulls that found none."""
        now = self._recent[-1]
        then = self._recent[max(0, len(self._recent) - 1 - seconds)]
        passed = (now[0] - then[0]) / 1000
        if passed <= 0:
            return 0.0, 0.0, 0.0, 0.0
        return (now[1] - then[1]) / passed, (now[2] - then[2]) / passed, (now[3] - then[3]) / passed, (now[4] - then[4]) / passed

    def group_rate(self, group: str, topic: str) -> float:
        """Messages a second that the group got out of the topic, over the last minute."""
        row = self._gets.get(f"{topic}@{group}")
        if row is None:
            return 0.0
        passed_ms, moved = row.minute.moved()
        return moved[0] * 1000 / passed_ms if passed_ms else 0.0

    def find(self, name: str, key: str) -> tuple[Counters, bool] | None:
        """The row behind upstream's name and key, and whether its bytes are meant."""
        tables = {
            "TOPIC_PUT_NUMS": self._puts,
            "TOPIC_PUT_SIZE": self._puts,
            "GROUP_GET_NUMS": self._gets,
            "GROUP_GET_SIZE": self._gets,
            "SNDBCK_PUT_NUMS": self._backs,
            "BROKER_PUT_NUMS": {self.cluster: self.puts},
            "BROKER_GET_NUMS": {self.cluster: self.gets},
        }
        row = tables.get(name, {}).get(key)
        return None if row is None else (row, name.endswith("_SIZE"))

    @answers(VIEW_BROKER_STATS_DATA)
    def view(self, peer: Peer, command: Command) -> Command:
        header = VIEW_BROKER_STATS_DATA.read_header(command)
        found = self.find(header.stats_name, header.stats_key)
        if found is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name[:80]}> <{header.stats_key[:400]}> not exist")
        row, bytes_meant = found
        body = BrokerStats(*(stats_item(window, bytes_meant) for window in (row.day, row.hour, row.minute)))
        return VIEW_BROKER_STATS_DATA.reply(command, body=body)


def stats_item(window: Samples, bytes_meant: bool) -> StatsItem:
    """As upstream works it out."""
    passed_ms, (count, times, size) = window.moved()
    moved = size if bytes_meant else count
    return StatsItem(moved / times if times else 0.0, moved, moved * 1000 / passed_ms if passed_ms else 0.0)
