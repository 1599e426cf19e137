"""What operating systems do differently, in one place. Linux has all of it, macOS less, Windows least; everything works on each.

Whoever needs one of these names takes it from here. A test runs the programs without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # all others
    msvcrt = None  # type: ignore[assignment]

OPEN_FLAGS = getattr(os, "O_BINARY", 0)
"""For every os.open. Windows would change line ends. (Python itself sees to it that children do not inherit the file.)"""
NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Flag of `preadv`: read only what is in memory. None: this system cannot say."""
SEEK_DATA: int | None = getattr(os, "SEEK_DATA", None)

_MADE_FOR_SPEED = ("RWF_NOWAIT", "posix_fallocate", "fdatasync", "pread")
_moving = threading.Lock()
"""Where reading and writing at a place takes two calls, nobody else may move the file's position between them."""


def slower_without() -> list[str]:
    """What this system or this Python has not: it works without, slower."""
    missing = [name for name in _MADE_FOR_SPEED if not hasattr(os, name)]
    return missing + ([] if fast_loop() else ["uvloop"])


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes uvloop's event loops; None where it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# Files


def _pread_in_two(fd: int, size: int, offset: int, /) -> bytes:
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def _pwrite_in_two(fd: int, data: Any, offset: int, /) -> int:
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread_in_two)
pwrite: Callable[[int, Any, int], int] = getattr(os, "pwrite", _pwrite_in_two)
preadv: Callable[[int, Any, int, int], int] = getattr(os, "preadv", lambda fd, rooms, offset, flags: 0)
"""Called with NOWAIT alone, so never where there is none."""


ALLOCATED_AT_ONCE = 1 << 20


def _write_what_is_there(fd: int, offset: int, size: int, /) -> None:
    """Reserve space by writing every byte of it again: only then a full disk is noticed now, and not when a mapped page is written."""
    end = offset + size
    while offset < end:
        length = min(ALLOCATED_AT_ONCE, end - offset)
        data = pread(fd, length, offset)
        written = pwrite(fd, data + bytes(length - len(data)), offset)
        if written == 0:
            raise OSError(errno.ENOSPC, "wrote nothing")
        offset += written


allocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", _write_what_is_there)


NO_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS)
"""What file systems say that have none, as those of a network. All else is a disk that failed: the next call may hide that."""


def _full_sync(fd: int) -> None:
    """macOS: fsync alone leaves the data in the drive's own memory."""
    try:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno not in NO_FULL_SYNC:
            raise
        os.fsync(fd)


sync_data: Callable[[int], None] = _full_sync if hasattr(fcntl, "F_FULLFSYNC") else getattr(os, "fdatasync", os.fsync)


def sync_directory(path: str) -> None:
    """That files were made, renamed or removed in it is on disk then. Windows keeps directories safe by itself, and cannot open them."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def disk_space(path: str) -> tuple[int, int, int]:
    """Bytes in all, bytes that are free, and bytes of those that we may use."""
    if not hasattr(os, "statvfs"):
        found = shutil.disk_usage(path)
        return found.total, found.free, found.free
    blocks = os.statvfs(path)
    return blocks.f_blocks * blocks.f_frsize, blocks.f_bfree * blocks.f_frsize, blocks.f_bavail * blocks.f_frsize


def lock_file(path: str) -> int:
    """A locked file; closing it ends the lock. Raises OSError with EAGAIN or EACCES when another process has it.

    Upstream locks byte 0 with a POSIX record lock (FileChannel.tryLock(0, 1, false)); so must we, to exclude a Java broker."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o644)
    try:
        if fcntl is not None:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        elif msvcrt is not None:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        pwrite(fd, b"lock", 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def lock_directory(path: str) -> int:
    """The same of a directory; where one cannot be opened, of a file beside it."""
    if fcntl is None or not hasattr(os, "O_DIRECTORY"):
        return lock_file(path.rstrip("/\\") + ".lock")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


# Limits

FILES_OF_WINDOWS = 8_192
"""What its C library can have open."""
MEMORY_UNKNOWN = 4 << 30


def allow_many_files() -> int:
    """Connections and queue files: as many as the system lets us have. Returns how many that are."""
    try:
        import resource
    except ImportError:
        return FILES_OF_WINDOWS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or (hard == resource.RLIM_INFINITY != soft):
        with contextlib.suppress(ValueError, OSError):  # macOS: its limit is lower than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def memory_bytes() -> int:
    """Of this machine; a guess where nobody says."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MEMORY_UNKNOWN


# Signals


def on_stop_signals(act: Callable[[signal.Signals], None]) -> Callable[[], None]:
    """`act` is called in the running loop for Ctrl-C and SIGTERM. What it returns undoes that.

    Windows' loop knows no signals: there Python's own handlers do it."""
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    stops = (signal.SIGINT, signal.SIGTERM)
    for number in stops:
        try:
            loop.add_signal_handler(number, act, number)
        except NotImplementedError:
            before[number] = signal.signal(number, lambda given, _: loop.call_soon_threadsafe(act, signal.Signals(given)))

    def undo() -> None:
        for number in stops:
            if number in before:
                signal.signal(number, before[number])
            else:
                loop.remove_signal_handler(number)

    return undo
