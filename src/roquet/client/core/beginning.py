"""Where a group begins in a queue: where it stopped, and if it never was there, at one of three places.

              ordinary topic                    retry topic
first         the first that still exists       0
last          the end                           0
timestamp     what was stored at that time      the end
"""

from __future__ import annotations

from roquet.client.core.offsets import MemberOffsets
from roquet.client.core.queue_calls import NO_OFFSET, QueueCalls
from roquet.message import MessageQueue
from roquet.wire.calls.members import ConsumeFromWhere
from roquet.wire.names import is_retry_topic

FROM_FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
FROM_LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
FROM_TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
HALF_AN_HOUR_MS = 30 * 60_000


async def where_to_begin(
    calls: QueueCalls, offsets: MemberOffsets, queue: MessageQueue, consume_from: ConsumeFromWhere, timestamp_ms: int
) -> int:
    stored = await offsets.load(queue)
    if stored != NO_OFFSET:
        return stored
    retry = is_retry_topic(queue.topic)
    if consume_from is FROM_TIMESTAMP and not retry:
        return await calls.search_offset(queue, timestamp_ms)
    if consume_from is FROM_TIMESTAMP or (consume_from is not FROM_FIRST and not retry):
        return await calls.max_offset(queue)
    return 0 if retry else max(await calls.min_offset(queue), 0)
