"""The bytes of a master and its slave, as RocketMQ has them: one connection to the master's HA port, no handshake.

    slave -> master     8 bytes: up to here I hold your log
    master -> slave     8 bytes offset, 4 bytes size, then so many bytes of the log from that offset on; size 0: a heartbeat,
                        and the offset is where the next transfer begins

Transfers end anywhere, also inside a record, and never cross the end of a log file.
"""

from __future__ import annotations

import struct

from roquet.settings import TRANSFER_MAX

REPORT = struct.Struct(">q")
TRANSFER = struct.Struct(">qi")


class BadStream(Exception):
    """What came cannot be from a partner of ours: the connection is of no use. Says what came and what is expected."""


class Reports:
    """What a slave sends, taken apart. State: the bytes of a report that is not whole yet."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The whole reports in it. Raises BadStream."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        found = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
        if found and min(found) < 0:
            raise BadStream(f"it reports offset {min(found)}; a slave reports how much of the log it holds, which is 0 or more")
        return found


class Transfers:
    """What a master sends, taken apart. State: the pieces of a transfer that is not whole yet, and how long they are together."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = TRANSFER.size

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """(offset, bytes) of the whole transfers in it; no bytes: a heartbeat. Raises BadStream."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return []
        whole, at, found = b"".join(self._pieces), 0, []
        while True:
            left = len(whole) - at
            if left < TRANSFER.size:
                self._wanted = TRANSFER.size
                break
            offset, size = TRANSFER.unpack_from(whole, at)
            if offset < 0 or not 0 <= size <= TRANSFER_MAX:
                raise BadStream(f"it sends {size} bytes from offset {offset}; allowed are 0 to {TRANSFER_MAX} from an offset of 0 or more")
            if left < TRANSFER.size + size:
                self._wanted = TRANSFER.size + size
                break
            at += TRANSFER.size + size
            found.append((offset, whole[at - size : at]))
        rest = whole[at:]
        self._pieces, self._held = ([rest] if rest else []), len(rest)
        return found
