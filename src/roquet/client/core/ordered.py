"""OrderedConsuming: the messages of a queue one after the other, and no queue at two members at once.

    success    the next messages of the queue
    failure    the same messages again after a moment (1 s); nothing of the queue overtakes them
    too often  (max_reconsume_times, by default never) the message becomes a dead letter and the queue goes on; so it does when the
               listener says so (DEAD_LETTER)

A queue is consumed only while its lock is fresh. A queue that is let go is given back after the call that runs has
ended and its progress is stored, so that the next member begins exactly there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roquet.client.core.consuming import AGAIN, UNEXPECTED, Call, Consumption
from roquet.client.core.process_queue import NOTHING, ProcessQueue
from roquet.client.core.queue_locks import QueueLocks
from roquet.client.core.tasks import Wait
from roquet.client.core.verdicts import Outcome, RetryLater, Suspend, Verdict
from roquet.errors import RoquetError
from roquet.message import MessageQueue, ReceivedMessage

log = logging.getLogger(__name__)

SUSPEND_MS = 1_000
SUSPEND_MIN_MS, SUSPEND_MAX_MS = 10, 30_000
CONTINUOUS_MS = 60_000
LOCK_AGAIN_MS = 3_000
NO_LIMIT = 0x7FFFFFFF
NOT_YET = -1


@dataclass(slots=True, eq=False)
class _Lane:
    """One queue. It outlives the ProcessQueues of it, so that two never run at once."""

    process_queue: ProcessQueue
    pending: deque[ReceivedMessage] = field(default_factory=deque)
    uncommitted: list[ReceivedMessage] = field(default_factory=list)  # consumed, but the user has not said COMMIT
    busy: bool = False  # a call runs, or what became of it is being dealt with
    call: _LaneCall | None = None  # of which nobody has said yet what became of it
    ready: bool = False  # stands in line
    resting: object | None = None  # suspended, or waits for its lock
    since_ms: int = NOT_YET  # consumed without a pause since then
    free: Wait[None] | None = None  # somebody waits for the end of the call that runs

    def restart(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.pending.clear()
        self.uncommitted = []
        self.resting = None


class _LaneCall(Call):
    __slots__ = ("lane",)

    def __init__(self, lane: _Lane, messages: list[ReceivedMessage], started_ms: int) -> None:
        super().__init__(lane.process_queue, messages, started_ms)
        self.lane = lane


class OrderedConsuming(Consumption[_Lane, _LaneCall]):
    def __init__(self, *args: Any, locks: QueueLocks | None) -> None:
        """`locks` is None for broadcasting: every member consumes every queue, each in order."""
        super().__init__(*args)
        self.locks = locks
        self.auto_commit = self.settings.auto_commit
        self.suspend_ms = self.settings.suspend_queue_ms
        self.continuous_ms = self.settings.continuous_ms
        self._lanes: dict[MessageQueue, _Lane] = {}

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        lane = self._lanes.get(process_queue.queue)
        if lane is None:
            lane = self._lanes[process_queue.queue] = _Lane(process_queue)
        elif lane.process_queue is not process_queue:
            lane.restart(process_queue)
        lane.pending.extend(messages)
        self._line_up(lane)

    async def until_free(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        lane = self._lanes.get(queue)
        if lane is None or not lane.busy:
            self._lanes.pop(queue, None)
            return
        lane.pending.clear()
        if lane.free is None:
            lane.free = Wait()
        await lane.free

    # -- whose turn it is

    def _line_up(self, lane: _Lane, *, first: bool = False) -> None:
        if lane.busy or lane.ready or lane.resting is not None or not lane.pending or self._stopped:
            return
        lane.ready = True
        if first:
            self._waiting.appendleft(lane)
        else:
            lane.since_ms = NOT_YET
            self._waiting.append(lane)
        self._go_on()

    async def _rest(self, lane: _Lane, delay_ms: int) -> None:
        token = lane.resting = object()
        await self.client.sleep(delay_ms)
        if lane.resting is token:
            lane.resting = None
            self._line_up(lane)

    def take(self) -> _LaneCall | None:
        while self.ready:
            lane = self._waiting.popleft()
            process_queue = lane.process_queue
            lane.ready = False
            if process_queue.dropped or process_queue.leaving or not lane.pending:
                continue
            if self.locks is not None and not self.locks.holds(process_queue.queue):
                self.client.tasks.start(self._confirm_lock(lane, self.locks))
                continue
            now = self.client.clock.steady_ms()
            if lane.since_ms == NOT_YET:
                lane.since_ms = now
            messages = [lane.pending.popleft()]
            while lane.pending and len(messages) < self.batch_size and lane.pending[0].topic == messages[0].topic:
                messages.append(lane.pending.popleft())
            began_ms = process_queue.last_consume_ms = self.client.clock.now_ms()
            for message in messages:
                message._began_ms = began_ms
            self.running += 1
            lane.busy = True
            lane.call = _LaneCall(lane, messages, now)
            return lane.call
        return None

    async def _confirm_lock(self, lane: _Lane, locks: QueueLocks) -> None:
        token = lane.resting = object()
        try:
            ours = await locks.confirm(lane.process_queue.queue)
        except RoquetError:
            ours = False
        if lane.resting is not token:
            return
        lane.resting = None
        if ours:
            self._line_up(lane)
        elif not lane.process_queue.dropped:
            why = "its broker does not confirm the lock"
            self.stats.held_back.count("lock")
            self.stats.held_back.say("lock", lane.process_queue.queue, why, self.client.clock.steady_ms())
            await self._rest(lane, LOCK_AGAIN_MS)

    # -- one call

    def end(self, call: _LaneCall, verdict: Verdict) -> None:
        lane, process_queue, messages = call.lane, call.process_queue, call.messages
        if lane.call is not call:
            return  # it was said before
        lane.call = None
        counted = process_queue.counted or self.stats.of(messages[0].topic)
        counted.durations.add(self.client.clock.steady_ms() - call.started_ms)
        if process_queue.dropped:
            pass  # put elsewhere by an operator, or lost: what this call did counts for nothing
        elif verdict is Outcome.COMMIT or (verdict is Outcome.SUCCESS and self.auto_commit):
            counted.consumed += len(messages)
            self._commit(lane, process_queue, messages)
        elif verdict is Outcome.SUCCESS:
            counted.consumed += len(messages)
            lane.uncommitted.extend(messages)
        elif verdict is Outcome.ROLLBACK:
            again = sorted([*lane.uncommitted, *messages], key=lambda message: message.queue_offset)
            counted.retried += len(again)
            lane.uncommitted = []
            self._once_more(lane, process_queue, again, None)
        else:
            wait_ms = verdict.ms if isinstance(verdict, Suspend) else None
            failure = verdict if isinstance(verdict, RetryLater) else AGAIN
            self.client.tasks.start(self._fail(lane, process_queue, messages, wait_ms, failure))
            return
        self._over(lane)

    def _commit(self, lane: _Lane, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        process_queue.remove([*lane.uncommitted, *messages])
        lane.uncommitted = []
        if (progress := process_queue.progress) != NOTHING:
            self.offsets.update(process_queue.queue, progress, increase_only=False)

    async def _fail(
        self, lane: _Lane, process_queue: ProcessQueue, messages: list[ReceivedMessage], wait_ms: int | None, verdict: RetryLater
    ) -> None:
        try:
            await self._deal_with(lane, process_queue, messages, wait_ms, verdict)
        except Exception:
            log.exception(UNEXPECTED, self.group)
            kept = [*lane.uncommitted, *lane.pending]
            left = [one for one in messages if process_queue.messages.get(one.queue_offset) is one and one not in kept]
            if left and not process_queue.dropped:
                self._once_more(lane, process_queue, left, None)
        self._over(lane)

    async def _deal_with(
        self, lane: _Lane, process_queue: ProcessQueue, messages: list[ReceivedMessage], wait_ms: int | None, verdict: RetryLater
    ) -> None:
        """Those that failed too often, or shall not come again, become dead letters; the rest comes again."""
        rows = verdict.failed(messages)
        dead = await self._make_dead_letters(rows)
        failed = [message for message, _, _ in rows]
        again = [message for message in failed if message not in dead]
        over = [message for message in messages if message not in again]
        counted = process_queue.counted or self.stats.of(messages[0].topic)
        counted.consumed += len(messages) - len(failed)
        counted.retried += len(again)
        if self.locks is None:
            counted.given_up += len(dead)
        else:
            counted.dead_lettered += len(dead)
        if process_queue.dropped:
            pass
        elif self.auto_commit or (len(dead) == len(messages) and not lane.uncommitted):
            if over:
                self._commit(lane, process_queue, over)
        else:  # a dead letter commits nothing of what was consumed before it
            lane.uncommitted.extend(message for message in over if message not in dead)
            process_queue.remove(dead)
        if again and not process_queue.dropped:
            self._once_more(lane, process_queue, again, wait_ms)

    async def _make_dead_letters(self, rows: list[tuple[ReceivedMessage, int, str]]) -> list[ReceivedMessage]:
        """Those of them that are dead letters now."""
        if self.locks is None:  # broadcasting: there are none, and what shall not come again is given up
            return [message for message, level, _ in rows if level < 0]
        times_max = NO_LIMIT if self.sending_back.times_max is None else self.sending_back.times_max
        works, dying = [], []
        for message, level, why in rows:
            if level < 0 or message.reconsume_times >= times_max:
                dying.append(message)
                back = self.sending_back.send_back if level < 0 else self.sending_back.send_anew
                works.append(back(message, level if level < 0 else message.reconsume_times, why))
        dead: list[ReceivedMessage] = []
        for message, error in zip(dying, await self.client.tasks.each(works), strict=True):
            if error is None:
                dead.append(message)
            else:
                log.warning("! %s failed %d times but cannot become a dead letter: %s", message.message_id, message.reconsume_times, error)
        return dead

    def _once_more(self, lane: _Lane, process_queue: ProcessQueue, messages: list[ReceivedMessage], wait_ms: int | None) -> None:
        wait_ms = min(max(self.suspend_ms if wait_ms is None else wait_ms, SUSPEND_MIN_MS), SUSPEND_MAX_MS)
        for message in messages:
            message.record.reconsume_times += 1
        if lane.process_queue is process_queue and not process_queue.leaving:
            lane.pending.extendleft(reversed(messages))
            self.client.tasks.start(self._rest(lane, wait_ms))

    def _over(self, lane: _Lane) -> None:
        self.running -= 1
        lane.busy = False
        free, lane.free = lane.free, None
        process_queue = lane.process_queue
        if free is not None and (process_queue.dropped or process_queue.leaving):
            if self._lanes.get(process_queue.queue) is lane:
                del self._lanes[process_queue.queue]
            free.end(None)
        else:
            if free is not None:  # the queue was lost and came back while this call ran: what came since waits for its turn
                free.end(None)
            keep_on = self.client.clock.steady_ms() - lane.since_ms < self.continuous_ms
            self._line_up(lane, first=keep_on)
        self._go_on()
        self._idle()
        process_queue.tell_room()
