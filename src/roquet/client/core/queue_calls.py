"""What can be asked about one queue: its ends, a place in time, a group's progress. Each is one call to the queue's broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from roquet.client.core.failures import BadAnswer
from roquet.client.core.send_command import LANGUAGE
from roquet.errors import NoRoute, Refused, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls import queues as queue_calls
from roquet.wire.calls.call import Answer, Call, Header
from roquet.wire.calls.offsets import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, QueryOffsetHeader, UpdateOffsetHeader
from roquet.wire.codes import ResponseCode

if TYPE_CHECKING:
    from roquet.client.core.instance import ClientCore  # Spark's readers use this module, and need no client

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


def read_header(answer: Answer[H, Any], address: str) -> H:
    """The typed header of an answer. Raises BadAnswer."""
    try:
        return answer.header
    except Refused as refusal:
        raise BadAnswer(f"{address} answered with fields that do not fit: {refusal.remark}") from None


class QueueCalls:
    def __init__(self, client: ClientCore) -> None:
        self.client = client

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that still exists."""
        return (await self._ask(queue, queue_calls.GET_MIN_OFFSET, queue_header(queue))).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last offset."""
        return (await self._ask(queue, queue_calls.GET_MAX_OFFSET, queue_header(queue))).offset

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of what was stored nearest to this time."""
        header = queue_calls.SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms, broker_name=queue.broker_name)
        return (await self._ask(queue, queue_calls.SEARCH_OFFSET_BY_TIMESTAMP, header)).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Store time of the first message that still exists, ms."""
        return (await self._ask(queue, queue_calls.GET_EARLIEST_MSG_STORETIME, queue_header(queue))).timestamp

    async def fetch_offset(self, group: str, queue: MessageQueue) -> int:
        """How far the group has come; NO_OFFSET (-1) when it has no progress there."""
        address, _ = await locate(self.client, queue)
        header = QueryOffsetHeader(group, queue.topic, queue.queue_id, broker_name=queue.broker_name)
        answer = await self.client.call(address, QUERY_CONSUMER_OFFSET, header, accept=(0, ResponseCode.QUERY_NOT_FOUND))
        return read_header(answer, address).offset if answer.ok else NO_OFFSET

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Remember how far the group has come. Returns when the broker has it."""
        await self._ask(queue, UPDATE_CONSUMER_OFFSET, update_header(group, queue, offset))

    async def send_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """The same oneway, as upstream sends it."""
        address, _ = await locate(self.client, queue)
        command = UPDATE_CONSUMER_OFFSET.request(update_header(group, queue, offset), language=LANGUAGE)
        self.client.caller.oneway(address, command)

    async def _ask(self, queue: MessageQueue, call: Call[Header, Any, H, Any], header: Header) -> H:
        address, _ = await locate(self.client, queue)
        return read_header(await self.client.call(address, call, header), address)


def update_header(group: str, queue: MessageQueue, offset: int) -> UpdateOffsetHeader:
    return UpdateOffsetHeader(group, queue.topic, queue.queue_id, offset, broker_name=queue.broker_name)


def queue_header(queue: MessageQueue) -> queue_calls.QueueHeader:
    return queue_calls.QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
