"""config/roquet.json: what is written into it, and what it says about the checkpoint's file."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from roquet.settings import BrokerSettings
from roquet.store.documents import Document
from roquet.store.recovery import Manifest

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")


def sizes_of(settings: BrokerSettings) -> dict[str, int]:
    """Setting -> the size of files that it gives a store."""
    return {
        "mappedFileSizeCommitLog": settings.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": settings.mapped_file_size_consume_queue,
    }


class ManifestFile:
    """State: `times`, as the checkpoint's file has them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory = f"{store.root}/config"
        self.document = Document(store.disk, f"{self._directory}/roquet.json")
        self.times = (0, 0, 0)

    @property
    def path(self) -> str:
        return self.document.path

    def load(self) -> Manifest | None:
        manifest = self.document.load(Manifest.decode)
        if self.document.warning:
            log.error("%s. Without it more of the log is read again, and nothing else is lost.", self.document.warning)
        return manifest

    def save(
        self, clean: bool, end: int, times: tuple[int, int, int], queues: dict[str, int], indexes: list[str], firsts: dict[str, int]
    ) -> None:
        """Blocking, in whatever thread."""
        settings, timeline, log_start = self._store.settings, self._store.timeline, self._store.log.start
        names = [name for name in self._store.disk.list(self._directory) if name.endswith(".json")]
        manifest = Manifest(
            clean, end, times, queues, indexes, settings.broker_name, sizes_of(settings), names,
            [place for place in timeline.set_backs if place > log_start],
            [(start, stop) for start, stop in timeline.overtaken if stop > log_start],
            log_start, firsts, self.times,
        )  # fmt: skip
        self.document.save(manifest.encode())

    def note_overtaken(self, manifest: Manifest, overtaken: list[tuple[int, int]]) -> None:
        """What a recovery found, added to what was known before it."""
        try:
            self.document.save(replace(manifest, overtaken=overtaken).encode())
        except OSError as error:
            log.warning("%s could not be written: %s", self.path, error)
