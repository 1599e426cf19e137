"""Relay: publishes what is committed in an outbox. Several may run, in several processes and on several hosts; they share the work.

One round: write down what came of sends that are over (settle), claim rows that are due, send each lane's rows one after another and the
lanes beside each other. A claim ends with its lease: a relay sends nothing any more when the lease is nearly over, whatever the database
thinks of the time, so another one that takes the rows over does not meet it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, groupby
from random import random
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from roquet.client.core.checks import check_ranges
from roquet.client.served import Served
from roquet.errors import ClientError, InvalidMessage, NotStarted, RoquetError
from roquet.message import failure_text
from roquet.outbox import rows
from roquet.outbox.database import AnyEngine, Database
from roquet.outbox.outbox import MARK, Outbox, Sends, first_line
from roquet.outbox.rows import Failure, Row, Settled

log = logging.getLogger(__name__)

OnAlarm = Callable[[Sequence[Row]], Awaitable[None] | None]
"""Given the rows that failed so often. async, or plain (then in a thread)."""
LEASE_LEFT = 0.25
"""The part of a lease in which no send begins any more."""
DATABASE_PAUSE_S = 1.0
DATABASE_PAUSE_MAX_S = 30.0
FORGET_EVERY_S = 60.0
TELL_EVERY_S = 10.0
"""While no broker can be reached every new row fails; a warning for each would bury the rest of the log."""


@dataclass
class RelaySettings:
    """How a relay works."""

    batch: int = 200
    """Rows that it holds at most at a time."""
    poll_ms: int = 500
    """How often it looks for new rows. A transaction of the same engine wakes it sooner."""
    lease_s: float = 30.0
    """For how long claimed rows are its own: when it is killed, another relay sends them after this time."""
    send_timeout_ms: int = 10_000
    """For one attempt to send."""
    backoff_s: float = 1.0
    """The pause after the first failure; it doubles with each further one."""
    backoff_max_s: float = 60.0
    """The longest pause; also the first one of a message that no broker would take."""
    alarm_after: int = 10
    """After so many failures of a row `on_alarm` is called and an error is logged; and again after as many more."""
    keep_s: float = 86_400.0
    """How long rows stay that were sent; 0: they are deleted at once."""
    retry_when_not_ok: bool = False
    """Also publish again what a broker stored, but not as safely as asked (SendStatus). Makes duplicates as long as that lasts."""

    def __post_init__(self) -> None:
        check_ranges(self, batch=(1, 5_000), poll_ms=(1, 3_600_000), lease_s=(1, 3_600), send_timeout_ms=(1, 600_000))
        check_ranges(self, backoff_s=(0, 3_600), backoff_max_s=(0, 3_600), alarm_after=(1, 1_000_000), keep_s=(0, 10 * 365 * 86_400))
        if self.send_timeout_ms > self.lease_s * 1000 * (1 - LEASE_LEFT):
            raise ClientError(
                f"send_timeout_ms={self.send_timeout_ms} is too long for lease_s={self.lease_s}: sends must end well before the lease;"
                f" allowed are {int(self.lease_s * 1000 * (1 - LEASE_LEFT))} ms"
            )

    def pause_ms(self, tries: int, *, hopeless: bool) -> int:
        """Up to a quarter shorter, by chance: rows that failed together do not come back together."""
        longest = self.backoff_max_s if hopeless else min(self.backoff_s * 2.0 ** min(tries, 30), self.backoff_max_s)
        return int(longest * 1000 * (1 - random() / 4))


class RelayKeywords(TypedDict, total=False):
    batch: int
    poll_ms: int
    lease_s: float
    send_timeout_ms: int
    backoff_s: float
    backoff_max_s: float
    alarm_after: int
    keep_s: float
    retry_when_not_ok: bool


class Relay(Served):
    """Publishes what is committed in the outbox. Use as `async with`, call start() and close(), or give it to run() with its producer."""

    block = "async with"
    stops_first = True  # its producer ends after it

    def __init__(
        self,
        outbox: Outbox,
        engine: AnyEngine,
        producer: Sends,
        *,
        on_alarm: OnAlarm | None = None,
        **settings: Unpack[RelayKeywords],
    ) -> None:
        """`producer`: a Producer that is started, and stays so until the relay is closed. The rest: see RelaySettings."""
        self.outbox = outbox
        self.settings = RelaySettings(**settings)
        self.published = 0
        """Messages that brokers confirmed to this relay."""
        self.failures = 0
        """Attempts to send that failed."""
        self._database = Database(engine)
        self._producer = producer
        self._on_alarm = on_alarm
        self._id = secrets.token_hex(8)
        self._claims = count()
        self._woken = asyncio.Event()
        self._closed = asyncio.Event()
        self._stopping = False
        self._full = False
        self._serving: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runs: dict[asyncio.Task[None], Sequence[Row]] = {}  # with the rows that each holds
        self._works: set[str] = set()  # topics whose last send worked
        self._looked = 0.0
        self._alarms: set[asyncio.Task[None]] = set()
        self._over: list[Settled] = []
        self._forgot = 0.0
        self._told = 0.0

    # -- life

    async def start(self) -> Self:
        """Begin to publish. Raises ClientError when the tables are not there, and what the database raises when it cannot be reached."""
        if self._serving is None:
            await self._database.run(self.outbox.check)
            self._loop = asyncio.get_running_loop()
            self._stopping = False
            self._closed.clear()
            event.listen(self._database.plain, "checkin", self._checked_in)
            self._serving = asyncio.create_task(self._serve(), name="roquet outbox relay")
        return self

    async def close(self) -> None:
        """Let sends that are under way end, write down what came of them, and give the rest back. Idempotent. While no broker can be
        reached that takes as long as a send may, `send_timeout_ms`."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        event.remove(self._database.plain, "checkin", self._checked_in)
        self._stopping = True
        self._woken.set()
        await serving
        if self._alarms:
            await asyncio.wait(self._alarms)
        self._closed.set()

    async def closed(self) -> None:
        """Wait until close() was called and is through."""
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def wake(self) -> None:
        """Look for new rows now. Any thread may call it."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    def _checked_in(self, connection: Any, record: Any) -> None:
        """A transaction of this engine is over in which something was added."""
        if record is not None and record.info.pop(MARK, False):
            self.wake()

    async def drained(self) -> None:
        """Wait until everything that was committed before is published. Waits as long as that takes: put a time limit around it."""
        table = self.outbox.table
        while self._serving is not None and await self._database.run(rows.counted, table, rows.Choice()) > 0:
            self.wake()
            done, _ = await asyncio.wait([self._serving], timeout=min(self.settings.poll_ms / 1000, 0.05))
            for ended in done:
                ended.result()
        if self._serving is None:
            raise NotStarted("the relay is not started or was closed, so nothing is published; use it inside `async with`, or call start()")

    # -- rounds

    async def _serve(self) -> None:
        pause_s = 0.0
        while not self._stopping or self._runs or self._over:
            self._woken.clear()
            try:
                await self._round()
                pause_s = 0.0
            except Exception as error:  # nothing ends it but close()
                pause_s = min(max(pause_s * 2, DATABASE_PAUSE_S), DATABASE_PAUSE_MAX_S)
                unknown = None if isinstance(error, SQLAlchemyError | OSError) else error
                log.warning("! outbox: the relay tries again in %.0f s: %s", pause_s, first_line(error), exc_info=unknown)
                if self._stopping and not self._runs:
                    log.error("! outbox: the relay ends and could not write down what it sent; it is sent again when its lease is over")
                    return
            await self._rest(pause_s)

    async def _round(self) -> None:
        await self._settle()
        if self._stopping:
            return
        free = self.settings.batch - sum(map(len, self._runs.values()))
        self._full = False
        is_late = time.monotonic() >= self._looked + self.settings.poll_ms / 1000
        if free * 2 >= self.settings.batch or (free and is_late):  # few at a time only when others are slow
            await self._claim(free)
        await self._forget()

    async def _rest(self, pause_s: float) -> None:
        """Until there may be something to do. A pause is ended by close() alone: runs that end would wake it, too."""
        if (self._full and not pause_s) or (self._stopping and not self._runs):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s or self.settings.poll_ms / 1000):
                await self._woken.wait()
                while pause_s and not self._stopping:
                    self._woken.clear()
                    await self._woken.wait()

    async def _claim(self, limit: int) -> None:
        table = self.outbox.table
        self._looked = time.monotonic()
        room = rows.Room(self.settings.batch, self._works, chain.from_iterable(self._runs.values()))
        ids = await self._database.run(rows.due, table, limit, room)
        if not ids:
            return
        owner = f"{self._id}.{next(self._claims)}"
        began = time.monotonic()
        claimed = await self._database.run(rows.claim, table, ids, owner, int(self.settings.lease_s * 1000))
        self._full = len(ids) == limit
        ends = began + self.settings.lease_s * (1 - LEASE_LEFT)
        for lane in lanes(claimed):
            run = asyncio.create_task(self._publish(lane, owner, ends))
            self._runs[run] = lane
            run.add_done_callback(self._ended)

    def _ended(self, run: asyncio.Task[None]) -> None:
        del self._runs[run]
        self._woken.set()
        self._full = False

    async def _publish(self, lane: Sequence[Row], owner: str, ends: float) -> None:
        """Its rows one after another, until one fails or the lease is nearly over."""
        settled = Settled(owner)
        for place, row in enumerate(lane):
            left_ms = int((ends - time.monotonic()) * 1000)
            if left_ms <= 0 or self._stopping:
                settled.given_back.extend(lane[place:])
                break
            failure = await self._send(row, min(left_ms, self.settings.send_timeout_ms))
            if failure is not None:
                settled.failed.append(failure)
                settled.given_back.extend(lane[place + 1 :])
                break
            settled.sent.append(row)
        self._over.append(settled)

    async def _send(self, row: Row, timeout_ms: int) -> Failure | None:
        hopeless = False
        try:
            receipt = await self._producer.send(row.message(), key=row.key, timeout_ms=timeout_ms)
            self._works.add(row.topic)
            if receipt.ok or not self.settings.retry_when_not_ok:
                self.published += 1
                return None
            why = f"it is stored, but not as safely as asked: {receipt.status}"
        except (InvalidMessage, ValueError) as error:
            hopeless, why = True, str(error)
        except RoquetError as error:
            self._works.discard(row.topic)
            why = str(error)
        except Exception as error:  # a hook's, or a bug: no reason to stop for all others
            self._works.discard(row.topic)
            log.exception("! outbox: sending row %d raised", row.id)
            why = repr(error)
        self.failures += 1
        return Failure(row, failure_text(why), self.settings.pause_ms(row.tries, hopeless=hopeless), hopeless)

    async def _settle(self) -> None:
        over = self._over
        while over:
            settled = over[0]
            for further in [one for one in over[1:] if one.owner == settled.owner]:  # of one claim: in one transaction
                settled.sent += further.sent
                settled.failed += further.failed
                settled.given_back += further.given_back
                over.remove(further)
            await self._database.run(rows.settle, self.outbox.table, settled, self.settings.keep_s > 0)
            over.pop(0)
            self._tell(settled.failed)

    async def _forget(self) -> None:
        """A portion at a time, so that nobody waits long for the table."""
        now = time.monotonic()
        if self._forgot and now < self._forgot + FORGET_EVERY_S:
            return
        await self._database.run(rows.mend, self.outbox.table)
        deleted = await self._database.run(rows.forget, self.outbox.table, int(self.settings.keep_s * 1000))
        if deleted < rows.PORTION:
            self._forgot = now

    # -- alarms

    def _tell(self, failed: Sequence[Failure]) -> None:
        if not failed:
            return
        first = min(failed, key=lambda failure: failure.row.tries)
        now = time.monotonic()
        is_news = not first.row.tries and (not self._told or now >= self._told + TELL_EVERY_S)
        if is_news:
            self._told = now
        log.log(
            logging.WARNING if is_news else logging.INFO,
            "! outbox: %d messages are not sent, and tried again after a pause; row %d (%s, key %s, message %s) in %.0f s: %s",
            len(failed), first.row.id, first.row.topic, first.row.key, first.row.message_id, first.pause_ms / 1000, first.error,
        )  # fmt: skip
        every = self.settings.alarm_after
        late = [one for one in failed if (one.row.tries + 1) % every == 0 or (one.hopeless and not one.row.tries)]
        if not late:
            return
        first = late[0]
        log.error(
            "! outbox: %d messages cannot be sent, and hold back others of their keys. Row %d, message %s to %s, failed %d times: %s."
            " `roquet outbox list --failing` shows them; `roquet outbox retry` tries at once when the cause is gone, `drop` gives them up",
            len(late), first.row.id, first.row.message_id, first.row.topic, first.row.tries + 1, first.error,
        )  # fmt: skip
        if self._on_alarm is not None:
            call = asyncio.create_task(self._call_alarm(self._on_alarm, [one.as_row() for one in late]))
            self._alarms.add(call)
            call.add_done_callback(self._alarms.discard)

    async def _call_alarm(self, on_alarm: OnAlarm, late: Sequence[Row]) -> None:
        try:
            if inspect.iscoroutinefunction(on_alarm):
                await on_alarm(late)
            else:
                result = await asyncio.to_thread(on_alarm, late)
                if inspect.isawaitable(result):
                    await result
        except Exception:
            log.exception("! outbox: on_alarm failed for %d messages; the relay goes on", len(late))


def lanes(claimed: Sequence[Row]) -> list[list[Row]]:
    """Rows of one lane together and in their order; each without a key alone."""
    free = [[row] for row in claimed if row.lane is None]
    kept = sorted((row for row in claimed if row.lane is not None), key=lambda row: (row.lane, row.id))
    return [*free, *(list(group) for _, group in groupby(kept, key=lambda row: row.lane))]
