"""What a row measures, what it must reach, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CPU, RATE, START, MEMORY, SHARDS, LATE, TASKS = "cpu", "rate", "start", "memory", "shards", "late", "tasks"

BY_MESSAGE = (CPU, RATE)  # rows whose figures are messages a second and CPU a message


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    measure: str  # what is compared
    compiled: float | None = None  # limit of the ratio Roquet/Apache; of Roquet's own figure for the others. With roquet.speedups
    alone: float | None = None  # the same without; None: the same figure
    at_least: bool = False
    rates: tuple[float, float] | None = None  # and at least this ratio of messages a second: with roquet.speedups, without

    def limit(self, speedups: bool) -> float | None:
        return self.compiled if speedups or self.alone is None else self.alone

    def rate(self, speedups: bool) -> float | None:
        return None if self.rates is None else self.rates[0 if speedups else 1]

    def target(self, speedups: bool) -> str:
        limit, rate = self.limit(speedups), self.rate(speedups)
        if limit is None:
            return "-"
        sign = ">=" if self.at_least else "<="
        what = {CPU: "CPU ratio", RATE: "msg/s ratio", START: "s", MEMORY: "MiB", SHARDS: "x of one", LATE: "ms", TASKS: "x Celery's"}[
            self.measure
        ]
        text = f"{what} {sign} {limit:g}" if self.measure in (CPU, RATE) else f"{sign} {limit:g} {what}"
        return text if rate is None else f"{text}, msg/s >= {rate:g}"

    def met(self, value: float | None, rate: float | None, speedups: bool) -> bool | None:
        limit, least = self.limit(speedups), self.rate(speedups)
        if limit is None or value is None:
            return None
        if least is not None and (rate is None or rate < least):
            return False
        return value >= limit if self.at_least else value <= limit


ROWS = (
    Row("start", "start to first acknowledged send", START, 0.4),
    Row("send64", "single send, 64 in flight", CPU, 0.15, 0.5),
    Row("send1", "single send, one in flight", CPU, 0.45, 0.5),
    Row("conn16", "64 in flight over 16 connections", CPU, 0.25, 0.5),
    Row("tls", "single send over TLS, 64 in flight", CPU, 1.0),
    Row("signed", "signed single send (aclEnable), 64 in flight", CPU, 1.0),
    Row("batch", "batches of 32, 8 in flight", CPU, 0.4, 1.0),
    Row("pull", "pull, 32 a pull, 8 queues", CPU, 0.4, 1.0),
    Row("memory", "anonymous memory after >= 2 M messages", MEMORY, 100.0),
    Row("sync", "SYNC_FLUSH, 64 in flight", RATE, 2.0, 1.3, at_least=True),
    Row("producer", "Apache's Producer, 64 threads", CPU, 0.25, 0.8, rates=(1.3, 1.0)),
    Row("batchproducer", "Apache's BatchProducer, 32 a batch", CPU, 0.4, 1.2, rates=(1.0, 0.0)),
    Row("consumer", "Apache's Consumer, catching up", CPU, 0.5, 1.0, rates=(1.0, 0.0)),
    Row("transaction", "transaction, 64 in flight, until committed", CPU, 0.7, 1.2),
    Row("delay", "delayed send (1 s), until delivered", CPU, 0.7, 1.2),
    Row("tagged", "pull by tag, 1 in 100 matches; judged", CPU, 0.7, 1.2),
    Row("sql", "pull by SQL92, 1 in 100 matches; judged", CPU, 0.7, 1.2),
    Row("retries", "sent back (1 s), until delivered again", CPU, 0.7, 1.2),
    Row("shards", "two shards against one, measured", SHARDS, 1.6, at_least=True),
    Row("shards-cpu", "two shards against one, PROJECTED from CPU", SHARDS, 1.6, at_least=True),
    Row("timers-memory", "anonymous memory, 2 M timed messages pending", MEMORY, 100.0),
    Row("timers-lateness", "99 % of 5,000 timed a second come within", LATE, 100.0),
    Row("client-send1", "clients on Roquet, one send in flight", RATE, 0.5, at_least=True),
    Row("client-send64", "clients on Roquet, 64 sends in flight", RATE, 0.5, at_least=True),
    Row("client-gather", "the same, ours with linger_ms=5", RATE),
    Row("client-batch", "clients on Roquet, batches of 32, 16 in flight", RATE, 1.0, at_least=True),
    Row("client-push", "clients on Roquet, push consuming, catching up", RATE, 0.5, at_least=True),
    *(Row(f"shards-clients-send{shards}", f"clients on {shards} of our shards, 64 sends in flight", RATE) for shards in (1, 2, 4)),
    *(Row(f"shards-clients-push{shards}", f"clients on {shards} of our shards, push consuming", RATE) for shards in (1, 2, 4)),
    Row("ha", "sync master and slave, 64 in flight; CPU of both", RATE, 2.0, at_least=True),
    Row("dledger", "DLedger group of three, 64 in flight; CPU of all", CPU, 0.25, rates=(4.0, 4.0)),
    Row("failover", "leader killed: median until a send is acknowledged", LATE, 2_000.0),
    Row("failover-max", "the same, the longest", LATE, 2_000.0),
    Row("failover-java", "the same, Apache's Java client: median", LATE, 2_000.0),
    Row("failover-java-max", "the same, the longest", LATE, 2_000.0),
    Row("tasks", "a trivial task, roquet.app beside the fastest Celery", TASKS, 3.0, at_least=True),
    Row("tasks-publish", "the same tasks published", TASKS),
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
    def generator_us(self) -> float:
        return (self.generator_cpu or 0.0) / self.messages * 1e6

    @property
    def cpu_us(self) -> float:
        return self.server_cpu / self.messages * 1e6


@dataclass
class Figures:
    """What one server did in one row."""

    samples: list[Sample] = field(default_factory=list)
    value: float | None = None  # START: seconds, MEMORY: MiB, SHARDS: times one shard, LATE: ms
    problem: str = ""
    fast: int = 0
    general: int = 0
    """Sends of this row that took the broker's short way, and all others; both 0 where there are none, or nobody counts them."""
    title: str = ""
    """TASKS: the system and its setting; how its tasks are published."""
    firsts: list[float] = field(default_factory=list)
    """TASKS: seconds from a worker's start to its first task."""
    judged: bool = True
    """Whether this machine can say if the target is met."""

    def count_sends(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        self.fast += after[0] - before[0]
        self.general += after[1] - before[1]

    @property
    def fast_share(self) -> float | None:
        return self.fast / (self.fast + self.general) if self.fast + self.general else None

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
        return {CPU: self.cpu_us, RATE: self.rate, TASKS: self.rate}.get(measure, self.value)


@dataclass
class Report:
    figures: dict[tuple[str, str], Figures] = field(default_factory=dict)  # (row, server)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    beside: str = "apache"
    """What Roquet is compared with."""
    speedups: bool = True
    """Does Roquet run with its compiled step?"""

    def at(self, row: str, kind: str) -> Figures:
        return self.figures.setdefault((row, kind), Figures())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def judge(self, row: Row) -> tuple[float | None, bool | None]:
        """The ratio of Roquet to what runs beside it, and whether the target is met (None: there is none, or a figure is missing)."""
        if row.measure == TASKS:
            ratio = quotient(self.figures.get((row.key, "roquet"), Figures()).rate, self.fastest(row.key, "celery"))
            return ratio, row.met(ratio, None, self.speedups)
        roquet, apache = (self.figures.get((row.key, kind), Figures()) for kind in ("roquet", self.beside))
        ratio = quotient(roquet.of(row.measure), apache.of(row.measure))
        if not roquet.judged or self.beside != "apache":
            return ratio, None
        value = ratio if row.measure in BY_MESSAGE else roquet.of(row.measure)
        return ratio, row.met(value, quotient(roquet.rate, apache.rate), self.speedups)

    def fastest(self, row: str, system: str) -> float | None:
        """The best median of the system's settings."""
        return max(
            (each.rate for (key, kind), each in self.figures.items() if key == row and kind.startswith(system) and each.rate), default=None
        )

    def json(self) -> dict[str, Any]:
        rows = []
        for row in self._present():
            ratio, met = self.judge(row)
            entry: dict[str, Any] = {"row": row.key, "title": row.title, "target": row.target(self.speedups), "ratio": ratio, "met": met}
            for kind in [kind for key, kind in self.figures if key == row.key] if row.measure == TASKS else (self.beside, "roquet"):
                figures = self.figures.get((row.key, kind))
                if figures is None:
                    continue
                entry[kind] = {
                    "messages_per_second": figures.rate,
                    "server_cpu_us_per_message": figures.cpu_us,
                    "generator_cpu_us_per_message": figures.generator_us,
                    "value": figures.value,
                    "first_task_seconds": figures.firsts,
                    "fast_share_of_sends": figures.fast_share,
                    "problem": figures.problem,
                    "rounds": [vars(sample) for sample in figures.samples],
                }
            rows.append(entry)
        return {"facts": self.facts, "rows": rows, "notes": self.notes}

    def table(self) -> str:
        beside = self.beside.capitalize()
        head = ("", beside, "Roquet", f"{beside} CPU", "Roquet CPU", "fast sends", "generator", "ratio", "target", "")
        lines = [head]
        present = self._present()
        for row in present:
            if row.measure == TASKS:
                continue
            ratio, met = self.judge(row)
            apache, roquet = (self.figures.get((row.key, kind), Figures()) for kind in (self.beside, "roquet"))
            verdict = "met" if met else "MISSED" if met is False else ""
            if apache.problem or roquet.problem:
                verdict = "FAILED" if not verdict else f"{verdict} (with errors)"
            load = "/".join(_number(each.generator_us) or "-" for each in (apache, roquet)) if row.measure in BY_MESSAGE else ""
            lines.append((
                row.title, _main(row, apache), _main(row, roquet), _micro(apache.cpu_us), _micro(roquet.cpu_us),
                "" if roquet.fast_share is None else f"{roquet.fast_share:.1%}",
                "" if load == "-/-" else f"{load} us" if load else "", f"{ratio:.2f}" if ratio is not None else "",
                row.target(self.speedups), verdict,
            ))  # fmt: skip
        out = aligned(lines, left={0, 8, 9}) if len(lines) > 1 else []
        if any(row.measure == TASKS for row in present):
            out += [*([""] if out else []), *self.task_table()]
        for (key, kind), figures in self.figures.items():
            if figures.problem:
                out.append(f"! {key}, {kind}: {figures.problem}")
        out += [f"* {note}" for note in self.notes]
        return "\n".join(out)

    def task_note(self) -> str:
        """By CPU, which programs beside the run change less than tasks a second; "" where a figure is missing."""

        def both(kind: str) -> float | None:
            found = self.figures.get(("tasks", kind), Figures())
            return None if found.cpu_us is None or found.generator_us is None else found.cpu_us + found.generator_us

        ours = both("roquet")
        theirs = min(
            (cost for key, kind in self.figures if key == "tasks" and kind.startswith("celery") and (cost := both(kind))), default=None
        )
        if not ours or not theirs:
            return ""
        costs = f"Roquet's first line {ours:.1f} us, the cheapest Celery {theirs:.0f} us, {theirs / ours:.1f} times"
        return f"tasks: CPU of worker and server a task: {costs}"

    def task_table(self) -> list[str]:
        """A line for each system with each setting; "Roquet" is how many times as many tasks a second Roquet's first line has."""
        row = BY_KEY["tasks"]
        lines = [
            (
                "trivial tasks, one worker",
                "tasks",
                "worker CPU",
                "server CPU",
                "first",
                "Roquet",
                "publish",
                "how",
                "CPU",
                "server CPU",
                "",
                "",
            )
        ]
        ours = self.figures.get((row.key, "roquet"), Figures())
        for (key, kind), done in self.figures.items():
            if key != row.key:
                continue
            sent = self.figures.get(("tasks-publish", kind), Figures())
            ratio, met = self.judge(row)
            times = quotient(ours.rate, done.rate)
            lines.append((
                done.title or kind, _rate(done), _micro(done.generator_us), _micro(done.cpu_us),
                f"{statistics.median(done.firsts):.1f} s" if done.firsts else "", f"{times:.2f} x" if times else "",
                _rate(sent), sent.title, _micro(sent.generator_us), _micro(sent.cpu_us),
                row.target(self.speedups) if kind == "roquet" else "",
                ("FAILED" if done.problem else "") if kind != "roquet" or met is None
                else f"{'met' if met else 'MISSED'}, {ratio:.2f}" + (" (with errors)" if done.problem else ""),
            ))  # fmt: skip
        return aligned(lines, left={0, 7, 10, 11})

    def _present(self) -> list[Row]:
        return [row for row in ROWS if any(key == row.key for key, _ in self.figures)]


def aligned(lines: Sequence[tuple[str, ...]], left: set[int]) -> list[str]:
    """The lines of a table, the first its head; columns whose number is in `left` begin at the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def fit(line: tuple[str, ...]) -> str:
        cells = (cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
        return "  ".join(cells).rstrip()

    out = [fit(line) for line in lines]
    out.insert(1, "-" * max(map(len, out)))
    return out


def quotient(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _main(row: Row, figures: Figures) -> str:
    if row.measure in BY_MESSAGE:
        return _rate(figures)
    if figures.value is None:
        return ""
    value = figures.value
    shown = {START: f"{value:.2f} s", MEMORY: f"{value:,.0f} MiB", SHARDS: f"{value:.2f} x", LATE: f"{value:,.0f} ms"}
    return shown[row.measure]


def _rate(figures: Figures) -> str:
    return f"{figures.rate:,.0f}/s" if figures.rate is not None else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _micro(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} us" if value >= 100 else f"{value:.1f} us" if value >= 10 else f"{value:.2f} us"
