"""Consumer offsets: read, set, reset and copied; the bounds of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from roquet.admin.asking import Broker, gather_bounded
from roquet.admin.groups import Groups
from roquet.admin.topics import QueueStatus, Topics
from roquet.errors import ClientError
from roquet.message import MessageQueue
from roquet.wire.calls import offsets as offset_calls
from roquet.wire.calls import queues as queue_calls
from roquet.wire.calls.call import Call, Header
from roquet.wire.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class QueueMove:
    """Where a group goes on in one queue, and where it was; None: it had not read there."""

    queue: MessageQueue
    consumed: int | None
    target: int


@dataclass(frozen=True, slots=True)
class ProgressReset:
    group: str
    topic: str
    moves: list[QueueMove]
    members: list[str]
    """Client ids of the members that were told; empty: the offsets were committed."""


ResetTo = Literal["first", "last"] | datetime | int
"""The first or the end of what is there, a time, or a queue offset."""


class OffsetCalls(Topics, Groups):
    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The queue offset the group reads next; None when it has none."""
        header = offset_calls.QueryOffsetHeader(group, queue.topic, queue.queue_id)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self.call(await self.master_of(queue), offset_calls.QUERY_CONSUMER_OFFSET, header, accept=accept)
        return answer.header.offset if answer.ok else None

    async def set_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Members that are running keep their own position; stop them first."""
        header = offset_calls.UpdateOffsetHeader(group, queue.topic, queue.queue_id, offset)
        await self.call(await self.master_of(queue), offset_calls.UPDATE_CONSUMER_OFFSET, header)

    async def reset_progress(
        self, group: str, topic: str, to: ResetTo, *, queue_id: int | None = None, dry_run: bool = False
    ) -> ProgressReset:
        """Let a group read a topic again, or skip a part of it: from its first or last message, from a time, or from an offset.

        Members that run are told by their broker and go there; they commit it within seconds. Without members the offsets
        are committed here. Members cannot be told of one queue or of an offset: raises ClientError while any are running.
        """
        found = [one for one in await self.topic_status(topic) if queue_id is None or one.queue.queue_id == queue_id]
        if not found:
            raise ClientError(f"topic {topic!r} has no queue {queue_id}; see which it has: roquet topic status {topic}")
        consumed = {one.queue: one.consumer_offset for one in await self.progress(group, topic)}
        targets = await gather_bounded(found, lambda one: self._target(one, to))
        members = (await self.members(group)).client_ids()
        moves = [QueueMove(one.queue, consumed.get(one.queue), target) for one, target in targets.items()]
        if not dry_run and members:
            if queue_id is not None or not isinstance(to, str | datetime):
                raise ClientError(
                    f"group {group!r} has {len(members)} running members, and members can be told to move in all queues to a time only; "
                    f"stop them first ({', '.join(members[:3])}), or leave out the queue and the offset"
                )
            moves = await self._reset_members(group, topic, to, moves)
        elif not dry_run:
            await gather_bounded(moves, lambda move: self.set_consumer_offset(group, move.queue, move.target))
        return ProgressReset(group, topic, moves, members)

    async def _target(self, status: QueueStatus, to: ResetTo) -> int:
        if to == "first":
            return status.min_offset
        if to == "last":
            return status.max_offset
        if isinstance(to, datetime):
            return await self.search_offset(status.queue, int(to.timestamp() * 1000))
        if not isinstance(to, int) or not status.min_offset <= to <= status.max_offset:
            queue = status.queue
            raise ClientError(
                f"{to!r} is no offset of {queue.topic} {queue.queue_id} on {queue.broker_name}, which holds "
                f"{status.min_offset} to {status.max_offset}"
            )
        return to

    async def _reset_members(self, group: str, topic: str, to: str | datetime, moves: list[QueueMove]) -> list[QueueMove]:
        """222 to every broker; where the group has no member connected, its offsets are committed."""
        timestamp_ms = int(to.timestamp() * 1000) if isinstance(to, datetime) else {"first": 0, "last": -1}[to]
        header = offset_calls.ResetOffsetHeader(topic, group, timestamp_ms, True)
        accept = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
        masters = await self.masters_with(topic)
        answers = await self._from_all(masters, offset_calls.INVOKE_BROKER_TO_RESET_OFFSET, header, accept=accept)
        moved = {queue: offset for answer in answers.values() if answer.ok for queue, offset in answer.body.offset_table.items()}
        alone = {masters[address] for address, answer in answers.items() if not answer.ok}
        await gather_bounded(
            [move for move in moves if move.queue.broker_name in alone],
            lambda move: self.set_consumer_offset(group, move.queue, move.target),
        )
        return [QueueMove(move.queue, move.consumed, moved.get(move.queue, move.target)) for move in moves]

    async def clone_progress(self, source: str, target: str, topic: str | None = None, *, offline: bool = True) -> list[Broker]:
        """Another group goes on from where this one is, in one topic or in all. Members of the target must not be running.

        `offline`: copy also topics that the running members of the source do not subscribe to any more.
        """
        members = (await self.members(target)).client_ids()
        if members:
            raise ClientError(
                f"group {target!r} has {len(members)} running members, which would write their own progress over the copy; "
                f"stop them first: {', '.join(members[:3])}"
            )
        masters = await self.masters()
        header = offset_calls.CloneOffsetHeader(source, target, topic, offline)
        await self._on_all(masters, f"progress of {target!r}", offset_calls.CLONE_GROUP_OFFSET, header)
        return masters

    async def member_positions(self, group: str, topic: str, client_id: str | None = None) -> dict[str, dict[MessageQueue, int]]:
        """How far each running member says it is, by client id. Raises Rejected when a broker knows no member."""
        header = offset_calls.ConsumerStatusHeader(topic, group, client_id)
        answers = await self._from_all(await self.masters_with(topic), offset_calls.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        found: dict[str, dict[MessageQueue, int]] = {}
        for answer in answers.values():
            for name, positions in answer.body.consumer_table.items():
                found.setdefault(name, {}).update(positions)
        return found

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first queue offset that the queue still has."""
        return await self._offset(queue, queue_calls.GET_MIN_OFFSET, queue_calls.QueueHeader(queue.topic, queue.queue_id))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will get."""
        return await self._offset(queue, queue_calls.GET_MAX_OFFSET, queue_calls.QueueHeader(queue.topic, queue.queue_id))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first queue offset stored at that time or later."""
        header = queue_calls.SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        return await self._offset(queue, queue_calls.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, call: Call[Header, Any, queue_calls.OffsetResponseHeader, Any], header: Header) -> int:
        return (await self.call(await self.master_of(queue), call, header)).header.offset
