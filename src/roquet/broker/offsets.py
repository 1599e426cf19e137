"""Consumer offsets: how far each group has come, kept in config/consumerOffset.json as upstream writes it.

    {"offsetTable":{"topic@group":{0:12,1:7}}}

Committing is the hot path: a look-up, an assignment and a mark. The text of each "topic@group" is kept and made again only
when it changed, a portion in each tick, and another thread joins them: writing the file of a large broker does not stall it.

A commit is acknowledged before it is on disk, as upstream has it: a client that finds an older offset after a crash consumes some
messages again. What an operator asks for (a clone, a deletion) is answered when it is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from roquet.broker.fragments import Fragments, member
from roquet.broker.handler import answers
from roquet.broker.part import Shared
from roquet.broker.roles import is_slave
from roquet.broker.saving import SavedDocument, SavedPart
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.wire.calls.offsets import GET_ALL_CONSUMER_OFFSET, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, OffsetTable
from roquet.wire.calls.queues import OffsetResponseHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import QUEUE_ID_MAX
from roquet.wire.names import GROUP_LENGTH_MAX, check, check_group

ENTRIES_MAX = 5_000_000
"""Queues with progress, over all groups. Far above real use; a client that makes names up does not fill the memory."""
TEXTS_A_TURN = 2_000
"""Changed texts that one tick makes."""
RETRY_TOPIC_LENGTH_MAX = GROUP_LENGTH_MAX + len("%RETRY%")

log = logging.getLogger("roquet.broker")


class ConsumerOffsets(SavedPart):
    """State: `_table` by "topic@group" and queue; `texts` is the same as JSON."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.memory_bytes = shared.memory_bytes
        """Messages nearer to the end of the log than a share of this count as in memory."""
        self._table: dict[str, dict[int, int]] = {}
        self._entries = 0
        self.texts = Fragments[str](self._text, TEXTS_A_TURN)
        self.told_here: set[str] = set()
        """On a slave: "topic@group" whose progress consumers told it, and not its master."""
        self._lacking: set[str] = set()  # deleted topics whose progress the last snapshot does not have
        # Progress must not be safer than messages.
        self.saving = SavedDocument(
            shared, "consumerOffset.json", self._snapshot, prepare=self.texts.settle_in_portions, speaks_of_messages=True,
            pause=lambda awaited: 0 if awaited else self.settings.flush_consumer_offset_interval,
            if_failed=True, on_saved=lambda: self.store.deletions.progress_saved(self._lacking),
        )  # fmt: skip

    def load(self) -> None:
        loaded = self.saving.load(OffsetTable.decode)  # one that nobody can read is not passed over: everything would be consumed again
        if loaded is not None:
            self._table = loaded.offset_table
            self._entries = sum(map(len, self._table.values()))

    def open(self) -> None:
        self._forget_deleted()
        if self.store.crashed and not is_slave(self.settings):  # a slave's queues may not reach as far as its log yet
            self._hold_back()
        self.texts.changed(self._table)
        self.texts.settle(self._table)  # now, and not in the first tick that finds a change

    def became_master(self) -> None:
        """Progress may have been copied before the messages that it speaks of."""
        self._hold_back()

    def _hold_back(self) -> None:
        """Progress beyond a queue's end: under ASYNC_FLUSH a power loss took messages that a group had consumed. The next ones
        get those offsets again, and must not count as consumed."""
        for key, queues in self._table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                queue = self.store.find_queue(topic, queue_id)
                end = 0 if queue is None else queue.next
                if offset > end:
                    log.warning("%s/%d: progress of %s is put back from %d to the queue's end, %d", topic, queue_id, key, offset, end)
                    queues[queue_id] = end

    def _forget_deleted(self) -> None:
        """Of topics that were deleted, where a crash came before this file could say so: made again, they count from 0."""
        deletions = self.store.deletions
        if self.store.crashed:
            for topic, deletion in deletions.table.items():
                if not deletion.progress:
                    self.topic_deleted(topic)
        else:
            deletions.progress_saved(set(deletions.table))

    # Progress

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember it; it may go back. Raises Refused for names and numbers that no client of a topic would send."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None or queue_id not in queues or offset < 0:
            queues = self._new(key, group, topic, queue_id, offset)
        queues[queue_id] = offset
        self.texts.stale[key] = None
        self.saving.unsaved = True

    def commit_all(self, group: str, topic: str, rows: list[tuple[tuple[str, int], int]]) -> None:
        """The same for some of this topic's queues, by (topic, queue id)."""
        queues = self._table.get(key := f"{topic}@{group}", {})
        fresh = {place[1]: offset for place, offset in rows}
        if fresh.keys() <= queues.keys():
            queues.update(fresh)
            self.texts.stale[key] = None
            self.saving.unsaved = True
        else:
            for queue_id, offset in fresh.items():
                self.commit(group, topic, queue_id, offset)

    def take_over(self, table: OffsetTable) -> None:
        """A slave takes its master's progress. The larger number wins in each queue: a master that came back with less than it had, or with
        less than consumers have told this slave meanwhile, sets nobody back (E13)."""
        for key, theirs in table.offset_table.items():
            topic, _, group = key.partition("@")
            ours = self._table.get(key, {})
            for queue_id, offset in theirs.items():
                if offset > ours.get(queue_id, -1):
                    try:
                        self.commit(group, topic, queue_id, offset)
                    except Refused as refused:
                        log.warning("progress %d of %s in queue %d is not taken over: %s", offset, key, queue_id, refused.remark)
                        break

    def ahead_of(self, table: OffsetTable) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, queue, offset) where consumers have told this slave more than its master knows."""
        for key in sorted(self.told_here):
            topic, _, group = key.partition("@")
            theirs, ours = table.offset_table.get(key, {}), self._table.get(key, {})
            more = [(group, topic, queue_id, offset) for queue_id, offset in ours.items() if offset > theirs.get(queue_id, -1)]
            if not more:
                self.told_here.discard(key)
            yield from more

    def _new(self, key: str, group: str, topic: str, queue_id: int, offset: int) -> dict[int, int]:
        """The table that takes a queue's first offset."""
        if offset < 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"consumer offset {offset} of {key[:300]} is negative; offsets count from 0")
        if not 0 <= queue_id <= QUEUE_ID_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"queueId {queue_id} of {key[:300]}, allowed are 0 to {QUEUE_ID_MAX}")
        queues = self._table.get(key)
        if queues is None:
            check_group(group)
            check(topic, "topic", RETRY_TOPIC_LENGTH_MAX)
        if self._entries >= ENTRIES_MAX:
            text = f"consumer offsets of {self._entries} queues are kept, which is the limit: delete unused groups with their offsets"
            self.notices.warn("offsets full", text)
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        self._entries += 1
        return self._table.setdefault(key, {}) if queues is None else queues

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """-1 when the group has no progress in this queue."""
        queues = self._table.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """queue -> offset; empty when there is none. To be read only."""
        return self._table.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        end = "@" + group
        return [key[: -len(end)] for key in self._table if key.endswith(end)]

    def groups_of(self, topic: str) -> list[str]:
        start = topic + "@"
        return [key[len(start) :] for key in self._table if key.startswith(start)]

    def topics_by_group(self) -> dict[str, list[str]]:
        """All of it at once, for reports over every group."""
        found: dict[str, list[str]] = {}
        for key in self._table:
            topic, _, group = key.partition("@")
            found.setdefault(group, []).append(topic)
        return found

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self._table if key.endswith("@" + group)])

    def topic_deleted(self, topic: str) -> None:
        """The topic is gone. If it comes again its offsets count from 0, and old ones would point past its end."""
        self._remove([key for key in self._table if key.startswith(topic + "@")])

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self._entries -= len(self._table.pop(key))
            self.texts.removed(key)
            self.saving.unsaved = True

    # The file

    def _snapshot(self) -> Callable[[], bytes]:
        texts, self._lacking = list(self.texts.texts.values()), set(self.store.deletions.table)
        return lambda: encode_pretty(texts)

    def encode(self) -> bytes:
        """The answer of 43."""
        return b'{"offsetTable":{' + b",".join([text + b"}" for text in self.texts.members()]) + b"}}"

    def _text(self, key: str) -> bytes:
        """It lacks its closing brace, which the two layouts place differently."""
        return member(key, ("{" + ",".join([f"{queue}:{offset}" for queue, offset in self._table[key].items()])).encode())

    # Requests

    @answers(QUERY_CONSUMER_OFFSET)
    def query(self, peer: Peer, command: Command) -> Command:
        """14. A group without progress starts at 0 while the queue still has its first message near at hand."""
        header = QUERY_CONSUMER_OFFSET.read_header(command)
        offset = self.find(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first")
            if not self._begins_near(header.topic, header.queue_id):
                raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        return QUERY_CONSUMER_OFFSET.reply(command, OffsetResponseHeader(offset))

    def _begins_near(self, topic: str, queue_id: int) -> bool:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None:
            return True
        if queue.first > 0:
            return False
        entry = queue.entry(0) if queue.visible > 0 else None
        if entry is None:
            return True
        return self.store.log.written - entry[0] <= self.memory_bytes * self.settings.access_message_in_memory_max_ratio // 100

    @answers(UPDATE_CONSUMER_OFFSET)
    def update(self, peer: Peer, command: Command) -> Command:
        """15. The topic need not be one that the group subscribes to, as in 4.9."""
        header = UPDATE_CONSUMER_OFFSET.read_header(command)
        if self.settings.broker_role == "SLAVE":
            self.told_here.add(f"{header.topic}@{header.consumer_group}")
        self.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return command.reply()

    @answers(GET_ALL_CONSUMER_OFFSET)
    def get_all(self, peer: Peer, command: Command) -> Command:
        return GET_ALL_CONSUMER_OFFSET.reply(command, body=self.encode())


def encode_pretty(texts: list[bytes]) -> bytes:
    """The file as Java lays it out."""
    body = b",".join([b"\n\t\t%b\n\t\t}" % text for text in texts])
    return b'{\n\t"offsetTable":{%b\n\t}\n}' % body
