"""When a table of the broker's is written to its document.

What somebody waits for is written at once, the rest now and then. One save is under way at a time; all that changes meanwhile shares
the next one. A save that failed is tried again until it succeeds: the change stays in memory, and whoever waited for it is told that it
is not on disk.

    changed ──> prepared, some a tick ──> snapshot ──> the log is durable as far as the snapshot speaks of it ──> written
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from roquet.broker.handler import send_answer
from roquet.broker.part import Part, Shared
from roquet.errors import Damaged, RoquetError
from roquet.ports import Peer
from roquet.store.documents import Document, Snapshot
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

SAVE_EVERY_MS = 1_000
MEMBERS_A_MS = 200
"""Members of the table that may be written per millisecond, on the average: a large table that somebody keeps changing must not
keep the disk busy. 10,000 topics are written every 50 ms at most, 100 whenever one changes."""

log = logging.getLogger("roquet.broker")

T = TypeVar("T")

Done = Callable[[Exception | None], None]


def by_size(size: Callable[[], int]) -> Callable[[bool], int]:
    """The pause of a table with so many members."""
    return lambda awaited: size() // MEMBERS_A_MS if awaited else SAVE_EVERY_MS


@dataclass(eq=False)
class SavedDocument:
    """State: whether the document is behind, who waits for it, when the last save began and how far it is."""

    shared: Shared
    name: str
    """Of the file in config/."""
    snapshot: Snapshot
    """Called when a save begins; what it returns makes the bytes, in another thread."""
    _: KW_ONLY
    pause: Callable[[bool], int]
    """ms from the beginning of one save to that of the next, given whether somebody waits for it."""
    prepare: Callable[[], Iterator[None]] = lambda: iter(())
    """Work before the snapshot; it yields after each portion, and the next follows with the next tick."""
    speaks_of_messages: bool = False
    """They must be durable before it is: what they are told to be, they are after a crash too."""
    if_failed: bool = False
    """It is written all the same once the store has failed, and nothing becomes durable any more."""
    on_saved: Callable[[], None] = lambda: None
    """The last snapshot is on disk."""

    def __post_init__(self) -> None:
        self.document = Document(self.shared.disk, f"{self.shared.settings.store_path_root_dir}/config/{self.name}")
        self.store = self.shared.store if self.speaks_of_messages else None
        self.unsaved = False
        self._began_ms: int | None = None
        self._preparing: Iterator[None] | None = None
        self._ready: tuple[Callable[[], bytes], int] | None = None
        self._waiting_for_next: list[Done] = []
        self._waiting_for_this: list[Done] = []

    def load(self, parse: Callable[[bytes], T], *, needed: bool = True) -> T | None:
        """Read the file; None when there is none. Raises Damaged when there is one that nobody can read, and it is needed."""
        loaded = self.document.load(parse)
        if self.document.warning:
            if loaded is None and needed:
                raise Damaged(self.document.warning)
            self.shared.notices.warn(self.name, self.document.warning)
        return loaded

    @property
    def _under_way(self) -> bool:
        return self._preparing is not None or self._ready is not None or self.document.busy

    def changed(self, done: Done | None = None) -> None:
        """`done` is called when this change is on disk, or with what went wrong."""
        self.unsaved = True
        if done is not None:
            self._waiting_for_next.append(done)
        self.look()

    def when_saved(self, done: Done) -> None:
        """`done` is called when everything up to now is on disk, or with what went wrong."""
        if self.unsaved:
            self._waiting_for_next.append(done)
            self.look()
        elif self._under_way:
            self._waiting_for_this.append(done)
        else:
            done(None)

    def look(self) -> None:
        """Go on. Called after every change, after every save, and by `tick`."""
        if self.unsaved and not self._under_way:
            self._begin_when_due()
        if self._preparing is not None:
            self._prepare_some(self._preparing)
        if self._ready is not None:
            self._write_when_durable(*self._ready)

    def _begin_when_due(self) -> None:
        now_ms = self.shared.clock.steady_ms()
        if self._began_ms is not None and now_ms < self._began_ms + self.pause(bool(self._waiting_for_next)):
            return
        if self.store is not None and self.store.trouble.failed and not self.if_failed:
            return
        self._began_ms = now_ms
        self.unsaved = False
        self._waiting_for_this += self._waiting_for_next
        self._waiting_for_next = []
        self._preparing = self.prepare()

    def _prepare_some(self, preparing: Iterator[None]) -> None:
        """What changes while the portions are made is in them or in the next save."""
        if next(preparing, self) is self:
            self._preparing = None
            self._ready = self.snapshot(), 0 if self.store is None else self.store.log.written

    def _write_when_durable(self, encode: Callable[[], bytes], mark: int) -> None:
        if self.store is not None and self.store.log.durable < mark and not (self.if_failed and self.store.trouble.failed):
            return
        self._ready = None
        self.document.save_later(lambda: encode, self.shared.background, self._saved)

    def _saved(self, error: Exception | None) -> None:
        self._note(error)
        waiting, self._waiting_for_this = self._waiting_for_this, []
        for done in waiting:
            try:
                done(error)
            except Exception:  # a mistake of ours: the others hear of it all the same
                log.exception("! what waited for %s to be saved failed", self.document.path)
        self.look()

    def _note(self, error: Exception | None) -> None:
        key, notices = f"save {self.document.path}", self.shared.notices
        if error is None:
            notices.clear(key)
            self.on_saved()
        else:
            self.unsaved = True
            notices.warn(key, f"{self.document.path} could not be written: {error}. It is tried again.")

    def try_now(self) -> None:
        """At a start, when all that it speaks of is durable. Blocks; what goes wrong is said, and tried again."""
        try:
            self.document.save(self.snapshot()())
        except OSError as error:
            self._note(error)

    def save_now(self) -> None:
        """At a stop, when nothing is being written any more. Blocks. Raises OSError."""
        if not (self.unsaved or self._under_way):
            return
        if self.store is not None:
            if not self.store.trouble.failed:
                with contextlib.suppress(OSError):  # then the store has failed, and says so
                    self.store.flush_now()
            if self.store.trouble.failed and not self.if_failed:
                return
        for _ in self.prepare():
            pass
        self.document.save(self.snapshot()())
        self.on_saved()
        self.unsaved, self._preparing, self._ready = False, None, None


class SavedPart(Part):
    """A part whose table is one document."""

    saving: SavedDocument

    def tick(self, now_ms: int) -> None:
        self.saving.look()

    @property
    def busy(self) -> bool:
        return self.saving.document.busy

    def save_now(self) -> None:
        self.saving.save_now()


def answer_when_saved(peer: Peer, command: Command, reply: Command | None = None) -> Done:
    """The operator's answer waits for the disk: what it says is done stays done. `reply`: the answer of success, if not a plain one."""

    def done(error: Exception | None) -> None:
        if isinstance(error, RoquetError):
            send_answer(peer, command, command.reply(ResponseCode.SYSTEM_ERROR, f"the change is made here, and is not safe: {error}"))
        elif error is not None:
            text = f"the change holds until the restart only: it could not be written ({error}). The broker tries again every second"
            send_answer(peer, command, command.reply(ResponseCode.SYSTEM_ERROR, text))
        else:
            send_answer(peer, command, reply or command.reply())

    return done
