"""The checkpoint: store times up to which log, queues and index are known to be on disk.

    0          8          16         24            32           40                4096
    +----------+----------+----------+-------------+------------+-----------------+
    | log ms   | queues   | index ms | flushed on  | confirmed  | zeros           |
    |          | ms       |          | the master  |            |                 |
    +----------+----------+----------+-------------+------------+-----------------+
    the last two are 5.x's; they are kept as found

Recovery starts at the log file whose first message is older than these, so a value that is too low costs time and one
that is too high costs messages. Hence each is set only after the sync that it speaks of, to the time of the last message
then (which falls where the wall clock was set back), and a file that cannot be read counts as zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing

from roquet.store.disk import Disk

SIZE = 4096
FIELDS = struct.Struct(">5q")
assert FIELDS.size == 40


class Checkpoint:
    """The owner notes values; `begin_save` takes them as they are and gives the write to the background."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path
        self.log_ms = 0
        self.queues_ms = 0
        self.index_ms = 0
        self.master_flushed_offset = 0
        self.confirmed_offset = 0

    def load(self) -> None:
        """What the file says; a missing or short file says nothing."""
        if not self.disk.exists(self.path):
            return
        with closing(self.disk.open(self.path)) as file:
            self.decode(file.read(0, FIELDS.size))

    def decode(self, data: bytes) -> None:
        log_ms, queues_ms, index_ms, flushed, confirmed = FIELDS.unpack(data[: FIELDS.size].ljust(FIELDS.size, b"\0"))
        if len(data) >= 24:  # torn within a number, that number would be nonsense, and so might its neighbours be
            self.note(log_ms=log_ms, queues_ms=queues_ms, index_ms=index_ms)
        if len(data) >= FIELDS.size:
            self.master_flushed_offset, self.confirmed_offset = flushed, confirmed

    def encode(self) -> bytes:
        fields = (self.log_ms, self.queues_ms, self.index_ms, self.master_flushed_offset, self.confirmed_offset)
        return FIELDS.pack(*fields).ljust(SIZE, b"\0")

    def note(self, *, log_ms: int = 0, queues_ms: int = 0, index_ms: int = 0) -> None:
        """What is on disk now; 0 says nothing, and a negative time is not believed."""
        self.log_ms = log_ms if log_ms > 0 else self.log_ms
        self.queues_ms = queues_ms if queues_ms > 0 else self.queues_ms
        self.index_ms = index_ms if index_ms > 0 else self.index_ms

    @property
    def start_ms(self) -> int:
        """Where recovery may start: 3 seconds before the older of log and queues, since equal times do not order records."""
        return max(0, min(self.log_ms, self.queues_ms) - 3_000)

    def begin_save(self) -> Callable[[], None]:
        """The values as they are now; the function returned writes and syncs them. It may block. One at a time."""
        data = self.encode()

        def work() -> None:
            # In place, as upstream: the numbers lie within one sector, which a disk writes whole.
            with closing(self.disk.open(self.path, size=SIZE)) as file:
                file.write(0, data)
                file.sync()

        return work

    def save(self) -> None:
        """May block."""
        self.begin_save()()
