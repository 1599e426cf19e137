"""Producer: the asyncio face of ProducerCore.

async with Producer("orders-service", "127.0.0.1:9876") as producer:
    receipt = await producer.send(Message("orders", b"...", tags="paid", keys=["order-17"]))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import Unpack, cast

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore, ProducerSettings, Selector
from roquet.client.core.receipt import Receipts, SendReceipt
from roquet.client.core.replies import reply_message
from roquet.client.core.stats import ProducerStats
from roquet.client.keywords import ProducerKeywords
from roquet.client.member import Member
from roquet.client.running import running_loop
from roquet.errors import InvalidMessage, RoquetError
from roquet.message import Message, MessageQueue, ReceivedMessage

Callback = Callable[[SendReceipt | RoquetError], None]


class Producer(Member[ProducerCore]):
    """Sends messages. Many sends may be awaited at once; they share one connection per broker."""

    Settings = ProducerSettings
    settings: ProducerSettings

    def __init__(self, group: str, namesrv: str | Sequence[str] | None = None, **settings: Unpack[ProducerKeywords]) -> None:
        super().__init__(group, namesrv, **settings)
        self._stats = ProducerStats(group)

    def _make(self, client: ClientCore) -> ProducerCore:
        return ProducerCore(client, self.group, self.settings, hooks=self._hooks, stats=self._stats)

    @property
    def stats(self) -> ProducerStats:
        """What it has sent since it was made: numbers in all, and for each topic."""
        return self._stats

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send and wait until a broker has stored it; before that, until fewer than sends_in_flight_max messages are under way.

        A broker that is away is waited for: attempts, with pauses, go on for `timeout_ms` (default: the producer's
        delivery_timeout_ms). `queue`, or `selector(queues, message, key)`, or the hash of `key` (messages with one key share a
        queue) decides where it goes; such a send waits for the broker of its queue and goes to no other. Messages of a queue stay in
        order when each is awaited before the next is sent, or with linger_ms; otherwise a busy broker may store the next one first.
        Cancelled while it waits, it is not sent later; what a broker was given already may be stored.
        Raises InvalidMessage, NoRoute, Rejected, or SendFailed with every attempt (SendTimedOut, also a TimeoutError,
        when it may be stored nevertheless).
        """
        core, loop = self._core, self._loop
        if core is None:
            core = self._part()
        if loop is None or not loop.is_running() or get_ident() != self._thread:  # asyncio's own question costs a call of the system
            loop = self._here()
        answer: asyncio.Future[SendReceipt] = loop.create_future()
        if queue is None and selector is None and key is None and not timeout_ms and type(message) is Message:
            plain = core.plain.get(message.topic)
            if plain is not None and plain.add(message, answer):
                try:
                    return await answer
                except asyncio.CancelledError:
                    plain.withdraw(answer)
                    raise
        sending = core.send(message, partial(_tell, answer), queue=queue, selector=selector, key=key, timeout_ms=timeout_ms)
        try:
            return await answer
        except asyncio.CancelledError:
            sending.withdraw()
            raise

    def send_async(
        self,
        message: Message,
        callback: Callback,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send without waiting; `callback` gets the receipt or the error, on the loop.

        Raises TooManySends when sends_in_flight_max messages are under way: `await producer.room()` before it to wait instead. In the
        blocking face it waits by itself.
        """
        core = self._part()
        if running_loop() is not self._loop:
            raise self._elsewhere()
        core.send_async(message, callback, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms)

    async def room(self) -> None:
        """Returns when fewer messages are under way than sends_in_flight_max allows: send_async() takes another one."""
        await self._wait(self._part().until_room(), cancel=True)

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None, key: object = None
    ) -> None:
        """Send and forget: nobody says whether it arrived. Waits only while the connection cannot take more."""
        core = self._part()
        address = await self._wait(core.send_oneway(message, queue=queue, selector=selector, key=key))
        await self._started().caller.drained(address)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Sequence[SendReceipt]:
        """Send many in as few requests as topics and sizes allow. One receipt per message, in order.

        Raises BatchFailed, which holds the receipts of what was stored, when a part failed.
        """
        core, loop = self._core, self._loop
        if core is None:
            core = self._part()
        if loop is None or not loop.is_running() or get_ident() != self._thread:
            loop = self._here()
        if isinstance(messages, Message):
            raise InvalidMessage("send_batch() was given one Message; expected is a list of them: [message]")
        listed = list(messages)
        plain = core.plain_batch(listed) if queue is None else None
        if plain is not None:
            answer: asyncio.Future[SendReceipt] = loop.create_future()
            sending = core.send_plain(plain, partial(_tell, answer), timeout_ms)
            try:
                return Receipts(await answer, plain.message_ids)
            except asyncio.CancelledError:
                sending.withdraw()
                raise
        return await self._wait(core.send_batch(listed, queue=queue, timeout_ms=timeout_ms), cancel=True)

    async def request(
        self,
        message: Message,
        timeout_ms: int | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of whoever consumes it. Raises RequestTimedOut when there is none in time."""
        return await self._wait(self._part().request(message, timeout_ms=timeout_ms, queue=queue, selector=selector, key=key))

    async def reply(self, message: ReceivedMessage, body: bytes, *, properties: dict[str, str] | None = None) -> SendReceipt:
        """Answer a message that was sent with request(). Raises InvalidMessage when it asks for no reply."""
        return await self.send(reply_message(message, body, properties=properties))

    async def cancel(self, receipt: SendReceipt) -> str:
        """Take back a timed message (deliver_at, deliver_after) before it is delivered. Its message id.

        Raises ClientError when the broker gave no handle for that, Rejected when it is too late.
        """
        return await self._wait(self._part().recall(receipt))

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues a message to this topic can go to."""
        core = self._part()
        route = await self._wait(core.fetch_route(core.namespace.wrap(topic)))
        return [core.namespace.unwrap_queue(queue) for queue in route.write_queues]


def _tell(answer: asyncio.Future[SendReceipt], result: SendReceipt | RoquetError) -> None:
    if not answer.done():
        if type(result) is SendReceipt:
            answer.set_result(result)
        else:
            answer.set_exception(cast(RoquetError, result))
