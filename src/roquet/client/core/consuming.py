"""Consuming: hands pulled messages to the user's function, a bounded number at a time, and deals with what comes of it.

success     the messages are finished, progress moves
failure     each message is given back to its broker, which delivers it again later; one that no broker takes is consumed
            again here after five seconds, and holds progress until then
            broadcasting: logged and given up, as upstream does
too long    what a function has not finished after 15 minutes is given back as if it had failed: it holds progress no
            longer, and whatever the function says afterwards comes too late
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roquet.client.core.instance import ClientCore
from roquet.client.core.offsets import MemberOffsets
from roquet.client.core.outcomes import is_dead
from roquet.client.core.process_queue import ProcessQueue
from roquet.client.core.send_back import FIRST_DELAY_LEVEL, SendingBack
from roquet.client.core.stats import ConsumerStats
from roquet.client.core.tasks import Wait
from roquet.client.core.verdicts import Listener, Outcome, RetryLater, Verdict
from roquet.message import ReceivedMessage

if TYPE_CHECKING:
    from roquet.client.core.push_consumer import PushConsumerSettings

log = logging.getLogger(__name__)

W = TypeVar("W")
"""What waits for its turn."""

AGAIN_MS = 5_000
TIMEOUT_MS = 15 * 60_000
WATCH_MS = 60_000
"""How often running calls are looked at; less when the timeout is less."""
AGAIN = RetryLater()
UNEXPECTED = "! group %s: what its listener said of messages could not be done, so they are consumed again here; please report this"


class Call:
    """One call of the user's function, under way since it was taken."""

    __slots__ = ("given_up", "messages", "process_queue", "started_ms")

    def __init__(self, process_queue: ProcessQueue, messages: list[ReceivedMessage], started_ms: int) -> None:
        self.process_queue = process_queue
        self.messages = messages
        self.started_ms = started_ms
        self.given_up = False
        """Took too long: its messages are being given back."""


C = TypeVar("C", bound=Call)


class Consumption(Generic[W, C]):
    """What a push consumer does with what it pulled: Consuming, or OrderedConsuming.

    submit ── waits ── on_ready ── take ── the user's function ── end ── progress, and the next one may be taken
    """

    def __init__(
        self,
        client: ClientCore,
        group: str,
        offsets: MemberOffsets,
        listener: Listener,
        sending_back: SendingBack,
        settings: PushConsumerSettings,
        stats: ConsumerStats,
    ) -> None:
        self.client = client
        self.group = group
        self.offsets = offsets
        self.listener = listener
        self.sending_back = sending_back
        self.settings = settings
        self.concurrency_max = settings.concurrency
        self.batch_size = settings.batch_size
        self.running = 0
        """Calls under way."""
        self.stats = stats
        self.idle: Wait[bool] = Wait()
        """Ends with True after stop(), when the last of them is over."""
        self.on_ready: Callable[[], None] = self._hand_out
        """Called when take() may have something."""
        self._waiting: deque[W] = deque()
        self._handing_out = False
        self._stopped = False

    def set_concurrency(self, most: int) -> None:
        """From now on so many calls at a time. When more run, the next begins after enough of them have ended."""
        self.concurrency_max = most
        self._go_on()

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Another call may begin."""
        return bool(self._waiting) and self.running < self.concurrency_max and not self._stopped

    def take(self) -> C | None:
        """The next call, which is under way from now on: end() must follow, whatever happens. None: no other may begin now.

        Plain functions, since this is the way of every message: a coroutine would cost a third more. Only a call that failed gets one."""
        raise NotImplementedError

    def end(self, call: C, verdict: Verdict) -> None:
        """What became of its messages; only the first word counts. Who took it may take another one now."""
        raise NotImplementedError

    async def until_free(self, process_queue: ProcessQueue) -> None:
        """Returns when no call for this queue is under way: at once, or after those that are. It begins no more of them."""
        raise NotImplementedError

    def stop(self) -> None:
        """Start nothing more. What runs may finish; `idle` says when."""
        self._stopped = True
        self._waiting.clear()
        self._idle()

    def _go_on(self) -> None:
        if self.ready:
            self.on_ready()

    def _hand_out(self) -> None:
        """Call the listener for all that may begin: for who does not take calls himself."""
        if self._handing_out:  # a listener that answers at once brought us back here
            return
        self._handing_out = True
        try:
            while (call := self.take()) is not None:
                try:
                    self.listener(call.messages, partial(self._judged, call))
                except Exception:
                    log.exception("! the listener of group %s failed", self.group)
                    self._judged(call)
        finally:
            self._handing_out = False

    def _judged(self, call: C, verdict: Verdict = Outcome.RETRY_LATER) -> None:
        self.end(call, verdict)
        self._go_on()

    def _idle(self) -> None:
        if self._stopped and self.running == 0:
            self.idle.end(True)


class Consuming(Consumption[tuple[ProcessQueue, deque[ReceivedMessage]], Call]):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.broadcasting = self.settings.broadcasting
        self.timeout_ms = self.settings.consume_timeout_ms
        self._calls: dict[Call, None] = {}  # a set that keeps its order
        self._one_over: Wait[None] | None = None  # ends when one of them does, where somebody waits for that
        self._watching = False
        self._ahead_ms = 0
        """The wall clock's lead over the steady one when messages last came: so one look at a clock is enough for each call."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume these, in calls of at most batch_size messages of one topic (a retry queue holds several topics)."""
        self._ahead_ms = self.client.clock.now_ms() - self.client.clock.steady_ms()
        if messages:
            self._waiting.append((process_queue, deque(messages)))
            self._go_on()

    def take(self) -> Call | None:
        while self._waiting and self.running < self.concurrency_max and not self._stopped:
            process_queue, pending = self._waiting[0]
            if process_queue.dropped:
                self._waiting.popleft()
                continue
            now = self.client.clock.steady_ms()
            began_ms = process_queue.last_consume_ms = now + self._ahead_ms
            message = pending.popleft()
            message._began_ms = began_ms
            messages = [message]
            if self.batch_size > 1:
                topic = message.topic
                while pending and len(messages) < self.batch_size and pending[0].topic == topic:
                    message = pending.popleft()
                    message._began_ms = began_ms
                    messages.append(message)
            if not pending:
                self._waiting.popleft()
            self.running += 1
            call = Call(process_queue, messages, now)
            self._calls[call] = None
            if not self._watching:
                self._watch()
            return call
        return None

    def end(self, call: Call, verdict: Verdict) -> None:
        if call not in self._calls:
            return  # it was said before
        del self._calls[call]
        process_queue, messages = call.process_queue, call.messages
        counted = process_queue.counted or self.stats.of(messages[0].topic)
        took_ms = self.client.clock.steady_ms() - call.started_ms
        if took_ms:
            counted.durations.add(took_ms)
        else:  # as most do
            counted.durations.buckets[0] += 1
        if process_queue.dropped or call.given_up:  # somebody else consumes them too
            self._over()
        elif verdict is Outcome.SUCCESS or verdict is Outcome.COMMIT:
            counted.consumed += len(messages)
            self._finish(process_queue, messages)
            self._over()
            process_queue.tell_room()
        else:
            self.client.tasks.start(self._fail(process_queue, messages, verdict))

    async def until_free(self, process_queue: ProcessQueue) -> None:
        """A call that takes longer than the timeout is not waited for."""
        while any(call.process_queue is process_queue and not call.given_up for call in self._calls):
            if self._one_over is None:
                self._one_over = Wait()
            await self._one_over

    def _tell_over(self) -> None:
        one, self._one_over = self._one_over, None
        if one is not None:
            one.end(None)

    def _over(self) -> None:
        self.running -= 1
        if self._one_over is not None:
            self._tell_over()
        if self._stopped:
            self._idle()

    def _finish(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if not messages:
            return
        process_queue.remove(messages)
        self.offsets.moved[process_queue] = None

    async def _fail(self, process_queue: ProcessQueue, messages: list[ReceivedMessage], verdict: Verdict) -> None:
        try:
            await self._deal_with(process_queue, messages, verdict)
        except Exception:
            log.exception(UNEXPECTED, self.group)
            left = [message for message in messages if process_queue.messages.get(message.queue_offset) is message]
            if left:
                self.client.tasks.start(self._consume_again(process_queue, left))
        self._over()  # only now: closing must not overtake what is being sent back
        self._go_on()
        process_queue.tell_room()

    async def _deal_with(self, process_queue: ProcessQueue, messages: list[ReceivedMessage], verdict: Verdict) -> None:
        """Not all of these are done."""
        rows = (verdict if isinstance(verdict, RetryLater) else AGAIN).failed(messages)
        failed = [message for message, _, _ in rows]
        if len(failed) < len(messages):
            self._finish(process_queue, [message for message in messages if message not in failed])
        counted = process_queue.counted or self.stats.of(messages[0].topic)
        counted.consumed += len(messages) - len(failed)
        if not failed:
            return
        if self.broadcasting:
            counted.given_up += len(failed)
            for message in failed:
                log.warning("! broadcast message %s failed and is given up", message.message_id)
            self._finish(process_queue, failed)
        else:
            dead = sum(is_dead(message, verdict, self.settings) for message in failed)
            counted.dead_lettered += dead
            counted.retried += len(failed) - dead
            await self._give_back(process_queue, rows)

    async def _give_back(self, process_queue: ProcessQueue, rows: list[tuple[ReceivedMessage, int, str]]) -> None:
        """`rows`: message, delay level, reason."""
        messages = [message for message, _, _ in rows]
        kept: list[ReceivedMessage] = []
        results = await self.client.tasks.each(self.sending_back.send_back(*row) for row in rows)
        for message, result in zip(messages, results, strict=True):
            if result is not None:
                log.warning("! no broker takes %s back, it is consumed again here: %s", message.message_id, result)
                kept.append(message)
        if not process_queue.dropped:
            self._finish(process_queue, [one for one in messages if one not in kept])
            if kept:
                self.client.tasks.start(self._consume_again(process_queue, kept))

    async def _consume_again(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        messages.sort(key=lambda message: message.queue_offset)
        for message in messages:
            message.record.reconsume_times += 1
        await self.client.sleep(AGAIN_MS)
        if not process_queue.dropped and not self._stopped:
            self.submit(process_queue, messages)

    # -- what takes too long

    def _watch(self) -> None:
        if not self.broadcasting:
            self._watching = True
            self.client.tasks.start(self._watch_calls())

    async def _watch_calls(self) -> None:
        while self._calls:
            await self.client.sleep(min(WATCH_MS, self.timeout_ms))
            now = self.client.clock.steady_ms()
            for call in [call for call in self._calls if now - call.started_ms >= self.timeout_ms and not call.given_up]:
                self._give_up(call)
        self._watching = False

    def _give_up(self, call: Call) -> None:
        call.given_up = True
        if call.process_queue.dropped:
            self._tell_over()
            return
        log.warning(
            "! group %s: consuming %s takes longer than %d s; it is given back",
            self.group, ", ".join(message.message_id for message in call.messages), self.timeout_ms // 1000,
        )  # fmt: skip
        (call.process_queue.counted or self.stats.of(call.messages[0].topic)).retried += len(call.messages)
        why = f"its handler took longer than {self.timeout_ms // 1000} s"
        self.client.tasks.start(self._give_back(call.process_queue, [(message, FIRST_DELAY_LEVEL, why) for message in call.messages]))
