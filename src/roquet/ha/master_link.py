"""A slave's connection to its master, as the slave sees it.

link.begin(now_ms)              reports at once; a Java slave waits five seconds, and nothing flows before the first report
link.receive(data, now_ms)      appends what came, and reports; raises BadStream when the connection is of no use
link.tick(now_ms, ...)          reports when nothing was reported for a while
"""

from __future__ import annotations

from roquet.ha.stream import REPORT, BadStream, Transfers
from roquet.ports import Stream
from roquet.store.store import Store


class MasterLink:
    """State: `reported` is what the master was told last."""

    def __init__(self, stream: Stream, store: Store, now_ms: int) -> None:
        self.stream = stream
        self._store = store
        self._transfers = Transfers()
        self.reported = -1
        self.heard_ms = self.told_ms = now_ms
        self.received = 0
        """Bytes of the log since it was opened."""

    def begin(self, now_ms: int) -> None:
        self._report(now_ms)

    def receive(self, data: bytes, now_ms: int) -> None:
        """Raises BadStream, and OSError when the disk does not take it."""
        self.heard_ms = now_ms
        log = self._store.log
        for offset, body in self._transfers.feed(data):
            if offset != log.written:
                if log.written:
                    raise BadStream(f"the master sends from offset {offset}, and this log ends at {log.written}")
                self._store.begin_at(offset)
            if body:
                log.append_raw(body)
                self.received += len(body)
        self.report_if_more(now_ms)

    def report_if_more(self, now_ms: int) -> None:
        """What counts is what this node keeps, flushed if its flush level asks for that."""
        if self._store.log.local > self.reported:
            self._report(now_ms)

    def _report(self, now_ms: int) -> None:
        self.reported = self._store.log.local
        self.told_ms = now_ms
        self.stream.send(REPORT.pack(self.reported))

    def tick(self, now_ms: int, heartbeat_ms: int) -> None:
        self.report_if_more(now_ms)
        if now_ms - self.told_ms > heartbeat_ms:
            self._report(now_ms)
