"""Questions about what is stored: offsets of a queue, a queue's offset at a time, messages by key and by id.

A queue that does not exist answers as an empty one, as upstream's does.
"""

from __future__ import annotations

from roquet.broker.handler import Handler
from roquet.broker.part import Part
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.settings import MIB, BrokerSettings
from roquet.store.queue import ConsumeQueue
from roquet.store.store import Store
from roquet.wire.calls.queries import QueryMessageHeader, QueryMessageResponseHeader, ViewMessageHeader
from roquet.wire.calls.queues import OffsetResponseHeader, QueueHeader, SearchOffsetHeader, TimestampResponseHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import decode, encode

ANSWER_MAX = 15 * MIB
"""Bytes of records in one answer: a frame holds 16 MiB, and clients close the connection on a longer one."""


class Queries(Part):
    """No state of its own."""

    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self.store = store
        self.settings = settings

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.by_key,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
            RequestCode.VIEW_MESSAGE_BY_ID: self.by_id,
        }

    def max_offset(self, peer: Peer, command: Command) -> Command:
        """30: one past the last message that consumers may see."""
        queue = self._queue(command)
        return command.reply(fields=encode(OffsetResponseHeader(0 if queue is None else queue.visible)))

    def min_offset(self, peer: Peer, command: Command) -> Command:
        """31."""
        queue = self._queue(command)
        return command.reply(fields=encode(OffsetResponseHeader(0 if queue is None else queue.first)))

    def earliest_time(self, peer: Peer, command: Command) -> Command:
        """32; -1 when the queue is empty."""
        queue = self._queue(command)
        return command.reply(fields=encode(TimestampResponseHeader(-1 if queue is None else self.store.first_store_time(queue))))

    def _queue(self, command: Command) -> ConsumeQueue | None:
        header = decode(QueueHeader, command.fields)
        return self.store.find_queue(header.topic, header.queue_id)

    def by_time(self, peer: Peer, command: Command) -> Command:
        """29. 5.x says which side it wants: LOWER is the first stored at or after the time, UPPER the last at or before it."""
        header = decode(SearchOffsetHeader, command.fields)
        queue = self.store.find_queue(header.topic, header.queue_id)
        if queue is None or queue.visible <= queue.first:
            offset = 0 if queue is None else queue.first
        elif header.boundary_type is None:
            offset = self.store.offset_by_time(queue, header.timestamp)
        elif header.boundary_type.upper() == "UPPER":
            offset = max(self.store.times(queue).last_until(header.timestamp), queue.first)
        else:
            offset = self.store.times(queue).first_from(header.timestamp)
        return command.reply(fields=encode(OffsetResponseHeader(offset)))

    def by_key(self, peer: Peer, command: Command) -> Command:
        """12. Records of other keys with the same hash may be among them; clients look again, as with upstream."""
        header = decode(QueryMessageHeader, command.fields)
        settings = self.settings
        wanted = settings.default_query_max_num if header.unique_key_query else header.max_num
        records, last_ms, last_offset = self.store.query(
            header.topic, header.key, max(0, min(wanted, settings.max_msgs_num_batch)), header.begin_timestamp, header.end_timestamp
        )
        fields = encode(QueryMessageResponseHeader(last_ms, last_offset))
        if not records:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", fields)
        size, count = len(records[0]), 1
        while count < len(records) and size + len(records[count]) <= ANSWER_MAX:
            size += len(records[count])
            count += 1
        return command.reply(fields=fields, body=b"".join(records[:count]))

    def by_id(self, peer: Peer, command: Command) -> Command:
        """33."""
        header = decode(ViewMessageHeader, command.fields)
        try:
            record = self.store.record_at(header.offset)
        except LookupError:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}") from None
        return command.reply(body=record)
