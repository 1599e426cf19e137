"""What a row measures, what it must reach, and the table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

CPU, RATE, START, MEMORY, SHARDS, LATE, JUDGED = "cpu", "rate", "start", "memory", "shards", "late", "judged"

BY_MESSAGE = (CPU, RATE, JUDGED)  # rows whose figures are messages a second and CPU a message


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    measure: str  # what is compared
    limit: float | None = None  # of the ratio Roquet/Apache; of Roquet's own figure for the others
    at_least: bool = False

    @property
    def target(self) -> str:
        if self.limit is None:
            return "-"
        sign = ">=" if self.at_least else "<="
        what = {CPU: "CPU ratio", RATE: "msg/s ratio", START: "s", MEMORY: "MiB", SHARDS: "x of one", LATE: "ms",
                JUDGED: "a second of one core"}[self.measure]  # fmt: skip
        number = "1/3" if self.limit == 1 / 3 else f"{self.limit:,.0f}" if self.limit >= 1000 else f"{self.limit:g}"
        return f"{what} {sign} {number}" if self.measure in (CPU, RATE) else f"{sign} {number} {what}"

    def met(self, value: float | None) -> bool | None:
        if self.limit is None or value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


ROWS = (
    Row("start", "start to first acknowledged send", START, 0.4),
    Row("send64", "single send, 64 in flight", CPU, 0.5),
    Row("send1", "single send, one in flight", CPU, 1 / 3),
    Row("conn16", "64 in flight over 16 connections", CPU),
    Row("batch", "batches of 32, 8 in flight", CPU, 0.5),
    Row("pull", "pull, 32 a pull, 8 queues", CPU, 0.5),
    Row("memory", "anonymous memory after >= 2 M messages", MEMORY, 100.0),
    Row("sync", "SYNC_FLUSH, 64 in flight", RATE, 1.0, at_least=True),
    Row("producer", "Apache's Producer, 64 threads", CPU),
    Row("batchproducer", "Apache's BatchProducer, 32 a batch", CPU),
    Row("consumer", "Apache's Consumer, catching up", CPU),
    Row("transaction", "transaction, 64 in flight, until committed", CPU),
    Row("delay", "delayed send (1 s), until delivered", CPU),
    Row("tagged", "pull by tag, 1 in 100 matches; judged", CPU),
    Row("sql", "pull by SQL92, 1 in 100 matches; judged", JUDGED, 200_000, at_least=True),
    Row("retries", "sent back (1 s), until delivered again", CPU),
    Row("shards", "two shards against one, measured", SHARDS, 1.6, at_least=True),
    Row("shards-cpu", "two shards against one, PROJECTED from CPU", SHARDS, 1.6, at_least=True),
    Row("timers-memory", "anonymous memory, 2 M timed messages pending", MEMORY, 100.0),
    Row("timers-lateness", "99 % of 5,000 timed a second come within", LATE, 100.0),
    Row("client-send1", "clients on Roquet, one send in flight", RATE, 0.5, at_least=True),
    Row("client-send64", "clients on Roquet, 64 sends in flight", RATE, 0.5, at_least=True),
    Row("client-gather", "the same, ours with linger_ms=5", RATE),
    Row("client-batch", "clients on Roquet, batches of 32, 16 in flight", RATE, 1.0, at_least=True),
    Row("client-push", "clients on Roquet, push consuming, catching up", RATE, 0.5, at_least=True),
    Row("turns", "longest turn of the loop of a large broker, CPU", LATE, 50.0),
)
BY_KEY = {row.key: row for row in ROWS}


@dataclass
class Sample:
    """One round of one row."""

    messages: int
    seconds: float
    server_cpu: float
    generator_cpu: float | None = None  # unknown for the Java clients

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.server_cpu / self.messages * 1e6


@dataclass
class Figures:
    """What one server did in one row."""

    samples: list[Sample] = field(default_factory=list)
    value: float | None = None  # START: seconds, MEMORY: MiB, SHARDS: times one shard, LATE: ms
    problem: str = ""
    judged: bool = True
    """Whether this machine can say if the target is met."""

    @property
    def rate(self) -> float | None:
        return statistics.median(sample.rate for sample in self.samples) if self.samples else None

    @property
    def cpu_us(self) -> float | None:
        return statistics.median(sample.cpu_us for sample in self.samples) if self.samples else None

    @property
    def generator_us(self) -> float | None:
        known = [sample.generator_cpu / sample.messages * 1e6 for sample in self.samples if sample.generator_cpu is not None]
        return statistics.median(known) if known else None

    def of(self, measure: str) -> float | None:
        if measure == JUDGED:
            return 1e6 / self.cpu_us if self.cpu_us else None
        return {CPU: self.cpu_us, RATE: self.rate}.get(measure, self.value)


@dataclass
class Report:
    figures: dict[tuple[str, str], Figures] = field(default_factory=dict)  # (row, server)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    beside: str = "apache"
    """What Roquet is compared with."""

    def at(self, row: str, kind: str) -> Figures:
        return self.figures.setdefault((row, kind), Figures())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def judge(self, row: Row) -> tuple[float | None, bool | None]:
        """The ratio of Roquet to what runs beside it, and whether the target is met (None: there is none, or a figure is missing)."""
        roquet, apache = (self.figures.get((row.key, kind), Figures()) for kind in ("roquet", self.beside))
        compared = CPU if row.measure == JUDGED else row.measure
        ours, theirs = roquet.of(compared), apache.of(compared)
        ratio = ours / theirs if ours is not None and theirs else None
        judged = roquet.judged and self.beside == "apache"
        return ratio, row.met(ratio if row.measure in (CPU, RATE) else roquet.of(row.measure)) if judged else None

    def json(self) -> dict[str, Any]:
        rows = []
        for row in self._present():
            ratio, met = self.judge(row)
            entry: dict[str, Any] = {"row": row.key, "title": row.title, "target": row.target, "ratio": ratio, "met": met}
            for kind in (self.beside, "roquet"):
                figures = self.figures.get((row.key, kind))
                if figures is None:
                    continue
                entry[kind] = {
                    "messages_per_second": figures.rate,
                    "server_cpu_us_per_message": figures.cpu_us,
                    "generator_cpu_us_per_message": figures.generator_us,
                    "value": figures.value,
                    "problem": figures.problem,
                    "rounds": [vars(sample) for sample in figures.samples],
                }
            rows.append(entry)
        return {"facts": self.facts, "rows": rows, "notes": self.notes}

    def table(self) -> str:
        beside = self.beside.capitalize()
        head = ("", beside, "Roquet", f"{beside} CPU", "Roquet CPU", "generator", "ratio", "target", "")
        lines = [head]
        for row in self._present():
            ratio, met = self.judge(row)
            apache, roquet = (self.figures.get((row.key, kind), Figures()) for kind in (self.beside, "roquet"))
            verdict = "met" if met else "MISSED" if met is False else ""
            if apache.problem or roquet.problem:
                verdict = "FAILED" if not verdict else f"{verdict} (with errors)"
            load = "/".join(_number(each.generator_us) or "-" for each in (apache, roquet)) if row.measure in BY_MESSAGE else ""
            lines.append((
                row.title, _main(row, apache), _main(row, roquet), _micro(apache.cpu_us), _micro(roquet.cpu_us),
                "" if load == "-/-" else f"{load} us" if load else "", f"{ratio:.2f}" if ratio is not None else "", row.target, verdict,
            ))  # fmt: skip
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        left = {0, 7, 8}

        def fit(line: tuple[str, ...]) -> str:
            cells = (
                cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            return "  ".join(cells).rstrip()

        out = [fit(line) for line in lines]
        out.insert(1, "-" * max(map(len, out)))
        for (key, kind), figures in self.figures.items():
            if figures.problem:
                out.append(f"! {key}, {kind}: {figures.problem}")
        out += [f"* {note}" for note in self.notes]
        return "\n".join(out)

    def _present(self) -> list[Row]:
        return [row for row in ROWS if any(key == row.key for key, _ in self.figures)]


def _main(row: Row, figures: Figures) -> str:
    if row.measure in BY_MESSAGE:
        return f"{figures.rate:,.0f}/s" if figures.rate is not None else ""
    if figures.value is None:
        return ""
    value = figures.value
    shown = {START: f"{value:.2f} s", MEMORY: f"{value:,.0f} MiB", SHARDS: f"{value:.2f} x", LATE: f"{value:,.0f} ms"}
    return shown[row.measure]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _micro(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} us" if value >= 100 else f"{value:.1f} us" if value >= 10 else f"{value:.2f} us"
