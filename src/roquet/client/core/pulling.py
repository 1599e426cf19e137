"""One pull: ask a queue's broker for what comes after an offset. Shared by both kinds of consumer."""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from roquet.client.core.instance import ClientCore
from roquet.client.core.queue_calls import locate, read_header
from roquet.errors import ConnectFailed, Rejected, RoquetError
from roquet.message import MessageQueue, PulledMessage, QueueReach, ReceivedMessage
from roquet.routing.subscription import TAG
from roquet.wire.calls.call import Answer, Records
from roquet.wire.calls.pulls import PULL_MESSAGE, PullHeader, PullResponseHeader
from roquet.wire.codes import PullFlag, ResponseCode
from roquet.wire.record import cut, decode_readable

log = logging.getLogger(__name__)

PULL_TIMEOUT_MS = 10_000
SUSPEND_MS = 15_000
SUSPENDED_TIMEOUT_MS = 30_000

BUSY_MS = 20
"""Wait after the broker's own flow control."""
LOST_MS = 1_000
"""Wait after a lost connection."""
TROUBLE_MS = 3_000
"""Wait after any other failure."""
HASTY_MS = 100
"""An empty answer that came sooner, and without progress, did not wait at the broker; so we do, to not spin."""

COMMIT_OFFSET_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG, LITE_PULL_FLAG = map(
    int, (PullFlag.COMMIT_OFFSET, PullFlag.SUSPEND, PullFlag.SUBSCRIPTION, PullFlag.LITE_PULL)
)
"""Plain numbers: to join two of the enumeration took 0.6 us, and a pull does it twice."""
BUSY_CODES = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
UNKNOWN_TO_BROKER = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # the offset is the end of the queue
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # there were some, none with the tags; go on from next_offset
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # there is no such offset; next_offset is the nearest that is


STATUSES = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
ACCEPTED = tuple(STATUSES)


class PullResult(NamedTuple):
    """What one pull found, and where the next one begins."""

    status: PullStatus
    next_offset: int
    """Where the next pull should begin."""
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage]


class Puller:
    """Pulls for one group, and remembers which replica each queue's broker suggested."""

    def __init__(self, client: ClientCore, group: str) -> None:
        self.client = client
        self.group = group
        self.suggested: dict[MessageQueue, int] = {}
        self.damaged = 0
        """Messages that could not be read and were stepped over."""

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        *,
        subscription: str | None = None,
        expression_type: str = TAG,
        sub_version: int = 0,
        commit_offset: int | None = None,
        suspend_ms: int = 0,
        timeout_ms: int = PULL_TIMEOUT_MS,
        lite: bool = False,
    ) -> PullResult:
        """`subscription`: the expression to filter by, tags or (`expression_type`) SQL; None: what the group's heartbeat said.
        `suspend_ms`: how long the broker may hold the request when there is nothing. `commit_offset`: the group's progress, sent along."""
        address, broker_id = await locate(self.client, queue, broker_id=self.suggested.get(queue, 0))
        flags = LITE_PULL_FLAG if lite else 0
        if suspend_ms:
            flags |= SUSPEND_FLAG
        if subscription is not None:
            flags |= SUBSCRIPTION_FLAG
        if commit_offset is not None and broker_id == 0:  # a slave keeps no progress
            flags |= COMMIT_OFFSET_FLAG
        header = PullHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count_max,
            sys_flag=flags,
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=suspend_ms,
            sub_version=sub_version,
            subscription=subscription,
            expression_type=expression_type,
            broker_name=queue.broker_name,
        )
        answer = await self.client.call(address, PULL_MESSAGE, header, timeout_ms=timeout_ms, accept=ACCEPTED)
        return self._read(queue, answer, address)

    def _read(self, queue: MessageQueue, answer: Answer[PullResponseHeader, Records], address: str) -> PullResult:
        header = read_header(answer, address)
        status = STATUSES[answer.code]
        self.suggested[queue] = header.suggest_which_broker_id
        messages: list[ReceivedMessage] = []
        if status is PullStatus.FOUND:
            cuts = cut(answer.command.body, queue.topic.encode(), queue.queue_id)
            reach = QueueReach(header.min_offset, header.max_offset)
            if cuts is None:
                messages = self._read_one_by_one(queue, answer.command.body, address)
                for message in messages:
                    message.reach = reach
            else:
                messages = [PulledMessage(raw, offset, size, queue, reach) for raw, offset, size in cuts]
            if not messages:
                status = PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, header.next_begin_offset, header.min_offset, header.max_offset, messages)

    def _read_one_by_one(self, queue: MessageQueue, data: bytes, address: str) -> list[ReceivedMessage]:
        records, troubles = decode_readable(data)
        for trouble in troubles:
            self.damaged += 1
            log.error(
                "! a message of %s from %s cannot be read and is stepped over: %s. It may be damaged in the broker's log",
                queue, address, trouble,
            )  # fmt: skip
        topic, queue_id, broker_name = queue.topic, queue.queue_id, queue.broker_name
        return [
            ReceivedMessage(record, broker_name, queue if record.queue_id == queue_id and record.topic == topic else None)
            for record in records
        ]


def wait_after(client: ClientCore, queue: MessageQueue, error: RoquetError) -> int:
    """A pull of this queue failed: do what may help, and say how long to wait before the next."""
    if isinstance(error, Rejected) and error.code in BUSY_CODES:
        return BUSY_MS
    log.info("! pull of %s: %s", queue, error)
    if isinstance(error, Rejected) and error.code in UNKNOWN_TO_BROKER:
        client.heartbeat_soon()  # it restarted, or has not heard of our subscription yet
        return LOST_MS
    if isinstance(error, ConnectFailed):
        client.refresh(queue.topic)
        return LOST_MS
    return TROUBLE_MS
