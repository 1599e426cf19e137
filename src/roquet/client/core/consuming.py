"""Consuming: hands pulled messages to the user's function, a bounded number at a time, and deals with what comes of it.

success   the messages are finished, progress moves
failure   each message is sent back to its broker (CONSUMER_SEND_MSG_BACK), which delivers it again later;
          one that the broker does not take back is consumed again here after five seconds, and holds progress until then
          broadcasting: logged and given up, as upstream does
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from roquet.client.core.instance import ClientCore
from roquet.client.core.offsets import Offsets
from roquet.client.core.process_queue import NOTHING, ProcessQueue
from roquet.client.core.queue_calls import locate
from roquet.errors import RoquetError
from roquet.message import Property, ReceivedMessage
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.headers import SendBackHeader, encode
from roquet.wire.names import is_retry_topic

log = logging.getLogger(__name__)

AGAIN_MS = 5_000
SEND_BACK_TIMEOUT_MS = 5_000
RECONSUME_TIMES_MAX = 16


class Outcome(Enum):
    """What a listener says of its messages."""

    SUCCESS = "SUCCESS"
    RETRY_LATER = "RETRY_LATER"


RETRY_LATER = Outcome.RETRY_LATER

Judged = Callable[[Outcome], None]
Listener = Callable[[list[ReceivedMessage], Judged], None]
"""(messages of one queue and one topic, say what became of them). Must call the second exactly once, at any time."""


class Consuming:
    def __init__(
        self,
        client: ClientCore,
        group: str,
        offsets: Offsets,
        listener: Listener,
        *,
        concurrency_max: int,
        batch_size: int,
        broadcasting: bool,
        reconsume_times_max: int = RECONSUME_TIMES_MAX,
    ) -> None:
        self.client = client
        self.group = group
        self.offsets = offsets
        self.listener = listener
        self.concurrency_max = concurrency_max
        self.batch_size = batch_size
        self.broadcasting = broadcasting
        self.reconsume_times_max = reconsume_times_max
        self.running = 0
        self.failures: dict[str, int] = {}  # by topic
        self.on_idle: Callable[[], None] | None = None
        self._waiting: deque[tuple[ProcessQueue, list[ReceivedMessage]]] = deque()
        self._starting = False
        self._stopped = False

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume these, in calls of at most batch_size messages of one topic (a retry queue holds several topics)."""
        batch: list[ReceivedMessage] = []
        for message in messages:
            if batch and (len(batch) >= self.batch_size or batch[0].topic != message.topic):
                self._waiting.append((process_queue, batch))
                batch = []
            batch.append(message)
        if batch:
            self._waiting.append((process_queue, batch))
        self._start()

    def stop(self) -> None:
        """Start nothing more. What runs may finish; `on_idle` says when."""
        self._stopped = True
        self._waiting.clear()
        self._idle()

    def _start(self) -> None:
        if self._starting:  # a listener that answers at once brought us back here
            return
        self._starting = True
        try:
            while self._waiting and self.running < self.concurrency_max and not self._stopped:
                process_queue, messages = self._waiting.popleft()
                if not process_queue.dropped:
                    self._run(process_queue, messages)
        finally:
            self._starting = False

    def _run(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self.running += 1
        process_queue.last_consume_ms = self.client.clock.now_ms()
        judged = False

        def judge(outcome: Outcome) -> None:
            nonlocal judged
            if judged:
                return
            judged = True
            if process_queue.dropped:  # somebody else consumes them too
                over()
            elif outcome is Outcome.SUCCESS:
                self._finish(process_queue, messages)
                over()
            else:
                self._failed(process_queue, messages, over)

        def over() -> None:
            self.running -= 1  # only now: closing must not overtake what is being sent back
            self._start()
            self._idle()

        try:
            self.listener(messages, judge)
        except Exception:
            log.exception("! the listener of group %s failed", self.group)
            judge(Outcome.RETRY_LATER)

    def _idle(self) -> None:
        if self._stopped and self.running == 0 and self.on_idle is not None:
            told, self.on_idle = self.on_idle, None
            told()

    def _finish(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        progress = process_queue.remove(messages)
        if progress != NOTHING:
            self.offsets.update(process_queue.queue, progress)

    def _failed(self, process_queue: ProcessQueue, messages: list[ReceivedMessage], over: Callable[[], None]) -> None:
        topic = messages[0].topic
        self.failures[topic] = self.failures.get(topic, 0) + len(messages)
        if self.broadcasting:
            for message in messages:
                log.warning("! broadcast message %s failed and is given up", message.message_id)
            self._finish(process_queue, messages)
            over()
            return
        left = len(messages)
        kept: list[ReceivedMessage] = []

        def sent_back(message: ReceivedMessage, refusal: RoquetError | None) -> None:
            nonlocal left
            left -= 1
            if refusal is not None:
                log.info("! %s is not taken back, it is consumed again here: %s", message.message_id, refusal)
                kept.append(message)
            if left:
                return
            if not process_queue.dropped:
                self._finish(process_queue, [one for one in messages if one not in kept])
                if kept:
                    self._again(process_queue, kept)
            over()

        for message in messages:
            self._send_back(message, sent_back)

    def _again(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        messages.sort(key=lambda message: message.queue_offset)
        for message in messages:
            message.record.reconsume_times += 1

        def later() -> None:
            if not process_queue.dropped and not self._stopped:
                self.submit(process_queue, messages)

        self.client.after(AGAIN_MS, later)

    def _send_back(self, message: ReceivedMessage, done: Callable[[ReceivedMessage, RoquetError | None], None]) -> None:
        header = SendBackHeader(
            offset=message.physical_offset,
            group=self.group,
            delay_level=0,  # the broker counts it from the number of attempts
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=self.reconsume_times_max,
            broker_name=message.queue.broker_name,
        )

        def answered(result: Command | RoquetError) -> None:
            done(message, result if isinstance(result, RoquetError) else None)

        def go(address: str, _: int) -> None:
            self.client.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, encode(header), answered, timeout_ms=SEND_BACK_TIMEOUT_MS)

        locate(self.client, message.queue, lambda error: done(message, error), go)


def restore_topic(message: ReceivedMessage) -> None:
    """A retried message shows the topic it was sent to; its queue stays the retry queue."""
    real = message.properties.get(Property.RETRY_TOPIC)
    if real and is_retry_topic(message.record.topic):
        message.record.topic = real
