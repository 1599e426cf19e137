"""What can be asked about one queue: its ends, a place in time, a group's progress. Each is one call to the queue's broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from roquet.client.core.failures import BadAnswer
from roquet.client.core.instance import ClientCore
from roquet.client.core.routes import TopicRoute
from roquet.errors import NoRoute, Refused, RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.offsets import QueryOffsetHeader, UpdateOffsetHeader
from roquet.wire.calls.queues import OffsetResponseHeader, QueueHeader, SearchOffsetHeader, TimestampResponseHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import decode, encode

H = TypeVar("H")
GotNumber = Callable[[int | RoquetError], None]
Failed = Callable[[RoquetError], None]

NO_OFFSET = -1
"""The group has no progress in the queue yet."""


def locate(client: ClientCore, queue: MessageQueue, failed: Failed, go: Callable[[str, int], None], *, broker_id: int = 0) -> None:
    """`go(address, broker id)` of the queue's broker, after asking for the route when it is not known."""
    found = client.routes.reader(queue.broker_name, broker_id)
    if found is not None:
        go(*found)
        return

    def fetched(result: TopicRoute | RoquetError) -> None:
        found = client.routes.reader(queue.broker_name, broker_id)
        if found is not None:
            go(*found)
        elif isinstance(result, RoquetError):
            failed(result)
        else:
            failed(NoRoute(f"no broker {queue.broker_name!r} in the route of topic {queue.topic!r}; it may be down"))

    client.routes.fetch(queue.topic, fetched)


def read_header(kind: type[H], answer: Command, address: str) -> H:
    """The typed header of an answer. Raises BadAnswer."""
    try:
        return decode(kind, answer.fields)
    except Refused as refusal:
        raise BadAnswer(f"{address} answered with fields that do not fit: {refusal.remark}") from None


class QueueCalls:
    def __init__(self, client: ClientCore) -> None:
        self.client = client

    def min_offset(self, queue: MessageQueue, done: GotNumber) -> None:
        """The first offset that still exists."""
        self._number(queue, RequestCode.GET_MIN_OFFSET, encode(queue_header(queue)), done)

    def max_offset(self, queue: MessageQueue, done: GotNumber) -> None:
        """One past the last offset."""
        self._number(queue, RequestCode.GET_MAX_OFFSET, encode(queue_header(queue)), done)

    def search_offset(self, queue: MessageQueue, timestamp_ms: int, done: GotNumber) -> None:
        """The offset of what was stored nearest to this time."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, broker_name=queue.broker_name)
        self._number(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, encode(header), done)

    def earliest_time(self, queue: MessageQueue, done: GotNumber) -> None:
        """Store time of the first message that still exists, ms."""

        def go(address: str, _: int) -> None:
            def answered(result: Command | RoquetError) -> None:
                if isinstance(result, RoquetError):
                    done(result)
                    return
                try:
                    done(read_header(TimestampResponseHeader, result, address).timestamp)
                except RoquetError as error:
                    done(error)

            self.client.call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, encode(queue_header(queue)), answered)

        locate(self.client, queue, done, go)

    def fetch_offset(self, group: str, queue: MessageQueue, done: GotNumber) -> None:
        """How far the group has come; NO_OFFSET (-1) when it has no progress there."""
        header = QueryOffsetHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        self._number(queue, RequestCode.QUERY_CONSUMER_OFFSET, encode(header), done)

    def update_offset(self, group: str, queue: MessageQueue, offset: int, done: GotNumber | None = None) -> None:
        """Remember how far the group has come. Without `done` it is oneway, as upstream sends it."""
        header = UpdateOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset, broker_name=queue.broker_name
        )
        fields = encode(header)

        def go(address: str, _: int) -> None:
            if done is None:
                self.client.caller.oneway(address, self.client.command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
                return

            def answered(result: Command | RoquetError) -> None:
                done(result if isinstance(result, RoquetError) else offset)

            self.client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields, answered)

        locate(self.client, queue, done or _ignore, go)

    def _number(self, queue: MessageQueue, code: RequestCode, fields: dict[str, str], done: GotNumber) -> None:
        def go(address: str, _: int) -> None:
            def answered(result: Command | RoquetError) -> None:
                if isinstance(result, RoquetError):
                    done(result)
                elif result.code == ResponseCode.QUERY_NOT_FOUND:
                    done(NO_OFFSET)
                else:
                    try:
                        number = read_header(OffsetResponseHeader, result, address).offset
                    except RoquetError as error:
                        done(error)
                        return
                    done(number)

            accept = (0, ResponseCode.QUERY_NOT_FOUND) if code == RequestCode.QUERY_CONSUMER_OFFSET else (0,)
            self.client.call(address, code, fields, answered, accept=accept)

        locate(self.client, queue, done, go)


def queue_header(queue: MessageQueue) -> QueueHeader:
    return QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)


def _ignore(_: object) -> None:
    pass
