"""Messages: found, called off, and transactions taken up again."""

from __future__ import annotations

from roquet.admin.asking import Asking, Broker
from roquet.client.core.failures import rejected
from roquet.errors import ClientError, Refused
from roquet.message import Property, ReceivedMessage, host_text
from roquet.wire.calls.pulls import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QueryMessageHeader, ViewMessageHeader
from roquet.wire.calls.sends import RECALL_MESSAGE, RecallMessageHeader
from roquet.wire.calls.transactions import RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.record import decode_readable, decode_records

FAR_FUTURE_MS = (1 << 63) - 1


class Messages(Asking):
    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """By the id that the broker made. Raises Rejected when there is no such message (any more)."""
        address, offset = place_of(offset_message_id)
        answer = await self.call(address, VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        found = [ReceivedMessage(record) for record in decode_records(answer.body.data)]
        if not found:
            raise ClientError(f"{address} answered without a message for {offset_message_id}")
        return found[0]

    async def query_by_key(
        self, topic: str, key: str, *, count_max: int = 64, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
    ) -> list[ReceivedMessage]:
        """Messages of the topic that have this key and were stored between the two times; `count_max` from each broker at most."""
        header = QueryMessageHeader(topic, key, count_max, begin_ms, end_ms)
        return [message for message in await self._query(topic, header) if key in message.keys]

    async def query_by_unique_key(self, topic: str, unique_key: str) -> list[ReceivedMessage]:
        """The message with this producer's id; more than one when the producer sent it again."""
        header = QueryMessageHeader(topic, unique_key, 32, 0, FAR_FUTURE_MS, True)
        return [message for message in await self._query(topic, header) if message.properties.get(Property.UNIQUE_KEY) == unique_key]

    async def _query(self, topic: str, header: QueryMessageHeader) -> list[ReceivedMessage]:
        masters = await self.masters_with(topic)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answers = await self._from_all(masters, QUERY_MESSAGE, header, accept=accept)
        # The index knows hashes only: another key or topic may share one, so callers compare.
        every = [
            ReceivedMessage(record, masters[address])
            for address, answer in answers.items()
            if answer.ok
            for record in decode_readable(answer.body.data)[0]
            if record.topic == topic
        ]
        # Within a millisecond the place in the log decides.
        return sorted(every, key=lambda message: (message.store_timestamp, message.queue.broker_name, message.physical_offset))

    async def cancel(self, message_id: str) -> list[Broker]:
        """Cancel a pending timed message by its id (the producer's or the broker's) or its recall handle; the brokers that had it.

        Raises Rejected when none has such a message pending, with what a broker says about it.
        """
        header = RecallMessageHeader("roquet_admin", "", message_id)
        masters = await self.masters()
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answers = await self._from_all([broker.address for broker in masters], RECALL_MESSAGE, header, accept=accept)
        found = [broker for broker in masters if answers[broker.address].ok]
        if not found:
            address, answer = max(answers.items(), key=lambda pair: "already" in (pair[1].command.remark or ""))
            raise rejected(answer.command, address)
        return found

    async def resume_transaction(self, offset_message_id: str) -> None:
        """A message in TRANS_CHECK_MAX_TIME_TOPIC is prepared again, and its producer is asked about it."""
        address, _ = place_of(offset_message_id)
        await self.call(address, RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(offset_message_id))


def place_of(offset_message_id: str) -> tuple[str, int]:
    try:
        host, offset = parse_offset_message_id(offset_message_id)
    except Refused as error:
        raise ClientError(error.remark) from None
    return host_text(host), offset
