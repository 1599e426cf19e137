"""Timers that are pending no longer, though they may still stand in the window or in the files."""

from __future__ import annotations

from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.wire.names import TIMER_TOPIC
from roquet.wire.record import BadRecord, Record


class TakenBack:
    """State: `dead` are those that following found (offset -> due). `asked` and `moving` are cancellations and moves that were put and
    not followed yet: until then they count by these."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.dead: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        """Offset of a timer -> of its cancellation."""
        self.moving: dict[int, tuple[int, int]] = {}
        """Offset of a timer -> (due, where it was put again)."""

    def has(self, offset: int) -> bool:
        return offset in self.dead or offset in self.moving or self.is_asked(offset)

    def is_asked(self, offset: int) -> bool:
        """Was this timer cancelled, although following has not come to it? A cancellation that could not be written does not count."""
        at = self.asked.get(offset)
        if at is None:
            return False
        if at >= self._log.written:
            return at < self._log.end  # staged in this very batch of requests
        try:
            record = Record.decode(self._log.read(at, int.from_bytes(self._log.read(at, 4), "big")))
        except (LookupError, BadRecord):
            record = None
        except Cold:
            return True  # written just now, so it is there; only the memory was needed for something else
        if record is None or record.topic != TIMER_TOPIC or record.prepared_transaction_offset != ~offset:
            del self.asked[offset]
            return False
        return True

    def followed(self, offset: int) -> None:
        """The files know it now."""
        self.asked.pop(offset, None)
        self.moving.pop(offset, None)

    def keep_dead(self, from_ms: int, before_ms: int) -> None:
        """Only those that were due in this span can be in the window."""
        self.dead = {offset: due for offset, due in self.dead.items() if from_ms <= due < before_ms}
