"""Offset stores of one's own: a group's progress in the user's database, in place of its brokers.

class Progress:                                                  # an OffsetStore
    async def load(self, group: str, queue: MessageQueue) -> int | None: ...
    async def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None: ...

consumer = PushConsumer("billing", "127.0.0.1:9876", offset_store=Progress())
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from roquet.client.core.namespaces import Namespace
from roquet.client.core.queue_calls import NO_OFFSET
from roquet.client.functions import Functions
from roquet.errors import ClientError, RoquetError, error_text
from roquet.message import MessageQueue

OFFSET_MAX = (1 << 63) - 1


class OffsetStore(Protocol):
    """Keeps how far a group has come in each queue. Both methods may be async, or plain (then they run in a thread). They are called one
    after the other, never two at a time, and each may take 30 seconds. What they raise is logged, and they are called again later.

    All members of a group must use the same store, since queues move between them. The brokers are told progress too, with each pull,
    for `roquet group progress`; nobody reads it from there.
    """

    def load(self, group: str, queue: MessageQueue) -> int | Awaitable[int | None] | None:
        """The offset of the queue's next message for this group; None when it never was there, then `consume_from` decides.
        Called when this member begins with the queue."""

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> Awaitable[None] | None:
        """Keep these. Called every `persist_ms` with what has changed, when a queue goes to another member, and at the end. An offset
        may also be less than before, when an operator put the group back."""


class StoreCalls:
    """A ProgressStore of the core: calls the user's functions, in the user's names."""

    def __init__(self, store: OffsetStore, group: str, namespace: Namespace, functions: Functions) -> None:
        self._store = store
        self._group = group
        self._namespace = namespace
        self._functions = functions

    def load(self, queue: MessageQueue, done: Callable[[int | RoquetError], None]) -> None:
        self._begin("load", self._namespace.unwrap_queue(queue), lambda found: done(checked(found)), done)

    def save(self, offsets: Mapping[MessageQueue, int], done: Callable[[RoquetError | None], None]) -> None:
        shown = {self._namespace.unwrap_queue(queue): offset for queue, offset in offsets.items()}
        self._begin("save", shown, lambda _: done(None), done)

    def _begin(self, name: str, given: object, ended: Callable[[Any], None], failed: Callable[[RoquetError], None]) -> None:
        closed = partial(failed, ClientError(f"{name}() of its offset store was not waited for, as the consumer was closed"))
        self._functions.begin(self._call, (name, given, ended, failed), closed)

    async def _call(self, name: str, given: object, ended: Callable[[Any], None], failed: Callable[[RoquetError], None]) -> None:
        try:
            result = await self._functions.call(getattr(self._store, name), self._group, given)
        except Exception as error:
            failure = ClientError(f"{name}() of its offset store failed with {error_text(error)}")
            failure.__cause__ = error
            failed(failure)
        else:
            ended(result)


def checked(found: object) -> int | ClientError:
    if found is None:
        return NO_OFFSET
    if type(found) is int and NO_OFFSET <= found <= OFFSET_MAX:
        return found
    return ClientError(f"load() of its offset store returned {found!r:.80}; expected is the offset of the next message, or None")


def check_store(store: object) -> None:
    """Raises ClientError for what is no OffsetStore."""
    for name in ("load", "save"):
        if isinstance(store, type) or not callable(getattr(store, name, None)):
            raise ClientError(
                f"offset_store is {store!r}; expected is an object with load(group, queue) and save(group, offsets), as roquet.OffsetStore"
                " describes it"
            )
