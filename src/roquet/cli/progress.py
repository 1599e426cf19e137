"""A progress bar on standard error. On anything but a terminal it says nothing: logs and pipes want the result, not the way."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

REDRAW_S = 0.1
WIDTH = 30


class Bar:
    """`total` None: the end is unknown, so only the count and the rate are shown.

    with Bar("sending", 100_000) as bar: bar.add(64)
    """

    def __init__(self, label: str, total: int | None, *, stream: TextIO | None = None) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._started = self._drawn = time.monotonic()

    def add(self, count: int = 1) -> None:
        self.done += count
        if self._shown and time.monotonic() - self._drawn >= REDRAW_S:
            self.draw()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def rate(self) -> float:
        """Per second, since the beginning."""
        return self.done / max(self.elapsed_s, 1e-9)

    def line(self) -> str:
        if not self.total:
            return f"{self.label}  {self.done:,}  {self.rate:,.0f}/s"
        share = min(1.0, self.done / self.total)
        filled = round(share * WIDTH)
        left = (self.total - self.done) / self.rate if self.done else 0
        tail = f"  {left:.0f} s left" if 0 < share < 1 else ""
        bar = "#" * filled + "." * (WIDTH - filled)
        return f"{self.label}  [{bar}] {share:4.0%}  {self.done:,} of {self.total:,}  {self.rate:,.0f}/s{tail}"

    def draw(self) -> None:
        self._drawn = time.monotonic()
        room = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{self.line()[:room]}")
        self._stream.flush()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
