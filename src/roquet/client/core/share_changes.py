"""Tells the user's functions which queues came to this member, and which went: on_assigned, on_revoked.

    came    the queue is ours, and nothing of it is read until on_assigned has returned
    going   it is no longer ours: what runs for it ends, its progress is written...
    gone    ...and then on_revoked is told. Until that has returned (30 s at most) the queue does not come back

One function is called at a time, with all queues that changed meanwhile, in the order in which things happened. Without functions nothing
here costs anything.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from roquet.client.core.instance import ClientCore
from roquet.client.core.tasks import Wait
from roquet.message import MessageQueue

log = logging.getLogger(__name__)

LIMIT_MS = 30_000
"""So long a queue waits for on_revoked; after so long a line says that one waits for on_assigned."""

Notify = Callable[[list[MessageQueue], Callable[[], None]], None]
"""(queues, what to call when the user's function has ended)."""


@dataclass(slots=True, eq=False)
class _Change:
    came: bool
    queues: list[MessageQueue] = field(default_factory=list)
    told: Wait[bool] = field(default_factory=Wait)
    """Ends when the function has."""


class ShareChanges:
    def __init__(self, client: ClientCore, group: str, on_assigned: Notify | None = None, on_revoked: Notify | None = None) -> None:
        self.wanted = on_assigned is not None or on_revoked is not None
        """Somebody wants to know."""
        self._client = client
        self._group = group
        self._notify = {True: on_assigned, False: on_revoked}
        self._changes: deque[_Change] = deque()  # to be told
        self._telling = False
        self._coming: dict[MessageQueue, _Change] = {}  # on_assigned has not returned
        self._going: set[MessageQueue] = set()  # on_revoked has not returned

    def came(self, queue: MessageQueue) -> None:
        if self._notify[True] is not None:
            self._coming[queue] = self._add(True, queue)

    def coming(self, queue: MessageQueue) -> Wait[bool] | None:
        """What to wait for before anything of this queue is read."""
        change = self._coming.get(queue)
        return None if change is None else change.told

    def going(self, queue: MessageQueue) -> None:
        self._going.add(queue)

    def is_going(self, queue: MessageQueue) -> bool:
        return queue in self._going

    async def gone(self, queues: Iterable[MessageQueue]) -> None:
        """Returns when on_revoked has, or after 30 s."""
        change = None
        for queue in queues:
            self._going.add(queue)
            change = self._add(False, queue)
        if change is None:
            return
        if not await self._client.within(change.told, LIMIT_MS, False):
            log.warning("! group %s: on_revoked has not returned after %d s; its queues go without it", self._group, LIMIT_MS // 1_000)
        self._going.difference_update(change.queues)

    def _add(self, came: bool, queue: MessageQueue) -> _Change:
        """Together with others that are not told yet."""
        if not self._changes or self._changes[-1].came is not came:
            self._changes.append(_Change(came))
        change = self._changes[-1]
        change.queues.append(queue)
        if not self._telling:
            self._telling = True
            self._client.tasks.start(self._tell())
        return change

    async def _tell(self) -> None:
        await self._client.sleep(0)  # what happens in this turn is told together
        while self._changes:
            change = self._changes.popleft()
            await self._tell_one(change)
        self._telling = False

    async def _tell_one(self, change: _Change) -> None:
        notify = self._notify[change.came]
        if notify is not None:
            ended: Wait[None] = Wait()
            notify(sorted(set(change.queues)), lambda: ended.end(None))
            if change.came:
                late = self._client.after(LIMIT_MS, self._say_late)
                await ended
                late.cancel()
            else:
                await self._client.within(ended, LIMIT_MS, None)
        for queue in change.queues:
            if self._coming.get(queue) is change:
                del self._coming[queue]
        change.told.end(True)

    def _say_late(self) -> None:
        log.warning(
            "! group %s: on_assigned has not returned after %d s; nothing of its queues is read until it has",
            self._group,
            LIMIT_MS // 1_000,
        )
