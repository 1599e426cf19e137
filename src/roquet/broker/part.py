"""What a part of the broker is.

A part owns one kind of state and everything that is asked about it. It overrides what it does; the rest it does not do. The broker
calls all parts in one order (`core.Broker`): to add one is to write its file, and its line there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roquet.broker.handler import Handler
from roquet.broker.newcomers import Newcomers
from roquet.broker.notices import Notices
from roquet.broker.portions import Work
from roquet.errors import Refused
from roquet.ports import FOREVER, Background, Clock, Peer
from roquet.settings import BrokerSettings
from roquet.store.disk import Cold, Disk
from roquet.store.store import Store
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import once_per_class

if TYPE_CHECKING:
    from random import Random

Fetch = Callable[[Cold, Callable[[], None]], None]
"""Read from disk elsewhere, then go on. Raises Refused when too many reads are under way."""

RecordCheck = Callable[[Peer, Command, str], None]
"""(who asks, the request, a topic): raises Refused when the request may not use a message of this topic."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all parts of a broker share. Other parts are no part of it: each is given those that it uses."""

    settings: BrokerSettings
    store: Store
    clock: Clock
    disk: Disk
    background: Background
    notices: Notices
    newcomers: Newcomers
    random: Random
    fetch: Fetch
    memory_bytes: int
    """Of this machine."""


class ColdReads:
    """Reads from disk that a part waits for, one at a time for each key. State: the keys for which one is under way."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._under_way: set[int] = set()

    def busy(self, key: int = 0) -> bool:
        return key in self._under_way

    def start(self, cold: Cold, key: int = 0) -> None:
        """Nothing happens while one is under way, or when the disk has too much to do: whoever waits looks again with its next tick."""
        if key not in self._under_way:
            self._under_way.add(key)
            try:
                self._fetch(cold, lambda: self._under_way.discard(key))
            except Refused:
                self._under_way.discard(key)


@once_per_class
def answered_by(kind: type) -> Mapping[int, str]:
    """The codes of the requests that such a part answers, and the names of the methods that do."""
    methods = [pair for one in kind.__mro__ for pair in vars(one).items()]
    return {call.code: name for name, method in methods for call in getattr(method, "answers", ())}


class Part:
    master_only = False
    """It works on a master only: on a slave it is neither loaded, opened, ticked nor saved, and needs nothing of the log."""

    check_record: RecordCheck | None = None
    """For requests that name a message by its place in the log; None without access control."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.settings = shared.settings
        self.store = shared.store
        self.clock = shared.clock
        self.notices = shared.notices

    def record_at(self, offset: int, remark: str) -> bytes:
        """The record at this log offset. Raises Refused with the remark when there is none, Cold when it is not in memory."""
        try:
            return self.store.record_at(offset)
        except LookupError:
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None

    # Life

    def load(self) -> None:
        """Read what it keeps in its own files. Raises Damaged when they cannot be used: nothing has been written yet."""

    def open(self) -> None:
        """The store is open and the parts before this one are."""

    def prepare_to_lead(self) -> Work[None]:
        """This slave is about to become a master, all of the log is applied, and nothing is put until then. What takes long is done
        here, in portions. It may be broken off, and begun again another time."""
        yield from ()

    def became_master(self) -> None:
        """This broker was a slave and is a master now; `prepare_to_lead` is done."""

    def became_slave(self) -> None:
        """This broker was a master and is a slave now."""

    def listening(self, address: str, ha_address: str) -> None:
        """These are the addresses that clients and other brokers use; `store.staging.store_host` is known too."""

    more_due = False
    """The last tick did all that one may do, and there is more: it is ticked again in the next turn of the loop."""

    def tick(self, now_ms: int) -> None:
        """Time has passed; `now_ms` is steady. What is put here is committed when it returns."""

    def next_due_ms(self) -> int:
        """The wall time before which nothing that waits here is due; FOREVER when nothing waits."""
        return FOREVER

    @property
    def busy(self) -> bool:
        """Something is being written in the background; a clean stop waits for it."""
        return False

    def save_now(self) -> None:
        """A clean stop, and nothing is under way any more. Blocks. Raises OSError."""

    # What is asked

    def handlers(self) -> Mapping[int, Handler]:
        """The requests that it answers, by code: those whose methods are marked with `answers`."""
        return {code: getattr(self, name) for code, name in answered_by(type(self)).items()}

    def metrics(self) -> Mapping[str, object]:
        """Its rows in the answer of 28."""
        return {}

    def may_drop(self, end: int) -> bool:
        """Is nothing of the log needed below this offset? If something is, the part begins to move it."""
        return True

    # What happens

    def disconnected(self, peer: Peer) -> None:
        """A connection is gone."""

    def settings_changed(self, names: AbstractSet[str]) -> None:
        """These settings have changed at run time."""

    def topic_deleted(self, topic: str) -> None: ...
