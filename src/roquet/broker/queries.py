"""Questions about what is stored: offsets of a queue, a queue's offset at a time, messages by key and by id.

A queue that does not exist answers as an empty one, as upstream's does.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from roquet.broker.handler import answers
from roquet.broker.part import Part
from roquet.ports import Peer
from roquet.settings import MIB
from roquet.store.queue import ConsumeQueue
from roquet.wire.calls import queues as calls
from roquet.wire.calls.call import Call
from roquet.wire.calls.pulls import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QueryMessageResponseHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import Record

ANSWER_MAX = 15 * MIB
"""Bytes of records in one answer: a frame holds 16 MiB, and clients close the connection on a longer one."""


class Queries(Part):
    """No state of its own."""

    @answers(calls.GET_MAX_OFFSET)
    def max_offset(self, peer: Peer, command: Command) -> Command:
        """30: one past the last message that consumers may see."""
        queue = self._queue(calls.GET_MAX_OFFSET, command)
        return calls.GET_MAX_OFFSET.reply(command, calls.OffsetResponseHeader(0 if queue is None else queue.visible))

    @answers(calls.GET_MIN_OFFSET)
    def min_offset(self, peer: Peer, command: Command) -> Command:
        queue = self._queue(calls.GET_MIN_OFFSET, command)
        return calls.GET_MIN_OFFSET.reply(command, calls.OffsetResponseHeader(0 if queue is None else queue.first))

    @answers(calls.GET_EARLIEST_MSG_STORETIME)
    def earliest_time(self, peer: Peer, command: Command) -> Command:
        """32; -1 when the queue is empty."""
        queue = self._queue(calls.GET_EARLIEST_MSG_STORETIME, command)
        first_ms = -1 if queue is None else self.store.first_store_time(queue)
        return calls.GET_EARLIEST_MSG_STORETIME.reply(command, calls.TimestampResponseHeader(first_ms))

    def _queue(self, call: Call[calls.QueueHeader, Any, Any, Any], command: Command) -> ConsumeQueue | None:
        header = call.read_header(command)
        return self.store.find_queue(header.topic, header.queue_id)

    @answers(calls.SEARCH_OFFSET_BY_TIMESTAMP)
    def by_time(self, peer: Peer, command: Command) -> Command:
        """29. 5.x says which side it wants: LOWER is the first stored at or after the time, UPPER the last at or before it."""
        header = calls.SEARCH_OFFSET_BY_TIMESTAMP.read_header(command)
        queue = self.store.find_queue(header.topic, header.queue_id)
        if queue is None or queue.visible <= queue.first:
            offset = 0 if queue is None else queue.first
        elif header.boundary_type is None:
            offset = self.store.offset_by_time(queue, header.timestamp)
        elif header.boundary_type.upper() == "UPPER":
            offset = max(self.store.times(queue).last_until(header.timestamp), queue.first)
        else:
            offset = self.store.times(queue).first_from(header.timestamp)
        return calls.SEARCH_OFFSET_BY_TIMESTAMP.reply(command, calls.OffsetResponseHeader(offset))

    @answers(QUERY_MESSAGE)
    def by_key(self, peer: Peer, command: Command) -> Command:
        """12. Records of other keys with the same hash may be among them; clients look again, as with upstream."""
        header = QUERY_MESSAGE.read_header(command)
        settings = self.settings
        wanted = settings.default_query_max_num if header.unique_key_query else header.max_num
        records, last_ms, last_offset = self.store.query(
            header.topic, header.key, max(0, min(wanted, settings.max_msgs_num_batch)), header.begin_timestamp, header.end_timestamp
        )
        if self.check_record is not None:  # other topics' messages with the same hash are not for whoever may read this one
            records = [record for record in records if Record.decode(record, check_crc=False).topic == header.topic]
        newest = QueryMessageResponseHeader(last_ms, last_offset)
        if not records:
            remark = "can not find message, maybe time range not correct"
            return QUERY_MESSAGE.reply(command, newest, code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
        fitting = max(1, sum(size <= ANSWER_MAX for size in accumulate(map(len, records))))
        return QUERY_MESSAGE.reply(command, newest, b"".join(records[:fitting]))

    @answers(VIEW_MESSAGE_BY_ID)
    def by_id(self, peer: Peer, command: Command) -> Command:
        offset = VIEW_MESSAGE_BY_ID.read_header(command).offset
        record = self.record_at(offset, f"can not find message by the offset, {offset}")
        if self.check_record is not None:
            self.check_record(peer, command, Record.decode(record, check_crc=False).topic)
        return VIEW_MESSAGE_BY_ID.reply(command, body=record)
