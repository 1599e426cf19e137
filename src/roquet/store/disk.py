"""Disk: every byte that is stored goes through here.

`RealDisk` is the machine's file system; `roquet.testing.SimDisk` loses and tears unsynced writes from a seed. Reads come
in two kinds: `read_now` answers only from memory and raises Cold when the disk would have to be asked, so the event loop
never waits; `read` may block and belongs into the background.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn, ParamSpec, Protocol, TypeVar

from roquet import system
from roquet.store.resident import Resident

P = ParamSpec("P")
T = TypeVar("T")


pread, pwrite, preadv, NOWAIT = system.pread, system.pwrite, system.preadv, system.NOWAIT  # for reads and writes, as near as can be


class Cold(Exception):
    """The bytes are not in memory. `fetch` reads them (it may block: run it in the background), then ask again."""

    def __init__(self, fetch: Callable[[], object]) -> None:
        super().__init__("not in memory")
        self.fetch = fetch


def blocking(read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Read where nobody waits: what is not in memory is fetched right here."""
    while True:
        try:
            return read(*arguments, **named)
        except Cold as cold:
            cold.fetch()


class DiskFile(Protocol):
    path: str

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of it or raise OSError (then any part may have been written)."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. May block."""

    def read_now(self, offset: int, size: int) -> bytes:
        """The same from memory; raises Cold when the disk would have to be asked."""

    def read_into(self, offset: int, room: memoryview) -> None:
        """The same into this memory, all of it; raises Cold also when the file ends before."""

    def map(self, offset: int, size: int) -> memoryview:
        """A writable view of bytes that are already allocated on disk (see `allocate`), so that writing cannot fail."""

    def allocate(self, offset: int, size: int) -> None:
        """Reserve disk space for this range; raises OSError when there is none."""

    def sync(self) -> None:
        """fdatasync. May block. After an OSError nothing written so far counts as safe."""

    def size(self) -> int: ...

    def next_data(self, offset: int) -> int | None:
        """Where bytes may stand that are not zero: at this offset or later. None: only zeros follow, up to the file's end."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        """Open for reading and writing. With `size`, create it (sparse) when missing and make it at least that long."""

    def when_short(self, close_some: Callable[[], bool]) -> None:
        """There may be too few file descriptors: call this, from whatever thread, and try again if it closed any."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is none."""

    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def make_dir(self, path: str) -> None:
        """With parents; exists already is fine."""

    def remove(self, path: str) -> None:
        """A file; missing is fine."""

    def remove_tree(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def used_ratio(self, path: str) -> float:
        """0.0 to 1.0 of the file system that holds this path."""

    def total_bytes(self, path: str) -> tuple[int, int]:
        """(capacity, free) of that file system."""

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock on a file, made if missing, or on a directory; returns the function that releases it. Raises
        OSError with EAGAIN or EACCES when somebody else holds it."""


def is_shortage(error: object) -> bool:
    """No file descriptor was free. Nothing was done, and it may be tried again."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


SCRATCH_SIZE = 1 << 20


class Scratch(threading.local):
    """Memory for reads, one for all of a thread: zeroing a new one for each costs as much as the read. Not of a process: a read lets
    other threads go on, and two `embedded()` of a program may run in two."""

    def __init__(self) -> None:
        self.room = memoryview(bytearray(SCRATCH_SIZE))


SCRATCH = Scratch()


class Fetched:
    """Bytes that were read in the background for somebody who asks again at once, where the system does not say what it holds in
    memory. Few, and given away once."""

    LIMIT = 32 * 1024 * 1024

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def keep(self, path: str, offset: int, data: bytes, size: int) -> None:
        with self._lock:
            self._drop((path, offset, size))
            self.kept[path, offset, size] = data
            self._size += len(data)
            while self._size > self.LIMIT and len(self.kept) > 1:
                self._drop(next(iter(self.kept)))

    def take(self, path: str, offset: int, size: int) -> bytes | None:
        if not self.kept:
            return None
        with self._lock:
            return self._drop((path, offset, size))

    def forget(self, path: str) -> None:
        """It was written to."""
        with self._lock:
            for key in [key for key in self.kept if key[0] == path]:
                self._drop(key)

    def _drop(self, key: tuple[str, int, int]) -> bytes | None:
        data = self.kept.pop(key, None)
        if data is not None:
            self._size -= len(data)
        return data


FETCHED = Fetched()


class RealFile:
    __slots__ = ("_maps", "_resident", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._maps: list[tuple[object, memoryview]] = []
        self._resident: Resident | None = None

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if FETCHED.kept:
            FETCHED.forget(self.path)
        done = pwrite(self.fd, data, offset)
        while done < len(data):
            more = pwrite(self.fd, memoryview(data)[done:], offset + done)
            if more == 0:
                raise OSError(errno.ENOSPC, "wrote nothing", self.path)
            done += more

    def read(self, offset: int, size: int) -> bytes:
        data = pread(self.fd, size, offset)
        while len(data) < size:
            more = pread(self.fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_now(self, offset: int, size: int) -> bytes:
        if NOWAIT is None:
            return self._read_without_nowait(offset, size)
        view = SCRATCH.room[:size] if size <= SCRATCH_SIZE else memoryview(bytearray(size))
        try:
            got = preadv(self.fd, [view], offset, NOWAIT)
        except BlockingIOError:
            got = 0
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return self._read_without_nowait(offset, size)
        if got == size or offset + got >= self.size():
            return bytes(view[:got])
        raise Cold(lambda: self.read(offset, size))

    def read_into(self, offset: int, room: memoryview) -> None:
        try:
            if NOWAIT is None:
                raise OSError(errno.EOPNOTSUPP, "no RWF_NOWAIT")
            got = preadv(self.fd, [room], offset, NOWAIT)
        except BlockingIOError:
            got = 0
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            data = self._read_without_nowait(offset, len(room))
            got = len(data)
            room[:got] = data
        if got < len(room):
            size = len(room)  # not the room itself, which may be gone by then
            raise Cold(lambda: self.read(offset, size))

    def _read_without_nowait(self, offset: int, size: int) -> bytes:
        """overlayfs (containers), tmpfs, NFS, FUSE and every system but Linux have no RWF_NOWAIT. What the system says it holds in memory
        is read here, all else elsewhere, and then kept for whoever asks again."""
        data = FETCHED.take(self.path, offset, size)
        if data is not None:
            return data
        end = self.size()
        if offset >= end:
            return b""
        if self._resident is None or self._resident.size < end:
            if self._resident is not None:
                self._resident.close()
            self._resident = Resident(self.fd, end)
        if self._resident.holds(offset, min(size, end - offset)):
            return self.read(offset, size)
        raise Cold(lambda: FETCHED.keep(self.path, offset, self.read(offset, size), size))

    def map(self, offset: int, size: int) -> memoryview:
        import mmap

        page = mmap.ALLOCATIONGRANULARITY
        start = offset // page * page
        mapped = mmap.mmap(self.fd, offset - start + size, offset=start)
        view = memoryview(mapped)[offset - start :]
        self._maps.append((mapped, view))
        return view

    def allocate(self, offset: int, size: int) -> None:
        system.allocate(self.fd, offset, size)

    def sync(self) -> None:
        system.sync_data(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def next_data(self, offset: int) -> int | None:
        if offset >= self.size():
            return None
        if system.SEEK_DATA is None:
            return offset
        try:
            return os.lseek(self.fd, offset, system.SEEK_DATA)
        except OSError as error:
            # ENXIO: a hole to the end. Anything else: this file system does not know its holes.
            return None if error.errno == errno.ENXIO else offset

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def close(self) -> None:
        for _, view in self._maps:
            with contextlib.suppress(BufferError):
                view.release()
        self._maps.clear()  # the map itself goes when nobody looks at it any more
        if self._resident is not None:
            self._resident.close()
            self._resident = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RealFile {self.path}>"


def used_share(blocks: int, free: int, available: int) -> float:
    """As df and upstream reckon: of what is used and what we may still use. Blocks that are reserved for others count as neither."""
    used = blocks - free
    return used / (used + available) if used + available else 0.0


class RealDisk:
    _close_some: Callable[[], bool] | None = None

    def when_short(self, close_some: Callable[[], bool]) -> None:
        self._close_some = close_some

    def _open(self, path: str, flags: int) -> int:
        return self._patiently(os.open, path, flags | system.OPEN_FLAGS, 0o644)

    def _patiently(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """When too many files are open, some of ours are closed, and it is tried again."""
        while True:
            try:
                return work(*arguments, **named)
            except OSError as error:
                if not is_shortage(error) or self._close_some is None or not self._close_some():
                    raise

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        file = RealFile(path, self._open(path, os.O_RDWR | (os.O_CREAT if size is not None else 0)))
        if size is not None and file.size() < size:
            file.truncate(size)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.path.getsize(path)

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_tree(self, path: str) -> None:
        import shutil

        shutil.rmtree(path, ignore_errors=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def sync_dir(self, path: str) -> None:
        self._patiently(system.sync_directory, path)

    def used_ratio(self, path: str) -> float:
        return used_share(*system.disk_space(path))

    def total_bytes(self, path: str) -> tuple[int, int]:
        total, _, available = system.disk_space(path)
        return total, available

    def lock(self, path: str) -> Callable[[], None]:
        real = os.path.realpath(path)
        if real in _locked:
            raise OSError(errno.EAGAIN, "locked by this process", path)
        fd = system.lock_directory(path) if os.path.isdir(path) else system.lock_file(path)
        _locked.add(real)

        def release() -> None:
            _locked.discard(real)
            os.close(fd)

        return release


def how_reads_wait(path: str) -> str:
    """How reads of this file, which must not be empty to be sure, keep from waiting for the disk: for the log of a server."""
    known = "reads that would wait for the disk are left to a thread; the system tells which"
    fd = os.open(path, os.O_RDONLY | system.OPEN_FLAGS)
    try:
        if NOWAIT is None:
            raise OSError(errno.EOPNOTSUPP, "no RWF_NOWAIT")
        preadv(fd, [bytearray(1)], 0, NOWAIT)
        return f"{known} (RWF_NOWAIT)"
    except BlockingIOError:
        return f"{known} (RWF_NOWAIT)"
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        resident = Resident(fd, os.fstat(fd).st_size)
        works = resident.works
        resident.close()
        return (
            f"{known} (mincore, a little slower)" if works else "every read is left to a thread: the system does not tell which would wait"
        )
    finally:
        os.close(fd)


class ReadOnlyDisk(RealDisk):
    """For looking into a store that somebody else may be writing: opens nothing for writing, makes nothing, takes no lock."""

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if size is not None:
            self._refuse(path)
        return RealFile(path, self._open(path, os.O_RDONLY))

    def view(self, path: str) -> memoryview:
        """All bytes that the file has now, mapped. They stay readable when the file is removed. Touch only what is known to be
        there: should the file be cut meanwhile, bytes behind its new end must not be looked at."""
        import mmap

        fd = self._open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ)) if size else memoryview(b"")
        finally:
            os.close(fd)

    def is_current(self, file: DiskFile) -> bool:
        """Is this open file still the one of that name? It may have been removed, and another made in its place."""
        assert isinstance(file, RealFile)
        try:
            return os.path.samestat(os.fstat(file.fd), os.stat(file.path))
        except FileNotFoundError:
            return False

    def _refuse(self, path: str, *more: str) -> NoReturn:
        raise OSError(errno.EROFS, "opened for reading only", path)

    make_dir = remove = remove_tree = lock = _refuse

    def rename(self, old: str, new: str) -> None:
        self._refuse(old)


_locked: set[str] = set()
"""What this process holds: POSIX record locks do not exclude their own process."""
