"""Queue locks: who consumes a queue in order. A client holds a queue for its group and renews it; a lock left alone expires.

Pure: the time is an argument, and steady time: setting the wall clock takes no queue from its holder. Nothing is kept over a
restart, since clients lock again within their interval.
"""

from __future__ import annotations

from collections.abc import Iterable

from roquet.broker.handler import Handler
from roquet.errors import Refused
from roquet.message import MessageQueue
from roquet.ports import Clock, Peer
from roquet.settings import BrokerSettings
from roquet.wire.bodies import LockBody, LockResult
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import GROUP_LENGTH_MAX, check, check_group

LOCKS_MAX = 1_000_000
"""Locks held at once. A queue beyond it is simply not locked."""
CLIENT_ID_MAX = 1_024
SWEEP_MS = 10_000


class QueueLocks:
    """State: group -> queue -> (client id, when it last asked)."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0
        self._sweep_due_ms = 0

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> set[MessageQueue]:
        """Take or renew; returns those that are now this client's."""
        expired_ms = now_ms - self.settings.rebalance_lock_max_live_time
        held: set[MessageQueue] = set()
        locks = self._groups.get(group, {})
        for queue in queues:
            holder = locks.get(queue)
            if holder is None:
                if self._count >= LOCKS_MAX:
                    continue
                self._count += 1
            elif holder[0] != client_id and holder[1] >= expired_ms:
                continue
            locks[queue] = (client_id, now_ms)
            held.add(queue)
        if locks:
            self._groups[group] = locks
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Let go of those that are this client's; the others stay as they are."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            holder = locks.get(queue)
            if holder is not None and holder[0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that holds this queue now."""
        holder = self._groups.get(group, {}).get(queue)
        if holder is None or holder[1] < now_ms - self.settings.rebalance_lock_max_live_time:
            return None
        return holder[0]

    def tick(self, now_ms: int) -> None:
        """Forget what has expired."""
        if now_ms < self._sweep_due_ms:
            return
        self._sweep_due_ms = now_ms + SWEEP_MS
        expired_ms = now_ms - self.settings.rebalance_lock_max_live_time
        for group in list(self._groups):
            locks = self._groups[group]
            for queue in [queue for queue, (_, asked_ms) in locks.items() if asked_ms < expired_ms]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]

    # Requests

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock_batch, RequestCode.UNLOCK_BATCH_MQ: self.unlock_batch}

    def lock_batch(self, peer: Peer, command: Command) -> Command:
        """41. `onlyThisBroker` of 5.x asks for what we always do."""
        body = read_lock_body(command)
        held = self.lock(body.consumer_group, body.client_id, body.mq_set, self.clock.steady_ms())
        return command.reply(body=LockResult(held).encode())

    def unlock_batch(self, peer: Peer, command: Command) -> Command:
        """42."""
        body = read_lock_body(command)
        self.unlock(body.consumer_group, body.client_id, body.mq_set)
        return command.reply()


def read_lock_body(command: Command) -> LockBody:
    body = LockBody.decode(command.body)
    check_group(body.consumer_group)
    if not 0 < len(body.client_id) <= CLIENT_ID_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"clientId of {len(body.client_id)} characters, allowed are 1 to {CLIENT_ID_MAX}")
    for queue in body.mq_set:
        check(queue.topic, "topic", GROUP_LENGTH_MAX + len("%RETRY%"))
        if len(queue.broker_name) > GROUP_LENGTH_MAX or queue.queue_id < 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"queue {queue.queue_id} of {queue.topic} on broker {queue.broker_name[:80]!r} cannot exist"
            )
    return body
