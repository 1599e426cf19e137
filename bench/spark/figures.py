"""What a row compares, what it must reach, and the table."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from sides import KAFKA, ROQUET

SLOWED = "slowed"


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    against: str  # Kafka's work that it is compared with
    limit: float | None = None  # of Roquet's rows a second over Kafka's, at least; of `slowed` rows the share of sends lost, at most
    slowed: bool = False

    @property
    def target(self) -> str:
        if self.limit is None:
            return "-"
        return "slowed <= 1/3" if self.slowed else f">= {self.limit:.1f} x"


ROWS = (
    Row("scan", "scan from the broker, default columns", "scan", 1.2),
    Row("scan-seven", "scan from the broker, Kafka's seven columns", "scan"),
    Row("scan-all", "scan from the broker, all columns", "scan"),
    Row("files", "scan of the store's files, default columns", "scan", 1.5),
    Row("files-all", "scan of the store's files, all columns", "scan"),
    Row("archive", "to a Parquet archive from files, seven columns", "archive", 2.0),
    Row("archive-snappy", "the same, compressed as Spark does for Kafka", "archive", 2.0),
    Row("archive-all", "to a Parquet archive from files, all columns", "archive"),
    Row("archive-broker", "to a Parquet archive from the broker, seven", "archive"),
    Row("stream", "topic to topic, default columns, availableNow", "stream", 1.0),
    # Niced, Spark can get so little done that this says nothing; the target is judged with equal shares.
    Row("sends", "sends while Spark (nice 19) catches up", "sends", slowed=True),
    Row("sends-shared", "sends while Spark catches up, equal shares", "sends-shared", 1 / 3, slowed=True),
)
BY_KEY = {row.key: row for row in ROWS}
READS = ("scan", "scan-seven", "scan-all", "files", "files-all", "archive", "archive-snappy", "archive-all", "archive-broker")
SENDS = ("sends", "sends-shared")


@dataclass
class Sample:
    """One round of one row. For `sends` rows: sends alone, then during the catching up."""

    rate: float  # rows a second; of sends: while Spark catches up
    broker_cpu_us: float = 0.0  # a row
    broker_mib: float = 0.0
    spark_mib: float = 0.0
    spark_cpu_us: float = 0.0  # a row
    written_mib: float = 0.0  # of archives: size of the files
    alone: float = 0.0  # of sends: without Spark
    caught_up: float = 0.0  # of sends: rows a second that Spark read meanwhile


@dataclass
class Figures:
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""

    def of(self, name: str) -> float | None:
        """The median over rounds."""
        return statistics.median(getattr(sample, name) for sample in self.samples) if self.samples else None

    @property
    def spread(self) -> float:
        """Half the distance from the slowest round to the fastest, as a share of the median."""
        rates = [sample.rate for sample in self.samples]
        return (max(rates) - min(rates)) / 2 / statistics.median(rates)

    @property
    def slowed(self) -> float | None:
        """The share of sends a second that is lost to the catching up."""
        return statistics.median(1 - sample.rate / sample.alone for sample in self.samples) if self.samples else None


@dataclass
class Report:
    figures: dict[tuple[str, str, str], Figures] = field(default_factory=dict)  # (row or Kafka's work, data set, side)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def at(self, key: str, data: str, kind: str) -> Figures:
        return self.figures.setdefault((key, data, kind), Figures())

    def pair(self, row: Row, data: str) -> tuple[Figures, Figures]:
        """Kafka's figures and Roquet's."""
        return self.figures.get((row.against, data, KAFKA), Figures()), self.figures.get((row.key, data, ROQUET), Figures())

    def judge(self, row: Row, data: str) -> tuple[float | None, bool | None]:
        """What is compared, and whether the target is met (None: there is none, or a figure is missing)."""
        kafka, roquet = self.pair(row, data)
        if row.slowed:
            value = roquet.slowed
            return value, None if value is None or row.limit is None else value <= row.limit
        ours, theirs = roquet.of("rate"), kafka.of("rate")
        ratio = ours / theirs if ours is not None and theirs else None
        return ratio, None if ratio is None or row.limit is None else ratio >= row.limit

    def present(self) -> list[tuple[Row, str]]:
        """Rows of the table: those for which either side has something to show."""
        names = dict.fromkeys(data for _, data, _ in self.figures)
        found = [(row, data) for data in names for row in ROWS if (row.key, data, ROQUET) in self.figures]
        only_kafka = [(BY_KEY[key], data) for key, data, kind in self.figures if kind == KAFKA and (BY_KEY[key], data) not in found]
        return found + only_kafka

    def missed(self) -> bool:
        return any(self.judge(row, data)[1] is False for row, data in self.present())

    def json(self) -> dict[str, Any]:
        rows = []
        for row, data in self.present():
            compared, met = self.judge(row, data)
            entry: dict[str, Any] = {"row": row.key, "records": data, "title": row.title, "target": row.target}
            entry |= {SLOWED if row.slowed else "ratio": compared, "met": met}
            for kind, figures in zip((KAFKA, ROQUET), self.pair(row, data), strict=True):
                medians = {name: figures.of(name) for name in Sample.__dataclass_fields__}
                entry[kind] = {"medians": medians, "rounds": [asdict(sample) for sample in figures.samples], "problem": figures.problem}
            rows.append(entry)
        return {"facts": self.facts, "rows": rows, "notes": self.notes}

    def table(self) -> str:
        head = ("records", "", "Kafka", "Roquet", "ratio", "target", "", "broker CPU", "broker MiB", "Spark CPU", "Spark MiB")
        lines = [head, *(self._line(row, data) for row, data in self.present())]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        left = {0, 1, 5, 6}
        out = []
        for line in lines:
            cells = (cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
            out.append("  ".join(cells).rstrip())
        out.insert(1, "-" * max(map(len, out)))
        out += [f"! {key}, {data}, {kind}: {each.problem}" for (key, data, kind), each in self.figures.items() if each.problem]
        return "\n".join([*out, *(f"* {note}" for note in [*self._caught_up(), *self.notes])])

    def _caught_up(self) -> list[str]:
        """How much Spark read while sends went on: a reader that got nothing done slows nobody."""
        found = []
        for row, data in self.present():
            if row.slowed:
                shown = (f"{(each.of('caught_up') or 0) / 1000:,.0f} k rows/s" for each in self.pair(row, data))
                found.append("{}: Spark read {} from Kafka and {} from Roquet meanwhile".format(row.title, *shown))
        return found

    def _line(self, row: Row, data: str) -> tuple[str, ...]:
        kafka, roquet = pair = self.pair(row, data)
        compared, met = self.judge(row, data)
        verdict = "met" if met else "MISSED" if met is False else ""
        if kafka.problem or roquet.problem:
            verdict = f"{verdict} (with errors)" if verdict else "FAILED"
        if row.slowed:
            shown = tuple(_sends(each) for each in pair)
            return data, row.title, *shown, "" if compared is None else f"{compared:.0%}", row.target, verdict, "", "", "", ""
        costs = ["/".join(_number(each.of(name)) for each in pair) for name in ("broker_cpu_us", "broker_mib", "spark_cpu_us", "spark_mib")]
        ratio = "" if compared is None else f"{compared:.2f} x"
        return data, row.title, _rate(kafka), _rate(roquet), ratio, row.target, verdict, *costs


def _rate(figures: Figures) -> str:
    rate = figures.of("rate")
    return "" if rate is None else f"{rate / 1000:,.0f} k/s +-{figures.spread:.0%}"


def _sends(figures: Figures) -> str:
    rate, alone = figures.of("rate"), figures.of("alone")
    return "" if rate is None or alone is None else f"{alone / 1000:,.0f} -> {rate / 1000:,.0f} k/s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:,.0f}"
