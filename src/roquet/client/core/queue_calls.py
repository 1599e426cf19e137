"""What can be asked about one queue: its ends, a place in time, a group's progress. Each is one call to the queue's broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from roquet.client.core.failures import BadAnswer
from roquet.client.core.instance import ClientCore
from roquet.errors import NoRoute, Refused, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.offsets import QueryOffsetHeader, UpdateOffsetHeader
from roquet.wire.calls.queues import OffsetResponseHeader, QueueHeader, SearchOffsetHeader, TimestampResponseHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import decode, encode

H = TypeVar("H")

NO_OFFSET = -1
"""The group has no progress in the queue yet."""


async def locate(client: ClientCore, queue: MessageQueue, *, broker_id: int = 0) -> tuple[str, int]:
    """(address, broker id) of the queue's broker, after asking for the route when it is not known."""
    found = client.routes.reader(queue.broker_name, broker_id)
    if found is not None:
        return found
    failure: RoquetError = NoRoute(f"no broker {queue.broker_name!r} in the route of topic {queue.topic!r}; it may be down")
    try:
        await client.routes.fetch(queue.topic)
    except RoquetError as error:
        failure = error
    found = client.routes.reader(queue.broker_name, broker_id)
    if found is None:
        raise failure
    return found


def read_header(kind: type[H], answer: Command, address: str) -> H:
    """The typed header of an answer. Raises BadAnswer."""
    try:
        return decode(kind, answer.fields)
    except Refused as refusal:
        raise BadAnswer(f"{address} answered with fields that do not fit: {refusal.remark}") from None


class QueueCalls:
    def __init__(self, client: ClientCore) -> None:
        self.client = client

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that still exists."""
        return await self._number(queue, RequestCode.GET_MIN_OFFSET, encode(queue_header(queue)))

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last offset."""
        return await self._number(queue, RequestCode.GET_MAX_OFFSET, encode(queue_header(queue)))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of what was stored nearest to this time."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, broker_name=queue.broker_name)
        return await self._number(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, encode(header))

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Store time of the first message that still exists, ms."""
        address, _ = await locate(self.client, queue)
        answer = await self.client.call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, encode(queue_header(queue)))
        return read_header(TimestampResponseHeader, answer, address).timestamp

    async def fetch_offset(self, group: str, queue: MessageQueue) -> int:
        """How far the group has come; NO_OFFSET (-1) when it has no progress there."""
        header = QueryOffsetHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        return await self._number(queue, RequestCode.QUERY_CONSUMER_OFFSET, encode(header), accept=(0, ResponseCode.QUERY_NOT_FOUND))

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Remember how far the group has come. Returns when the broker has it."""
        address, _ = await locate(self.client, queue)
        await self.client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, update_fields(group, queue, offset))

    async def send_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """The same oneway, as upstream sends it."""
        address, _ = await locate(self.client, queue)
        command = self.client.command(RequestCode.UPDATE_CONSUMER_OFFSET, update_fields(group, queue, offset))
        self.client.caller.oneway(address, command)

    async def _number(self, queue: MessageQueue, code: RequestCode, fields: dict[str, str], *, accept: Sequence[int] = (0,)) -> int:
        address, _ = await locate(self.client, queue)
        answer = await self.client.call(address, code, fields, accept=accept)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return NO_OFFSET
        return read_header(OffsetResponseHeader, answer, address).offset


def update_fields(group: str, queue: MessageQueue, offset: int) -> dict[str, str]:
    header = UpdateOffsetHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset, broker_name=queue.broker_name
    )
    return encode(header)


def queue_header(queue: MessageQueue) -> QueueHeader:
    return QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
