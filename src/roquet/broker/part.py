"""What a part of the broker is.

A part owns one kind of state and everything that is asked about it. It overrides what it does; the rest it does not do. The broker
calls all parts in one order (`core.Broker`): to add one is to write its file, and its line there.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from roquet.broker.handler import Handler
from roquet.ports import Peer


class Part:
    master_only = False
    """It works on a master only."""

    # Life

    def load(self) -> None:
        """Read what it keeps in its own files. Raises Damaged when they cannot be used: nothing has been written yet."""

    def open(self) -> None:
        """The store is open and the parts before this one are."""

    def listening(self, address: str, ha_address: str) -> None:
        """These are the addresses that clients and other brokers use; `store.store_host` is known too."""

    def tick(self, now_ms: int) -> None:
        """Time has passed; `now_ms` is steady. What is put here is committed when it returns."""

    @property
    def busy(self) -> bool:
        """Something is being written in the background; a clean stop waits for it."""
        return False

    def save_now(self) -> None:
        """A clean stop, and nothing is under way any more. Blocks. Raises OSError."""

    # What is asked

    def handlers(self) -> Mapping[int, Handler]:
        """The requests that it answers, by code."""
        return {}

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
