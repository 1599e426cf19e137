"""A group's progress in a store of the user's own, in place of its brokers.

The store is asked for one thing at a time: a queue is loaded after what was saved of it before, and what changes while a save is under way
goes with the next one. So a store need not care for order, and may write what it is given over what it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from roquet.client.core.instance import ClientCore
from roquet.client.core.offsets import MemberOffsets
from roquet.client.core.queue_calls import NO_OFFSET
from roquet.client.core.tasks import Wait
from roquet.errors import ClientError, RoquetError
from roquet.message import MessageQueue

log = logging.getLogger(__name__)

LIMIT_MS = 30_000
"""A store that has not answered after so long has failed."""


class ProgressStore(Protocol):
    """The user's store, as the core calls it: each call ends with `done`, with what was asked for or with what went wrong."""

    def load(self, queue: MessageQueue, done: Callable[[int | RoquetError], None]) -> None: ...

    def save(self, offsets: Mapping[MessageQueue, int], done: Callable[[RoquetError | None], None]) -> None: ...


class StoredOffsets(MemberOffsets):
    def __init__(self, client: ClientCore, group: str, store: ProgressStore) -> None:
        super().__init__()
        self.group = group
        self._client = client
        self._store = store
        self._saved: dict[MessageQueue, int] = {}
        self._busy: Wait[None] | None = None  # ends when the call that is under way has

    async def fetch(self, queue: MessageQueue) -> int:
        await self._turn()
        return await self._load(queue)

    async def load(self, queue: MessageQueue) -> int:
        stored = await self.fetch(queue)
        if stored != NO_OFFSET:
            self.written(queue, stored)
        return stored

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        super().update(queue, offset, increase_only=increase_only)
        if not increase_only:
            self._saved.pop(queue, None)

    def written(self, queue: MessageQueue, offset: int) -> None:
        self.table[queue] = self._saved[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self.table.pop(queue, None)
        self._saved.pop(queue, None)

    def persist(self) -> None:
        if self._busy is None:
            changed = {queue: offset for queue, offset in self._changed().items() if self.writable(queue)}
            self._client.tasks.start(self._persist(changed))

    async def persist_surely(self) -> None:
        await self._turn()
        await self._persist(self._changed())

    async def _persist(self, changed: Mapping[MessageQueue, int]) -> None:
        self._saved.update(changed)  # what changes from now on goes with the next
        if not await self._write(changed):
            for queue, offset in changed.items():
                if self._saved.get(queue) == offset:
                    del self._saved[queue]

    def release(self, queue: MessageQueue) -> None:
        self._client.tasks.start(self.release_surely(queue))

    async def release_surely(self, queue: MessageQueue) -> None:
        changed = {one: offset for one, offset in self._changed().items() if one == queue}
        self.forget(queue)
        await self._turn()
        await self._write(changed)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self._turn()
        await self._save(offsets)
        for queue, offset in offsets.items():
            self.written(queue, offset)

    def _changed(self) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self.table.items() if offset != self._saved.get(queue)}

    async def _write(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """False: it could not be saved, which is logged."""
        if offsets:
            try:
                await self._save(offsets)
            except RoquetError as error:
                log.warning(
                    "! progress of group %s in %d queues is not saved: %s; it is tried again as long as they are read here, else messages"
                    " come again",
                    self.group, len(offsets), error, exc_info=error.__cause__,
                )  # fmt: skip
                return False
        return True

    # -- one call at a time

    async def _turn(self) -> None:
        """Until no call is under way."""
        while self._busy is not None:
            await self._busy

    async def _load(self, queue: MessageQueue) -> int:
        found: Wait[int] = Wait()
        with self._call():
            self._store.load(queue, found.end)
            return await self._client.within(found, LIMIT_MS, late("load"))

    async def _save(self, offsets: Mapping[MessageQueue, int]) -> None:
        saved: Wait[None] = Wait()
        with self._call():
            self._store.save(dict(offsets), saved.end)
            await self._client.within(saved, LIMIT_MS, late("save"))

    @contextmanager
    def _call(self) -> Iterator[None]:
        busy = self._busy = Wait()
        try:
            yield
        finally:
            self._busy = None
            busy.end(None)


def late(name: str) -> ClientError:
    return ClientError(f"{name}() of its offset store has not ended after {LIMIT_MS // 1_000} s")
