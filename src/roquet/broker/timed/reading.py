"""Reading timers' records from the log, many at once."""

from __future__ import annotations

from collections.abc import Callable

from roquet.broker.part import ColdReads, Fetch
from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.timers import Rows
from roquet.wire.names import TIMER_TOPIC
from roquet.wire.record import BadRecord, Record

READ_GAP = 4_096
READ_MAX = 1 << 19


class TimerReader(ColdReads):
    """While the disk is asked for what was not in memory the timers stand still."""

    def __init__(self, log: Log, fetch: Fetch) -> None:
        super().__init__(fetch)
        self._log = log

    def read(self, rows: Rows, *, decode: bool = True) -> list[tuple[tuple[int, int, int], Record | None]]:
        """The timers' records in the order of the rows, None where there is none. Neighbours in the log are read together.

        Raises one Cold for all that is not in memory.
        """
        places: list[tuple[int, int, int]] = sorted((offset, size, n) for n, (_, offset, size) in enumerate(rows.tolist()))
        found: list[Record | None] = [None] * len(places)
        fetches: list[Callable[[], object]] = []
        segment = self._log.segments.size
        n = 0
        while n < len(places):
            start, size, _ = places[n]
            end, last = start + size, n + 1
            while last < len(places):
                offset, size, _ = places[last]
                if offset > end + READ_GAP or offset + size - start > READ_MAX or offset // segment != start // segment:
                    break
                end, last = max(end, offset + size), last + 1
            try:
                data = self._log.read(start, end - start)
            except LookupError:
                data = b""
            except Cold as cold:
                fetches.append(cold.fetch)
                data = b""
            if decode and data:
                for offset, _, place in places[n:last]:
                    try:
                        record = Record.decode(data, offset - start, check_crc=False)
                    except BadRecord:
                        continue
                    if record.physical_offset == offset and record.topic == TIMER_TOPIC:
                        found[place] = record
            n = last
        if fetches:
            raise Cold(lambda: [fetch() for fetch in fetches])
        return [((due, offset, size), record) for (due, offset, size), record in zip(rows.tolist(), found, strict=True)]
