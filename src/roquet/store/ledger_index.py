"""Where each entry of DLedger's log stands: 32 bytes an entry, at its index times 32 of a row of files.

It is made from the log's data, which counts where the two differ. What stands behind the last entry means nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.store.disk import blocking
from roquet.store.segments import Segments
from roquet.wire.layout import LEDGER_UNIT
from roquet.wire.ledger_entry import Unit, read_unit

UNIT = LEDGER_UNIT.size
RECENT_MAX = 65_536
"""Units that stay in memory: of what is pushed to others, and waits for them."""


class LedgerIndex:
    """State: `recent` are the last units, from the entry `recent_from` on; they are in their files too."""

    def __init__(self, segments: Segments) -> None:
        assert segments.size % UNIT == 0
        self.segments = segments
        self.recent = bytearray()
        self.recent_from = 0

    def start_at(self, index: int) -> None:
        """The next unit is of this entry."""
        self.recent = bytearray()
        self.recent_from = index

    @property
    def next(self) -> int:
        return self.recent_from + len(self.recent) // UNIT

    def make_room(self, count: int) -> None:
        """For so many more. Raises OSError: no file can be made."""
        stop, size = (self.next + count) * UNIT, self.segments.size
        if self.segments.bases and stop <= self.segments.bases[-1] + size:
            return
        if not self.segments.bases:
            self.segments.create(self.next * UNIT // size * size)
        while self.segments.stop < stop:
            self.segments.create(self.segments.stop)

    def add(self, units: bytes) -> None:
        """Write the next ones; `make_room` was called. On OSError they do not count."""
        self.write(self.next, units)
        self.recent += units
        if len(self.recent) > 2 * RECENT_MAX * UNIT:
            gone = len(self.recent) // UNIT - RECENT_MAX
            del self.recent[: gone * UNIT]
            self.recent_from += gone

    def write(self, first: int, units: bytes) -> None:
        """Units from this entry on, in files that are there."""
        at, done, size = first * UNIT, 0, self.segments.size
        while done < len(units):
            base = at // size * size
            piece = units[done : done + base + size - at]
            self.segments.file(base).write(at - base, piece)
            at += len(piece)
            done += len(piece)

    def units(self, first: int, count: int) -> bytes:
        """Of these entries, as many as stand in one file. Raises Cold. What stands there may be anything."""
        at = (first - self.recent_from) * UNIT
        if at >= 0:
            return bytes(self.recent[at : at + count * UNIT])
        place, size = first * UNIT, self.segments.size
        base = self.segments.base_of(place)
        if base is None:
            return b""
        count = min(count, self.recent_from - first, (base + size - place) // UNIT)
        return self.segments.file(base).read_now(place - base, count * UNIT)

    def unit(self, index: int) -> Unit | None:
        """Of this entry; None when nothing sound stands there. Raises Cold."""
        found = self.units(index, 1)
        unit = read_unit(found) if len(found) == UNIT else None
        return unit if unit is not None and unit.index == index and unit.magic == 1 else None

    def recent_unit(self, index: int) -> Unit | None:
        """Of an entry that was written not long ago."""
        at = (index - self.recent_from) * UNIT
        return read_unit(self.recent, at) if 0 <= at < len(self.recent) else None

    def unit_now(self, index: int) -> Unit | None:
        """The same. May block."""
        return blocking(self.unit, index)

    def cut(self, index: int) -> None:
        """The next unit is of this entry: what follows is gone."""
        if index < self.recent_from:
            self.start_at(index)
        else:
            del self.recent[(index - self.recent_from) * UNIT :]
        kept = index * UNIT
        while len(self.segments.bases) > 1 and self.segments.bases[-1] > kept:
            self.segments.drop_from(self.segments.bases[-1])

    def begin_anew(self, index: int) -> None:
        """Nothing is left; this entry is the next."""
        while self.segments.bases:
            self.segments.drop_from(self.segments.bases[-1])
        self.start_at(index)

    def old_files(self, begin: int) -> list[str]:
        """Files of entries before this one are not part of the row any more. Returns their paths: removing them is the caller's."""
        paths: list[str] = []
        while len(self.segments.bases) > 1 and self.segments.bases[1] <= begin * UNIT:
            paths.append(self.segments.forget_first())
        return paths

    def syncer(self, first: int) -> Callable[[], None]:
        """What makes units from this entry on safe, and may block."""
        segments = self.segments
        files = [segments.file(base) for base in segments.bases if base + segments.size > max(first, 0) * UNIT]
        disk, directory = segments.files.disk, segments.directory if segments.new_since_sync else None
        segments.new_since_sync = False

        def work() -> None:
            for file in files:
                file.sync()
            if directory is not None:
                disk.sync_dir(directory)

        return work
