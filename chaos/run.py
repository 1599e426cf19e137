"""Real servers on machines of their own, under load, while machines, networks and disks fail; and a judgement of what clients saw.

    python -m chaos.run [--group single|async|sync|dledger] [--minutes 10] [--seed N] [--faults kill,cut] [--keep]

Exit code 1 when something acknowledged was lost or clients saw what cannot be; 2 when this machine cannot run it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom

from chaos import schedule
from chaos.availability import Happened, outages, rows
from chaos.checker import Verdict, check
from chaos.cluster import Cluster, acknowledgements
from chaos.group import LAYOUTS, Broken, Layout, Node, lose_tail
from chaos.history import read_back
from chaos.namespaces import Impossible, prepare
from chaos.picture import draw
from roquet.cli.render import counted, duration, table

PAUSE_S = (2.0, 4.0)
LASTS_S = (0.5, 1.5)
"""Without failover nobody serves meanwhile."""
LASTS_WITH_FAILOVER_S = (3.0, 6.0)
"""Long enough for a group to notice."""
WARM_UP_S = 3.0
ENOUGH = 5
"""Sends that are acknowledged before the next fault comes, at least; a group that gives none is not waited for longer than that."""
SERVICE_AGAIN_S = 60.0
BUGS: dict[str, Callable[[Node], None]] = {"": lambda node: None, "lose-tail": lose_tail}
"""To see that they are found."""


@dataclass
class Outcome:
    layout: Layout
    seed: int
    began: float = 0.0
    ended: float = 0.0
    faults: list[Happened] = field(default_factory=list)
    acknowledged: list[tuple[float, str]] = field(default_factory=list)
    verdict: Verdict | None = None

    def split(self) -> tuple[list[float], list[float]]:
        """Acknowledged as safe, and less safe."""
        safe = self.layout.promise.safe
        return [at for at, status in self.acknowledged if status in safe], [at for at, status in self.acknowledged if status not in safe]


def run(layout: Layout, directory: Path, options: argparse.Namespace) -> Outcome:
    """Raises Broken and Impossible."""
    outcome = Outcome(layout, options.seed)
    random = Random(options.seed)
    cluster = Cluster(
        layout, directory, queues=options.queues, rate=options.rate, send_timeout_ms=options.send_timeout_ms, random=Random(options.seed),
        before_restart=BUGS[options.plant],
    )  # fmt: skip
    with cluster:
        under_load(cluster, outcome, random, options)
        print("faults are over: waiting for the consumers, then reading everything", flush=True)
        if layout.safe_on_slave:
            cluster.read_slave_alone()
        cluster.wait_whole()
        cluster.settle()
        cluster.read_everywhere()
    outcome.verdict = check(read_back(cluster.histories), layout.promise)
    return outcome


def judge(layout: Layout, directory: Path) -> int:
    """The histories of an earlier run once more."""
    verdict = check(read_back(sorted(directory.glob("history-*.jsonl"))), layout.promise)
    show(verdict)
    return 0 if verdict.sound else 1


def under_load(cluster: Cluster, outcome: Outcome, random: Random, options: argparse.Namespace) -> None:
    layout = cluster.layout
    chosen = schedule.faults(
        random, options.faults or layout.kinds, followers=len(layout.brokers) > 1, never_leaders=layout.never_leaders,
        lasts_s=LASTS_WITH_FAILOVER_S if layout.fails_over else LASTS_S, pause_s=PAUSE_S,
    )  # fmt: skip
    producers = [path for path in cluster.histories if "producer" in path.name]
    offsets: dict[Path, int] = {}

    def look() -> int:
        cluster.check_alive()
        outcome.acknowledged += acknowledgements(producers, offsets)
        return len(outcome.acknowledged)

    cluster.wait_until(lambda: all(path.exists() for path in producers) and look() >= ENOUGH, "the first acknowledged sends")
    time.sleep(WARM_UP_S)
    outcome.began = time.monotonic()
    end = outcome.began + 60 * options.minutes
    for number in itertools.count(1):
        fault = next(chosen)
        if time.monotonic() + fault.lasts_s + fault.pause_s > end:
            break
        happened = cluster.suffer(fault)
        outcome.faults.append(happened)
        for node in cluster.nodes:
            node.wait_booted()
        cluster.wait_whole()
        if happened.kind == schedule.REPLACE:
            cluster.wait_copied()
        before = look()
        cluster.wait_until(lambda before=before: look() >= before + ENOUGH, "that sends are acknowledged again", SERVICE_AGAIN_S)  # type: ignore[misc]
        time.sleep(fault.pause_s)
        look()
        (latest,) = outages([happened], [at for at, _ in outcome.acknowledged], time.monotonic())
        at = duration(happened.began - outcome.began)
        print(f"{number:>4}  {at:>8}  {happened.kind:<12} {happened.node:<22} for {happened.ended - happened.began:5.2f} s"
              f"   without service {latest.seconds:6.2f} s   acknowledged {len(outcome.acknowledged):>9,}", flush=True)  # fmt: skip
    outcome.ended = time.monotonic()
    look()


# ---- what is shown ------------------------------------------------------------------------------------------------------------


def report(outcome: Outcome, directory: Path, picture: Path | None) -> None:
    assert outcome.verdict is not None
    safe, others = outcome.split()
    found = outages(outcome.faults, [*safe, *others], outcome.ended)
    lines = [(row.kind, f"{row.faults:,}", f"{row.mean_s:.2f} s", f"{row.max_s:.2f} s") for row in rows(found)]
    print()
    print(table(("FAULT", "COUNT", "WITHOUT SERVICE, MEAN", "LONGEST"), lines))
    print()
    print(f"  load average of this machine {os.getloadavg()[2]:.1f} over the last 15 minutes, on {counted(os.cpu_count() or 1, 'core')}")
    show(outcome.verdict)
    minutes = (outcome.ended - outcome.began) / 60
    title = f"{outcome.layout.name}: {counted(len(outcome.faults), 'fault')} in {minutes:.1f} minutes, seed {outcome.seed}"
    for path in filter(None, [directory / "availability.png", picture]):
        draw(path, title, safe, others, outcome.faults, outcome.began, outcome.ended)
    (directory / "result.json").write_text(json.dumps(as_json(outcome), indent=1))


def show(verdict: Verdict) -> None:
    for name, count in verdict.counts.items():
        print(f"  {count:>10,}  {name}")
    for sentence in verdict.sentences():
        print(f"FOUND {sentence}")


def as_json(outcome: Outcome) -> dict[str, object]:
    assert outcome.verdict is not None
    found = outages(outcome.faults, [at for at, _ in outcome.acknowledged], outcome.ended)
    return {
        "group": outcome.layout.name,
        "seed": outcome.seed,
        "seconds": outcome.ended - outcome.began,
        "load average": os.getloadavg(),
        "counts": outcome.verdict.counts,
        "findings": [list(finding) for finding in outcome.verdict.findings],
        "by fault": [row._asdict() for row in rows(found)],
        "faults": [
            {
                "kind": one.fault.kind,
                "node": one.fault.node,
                "at": one.fault.began - outcome.began,
                "seconds": one.fault.ended - one.fault.began,
                "without service": one.seconds,
            }
            for one in found
        ],
    }


def main() -> int:
    options = parsed()
    layout = LAYOUTS[options.group](options.flush)
    if options.judge:
        return judge(layout, options.judge)
    unknown = sorted(set(options.faults) - set(layout.kinds))
    if unknown:
        print(f"chaos: --faults {','.join(unknown)}: a group {layout.name} can have {', '.join(layout.kinds)}", file=sys.stderr)
        return 2
    try:
        prepare()
    except Impossible as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    directory = Path(options.directory or tempfile.mkdtemp(prefix="roquet-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    again = f'make chaos ARGS="--group {options.group} --minutes {options.minutes:g} --seed {options.seed}"'
    print(
        f"chaos: group {layout.name}, {options.minutes:g} minutes of faults, seed {options.seed}; histories and logs in {directory}",
        flush=True,
    )
    try:
        outcome = run(layout, directory, options)
    except Impossible as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nchaos: ended by hand; nothing was judged. Histories and logs are in {directory}", file=sys.stderr)
        return 130
    except Broken as error:
        print(f"chaos: it could not go on: {error}\nTry it again: {again}", file=sys.stderr)
        return 1
    report(outcome, directory, options.picture)
    assert outcome.verdict is not None
    if not outcome.verdict.sound:
        for spec in layout.brokers:  # their file systems go with this process
            shutil.copytree(directory / spec.name, directory / "stores" / spec.name, dirs_exist_ok=True)
        print(f"\nFAULTY: histories, logs and stores are in {directory}. The same faults again: {again}")
        return 1
    print("\nNothing that was acknowledged is lost, and nobody saw what cannot be.")
    if options.keep:
        print(f"Histories, logs, the picture and result.json are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Real servers under load while machines, networks and disks fail.")
    parser.add_argument("--group", choices=LAYOUTS, default="single", help="what runs (default: single)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults happen (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of which faults come when (default: a new one, which is printed)")
    parser.add_argument("--faults", default="", metavar="KIND,...", help=f"only these: {', '.join(schedule.KINDS)}")
    parser.add_argument("--queues", type=int, default=4, help="of the topic (default: 4)")
    parser.add_argument("--rate", type=float, default=200.0, help="sends a second (default: 200)")
    parser.add_argument(
        "--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH", help="of all brokers (default: ASYNC_FLUSH)"
    )
    parser.add_argument("--send-timeout-ms", type=int, default=3_000, help="of producers, for an attempt (default: 3000, as theirs)")
    parser.add_argument("--directory", metavar="DIR", help="where histories and logs go (default: a new one for temporary files)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="the picture of availability, PNG or SVG by its ending, also here")
    parser.add_argument(
        "--judge", type=Path, metavar="DIR", help="run nothing; judge the histories in DIR, of a run of this group, once more"
    )
    parser.add_argument("--plant", choices=BUGS, default="", help="a bug that must be found: lose-tail, after a kill")
    parser.add_argument("--keep", action="store_true", help="keep histories, logs and picture of a sound run, too")
    options = parser.parse_args()
    options.seed = SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    options.faults = tuple(filter(None, options.faults.split(",")))
    return options


if __name__ == "__main__":
    sys.exit(main())
