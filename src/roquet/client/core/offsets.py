"""A group's progress, as one consumer keeps it: at the brokers (clustering) or in a file of this client (broadcasting)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from roquet.client.core.process_queue import NOTHING, ProcessQueue
from roquet.client.core.queue_calls import NO_OFFSET, QueueCalls
from roquet.client.core.tasks import ignore
from roquet.errors import RoquetError
from roquet.message import MessageQueue
from roquet.wire.calls.offsets import ResetOffsetBody
from roquet.wire.fastjson import dumps_pretty

log = logging.getLogger(__name__)


class MemberOffsets:
    """What a consumer knows of its group's progress, and where that is written down."""

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self.moved: dict[ProcessQueue, None] = {}
        """Messages of these were finished. How far that brings them is asked when somebody wants to know, not once a message."""
        self.writable: Callable[[MessageQueue], bool] = lambda queue: True
        """Whether the queue is surely ours now; progress in one that may be somebody else's is kept back."""

    @property
    def table(self) -> dict[MessageQueue, int]:
        """How far each queue has come."""
        if self.moved:
            moved, self.moved = self.moved, {}
            for process_queue in moved:
                if (progress := process_queue.progress) != NOTHING:
                    self.update(process_queue.queue, progress)
        return self._table

    async def fetch(self, queue: MessageQueue) -> int:
        """How far the group has come, as it is written down; NO_OFFSET (-1) when it never was there."""
        return self.table.get(queue, NO_OFFSET)

    async def load(self, queue: MessageQueue) -> int:
        """Where the group was; NO_OFFSET (-1) when it never was anywhere."""
        return await self.fetch(queue)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        if not increase_only or offset > self.table.get(queue, NO_OFFSET):
            self.table[queue] = offset

    def persist(self) -> None:
        """Write down what changed since the last time."""
        raise NotImplementedError

    async def persist_surely(self) -> None:
        """Write down everything, and wait until it is: for the end."""
        self.persist()

    def release(self, queue: MessageQueue) -> None:
        """The queue is no longer ours: write its progress down and let go of it."""
        self.persist()

    async def release_surely(self, queue: MessageQueue) -> None:
        """The same, and wait until it is written (or cannot be)."""
        self.release(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write these down, and wait until they are. Raises what went wrong."""
        for queue, offset in offsets.items():
            self.update(queue, offset, increase_only=False)
        self.persist()

    def forget(self, queue: MessageQueue) -> None:
        """The queue is somebody else's already: write nothing."""


class RemoteOffsets(MemberOffsets):
    """Kept by the queue's broker. Sent oneway and only when changed; pulls carry it along too."""

    def __init__(self, group: str, calls: QueueCalls) -> None:
        super().__init__()
        self.group = group
        self._calls = calls
        self._tasks = calls.client.tasks
        self._sent: dict[MessageQueue, int] = {}

    async def fetch(self, queue: MessageQueue) -> int:
        return await self._calls.fetch_offset(self.group, queue)

    async def load(self, queue: MessageQueue) -> int:
        stored = await self.fetch(queue)
        if stored >= 0:
            self.table[queue] = self._sent[queue] = stored
        return stored

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        super().update(queue, offset, increase_only=increase_only)
        if not increase_only:
            # Said on purpose, so it is sent even if it is what was sent last: pulls may have carried a higher one since.
            self._sent.pop(queue, None)

    def persist(self) -> None:
        for queue in self._changed():
            if self.writable(queue):
                self._send(queue)

    async def persist_surely(self) -> None:
        changed = {queue: self.table[queue] for queue in self._changed()}
        self._sent.update(changed)
        await self._tasks.all(self._write(queue, offset) for queue, offset in changed.items())

    def release(self, queue: MessageQueue) -> None:
        if queue in self.table and self.table[queue] != self._sent.get(queue):
            self._send(queue)
        self.forget(queue)

    async def release_surely(self, queue: MessageQueue) -> None:
        offset = self.table.get(queue)
        changed = offset is not None and offset != self._sent.get(queue)
        self.forget(queue)
        if offset is not None and changed:
            await self._write(queue, offset)

    async def _write(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._calls.update_offset(self.group, queue, offset)
        except RoquetError as error:
            log.warning("! progress of group %s in %s is not written: %s; some messages will come again", self.group, queue, error)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        results = await self._tasks.each(self._calls.update_offset(self.group, queue, offset) for queue, offset in offsets.items())
        for (queue, offset), result in zip(offsets.items(), results, strict=True):
            if result is None:
                self.table[queue] = self._sent[queue] = offset
        for result in results:
            if result is not None:
                raise result

    def forget(self, queue: MessageQueue) -> None:
        self.table.pop(queue, None)
        self._sent.pop(queue, None)

    def _changed(self) -> list[MessageQueue]:
        return [queue for queue, offset in self.table.items() if offset != self._sent.get(queue)]

    def _send(self, queue: MessageQueue) -> None:
        self._sent[queue] = self.table[queue]
        self._tasks.start(self._calls.send_offset(self.group, queue, self.table[queue]), ignore)


class OffsetFile(Protocol):
    """Where a broadcasting consumer keeps its progress: ~/.rocketmq_offsets/<clientId>/<group>/offsets.json."""

    def read(self) -> list[bytes]:
        """The candidates, the best first: the file, then its backup. Empty when there is none."""
        ...

    def replace(self, data: bytes) -> None:
        """All or nothing. Raises OSError."""
        ...


class LocalOffsets(MemberOffsets):
    """Kept in a file, also of queues that were let go, for they may come back. Upstream's format:
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12}}."""

    def __init__(self, file: OffsetFile) -> None:
        super().__init__()
        self._file = file
        for data in file.read():
            try:
                self._table = dict(ResetOffsetBody.decode(data).offset_table)
            except RoquetError as error:
                log.warning("! a file of broadcast offsets cannot be read, the next one is tried: %s", error)
            else:
                break
        self._written = dict(self.table)

    def persist(self) -> None:
        if self.table == self._written:
            return
        try:
            self._file.replace(dumps_pretty({"offsetTable": dict(sorted(self.table.items()))}))
        except OSError as error:
            log.error("! broadcast offsets are not written: %s; after a restart messages will come again", error)
        else:
            self._written = dict(self.table)
