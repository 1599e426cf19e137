"""Is a part of a file in memory? For file systems that cannot say so while reading (no RWF_NOWAIT: overlayfs, tmpfs, NFS, FUSE).

The file is mapped and never touched, and mincore(2) tells which of its pages the system holds. Where that does not work either,
nobody can know, and the answer is no.
"""

from __future__ import annotations

import ctypes
import mmap

PROT_READ, MAP_SHARED = 1, 1
MAP_FAILED = ctypes.c_void_p(-1).value
PAGE = mmap.PAGESIZE

try:
    _libc = ctypes.PyDLL(None)  # these calls never wait, so nobody needs to be let in meanwhile
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    _known = True
except (AttributeError, OSError, TypeError):  # TypeError: Windows
    _known = False


class Resident:
    """Of one open file, as long as it was at that time."""

    __slots__ = ("_address", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._address = _libc.mmap(None, size, PROT_READ, MAP_SHARED, fd, 0) if _known and size else None
        if self._address == MAP_FAILED:
            self._address = None

    @property
    def works(self) -> bool:
        return self._address is not None

    def holds(self, offset: int, size: int) -> bool:
        """Can this be read without waiting?"""
        if self._address is None or offset + size > self.size:
            return False
        start = offset - offset % PAGE
        pages = (offset + size - start + PAGE - 1) // PAGE
        found = ctypes.create_string_buffer(pages)
        if _libc.mincore(self._address + start, offset + size - start, found) != 0:
            return False
        return all(page & 1 for page in found.raw)

    def close(self) -> None:
        if self._address is not None:
            _libc.munmap(self._address, self.size)
            self._address = None
