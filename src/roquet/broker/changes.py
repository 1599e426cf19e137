"""Changes of topics and groups, as messages of the log: so they are as safe as any message.

In a DLedger group members copy the leader's tables once a second, and what was changed in the last second would be gone with the leader. So
each change that somebody is told of is also a message of the topic CHANGES_TOPIC, and the answer waits until a majority holds that. A
member that is about to lead reads those behind what it has copied, and makes these changes again; of each name the last one counts.

Topics and groups that are made by their first use are not among them: the next use makes them again. Java's members store these messages
as any others, and nothing more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import orjson

from roquet.broker.copying import Copying
from roquet.broker.groups import Groups
from roquet.broker.part import Part, Shared
from roquet.broker.portions import Work, unhurried
from roquet.broker.roles import is_slave
from roquet.broker.saving import Done
from roquet.broker.send import QUORUM_MS
from roquet.broker.topics import Topic, Topics
from roquet.broker.writer import Draft, Writer
from roquet.errors import Refused, RoquetError, StoreUnavailable
from roquet.store.recovery import first_at_or_after
from roquet.wire.calls.groups import GroupConfig, GroupTable
from roquet.wire.calls.topics import TopicTable
from roquet.wire.names import CHANGES_TOPIC
from roquet.wire.record import Record, decode_properties

log = logging.getLogger("roquet.broker")

KIND = "KIND"
TOPICS, GROUPS, NO_TOPICS, NO_GROUPS = "topics", "groups", "deletedTopics", "deletedGroups"
TOGETHER = 64
"""Topics or groups in one message."""

T = TypeVar("T")


class Deleted(NamedTuple):
    log_offset: int
    """Where the log says so."""


class Changes(Part):
    """State: changes that wait to be written, and those that were found in the log by a member that is about to lead."""

    def __init__(self, shared: Shared, topics: Topics, groups: Groups, writer: Writer, copying: Copying) -> None:
        super().__init__(shared)
        self._topics, self._groups, self._writer, self._copying = topics, groups, writer, copying
        self._unwritten: list[tuple[list[tuple[str, bytes]], Done]] = []
        self._found_topics: dict[str, Topic | Deleted] = {}
        self._found_groups: dict[str, GroupConfig | Deleted] = {}
        if self.store.ledger is not None:
            topics.record, groups.record = self.topics_changed, self.groups_changed

    # Writing

    def topics_changed(self, changed: Mapping[str, Topic | None], done: Done) -> None:
        """`done` when a majority knows it. None: it is deleted."""
        bodies = [(TOPICS, TopicTable(dict(some)).encode()) for some in portions(present(changed))]
        self._write([*bodies, *names_of(NO_TOPICS, changed)], done)

    def groups_changed(self, changed: Mapping[str, GroupConfig | None], done: Done) -> None:
        bodies = [(GROUPS, GroupTable(dict(some)).encode()) for some in portions(present(changed))]
        self._write([*bodies, *names_of(NO_GROUPS, changed)], done)

    def _write(self, bodies: list[tuple[str, bytes]], done: Done) -> None:
        if is_slave(self.settings):
            done(RoquetError("this broker is the master no more"))
        else:
            self._unwritten.append((bodies, done))  # with the next tick: what is being staged now may be somebody's send

    def tick(self, now_ms: int) -> None:
        if not self._unwritten or is_slave(self.settings):
            return
        waiting, self._unwritten = self._unwritten, []
        try:
            self._topics.ensure(CHANGES_TOPIC)
            for bodies, _ in waiting:
                for kind, body in bodies:
                    self._writer.put_as_is(Draft(CHANGES_TOPIC, 0, body, {KIND: kind}, born_ms=self.clock.now_ms()))
            self.store.commit()
        except (StoreUnavailable, Refused) as error:
            self.store.undo()
            return tell(waiting, error)

        def safe(reached: bool) -> None:
            tell(
                waiting, None if reached else RoquetError("no majority of the group confirmed it in time: it may be lost with this leader")
            )

        self.store.log.when_safe(self.store.log.written, now_ms + QUORUM_MS, safe)

    def became_slave(self) -> None:
        waiting, self._unwritten = self._unwritten, []
        tell(waiting, RoquetError("this broker is the master no more"))

    # Making them again

    def prepare_to_lead(self) -> Work[None]:
        self._found_topics, self._found_groups = {}, {}
        queue = self.store.find_queue(CHANGES_TOPIC, 0)
        if queue is None:
            return
        for at in range(first_at_or_after(queue, self._copying.copied_to), queue.visible):
            entry = yield from unhurried(queue.entry, at)
            yield None
            if entry is None:
                continue
            try:
                record = Record.decode((yield from unhurried(self.store.record_at, entry[0])), check_crc=False)
                self._note(decode_properties(record.properties).get(KIND, ""), record)
            except (LookupError, RoquetError, ValueError, TypeError) as error:
                log.error("the change of topics or groups at log offset %d cannot be read: %s; it is left out", entry[0], error)

    def _note(self, kind: str, record: Record) -> None:
        deleted = Deleted(record.physical_offset)
        if kind == TOPICS:
            self._found_topics.update(TopicTable.decode(record.body).topic_config_table)
        elif kind == GROUPS:
            self._found_groups.update(GroupTable.decode(record.body).subscription_group_table)
        elif kind == NO_TOPICS:
            self._found_topics.update(dict.fromkeys(orjson.loads(record.body), deleted))
        elif kind == NO_GROUPS:
            self._found_groups.update(dict.fromkeys(orjson.loads(record.body), deleted))

    def became_master(self) -> None:
        topics, self._found_topics = self._found_topics, {}
        groups, self._found_groups = self._found_groups, {}
        self.shared.newcomers.peer = None
        changed = [topic for name, topic in topics.items() if isinstance(topic, Topic) and self._topics.get(name) != topic]
        self._make(lambda: self._topics.put_all(changed) if changed else None)
        for name, found in topics.items():
            if isinstance(found, Deleted) and self._topics.get(name) is not None and not self._used_since(name, found.log_offset):
                self._make(lambda name=name: self._topics.delete(name))  # type: ignore[misc]
        for name, config in groups.items():
            if isinstance(config, Deleted):
                self._groups.delete(name, with_offsets=False)
            elif self._groups.get(name) != config:
                self._make(lambda config=config: self._groups.put(config))  # type: ignore[misc]

    def _make(self, change: Callable[[], object]) -> None:
        try:
            change()
        except Refused as refused:
            log.error("a change that the old master made was not made again: %s", refused.remark)

    def _used_since(self, topic: str, log_offset: int) -> bool:
        """Does it have messages behind this offset? Then it was made again by the first of them."""
        return any(first_at_or_after(queue, log_offset) < queue.next for queue in self.store.queues_of(topic))


def present(changed: Mapping[str, T | None]) -> list[tuple[str, T]]:
    return [(name, value) for name, value in changed.items() if value is not None]


def names_of(kind: str, changed: Mapping[str, object | None]) -> list[tuple[str, bytes]]:
    gone = [name for name, value in changed.items() if value is None]
    return [(kind, orjson.dumps(some)) for some in portions(gone)]


def portions(values: Sequence[T]) -> Iterable[Sequence[T]]:
    return (values[at : at + TOGETHER] for at in range(0, len(values), TOGETHER))


def tell(waiting: list[tuple[list[tuple[str, bytes]], Done]], error: Exception | None) -> None:
    for _, done in waiting:
        done(error)
