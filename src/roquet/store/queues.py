"""All queues of the store, by topic and number."""

from __future__ import annotations

from roquet.settings import BrokerSettings
from roquet.store.queue import ConsumeQueue
from roquet.store.segments import OpenFiles, Segments


class Queues:
    """State: `table` by (topic, queue). `_ids`: topic -> ids that `table` may hold of it: nobody looks through 100,000 queues for one."""

    def __init__(self, files: OpenFiles, settings: BrokerSettings) -> None:
        self.directory = f"{settings.store_path_root_dir}/consumequeue"
        self._files = files
        self._size = settings.mapped_file_size_consume_queue
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self._ids: dict[str, set[int]] = {}

    def load(self) -> None:
        """Those that have files."""
        disk = self._files.disk
        for topic in disk.list(self.directory):
            for name in disk.list(f"{self.directory}/{topic}"):
                if name.isdigit():
                    self.queue(topic, int(name))

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """This queue, made if it is not there yet. Names were checked where they came in; a path is built from this one."""
        found = self.table.get((topic, queue_id))
        if found is None:
            segments = Segments(self._files, f"{self.directory}/{topic}/{queue_id}", self._size)
            found = self.table[topic, queue_id] = ConsumeQueue(topic, queue_id, segments)
            self._ids.setdefault(topic, set()).add(queue_id)
        return found

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def has(self, queue: ConsumeQueue) -> bool:
        """Not so once its topic was deleted, though another of that name may have been made since."""
        return self.table.get((queue.topic, queue.queue_id)) is queue

    def topics(self) -> list[str]:
        """Names of which there are queues."""
        return list(self._ids)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        found = (self.table.get((topic, queue_id)) for queue_id in sorted(self._ids.get(topic, ())))
        return [queue for queue in found if queue is not None]

    def forget(self, topic: str) -> list[ConsumeQueue]:
        """The topic has no queues any more. Returns those it had."""
        queues = self.of_topic(topic)
        for queue in queues:
            del self.table[topic, queue.queue_id]
        self._ids.pop(topic, None)
        return queues
