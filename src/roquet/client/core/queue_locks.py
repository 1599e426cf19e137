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

from roquet.client.core.failures import BadAnswer
from roquet.client.core.instance import ClientCore
from roquet.client.core.offsets import MemberOffsets
from roquet.client.core.queue_calls import locate
from roquet.client.core.resolver import MASTER
from roquet.client.core.tasks import Task, ignore
from roquet.errors import ConnectFailed, NoRoute, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.call import Answer, Answered, Call, Nothing
from roquet.wire.calls.queues import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ, LockBody

log = logging.getLogger(__name__)

FIRST_MS = 1_000
LOCK_MS = 20_000
STALE_MS = 30_000
LOCK_MAX_MS = 25_000
"""Confirmed less often a lock would be stale in between."""
EXPIRED_MS = 60_000
TIMEOUT_MS = 1_000


class QueueLocks:
    """`on_lost` is told each queue that the broker gave, or may have given, to somebody else meanwhile."""

    def __init__(self, client: ClientCore, group: str, offsets: MemberOffsets, renew_ms: int = LOCK_MS) -> None:
        self.client = client
        self.renew_ms = renew_ms
        self.group = group
        self._offsets = offsets
        self._doubted: set[MessageQueue] = set()
        self.on_lost: Callable[[MessageQueue], None] = lambda queue: None
        self.confirmed: dict[MessageQueue, int] = {}  # queue -> when the broker last said it is ours
        self._renewing: Task[None] | None = None

    def start(self) -> None:
        self._renewing = self.client.tasks.start(self._renew())

    def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    def holds(self, queue: MessageQueue) -> bool:
        """Whether messages of this queue may be consumed now."""
        confirmed = self.confirmed.get(queue)
        return confirmed is not None and queue not in self._doubted and self.client.clock.steady_ms() - confirmed < STALE_MS

    def doubt(self, broker_name: str) -> None:
        """The connection to this broker was lost."""
        self._doubted.update(queue for queue in self.confirmed if queue.broker_name == broker_name)

    async def lock(self, queue: MessageQueue) -> bool:
        """True: ours now. False: another member has it."""
        asked_ms = self.client.clock.steady_ms()
        if queue in await self._ask(queue.broker_name, [queue]):
            self._doubted.discard(queue)
            self.confirmed[queue] = asked_ms
            return True
        self.confirmed.pop(queue, None)
        return False

    async def confirm(self, queue: MessageQueue) -> bool:
        """Make sure of one that went stale. What was lost is told to `on_lost` before this returns False."""
        return await self._confirm(queue.broker_name, [queue])

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give these back. Returns when every broker answered, or did not in time."""
        by_broker = grouped(queues)
        for queue in (queue for group in by_broker.values() for queue in group):
            self.confirmed.pop(queue, None)
            self._doubted.discard(queue)
        for result in await self.client.tasks.each(self._call(UNLOCK_BATCH_MQ, *one) for one in by_broker.items()):
            if isinstance(result, RoquetError):
                log.info("! locks of group %s are not given back: %s; they expire after a minute", self.group, result)

    # -- renewing

    async def _renew(self) -> None:
        await self.client.sleep(FIRST_MS)
        while True:
            for broker_name, queues in grouped(self.confirmed).items():
                self.client.tasks.start(self._confirm(broker_name, queues), ignore)
            await self.client.sleep(self.renew_ms)

    async def _confirm(self, broker_name: str, queues: list[MessageQueue]) -> bool:
        """Whether all of them are still ours."""
        asked_ms = self.client.clock.steady_ms()
        try:
            ours = await self._ask(broker_name, queues)
        except RoquetError as error:
            log.info("! locks of group %s at %s are not confirmed: %s", self.group, broker_name, error)
            if isinstance(error, ConnectFailed):
                self.doubt(broker_name)
            raise
        kept = True
        in_doubt: list[MessageQueue] = []
        for queue in queues:
            before = self.confirmed.get(queue)
            if before is None:
                continue  # given back while this was under way
            if queue not in ours or asked_ms - before >= EXPIRED_MS:
                # Refused; or ours again after a time in which it could have been somebody's who moved on.
                kept = False
                self._lose(queue)
            elif queue in self._doubted:
                in_doubt.append(queue)
            else:
                self.confirmed[queue] = asked_ms
        sure = await self.client.tasks.all(self._make_sure(queue, asked_ms) for queue in in_doubt)
        return kept and all(sure)

    async def _make_sure(self, queue: MessageQueue, asked_ms: int) -> bool:
        """It is ours. Was it somebody else's in between? Then the group's progress went on without us."""
        stored = await self._offsets.fetch(queue)
        if queue not in self.confirmed:
            return False
        if stored > self._offsets.table.get(queue, stored):
            self._lose(queue)
            return False
        self._doubted.discard(queue)
        self.confirmed[queue] = asked_ms
        return True

    def _lose(self, queue: MessageQueue) -> None:
        self.confirmed.pop(queue, None)
        self._doubted.discard(queue)
        log.warning("! group %s lost the lock of %s for a while; it begins there anew", self.group, queue)
        self.on_lost(queue)

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        answer = await self._call(LOCK_BATCH_MQ, broker_name, queues)
        try:
            return answer.body.lock_ok_mq_set
        except RoquetError as error:
            raise BadAnswer(f"broker {broker_name} sent locks that cannot be read: {error}") from None

    async def _call(
        self, call: Call[Nothing, LockBody, Nothing, Answered], broker_name: str, queues: list[MessageQueue]
    ) -> Answer[Nothing, Answered]:
        body = LockBody(self.group, self.client.client_id, set(queues))
        address, broker_id = await locate(self.client, queues[0])
        if broker_id != MASTER:
            raise NoRoute(f"broker {broker_name!r} has no master now, and only a master gives locks")
        return await self.client.call(address, call, body=body, timeout_ms=TIMEOUT_MS)


def grouped(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """By broker name, in order."""
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return by_broker
