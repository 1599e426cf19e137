"""Queue locks: who consumes a queue in order. A client holds a queue for its group and renews it; a lock left alone expires.

Pure: the time is an argument, and steady time: setting the wall clock takes no queue from its holder. Nothing is kept over a
restart, since clients lock again within their interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator

from roquet.broker.handler import LARGE, Portions, answers, elsewhere, portions, reply_with
from roquet.broker.offsets import RETRY_TOPIC_LENGTH_MAX
from roquet.broker.part import Part
from roquet.errors import Refused
from roquet.message import MessageQueue
from roquet.ports import Clock, Peer
from roquet.settings import BrokerSettings
from roquet.store.disk import Cold
from roquet.wire.calls.queues import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ, LockBody, LockResult
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import GROUP_LENGTH_MAX, check, check_group

LOCKS_MAX = 1_000_000
"""Locks held at once. A queue beyond it is simply not locked."""
CLIENT_ID_MAX = 1_024
SWEEP_MS = 10_000
PIECE = 5_000
"""Queues that are locked, let go or looked at before others may get their turn."""


class QueueLocks(Part):
    """State: group -> queue -> (client id, when it last asked)."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0
        self._sweep_due_ms = 0
        self._to_sweep: deque[tuple[str, list[MessageQueue]]] = deque()  # groups of a sweep under way, and their queues that are left

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
        self._release(group, queues, lambda holder, asked_ms: holder == client_id)

    def _release(self, group: str, queues: Iterable[MessageQueue], may_go: Callable[[str, int], bool]) -> None:
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            held = locks.get(queue)
            if held is not None and may_go(*held):
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        holder = self._groups.get(group, {}).get(queue)
        if holder is None or holder[1] < now_ms - self.settings.rebalance_lock_max_live_time:
            return None
        return holder[0]

    def tick(self, now_ms: int) -> None:
        if not self._to_sweep:
            if now_ms < self._sweep_due_ms:
                return
            self._sweep_due_ms = now_ms + SWEEP_MS
            self._to_sweep.extend((group, list(locks)) for group, locks in self._groups.items())
        looked, expired_ms = 0, now_ms - self.settings.rebalance_lock_max_live_time
        while self._to_sweep and looked < PIECE:
            group, left = self._to_sweep[0]
            piece = take(left, PIECE - looked)
            looked += len(piece) + 1  # a group without locks costs something, too
            self._release(group, piece, lambda holder, asked_ms: asked_ms < expired_ms)
            if not left:
                self._to_sweep.popleft()

    # Requests

    @answers(LOCK_BATCH_MQ)
    def lock_batch(self, peer: Peer, command: Command) -> Portions:
        """41. `onlyThisBroker` of 5.x asks for what we always do."""
        body = yield from read_in_portions(command)
        held: set[MessageQueue] = set()

        def lock(queues: list[MessageQueue]) -> None:
            held.update(self.lock(body.consumer_group, body.client_id, queues, self.clock.steady_ms()))

        yield from portions(pieces(body.mq_set), lock, 1)
        return (yield from reply_with(LOCK_BATCH_MQ, command, LockResult(held), len(held), held.clear))

    @answers(UNLOCK_BATCH_MQ)
    def unlock_batch(self, peer: Peer, command: Command) -> Portions:
        body = yield from read_in_portions(command)
        yield from portions(pieces(body.mq_set), lambda queues: self.unlock(body.consumer_group, body.client_id, queues), 1)
        return command.reply()


def pieces(queues: set[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """They are taken out of the set: to let go of a hundred thousand at once takes as long as a turn."""
    left = list(queues)
    queues.clear()
    while left:
        yield take(left, PIECE)


def take(left: list[MessageQueue], count: int) -> list[MessageQueue]:
    """Up to so many of them, off the list's end."""
    piece = left[-count:]
    del left[-count:]
    return piece


def read_in_portions(command: Command) -> Generator[Cold | None, None, LockBody]:
    if len(command.body) < LARGE:
        return read_lock_body(command)
    return (yield from elsewhere(lambda: read_lock_body(command)))


def read_lock_body(command: Command) -> LockBody:
    body = LOCK_BATCH_MQ.read_body(command)  # 42 has the same
    check_group(body.consumer_group)
    if not 0 < len(body.client_id) <= CLIENT_ID_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"clientId of {len(body.client_id)} characters, allowed are 1 to {CLIENT_ID_MAX}")
    for queue in body.mq_set:
        check(queue.topic, "topic", RETRY_TOPIC_LENGTH_MAX)
        if len(queue.broker_name) > GROUP_LENGTH_MAX or queue.queue_id < 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"queue {queue.queue_id} of {queue.topic} on broker {queue.broker_name[:80]!r} cannot exist"
            )
    return body
