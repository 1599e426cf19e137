"""Which log files may go, and whether the disk still takes writes. Pure: the caller looks at the disk and deletes.

Upstream's rules. A file older than the reserved time goes when one of these holds: the hour is one of `deleteWhen`, the
disk is fuller than `diskMaxUsedSpaceRatio`, or somebody asked. Above 85 % files go whatever their age (if allowed). Above
90 % writes are refused until use is down to 85 %. Always oldest first, a few a round, and never the last file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roquet.settings import BrokerSettings

ROUND_MAX = 10
"""Files deleted in one round; the next comes with the next look, so that a burst of deletes does not stall the disk."""
FORCED_RATIO = 0.85
REFUSE_RATIO = 0.90
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class LogFile:
    base: int
    """Physical offset of its first byte; orders the files."""
    mtime_ms: int
    """When it was last written."""


@dataclass(frozen=True, slots=True)
class Decision:
    delete: tuple[LogFile, ...]
    writable: bool
    reason: str
    """Why files go, or why none do although the disk is short; why writes are refused. Empty when there is nothing to say."""


def hours(delete_when: str) -> frozenset[int]:
    """ "04;16" -> {4, 16}. What is no hour of the day is left out; with none left, files go only for space or by hand."""
    parts = (part.strip() for part in delete_when.split(";"))
    return frozenset(int(part) for part in parts if part.isascii() and part.isdigit() and int(part) < 24)


def decide(
    files: Sequence[LogFile],
    settings: BrokerSettings,
    *,
    now_ms: int,
    hour: int,
    used_ratio: float,
    manual: bool = False,
    writable: bool = True,
) -> Decision:
    """`hour` is local; `used_ratio` is of the log's file system; `writable` is what the last decision said."""
    ordered = sorted(files, key=lambda file: file.base)
    forced = settings.clean_file_forcibly_enable and used_ratio > FORCED_RATIO
    if forced:
        why = f"disk {used_ratio:.0%} used, above {FORCED_RATIO:.0%} files of any age go"
    elif used_ratio > settings.disk_max_used_space_ratio / 100:
        why = f"disk {used_ratio:.0%} used, above {settings.disk_max_used_space_ratio}% files older than {settings.file_reserved_time} h go"
    elif manual:
        why = f"asked to delete files older than {settings.file_reserved_time} h"
    elif hour in hours(settings.delete_when):
        why = f"hour {hour} is in deleteWhen={settings.delete_when}, files older than {settings.file_reserved_time} h go"
    else:
        why = ""
    chosen: list[LogFile] = []
    if why:
        for file in ordered[:-1]:
            expired = now_ms - file.mtime_ms >= settings.file_reserved_time * HOUR_MS
            if len(chosen) == ROUND_MAX or not (expired or forced):
                break
            chosen.append(file)

    # Two limits, so that writes do not go on and off with every file that is deleted.
    refuse = used_ratio > (REFUSE_RATIO if writable else FORCED_RATIO)
    reasons: list[str] = []
    if chosen or (why and used_ratio > settings.disk_max_used_space_ratio / 100):
        reasons.append(why if chosen else f"{why}, but none of {len(ordered)} may: {_obstacle(ordered, forced)}")
    if refuse:
        back = f"until use is down to {FORCED_RATIO:.0%}"
        reasons.append(
            f"disk {used_ratio:.0%} used, writes are refused above {REFUSE_RATIO:.0%} {back}: free space or lower fileReservedTime"
        )
    return Decision(tuple(chosen), not refuse, "; ".join(reasons))


def _obstacle(ordered: Sequence[LogFile], forced: bool) -> str:
    return "the last file always stays" if forced or len(ordered) < 2 else "the oldest is not old enough"
