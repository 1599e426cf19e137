"""Message ids.

    offset id:  ip 4|16 . port 4 . physical offset 8                                    made by the broker that stored it
    unique id:  ip 4|16 . pid 2 . seed 4 . ms since the month began 4 . counter 2       made by the producer

Both are written as upper-case hex: 32 characters, 56 with IPv6.
"""

from __future__ import annotations

from datetime import UTC, datetime

from roquet.wire.codes import refused


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """host: 4 or 16 bytes of ip, then 4 bytes of port, as in records."""
    return (host + physical_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """(host, physical offset). Raises Refused(1) when it is no such id."""
    try:
        raw = bytes.fromhex(text) if len(text) in (32, 56) and text.isalnum() else b""
    except ValueError:
        raw = b""
    if not raw:
        raise refused(f"message id {text[:80]!r} is not 32 or 56 hex digits of address and offset")
    return raw[:-8], int.from_bytes(raw[-8:], "big", signed=True)


def number_ids(front: str, first: int, stop: int) -> list[str]:
    """The texts that begin so and end with four digits."""
    made: list[str] = []
    while first < stop:
        high, low = divmod(first, 256)
        end = min(low + stop - first, 256)
        longer = front + PAIRS[high]
        made += [longer + pair for pair in PAIRS[low:end]]
        first += end - low
    return made


PAIRS = [f"{number:02X}" for number in range(256)]


class UniqueIds:
    """Ids of one producer process. Never repeats one, even when the clock stands still or goes back."""

    __slots__ = ("_counter", "_first", "_front", "_month_end", "_month_start", "_ms", "_prefix", "_process", "_seed")

    def __init__(self, ip: bytes, pid: int, seed: int) -> None:
        if len(ip) not in (4, 16):
            raise ValueError(f"ip of {len(ip)} bytes, expected 4 or 16")
        self._process = ip + (pid & 0xFFFF).to_bytes(2, "big")
        self._seed = seed & 0xFFFFFFFF
        self._prefix = ""
        self._front = ""  # the prefix and this millisecond
        self._ms = -1
        self._counter = 0  # two bytes, goes round
        self._first = 0  # what it was in this millisecond's first id
        self._month_start = self._month_end = -1

    def next(self, now_ms: int) -> str:
        counter = self._counter
        if now_ms > self._ms:
            self._first = counter
            self._turn_to(now_ms)
        elif counter == self._first:
            self._turn_to(self._ms + 1)  # all 65536 of this millisecond are used up: borrow the next one
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._front}{counter:04X}"

    def many(self, now_ms: int, count: int) -> list[str]:
        """The next ones, as `next` would give them one after another."""
        made: list[str] = []
        while len(made) < count:
            counter = self._counter
            if now_ms > self._ms:
                self._first = counter
                self._turn_to(now_ms)
            elif counter == self._first:
                self._turn_to(self._ms + 1)
            # As far as neither the counter goes round nor the ids of this millisecond are used up.
            stop = min(counter + count - len(made), self._first if counter < self._first else 0x10000)
            made += number_ids(self._front, counter, stop)
            self._counter = stop & 0xFFFF
        return made

    def _turn_to(self, ms: int) -> None:
        self._ms = ms
        if not self._month_start <= ms < self._month_end:
            self._turn_month()
        self._front = f"{self._prefix}{(ms - self._month_start) & 0xFFFFFFFF:08X}"

    def _turn_month(self) -> None:
        # UTC, where Java takes the zone of its host: only this process reads the number back, if anybody does.
        now = datetime.fromtimestamp(self._ms / 1000, UTC)
        start = datetime(now.year, now.month, 1, tzinfo=UTC)
        end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
        # Times count from the month's beginning, so they come again in another month: not with the same seed.
        self._seed = (self._seed + (self._month_end >= 0)) & 0xFFFFFFFF
        self._prefix = (self._process + self._seed.to_bytes(4, "big")).hex().upper()
        self._month_start, self._month_end = int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
