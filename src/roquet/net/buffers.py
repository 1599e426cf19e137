"""Memory of large frames."""

from __future__ import annotations

KEPT_BYTES = 16 * 1024 * 1024


def keep_memory() -> None:
    """Have the C library keep the memory of large requests and answers for the next ones. It gives back what is large, and
    faulting it in again costs a tenth of a large batch and a third of a scan; but once something this large was freed, it takes
    that for usual. Harmless where it does not."""
    bytearray(KEPT_BYTES)
