"""Topics that were deleted while the log still holds their records: config/deletedTopics.json, which upstream neither reads nor writes.

    {"T": {"logOffset": 4711, "topicsVersion": 12, "progress": false}}

Queues are derived from the log, so a start that reads it again would find the queues of a deleted topic and make the topic anew.
Records of T before `logOffset` count for nothing; T made again is numbered from 0 by those behind it. `topicsVersion` is the version
of topics.json without T: an older one that still names it was left by a crash. `progress`: consumerOffset.json without T was saved.
An entry is forgotten when the log begins behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from roquet.ports import Background
from roquet.store.disk import Disk
from roquet.store.documents import Document

log = logging.getLogger("roquet.store")

DELETED = "deletedTopics.json"


@dataclass(slots=True)
class Deletion:
    log_offset: int
    topics_version: int = 0
    progress: bool = False


class Deletions:
    """State: `table`; the document follows in the background."""

    def __init__(self, disk: Disk, path: str, background: Background) -> None:
        self.document = Document(disk, path)
        self.background = background
        self.table: dict[str, Deletion] = {}

    def load(self) -> None:
        self.table = self.document.load(decode) or {}
        if self.document.warning:
            log.error("%s; topics that were deleted and whose messages are still in the log may come back", self.document.warning)

    def stale(self, topic: str, log_offset: int) -> bool:
        """Is a record of this topic at this place from before it was deleted?"""
        found = self.table.get(topic)
        return found is not None and log_offset < found.log_offset

    def note(self, topic: str, deletion: Deletion, done: Callable[[Exception | None], None]) -> None:
        """`done` is called when it is on disk, or could not be written."""
        self.table[topic] = deletion
        self.document.save_later(self._encode(), self.background, done)

    def forget_before(self, log_start: int) -> None:
        """The log begins here now: nothing of what was deleted before is left in it."""
        gone = [topic for topic, deletion in self.table.items() if deletion.log_offset <= log_start]
        if gone:
            for topic in gone:
                del self.table[topic]
            self._save()

    def progress_saved(self, topics: set[str]) -> None:
        """consumerOffset.json was saved without these."""
        fresh = [deletion for topic, deletion in self.table.items() if topic in topics and not deletion.progress]
        if fresh:
            for deletion in fresh:
                deletion.progress = True
            self._save()

    def _save(self) -> None:
        def saved(error: Exception | None) -> None:
            if error is not None:
                log.warning("%s could not be written: %s", self.document.path, error)

        self.document.save_later(self._encode(), self.background, saved)

    def _encode(self) -> bytes:
        table = {
            topic: {"logOffset": one.log_offset, "topicsVersion": one.topics_version, "progress": one.progress}
            for topic, one in self.table.items()
        }
        return orjson.dumps(table, option=orjson.OPT_INDENT_2)


def decode(data: bytes) -> dict[str, Deletion]:
    """Raises ValueError for what is no such document."""
    value = orjson.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return {topic: Deletion(int(one["logOffset"]), int(one["topicsVersion"]), bool(one["progress"])) for topic, one in value.items()}
