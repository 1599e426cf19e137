"""Whether an archive is sound at this moment: what can be seen from outside, while a driver may be writing or lie dead."""

from __future__ import annotations

from pathlib import Path

from roquet.errors import RoquetError
from roquet.spark.archive.ledger import locate
from roquet.spark.archive.manifest import State
from roquet.spark.archive.read import opened

SHOWN = 3


def commits(path: Path) -> int:
    """How many there are; rises while a driver works."""
    return sum(1 for _ in (path / "_roquet" / "commits").glob("0*.json")) + sum(1 for _ in (path / "_delta_log").glob("0*.json"))


def rows(path: Path) -> int:
    return opened(path).rows if commits(path) else 0


def committed_faults(path: Path) -> list[str]:
    """Must be empty at every moment, also just after a kill: the manifest opens, its files are there with all their bytes,
    and its rows are as many as its offsets say."""
    if not commits(path):
        return []
    try:
        state = opened(path)
    except RoquetError as error:
        return [f"the archive does not open: {error}"]
    faults = offset_faults(state)
    for file in state.files.values():
        place = locate(path, file)
        if not place.exists():
            faults.append(f"{file.path} is committed and not there")
        elif place.stat().st_size != file.bytes:
            faults.append(f"{file.path} has {place.stat().st_size:,} bytes, committed are {file.bytes:,}")
    return faults


def offset_faults(state: State) -> list[str]:
    asked = sum(stop - state.starts[queue] for queue, stop in state.offsets.items())
    return [] if state.rows == asked else [f"{state.rows:,} rows are committed, the offsets stand for {asked:,}"]


def leftover_faults(path: Path) -> list[str]:
    """Must become empty once a driver has taken over: nothing of a dead one is left, and readers of the directories see
    committed files only. A Delta table leaves files to its vacuum, and its readers do not look at directories."""
    if (path / "_delta_log").is_dir() or not commits(path):
        return []
    visible = {one.relative_to(path).as_posix() for one in path.glob("topic=*/date=*/*.parquet")}
    strange = sorted(visible - set(opened(path).files))
    staged = sorted(one.name for one in (path / "_staging").iterdir())
    return [
        *([f"{len(strange)} files are visible and not committed: {', '.join(strange[:SHOWN])}"] if strange else []),
        *([f"data of {len(staged)} batches is staged, and one driver runs: {', '.join(staged[:SHOWN])}"] if len(staged) > 1 else []),
    ]
