"""Brokers asked one by one, at their own addresses, whatever their role: what each of them shows."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple, Self

from roquet import Admin
from roquet.message import ReceivedMessage
from roquet.wire.calls.pulls import PULL_MESSAGE, PullHeader
from roquet.wire.codes import PullFlag, ResponseCode
from roquet.wire.record import decode_records

PULL_COUNT = 32
ANSWERS = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Pulled(NamedTuple):
    rows: list[dict[str, Any]]
    """As a history's events have them: id, crc, queue, offset."""
    next_offset: int
    first: int
    end: int


class Nodes:
    def __init__(self, namesrv: str, group: str, topic: str, queues: tuple[str, int], timeout_ms: int = 3_000) -> None:
        self._admin = Admin(namesrv, timeout_ms=timeout_ms)
        self._group, self._topic = group, topic
        self._broker_name, count = queues
        self.queue_ids = range(count)

    async def __aenter__(self) -> Self:
        await self._admin.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._admin.__aexit__(*error)

    def queue_name(self, queue_id: int) -> str:
        return f"{self._broker_name}/{queue_id}"

    async def pull(self, address: str, queue_id: int, offset: int) -> Pulled:
        """Raises RoquetError."""
        header = PullHeader(
            consumer_group=self._group, topic=self._topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=PULL_COUNT,
            sys_flag=int(PullFlag.SUBSCRIPTION), subscription="*", expression_type="TAG",
        )  # fmt: skip
        answer = await self._admin.call(address, PULL_MESSAGE, header, accept=ANSWERS)
        rows = [self._row(ReceivedMessage(record, self._broker_name)) for record in decode_records(answer.body.data)]
        return Pulled(rows, answer.header.next_begin_offset, answer.header.min_offset, answer.header.max_offset)

    def _row(self, message: ReceivedMessage) -> dict[str, Any]:
        return {**named_of(message.body), "queue": self.queue_name(message.queue_id), "offset": message.queue_offset}


def named_of(body: bytes) -> dict[str, Any]:
    """The message's id, which its body begins with, and its checksum."""
    return {"id": body.partition(b"|")[0].decode(errors="replace"), "crc": zlib.crc32(body)}
