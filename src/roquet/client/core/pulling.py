"""One pull: ask a queue's broker for what comes after an offset. Shared by both kinds of consumer."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from roquet.client.core.failures import BadAnswer
from roquet.client.core.instance import ClientCore
from roquet.client.core.queue_calls import locate, read_header
from roquet.errors import RoquetError
from roquet.message import MessageQueue, ReceivedMessage
from roquet.wire.codes import PullFlag, RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import PullHeader, PullResponseHeader, encode
from roquet.wire.record import decode_records

PULL_TIMEOUT_MS = 10_000
SUSPEND_MS = 15_000
SUSPENDED_TIMEOUT_MS = 30_000


class PullStatus(Enum):
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


class PullResult(NamedTuple):
    status: PullStatus
    next_offset: int
    """Where the next pull should begin."""
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage]


Pulled = Callable[[PullResult | RoquetError], None]


class Puller:
    """Pulls for one group, and remembers which replica each queue's broker suggested."""

    def __init__(self, client: ClientCore, group: str) -> None:
        self.client = client
        self.group = group
        self.suggested: dict[MessageQueue, int] = {}

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        done: Pulled,
        *,
        subscription: str | None = None,
        sub_version: int = 0,
        commit_offset: int | None = None,
        suspend_ms: int = 0,
        timeout_ms: int = PULL_TIMEOUT_MS,
    ) -> None:
        """`subscription`: the tag expression to filter by; None: what the group's heartbeat said. `suspend_ms`: how long
        the broker may hold the request when there is nothing. `commit_offset`: the group's progress, sent along."""

        def go(address: str, broker_id: int) -> None:
            flags = 0
            if suspend_ms:
                flags |= PullFlag.SUSPEND
            if subscription is not None:
                flags |= PullFlag.SUBSCRIPTION
            if commit_offset is not None and broker_id == 0:  # a slave keeps no progress
                flags |= PullFlag.COMMIT_OFFSET
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
                expression_type="TAG",
                broker_name=queue.broker_name,
            )

            def answered(result: Command | RoquetError) -> None:
                if isinstance(result, Command):
                    try:
                        result_or_error: PullResult | RoquetError = self._read(queue, result, address)
                    except RoquetError as error:
                        result_or_error = error
                    done(result_or_error)
                else:
                    done(result)

            self.client.call(address, RequestCode.PULL_MESSAGE, encode(header), answered, timeout_ms=timeout_ms, accept=tuple(STATUSES))

        locate(self.client, queue, done, go, broker_id=self.suggested.get(queue, 0))

    def _read(self, queue: MessageQueue, answer: Command, address: str) -> PullResult:
        header = read_header(PullResponseHeader, answer, address)
        status = STATUSES[answer.code]
        self.suggested[queue] = header.suggest_which_broker_id
        messages: list[ReceivedMessage] = []
        if status is PullStatus.FOUND:
            try:
                messages = [ReceivedMessage(record, queue.broker_name) for record in decode_records(answer.body)]
            except RoquetError as error:
                raise BadAnswer(f"{address} sent records of {queue} that cannot be read: {error}; they may be damaged in its log") from None
        return PullResult(status, header.next_begin_offset, header.min_offset, header.max_offset, messages)
