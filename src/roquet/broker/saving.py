"""When a table of the broker's is written to its document.

What somebody waits for is written at once, what came about on the way (a topic made by a send) at most once a second. One
save is under way at a time; all that changes meanwhile shares the next one. A save that failed is tried again until it
succeeds: the change stays in memory, and whoever waited for it is told that it is not on disk.
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.broker.notices import Notices
from roquet.ports import Background, Clock, Peer
from roquet.store.documents import Document, Snapshot
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

SAVE_EVERY_MS = 1_000
MEMBERS_A_MS = 200
"""Members of the table that may be written per millisecond, on the average: a large table that somebody keeps changing must not
keep the disk busy. 10,000 topics are written every 50 ms at most, 100 whenever one changes."""

Done = Callable[[Exception | None], None]


class Saving:
    """State: whether the document is behind, who waits for it, and when the last save began."""

    def __init__(
        self, document: Document, snapshot: Snapshot, size: Callable[[], int], background: Background, clock: Clock, notices: Notices
    ) -> None:
        """`snapshot` is called when a save begins; what it returns makes the bytes, in another thread. `size`: members of the table."""
        self.document = document
        self.snapshot = snapshot
        self.size = size
        self.background = background
        self.clock = clock
        self.notices = notices
        self.unsaved = False
        self._waiting: list[Done] = []
        self._began_ms: int | None = None

    def changed(self, done: Done | None = None) -> None:
        """`done` is called when this change is on disk, or with what went wrong."""
        self.unsaved = True
        if done is not None:
            self._waiting.append(done)
        self.look()

    def look(self) -> None:
        """Begin a save if one is due. Called after every change, after every save, and by `tick`."""
        if not self.unsaved or self.document.busy:
            return
        gap_ms = self.size() // MEMBERS_A_MS if self._waiting else SAVE_EVERY_MS
        now_ms = self.clock.steady_ms()
        if self._began_ms is not None and now_ms < self._began_ms + gap_ms:
            return
        self._began_ms = now_ms
        self.unsaved = False
        dones, self._waiting = self._waiting, []

        def saved(error: Exception | None) -> None:
            key = f"save {self.document.path}"
            if error is None:
                self.notices.clear(key)
            else:
                self.unsaved = True
                self.notices.warn(key, f"{self.document.path} could not be written: {error}. It is tried again.", self.clock.now_ms())
            for done in dones:
                done(error)
            self.look()

        self.document.save_later(self.snapshot, self.background, saved)

    def save_now(self) -> None:
        """At a stop, when no save is under way any more. Blocks. Raises OSError."""
        self.document.save(self.snapshot()())
        self.unsaved = False


def answer_when_saved(peer: Peer, command: Command, reply: Command | None = None) -> Done:
    """The operator's answer waits for the disk: what it says is done stays done. `reply`: the answer of success, if not a plain one."""

    def done(error: Exception | None) -> None:
        if command.is_oneway or peer.closed:
            return
        answer = reply or command.reply()
        if error is not None:
            text = f"the change holds until the restart only: it could not be written ({error}). The broker tries again every second"
            answer = command.reply(ResponseCode.SYSTEM_ERROR, text)
        peer.send(answer.encode())

    return done
