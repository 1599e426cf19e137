"""A slave's connection as its master sees it.

Its first report says where to begin; 0 means the beginning of the master's last file, as upstream has it. From then on it is sent what is
written, in transfers of at most haTransferBatchSize, and only so far ahead of what it has acknowledged: so a slave that is far behind
costs a bounded piece of each turn and of the memory.

    link.receive(data, now_ms)      its reports; raises BadStream when the connection must be closed
    link.fill(now_ms, ...)          sends what it may have by now; raises Cold when that is not in memory
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.ha.stream import TRANSFER, BadStream, Reports
from roquet.ports import Stream
from roquet.settings import TRANSFER_MAX
from roquet.store.log import Log

AHEAD_MAX = 1 << 20
"""Bytes that are sent and not acknowledged, give or take one transfer."""
TURN_MAX = 256 * 1024
"""Bytes that are read and sent in one turn."""


class SlaveLink:
    """State: `position` is where the next transfer begins, -1 before the first report; `acked` is up to where the slave holds the log."""

    def __init__(self, stream: Stream, log: Log, now_ms: int) -> None:
        self.stream = stream
        self._log = log
        self._reports = Reports()
        self.position = self._start = -1
        self.acked = -1
        self.heard_ms = self.told_ms = self.since_ms = now_ms

    @property
    def begun(self) -> bool:
        return self.position >= 0

    @property
    def behind(self) -> int:
        """Bytes that it lacks."""
        return self._log.written - max(self.acked, 0)

    def receive(self, data: bytes, now_ms: int) -> bool:
        """Whether it acknowledged more than before. Raises BadStream: close the connection."""
        self.heard_ms = now_ms
        before = self.acked
        for offset in self._reports.feed(data):
            if not self.begun:
                self._begin(offset)
            elif offset > self.position:
                raise BadStream(
                    f"it acknowledges the log up to {offset}, and was sent no more than up to {self.position}: it is not a slave of this "
                    "master, or its log is another one. What it says does not count"
                )
            self.acked = max(self.acked, offset)
        return self.acked > before

    def _begin(self, offset: int) -> None:
        log = self._log
        if offset > log.written:
            raise BadStream(
                f"it holds the log up to {offset}, and this master's ends at {log.written}: this master lost messages, or the slave copied "
                "another one. Nothing is copied, so that neither is spoiled. Keep the one with what you need, and empty the other's store"
            )
        if offset == 0:
            offset = max(log.start, log.written - log.written % log.segments.size)
        elif offset < log.start:
            raise BadStream(
                f"it holds the log up to {offset}, and this master's begins at {log.start}: what is between was deleted here. Nothing can "
                "be copied to it until its store is emptied"
            )
        self.position = self._start = offset

    def fill(self, now_ms: int, batch_max: int, on_sent: Callable[[int], None]) -> None:
        """Send what it may have. `on_sent` is told how far that reached. Raises Cold: call it again when that is fetched."""
        if not self.begun or self.stream.closed:
            return
        log, budget = self._log, TURN_MAX
        batch_max = min(batch_max, TRANSFER_MAX)
        while budget > 0 and self.position < log.written and self.position - max(self.acked, self._start) < AHEAD_MAX:
            base = log.segments.base_of(self.position)
            if base is None:  # its file went by retention while it was copied
                self.stream.close(f"what it needs from {self.position} on was deleted; the log begins at {log.start} now")
                return
            size = min(batch_max, log.written - self.position, base + log.segments.size - self.position)
            body = log.read(self.position, size)
            self._tell(TRANSFER.pack(self.position, size) + body, now_ms)
            self.position += size
            budget -= size
            on_sent(self.position)

    def greet(self, now_ms: int) -> None:
        """The first word is a heartbeat, as upstream's: it says where the first transfer begins."""
        self._tell(TRANSFER.pack(self.position, 0), now_ms)

    def heartbeat(self, now_ms: int, interval_ms: int) -> None:
        """If nothing was sent for so long."""
        if self.begun and not self.stream.closed and now_ms - self.told_ms > interval_ms:
            self._tell(TRANSFER.pack(self.position, 0), now_ms)

    def _tell(self, data: bytes, now_ms: int) -> None:
        self.told_ms = now_ms
        self.stream.send(data)

    def __repr__(self) -> str:
        return f"<SlaveLink {self.stream.address} sent {self.position} acknowledged {self.acked}>"
