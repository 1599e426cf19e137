"""QueueLocks: the right to consume queues in order, given by each queue's broker to one member of the group.

asked for    when a queue is taken, and again every 20 s for all that are held
stale        30 s after the broker last confirmed it: nothing is consumed until it confirms again
in doubt     the connection to the broker was lost: it may have restarted, and brokers keep locks in memory only.
             Nothing is consumed until it confirms, and the group's progress shows that nobody else was there meanwhile
gone         60 s after the last time the broker gives it to whoever asks
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from roquet.client.core.failures import BadAnswer
from roquet.client.core.instance import ClientCore, Finished
from roquet.client.core.offsets import Offsets
from roquet.client.core.queue_calls import QueueCalls, locate
from roquet.client.core.routes import MASTER
from roquet.errors import ConnectFailed, NoRoute, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.locks import LockBody, LockResult
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

log = logging.getLogger(__name__)

FIRST_MS = 1_000
RENEW_MS = 20_000
STALE_MS = 30_000
EXPIRED_MS = 60_000
TIMEOUT_MS = 1_000

Locked = Callable[[bool | RoquetError], None]


class QueueLocks:
    """`on_lost` is told each queue that the broker gave, or may have given, to somebody else meanwhile."""

    def __init__(self, client: ClientCore, group: str, offsets: Offsets, calls: QueueCalls) -> None:
        self.client = client
        self.group = group
        self._offsets = offsets
        self._calls = calls
        self._doubted: set[MessageQueue] = set()
        self.on_lost: Callable[[MessageQueue], None] = lambda queue: None
        self.confirmed: dict[MessageQueue, int] = {}  # queue -> when the broker last said it is ours
        self._active = False

    def start(self) -> None:
        self._active = True
        self.client.after(FIRST_MS, self._renew)

    def stop(self) -> None:
        self._active = False

    def holds(self, queue: MessageQueue) -> bool:
        """Whether messages of this queue may be consumed now."""
        confirmed = self.confirmed.get(queue)
        return confirmed is not None and queue not in self._doubted and self.client.clock.steady_ms() - confirmed < STALE_MS

    def doubt(self, broker_name: str) -> None:
        """The connection to this broker was lost."""
        self._doubted.update(queue for queue in self.confirmed if queue.broker_name == broker_name)

    def lock(self, queue: MessageQueue, done: Locked) -> None:
        """`done(True)`: ours now. `done(False)`: another member has it."""
        asked_ms = self.client.clock.steady_ms()

        def answered(result: set[MessageQueue] | RoquetError) -> None:
            if isinstance(result, RoquetError):
                done(result)
            elif queue in result:
                self._doubted.discard(queue)
                self.confirmed[queue] = asked_ms
                done(True)
            else:
                self.confirmed.pop(queue, None)
                done(False)

        self._ask(queue.broker_name, [queue], answered)

    def confirm(self, queue: MessageQueue, done: Locked) -> None:
        """Make sure of one that went stale. What was lost is told to `on_lost` before `done(False)`."""
        self._confirm(queue.broker_name, [queue], done)

    def unlock(self, queues: Iterable[MessageQueue], done: Finished | None = None) -> None:
        """Give these back; `done` when every broker answered, or did not in time."""
        by_broker = grouped(queues)
        for queue in (queue for group in by_broker.values() for queue in group):
            self.confirmed.pop(queue, None)
            self._doubted.discard(queue)
        left = len(by_broker)
        if not left and done is not None:
            done()

        def answered(result: Command | RoquetError) -> None:
            nonlocal left
            if isinstance(result, RoquetError):
                log.info("! locks of group %s are not given back: %s; they expire after a minute", self.group, result)
            left -= 1
            if left == 0 and done is not None:
                done()

        for broker_name, queues_there in by_broker.items():
            self._call(broker_name, RequestCode.UNLOCK_BATCH_MQ, queues_there, answered)

    # -- renewing

    def _renew(self) -> None:
        if not self._active:
            return
        self.client.after(RENEW_MS, self._renew)
        for broker_name, queues in grouped(self.confirmed).items():
            self._confirm(broker_name, queues, lambda _: None)

    def _confirm(self, broker_name: str, queues: list[MessageQueue], done: Locked) -> None:
        asked_ms = self.client.clock.steady_ms()

        def answered(result: set[MessageQueue] | RoquetError) -> None:
            if isinstance(result, RoquetError):
                log.info("! locks of group %s at %s are not confirmed: %s", self.group, broker_name, result)
                if isinstance(result, ConnectFailed):
                    self.doubt(broker_name)
                done(result)
                return
            kept: bool | RoquetError = True
            for queue in queues:
                before = self.confirmed.get(queue)
                if before is None:
                    continue  # given back while this was under way
                if queue not in result or asked_ms - before >= EXPIRED_MS:
                    # Refused; or ours again after a time in which it could have been somebody's who moved on.
                    kept = False
                    self._lose(queue)
                elif queue not in self._doubted:
                    self.confirmed[queue] = asked_ms
                elif len(queues) == 1:
                    self._make_sure(queue, asked_ms, done)
                    return
                else:
                    self._make_sure(queue, asked_ms, lambda _: None)
            done(kept)

        self._ask(broker_name, queues, answered)

    def _make_sure(self, queue: MessageQueue, asked_ms: int, done: Locked) -> None:
        """It is ours. Was it somebody else's in between? Then the group's progress went on without us."""

        def got(stored: int | RoquetError) -> None:
            if isinstance(stored, RoquetError):
                done(stored)
            elif queue not in self.confirmed:
                done(False)
            elif stored > self._offsets.table.get(queue, stored):
                self._lose(queue)
                done(False)
            else:
                self._doubted.discard(queue)
                self.confirmed[queue] = asked_ms
                done(True)

        self._calls.fetch_offset(self.group, queue, got)

    def _lose(self, queue: MessageQueue) -> None:
        self.confirmed.pop(queue, None)
        self._doubted.discard(queue)
        log.warning("! group %s lost the lock of %s for a while; it begins there anew", self.group, queue)
        self.on_lost(queue)

    def _ask(self, broker_name: str, queues: list[MessageQueue], done: Callable[[set[MessageQueue] | RoquetError], None]) -> None:
        def answered(result: Command | RoquetError) -> None:
            if isinstance(result, RoquetError):
                done(result)
                return
            try:
                locked = LockResult.decode(result.body).lock_ok_mq_set
            except RoquetError as error:
                done(BadAnswer(f"broker {broker_name} sent locks that cannot be read: {error}"))
                return
            done(locked)

        self._call(broker_name, RequestCode.LOCK_BATCH_MQ, queues, answered)

    def _call(self, broker_name: str, code: RequestCode, queues: list[MessageQueue], done: Callable[[Command | RoquetError], None]) -> None:
        body = LockBody(self.group, self.client.client_id, set(queues)).encode()

        def go(address: str, broker_id: int) -> None:
            if broker_id != MASTER:
                done(NoRoute(f"broker {broker_name!r} has no master now, and only a master gives locks"))
                return
            self.client.call(address, code, None, done, body=body, timeout_ms=TIMEOUT_MS)

        locate(self.client, queues[0], partial(_failed, done), go)


def _failed(done: Callable[[Command | RoquetError], None], error: RoquetError) -> None:
    done(error)


def grouped(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """By broker name, in order."""
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return by_broker
