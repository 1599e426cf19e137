"""What the extension has; each says which Python function it stands for."""

from roquet.wire.frame import Frame

EDITION: int
SOURCES: str
"""A digest of the C files that it was built from (setup.py)."""

def cut_frames(data: bytes, limit: int, /) -> tuple[list[Frame], int, int]:
    """wire.frame.cut_frames."""
