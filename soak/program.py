"""The driver that is killed: follows topics into an archive and compacts it now and then, until it dies.

    python -m soak.program ORDERS      a JSON object, see Orders

It looks for a file at every point of the archive's own fault hook. The file names a point and how often it is still passed;
there the process sends itself SIGKILL. So a driver that runs already can be told where to die.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from roquet.spark.archive.plan import cut
from roquet.spark.pipelines import archive as pipeline

ROWS_A_TASK = 250
"""Far fewer than is worth a task, so that a small batch has several and a commit several files."""
CROWDED = 6
"""With more files than this a day is compacted between two batches."""
COMPACTION = "compaction: "
SOON = COMPACTION + "soon"
"""Some time after the compaction begins: a Delta table's has no points of its own."""


@dataclass(frozen=True)
class Orders:
    where: dict[str, str]
    topics: list[str]
    to: str
    doom: str
    """The file that says where to die."""
    batch_rows: int
    delta: bool = False
    master: str | None = None
    """None: in this process, without Spark."""
    conf: dict[str, str] = field(default_factory=dict)
    every_s: float = 0.1
    commits: int = 5
    """From one compaction of everything to the next."""
    bug: str = ""
    to_the_end: bool = False
    """Archive what is there and leave."""

    def text(self) -> str:
        return json.dumps(vars(self))


@dataclass(frozen=True)
class Doom:
    """Where to die: `after` so many visits of `point`. SOON: after so many milliseconds."""

    point: str
    after: int

    def write(self, path: Path) -> None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps(vars(self)))
        part.rename(path)


class Fate:
    """The archive's fault hook."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed = 0

    def at(self, point: str) -> None:
        try:
            doom = Doom(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            self._passed = 0
            return
        if doom.point != point:
            return
        if point == SOON:
            self._path.unlink()
            threading.Timer(doom.after / 1000, die).start()
        elif self._passed >= doom.after:
            self._path.unlink()
            die()
        self._passed += 1

    def compacting(self, point: str) -> None:
        self.at(COMPACTION + point)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(orders: Orders) -> None:
    setattr(pipeline, "cut", partial(cut, rows_min=ROWS_A_TASK))  # noqa: B010
    BUGS[orders.bug]()
    spark = None
    if orders.master:
        from roquet.spark.session import session

        spark = session("soak", orders.master, orders.conf)
    fate = Fate(Path(orders.doom))
    output = pipeline.Output(delta=orders.delta, batch_rows=orders.batch_rows, compact_above=CROWDED)
    archive = partial(pipeline.archive, orders.where, orders.topics, orders.to, spark=spark, output=output)
    if orders.to_the_end:
        archive(control=pipeline.Control(fault=fate.at))
        return
    batches: list[int] = []
    following = pipeline.Control(
        follow=True,
        every_s=orders.every_s,
        progress=lambda done, _: batches.append(done),
        stop=lambda: len(batches) >= orders.commits,
        fault=fate.at,
    )
    while True:
        batches.clear()
        archive(control=following)
        fate.at(SOON)
        pipeline.compact(orders.to, spark=spark, fault=fate.compacting)


# ---- bugs that a run must find --------------------------------------------------------------------------------------------


def forget_offsets() -> None:
    """Now and then a batch is committed without its offsets, so it is read again."""

    def change(_files: list[Any], more: dict[str, Any]) -> None:
        more["ranges"] = ()

    change_commits(change)


def lose_a_file() -> None:
    """Now and then a commit leaves one of its files out."""

    def change(files: list[Any], _more: dict[str, Any]) -> None:
        del files[-1:]

    change_commits(change)


def rename_early() -> None:
    """Data goes where readers look before its commit is made, as a plain writer of Parquet would do it."""
    from roquet.spark.archive.ledger import Ledger, staged_path

    stage = Ledger.commit

    def commit(self: Ledger, kind: Any, files: Any = (), **more: Any) -> Any:
        files = list(files)
        for file in files:
            target = self.root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(staged_path(self.staging, file.path), target)
        return stage(self, kind, files, **more)

    Ledger.commit = commit  # type: ignore[method-assign]


def leave_staging() -> None:
    """What a dead driver left is not looked at."""
    from roquet.spark.archive.ledger import Ledger

    Ledger._recover = lambda self: None  # type: ignore[method-assign]


def change_commits(change: Callable[[list[Any], dict[str, Any]], None]) -> None:
    """`change` may do to the files and arguments of every fourth append what it likes."""
    from roquet.spark.archive.delta import DeltaBook
    from roquet.spark.archive.ledger import Ledger

    appends = itertools.count(1)
    for book in (Ledger, DeltaBook):

        def commit(self: Any, kind: Any, files: Any = (), real: Any = book.commit, **more: Any) -> Any:
            files = list(files)
            if kind == "append" and next(appends) % 4 == 0:
                change(files, more)
            return real(self, kind, files, **more)

        book.commit = commit  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "forget-offsets": forget_offsets,
    "lose-a-file": lose_a_file,
    "rename-early": rename_early,
    "leave-staging": leave_staging,
}

if __name__ == "__main__":
    run(Orders(**json.loads(sys.argv[1])))
