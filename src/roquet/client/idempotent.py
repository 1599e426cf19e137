"""Handling each message once although it can be delivered twice: a listener that drops what it knows.

    seen = Seen("orders-service.seen")                         # one file per group; without a path, in memory
    consumer = PushConsumer("orders-service")
    consumer.subscribe("orders", function=Idempotent(handle, seen))

A message is known by its unique id, which stays the same when a producer repeats a send, when a Spark batch is replayed and
when a failed message comes back. It is remembered only after the listener was done with it, so a crash between the two
delivers it once more: this makes duplicates rare, and only work that is committed together with its id makes them
impossible. Members of a group on different hosts do not know each other's messages unless `seen` is something they share.
`roquet.idempotence` has the guard behind it, with stores that do both.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol, Self

from roquet.client.functions import Functions
from roquet.errors import Damaged
from roquet.idempotence.guard import Once, failed_of
from roquet.idempotence.keys import message_key
from roquet.idempotence.store import DONE, MINE, Claim, Mark, Standing
from roquet.message import ReceivedMessage

__all__ = ["AGE_MAX_S", "COUNT_MAX", "Idempotent", "Memory", "Seen", "digest", "failed_of", "message_key", "unset_clock"]

COUNT_MAX = 1_000_000
AGE_MAX_S = 3 * 86_400
"""As long as brokers keep messages by default: what is older does not come again."""
TIDY_EVERY = 1_024
TABLE = "CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY, id BLOB UNIQUE NOT NULL, at_ms INTEGER NOT NULL)"


class Memory(Protocol):
    """What Idempotent needs to know. A table of your own database, with the listener's work in the same transaction, is the
    strictest one."""

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that were remembered."""
        ...

    def remember(self, ids: Sequence[str]) -> None: ...


class Seen:
    """Ids of messages that were handled: at most `count_max` of them, none older than `age_max_s`; the oldest are forgotten.

    In a file it survives a restart, and a kill of the process; a power failure may take the last moments. Several processes of
    one host may share the file. A million ids take about 60 MB. Any thread may use it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        count_max: int = COUNT_MAX,
        age_max_s: float = AGE_MAX_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Raises Damaged when the file is there and is not one of ours."""
        import sqlite3  # here, since not every Python has it, and the client does without

        self.path = path
        self.count_max = count_max
        self.age_max_s = age_max_s
        self._clock = clock or unset_clock()
        self._lock = threading.Lock()
        self._since_tidy = 0
        self._base = sqlite3.connect(":memory:" if path is None else os.fspath(path), check_same_thread=False, isolation_level=None)
        try:
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute(TABLE)
            self._tidy()
        except sqlite3.DatabaseError as error:
            self._base.close()
            raise Damaged(f"{path} cannot be used to remember messages: {error}; move it away to begin anew") from None

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids that were remembered and are not too old."""
        with self._lock:
            oldest_ms = self._oldest_ms()
            ask = "SELECT 1 FROM seen WHERE id = ? AND at_ms >= ?"
            return {one for one in ids if self._base.execute(ask, (digest(one), oldest_ms)).fetchone()}

    def remember(self, ids: Sequence[str]) -> None:
        """In one transaction."""
        now_ms = int(self._clock() * 1000)
        with self._lock:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                # One that was there and too old gets a new number, so that numbers and times rise together.
                add = "INSERT OR REPLACE INTO seen (id, at_ms) VALUES (?, ?)"
                self._base.executemany(add, [(digest(one), now_ms) for one in ids])
                self._since_tidy += len(ids)
                if self._since_tidy >= min(TIDY_EVERY, self.count_max):
                    self._tidy()
                self._base.execute("COMMIT")
            except BaseException:
                self._base.execute("ROLLBACK")
                raise

    def __len__(self) -> int:
        with self._lock:
            return int(self._base.execute("SELECT count(*) FROM seen WHERE at_ms >= ?", (self._oldest_ms(),)).fetchone()[0])

    def close(self) -> None:
        """Close the file. What was remembered stays in it."""
        with self._lock:
            self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _oldest_ms(self) -> int:
        return int((self._clock() - self.age_max_s) * 1000)

    def _tidy(self) -> None:
        """Numbers rise by one from row to row, so those of the newest are known without counting."""
        self._since_tidy = 0
        self._base.execute("DELETE FROM seen WHERE number <= (SELECT max(number) FROM seen) - ?", (self.count_max,))
        # The oldest come first: look no further than the first one that is young enough.
        self._base.execute(
            "DELETE FROM seen WHERE number < coalesce((SELECT number FROM seen WHERE at_ms >= ? ORDER BY number LIMIT 1), 1 << 62)",
            (self._oldest_ms(),),
        )


def digest(one: str) -> bytes:
    """A key of any length takes 16 bytes."""
    return blake2b(one.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Idempotent:
    """A listener around a listener: gets one message or a list, as the consumer is set, and passes on what is not known.

    What is known counts as consumed. Of two deliveries of one id at the same time the second waits for the first. `key` gives
    another id than the message's own, such as an order number in its body. Not for orderly consumers with auto_commit=False,
    where a success can still be rolled back.
    """

    def __init__(
        self,
        listener: Callable[[Any], Any],
        seen: Memory | None = None,
        *,
        key: Callable[[ReceivedMessage], str] = message_key,
        threads_max: int = 20,
    ) -> None:
        """`listener`: async, or plain; a plain one runs in threads of ours, at most so many."""
        self.listener = listener
        self.seen: Memory = Seen() if seen is None else seen
        self.key = key
        self.dropped = 0
        """How many deliveries were dropped."""
        self._calls = Functions("idempotent", threads_max)
        self._once = Once(Remembered(self.seen), group="any", key=key)
        self._guard = self._once(self._consume)

    async def __call__(self, given: ReceivedMessage | list[ReceivedMessage]) -> Any:
        try:
            return await self._guard(given)
        finally:
            self.dropped = self._once.dropped

    async def _consume(self, given: ReceivedMessage | list[ReceivedMessage]) -> Any:
        return await self._calls.call(self.listener, given)


class Remembered:
    """A store of marks over a Memory, which knows what is done: what runs is known here, and whoever meets it waits."""

    has_session = False

    def __init__(self, seen: Memory) -> None:
        self.seen = seen
        self._busy: dict[str, asyncio.Event] = {}

    async def claim(self, claim: Claim) -> list[Standing]:
        keys = [mark.key for mark in claim.marks]
        while waiting := next((self._busy[key] for key in keys if key in self._busy), None):
            await waiting.wait()
        # Nothing is awaited between the look and the mark, so no two calls have one key.
        known = self.seen.known(keys)
        self._busy.update(dict.fromkeys((key for key in keys if key not in known), asyncio.Event()))
        return [DONE if key in known else MINE for key in keys]

    async def begin(self, claim: Claim) -> None:
        """Nothing is to be done."""

    async def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        try:
            self.seen.remember([mark.key for mark in done])
        finally:
            await self.fail(claim)

    async def fail(self, claim: Claim) -> None:
        for mark in claim.marks:
            self._busy.pop(mark.key).set()


def unset_clock() -> Callable[[], float]:
    """The wall clock as if nobody set it from now on: one that is ahead for a moment must not make everything too old to be known."""
    ahead_s = time.time() - time.monotonic()
    return lambda: time.monotonic() + ahead_s
