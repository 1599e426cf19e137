"""Which log files may go, and whether the disk still takes writes. Pure: the caller looks at the disk and deletes.

Upstream's rules. A file older than the reserved time goes when one of these holds: the hour is one of `deleteWhen`, the
disk is fuller than `diskMaxUsedSpaceRatio`, or somebody asked. Above 85 % files go whatever their age (if allowed). Above
90 % writes are refused until use is down to 85 %. Always oldest first, a few a round, and never the last file.

The broker's own moves and deliveries (timers, delays, transactions) go on up to 98 %: they are what frees the oldest files. Where the
log has a file system of its own, both are looked at. When only the other one is short, just expired files go: it holds the entries
of messages and not the messages, so removing young ones would lose much and free little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roquet.settings import BrokerSettings

ROUND_MAX = 10
"""Files deleted in one round; the next comes with the next look, so that a burst of deletes does not stall the disk."""
FORCED_RATIO = 0.85
REFUSE_RATIO = 0.90
RESERVE_RATIO = 0.98
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
    path: str = "",
) -> Decision:
    """`hour` is local; `used_ratio` is of the file system that holds `path`; `writable` is what the last decision said."""
    disk = f"the disk of {path} is {used_ratio:.0%} used" if path else f"disk {used_ratio:.0%} used"
    ordered = sorted(files, key=lambda file: file.base)
    forced = settings.clean_file_forcibly_enable and used_ratio > FORCED_RATIO
    if forced:
        why = f"{disk}, above {FORCED_RATIO:.0%} files of any age go"
    elif used_ratio > settings.disk_max_used_space_ratio / 100:
        why = f"{disk}, above {settings.disk_max_used_space_ratio}% files older than {settings.file_reserved_time} h go"
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
        obstacle = "the last file always stays" if forced or len(ordered) < 2 else "the oldest is not old enough"
        reasons.append(why if chosen else f"{why}, but none of {len(ordered)} may: {obstacle}")
    if refuse:
        back = f"until use is down to {FORCED_RATIO:.0%}"
        reasons.append(f"{disk}, writes are refused above {REFUSE_RATIO:.0%} {back}: free space or lower fileReservedTime")
    return Decision(tuple(chosen), not refuse, "; ".join(reasons))


def decide_for_both(
    files: Sequence[LogFile],
    settings: BrokerSettings,
    log_disk: tuple[str, float],
    queue_disk: tuple[str, float],
    *,
    now_ms: int,
    hour: int,
    manual: bool = False,
    writable: bool = True,
) -> Decision:
    """The same for a log and queues that may be on different file systems, each a (path, used ratio)."""
    (path, ratio), (other_path, other_ratio) = log_disk, queue_disk
    log_says = decide(files, settings, now_ms=now_ms, hour=hour, used_ratio=ratio, manual=manual, writable=writable, path=path)
    if ratio == other_ratio:  # the same file system, or as good as that
        return log_says
    gentle = settings.replace(clean_file_forcibly_enable=False)
    other = decide(files, gentle, now_ms=now_ms, hour=hour, used_ratio=other_ratio, manual=manual, writable=writable, path=other_path)
    reasons = dict.fromkeys(reason for reason in (log_says.reason, other.reason) if reason)
    return Decision(max(log_says.delete, other.delete, key=len), log_says.writable and other.writable, "; ".join(reasons))
