"""Giving a message that failed back to the brokers: CONSUMER_SEND_MSG_BACK, and what to do when that fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from roquet.client.core.inner_producer import inner_producer
from roquet.client.core.instance import ClientCore
from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.queue_calls import locate
from roquet.client.core.resolver import MASTER
from roquet.errors import ClientError, NoRoute, RoquetError
from roquet.message import FAILURE_MAX, Message, MessageQueue, Property, PulledMessage, ReceivedMessage, failure_text
from roquet.wire.calls.sends import CONSUMER_SEND_MSG_BACK, SendBackHeader
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import is_retry_topic, retry_topic

log = logging.getLogger(__name__)

TIMEOUT_MS = 5_000
FAILURE_ROOM = 4 * FAILURE_MAX + 512
FIRST_DELAY_LEVEL = 3
"""10 s: the delay of the first retry; each further one waits a level more."""
LIMIT_OPTIONAL_SINCE = 399
"""4.9.3. Before, a broker of Apache's fails where nobody says how many retries there are; it is told what is usual."""
USUAL_LIMIT = 16


class SendingBack:
    def __init__(self, client: ClientCore, group: str, *, times_max: int | None, namespace: Namespace = NO_NAMESPACE) -> None:
        """`times_max`: how many retries there are; None: as many as the group has at its broker."""
        self.client = client
        self.group = group
        self.times_max = times_max
        self.namespace = namespace

    async def send_back(self, message: ReceivedMessage, delay_level: int, why: str = "") -> None:
        """Ask its broker to deliver it again later (or, after the last time, to make it a dead letter). A broker that
        does not is passed by: the message is sent to the retry topic as a new one. Raises the error when both failed."""
        try:
            await self._ask_broker(message, delay_level, why)
        except RoquetError as error:
            log.info("! %s is not taken back, it is sent anew: %s", message.message_id, error)
        else:
            return
        await self.send_anew(message, message.reconsume_times + 1, why)

    async def _ask_broker(self, message: ReceivedMessage, delay_level: int, why: str) -> None:
        address, broker_id = await locate(self.client, message.queue)
        if broker_id != MASTER:
            raise NoRoute(f"broker {message.queue.broker_name!r} has no master now")
        header = SendBackHeader(
            offset=message.physical_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self.namespace.wrap(message.topic),
            unit_mode=False,
            max_reconsume_times=self._limit([address]),
            broker_name=message.queue.broker_name,
            failure=failure_text(why) or None,
        )
        await self.client.call(address, CONSUMER_SEND_MSG_BACK, header, timeout_ms=TIMEOUT_MS)

    def _limit(self, addresses: Iterable[str]) -> int | None:
        """How many retries there are, as one of these brokers is told; None: nothing is said."""
        versions = self.client.broker_versions
        is_old = any(versions.get(address, LIMIT_OPTIONAL_SINCE) < LIMIT_OPTIONAL_SINCE for address in addresses)
        return USUAL_LIMIT if self.times_max is None and is_old else self.times_max

    async def send_anew(self, message: ReceivedMessage, times: int, why: str = "") -> None:
        """Send a copy to the group's retry topic that has failed `times` times; the broker makes it a dead letter when
        those are enough. Raises also when the body cannot be read, or grew too large."""
        receipt = await inner_producer(self.client).sent(self._copy(message, times, why))
        if not receipt.ok:
            # Stored, but not as safely as the broker promises. Our progress moves past the message, so that is not enough.
            raise Unsafe(f"the copy for {retry_topic(self.group)} was answered {receipt.status.name}")

    def _copy(self, message: ReceivedMessage, times: int, why: str) -> Message:
        properties = dict(message.properties)
        properties.pop(Property.TRANSACTION_PREPARED, None)
        if not properties.get(Property.ORIGIN_MESSAGE_ID):
            properties[Property.ORIGIN_MESSAGE_ID] = message.message_id
        properties[Property.RETRY_TOPIC] = self.namespace.wrap(message.topic)
        properties[Property.RECONSUME_TIME] = str(times)
        limit = self._limit(self.client.broker_versions)  # any of them may get it
        properties.pop(Property.MAX_RECONSUME_TIMES, None)
        if limit is not None:
            properties[Property.MAX_RECONSUME_TIMES] = str(limit)
        properties.pop(Property.FAILURE, None)
        if why and len(message.record.properties) + FAILURE_ROOM <= PROPERTIES_MAX:
            properties[Property.FAILURE] = failure_text(why)
        properties[Property.DELAY] = str(FIRST_DELAY_LEVEL + message.reconsume_times)
        return Message(retry_topic(self.group), message.body, properties=properties, flag=message.flag)


class Unsafe(ClientError):
    """A copy was stored without the safety that was asked for. It is consumed again here, and may come twice."""


def restore_topic(message: ReceivedMessage, namespace: Namespace = NO_NAMESPACE) -> None:
    """A retried message shows the topic it was sent to, in the user's words; its queue stays the one it came from."""
    if is_retry_topic(message.topic):
        message.record.topic = message.properties.get(Property.RETRY_TOPIC) or message.record.topic
    if namespace:
        message.record.topic = namespace.unwrap(message.record.topic)


def restore_topics(messages: list[ReceivedMessage], queue: MessageQueue, namespace: Namespace = NO_NAMESPACE) -> None:
    """The same for messages of one pull: of most queues there is nothing to restore."""
    if messages and (namespace or type(messages[0]) is not PulledMessage or is_retry_topic(queue.topic)):
        for message in messages:
            restore_topic(message, namespace)
