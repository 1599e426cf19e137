"""Queue entries that the next pulls of a kind will ask for, read along with those of the last one."""

from __future__ import annotations

from roquet.broker.pull_requests import Grant, KnownPull
from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue

AHEAD = 1_024
"""Entries that are read at once: 32 answers of the usual size."""
FEW, KEPT_MAX = 256, 1_024
"""For the first 256 kinds of pulls that many entries are kept, for the others a quarter, and for no more than 1,024 kinds: 9 MiB in all."""

PATIENCE = 8
"""When so many times KEPT_MAX pulls found no room, the table is cleared. If it were cleared for each of them, it would serve nobody."""

Place = tuple[str, int]
"""Topic and queue id."""

Ready = tuple[Grant | None, Place, ConsumeQueue, int, bytes, int, int, bool, bool]
"""All that the next pull of a shape needs to be answered: (who allows it, or None for one with a filter; its queue's name, and the queue;
the number of the first entry that is kept, and those; messages and bytes of an answer; whether it tells the group's progress; whether it is
in the binary form)."""


class EntriesAhead:
    """State: what is kept by the shape of the pull, read after `_cuts` of the log's cuts. The entries are visible ones, which change only
    with such a cut, or when one that is damaged is mended: whoever meets something odd forgets them and looks at the queue itself. When
    the table is full, pulls of other kinds read for themselves; after many of them it is cleared, and so gets rid of kinds that come no
    more."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._cuts = 0
        self._kept: dict[bytes, Ready] = {}
        self._turned_away = 0

    def kept(self) -> dict[bytes, Ready]:
        """Those that may be used now."""
        if self._cuts != self._log.cuts:
            self.clear()
            self._cuts = self._log.cuts
        return self._kept

    def read(self, known: KnownPull, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """As `ConsumeQueue.read`, of those that are visible, for a pull of this kind. May raise Cold."""
        kept = self.kept().get(known.shape)
        count = min(count, queue.visible - offset)
        if kept is not None and kept[2] is queue:
            start, raw = kept[3:5]
            at = (offset - start) * ENTRY_SIZE
            if at >= 0 and at + count * ENTRY_SIZE <= len(raw) and offset >= queue.first:
                if kept[0] is not known.usual:
                    self._keep(known, queue, start, raw)
                return raw[at : at + count * ENTRY_SIZE]
        more = min(AHEAD if len(self._kept) < FEW else AHEAD // 4, queue.visible - offset)
        if more < 2 * count or not self._has_room(known):  # the next one would find little or nothing
            return queue.read(offset, count)
        try:
            raw = queue.read(offset, more)
        except Cold:
            return queue.read(offset, count)
        self._keep(known, queue, offset, raw)
        return raw[: count * ENTRY_SIZE]

    def _has_room(self, known: KnownPull) -> bool:
        if len(self._kept) < KEPT_MAX or known.shape in self._kept:
            return True
        self._turned_away += 1
        if self._turned_away >= PATIENCE * KEPT_MAX:
            self.clear()
        return False

    def _keep(self, known: KnownPull, queue: ConsumeQueue, start: int, raw: bytes) -> None:
        self._kept[known.shape] = (
            known.usual, known.place, queue, start, raw, known.count_max, known.size_max, known.commits, known.binary,
        )  # fmt: skip

    def forget(self, known: KnownPull) -> None:
        self._kept.pop(known.shape, None)

    def clear(self) -> None:
        self._kept.clear()
        self._turned_away = 0
