"""SimDisk: a file system in memory that can lose power.

It behaves as `RealDisk` does (one suite of tests runs against both), and in addition:

    crash()     power loss. Of what was not synced, the seed decides what is there afterwards; with `rot`, whether it is spoiled.
    kill()      the process dies, the machine goes on: everything written is there, and still not synced.
    power_off_after(n)   PowerLost is raised out of the n-th change from now, in the middle of whatever runs
    full, cold_ratio   no room, and slow reads, on demand
    fail(operation, number, ...)   any error out of any operation: EMFILE of an open, EIO of a rename, ENOSPC of a write

What a crash leaves. A file's bytes reach the disk a sector at a time and in any order between sectors; within one sector
an earlier write is never missing under a later one. So each sector holds what it held at the last sync plus some first
few of the writes since, and a write that spans sectors can be torn. The length of a file and the names in a directory go
the same way: the state at the last sync, and some first few changes since. Names count for nothing before `sync_dir`,
also those of files that were synced themselves: POSIX promises no more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from roquet.ports import Clock
from roquet.store.disk import Cold
from roquet.testing.clock import ManualClock

T = TypeVar("T")

PAGE = 4_096
SECTORS = (512, PAGE)
ROT = 0.3
"""Of the files that were being written when the power failed, so many have a wrong bit there."""
OPERATIONS = ("open", "write", "read", "truncate", "sync", "make_dir", "remove", "rename", "sync_dir")
"""Those that can be made to fail."""


@dataclass
class Fault:
    """An error that comes out of an operation. Nothing has happened then, but of a write its first part may be there."""

    operation: str
    number: int
    where: str = ""
    """Of paths that contain this."""
    after: int = 0
    """So many go well before."""
    times: int = 1
    """So many fail; then it is over."""
    part: float = 0.0
    """Of a write: how much of it happens all the same."""


class PowerLost(BaseException):
    """The machine stopped in the middle of something. Not an Exception: nothing may catch it but the simulation."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.disk = disk


class StaleHandle(AssertionError):
    """A file opened before a crash was used after it: something of the dead process still runs."""


class _File:
    """An inode. `content` may be longer than `length` so that mapped views stay valid when the file shrinks, and shorter: zeros follow.
    So may `durable` be shorter than `durable_length`: a file of a gigabyte in which little is written costs little."""

    __slots__ = ("changes", "content", "durable", "durable_length", "length", "lengths", "mapped", "mtime_ms", "pages", "warm")

    def __init__(self, mtime_ms: int) -> None:
        self.content = bytearray()
        self.length = 0
        self.durable = bytearray()  # as of the last sync
        self.durable_length = 0
        self.changes: list[tuple[int, bytes]] = []  # writes since
        self.lengths: list[int] = []  # changes of the length since
        self.mapped = False
        self.pages: set[int] = set()  # that take space
        self.mtime_ms = mtime_ms
        self.warm: set[int] = set()  # pages that are in memory for sure

    def resize(self, length: int) -> None:
        if length == self.length:
            return
        if length < self.length:
            if not self.mapped:
                del self.content[length:]
            else:
                self.content[length : self.length] = bytes(self.length - length)
            self.changes.append((length, bytes(self.length - length)))
            self.pages = {page for page in self.pages if page * PAGE < length}
        else:
            assert not self.mapped or length <= len(self.content), "a mapped file cannot grow beyond what it was when it was mapped"
        self.length = length
        self.lengths.append(length)

    def write(self, offset: int, data: bytes) -> None:
        stop = offset + len(data)
        if stop > self.length:
            self.resize(stop)
        _put(self.content, offset, data)
        self.changes.append((offset, data))

    def read(self, offset: int, size: int) -> bytes:
        stop = min(offset + size, self.length)
        data = bytes(self.content[offset:stop])
        return data if len(data) == stop - offset else data + bytes(max(0, stop - offset - len(data)))

    def map(self) -> None:
        """From now on views of it may be held."""
        if len(self.content) < self.length:
            self.content += bytes(self.length - len(self.content))
        self.mapped = True

    def sync(self) -> None:
        if self.mapped:
            self.durable = bytearray(self.content[: self.length])
        else:
            for offset, data in self.changes:
                _put(self.durable, offset, data)
            del self.durable[self.length :]
        self.durable_length = self.length
        self.changes.clear()
        self.lengths.clear()

    def lose(self) -> None:
        """A sync failed: the system takes the pages for clean now, and what they held may never reach the disk."""
        self.changes.clear()

    def after_crash(self, random: Random, rot: Random | None) -> _File:
        left = _File(self.mtime_ms)
        content = self._mixed(random)
        if rot is not None and self.changes and rot.random() < ROT:
            self._rot(content, rot)
        lengths = [self.durable_length, *self.lengths]
        _fit(content, lengths[random.randrange(len(lengths))])
        left.content = content
        left.length = len(content)
        left.durable = bytearray(content)
        left.durable_length = left.length
        left.pages = {page for page in self.pages if page * PAGE < left.length}
        return left

    def _rot(self, content: bytearray, rot: Random) -> None:
        """Where a write began stands something else than was written, or was there before. Not behind that: the checksums of RocketMQ's
        records are of their bodies alone, and a wrong bit in a property is found by nobody."""
        offset, data = rot.choice(self.changes)
        if data and offset < len(content):
            at = min(offset + rot.randrange(min(len(data), 8)), len(content) - 1)
            content[at] ^= 1 << rot.randrange(8)

    def _mixed(self, random: Random) -> bytearray:
        content = bytearray(self.durable)
        _fit(content, self.durable_length)
        mood = random.choice(("all", "none", "mixed", "mixed"))
        if mood == "none":
            return content
        size = random.choice(SECTORS)
        sectors: dict[int, list[tuple[int, bytes]]] = {}
        for offset, data in self.changes:
            at = 0
            while at < len(data):
                sector = (offset + at) // size
                upto = min(len(data), (sector + 1) * size - offset)
                sectors.setdefault(sector, []).append((offset + at, data[at:upto]))
                at = upto
        if self.mapped:
            for sector in range((self.length + size - 1) // size):
                now = bytes(self.content[sector * size : min((sector + 1) * size, self.length)])
                if now != content[sector * size : sector * size + len(now)]:
                    sectors.setdefault(sector, []).append((sector * size, now))
        for sector in sorted(sectors):
            pieces = sectors[sector]
            kept = len(pieces)
            if mood == "mixed":
                kept = random.choice((0, kept, random.randint(0, kept)))
            for offset, data in pieces[:kept]:
                _put(content, offset, data)
        return content


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content += bytes(offset - len(content))
    content[offset : offset + len(data)] = data


def _fit(content: bytearray, length: int) -> None:
    if len(content) > length:
        del content[length:]
    else:
        content += bytes(length - len(content))


class _Dir:
    """A directory: its names, the names that are safe, and the changes between, each of which happens whole or not at all."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, _File | _Dir] = {}
        self.durable: dict[str, _File | _Dir] = {}
        self.changes: list[tuple[tuple[str, _File | _Dir | None], ...]] = []

    def change(self, *what: tuple[str, _File | _Dir | None]) -> None:
        _rename(self.names, what)
        self.changes.append(what)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def after_crash(self, random: Random, rot: Random | None) -> _Dir:
        names = dict(self.durable)
        kept = random.choice((0, len(self.changes), random.randint(0, len(self.changes))))
        for change in self.changes[:kept]:
            _rename(names, change)
        left = _Dir()
        left.names = {name: names[name].after_crash(random, rot) for name in sorted(names)}
        left.durable = dict(left.names)
        return left


def _rename(names: dict[str, _File | _Dir], change: tuple[tuple[str, _File | _Dir | None], ...]) -> None:
    for name, node in change:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimFile:
    __slots__ = ("_disk", "_file", "_open", "_random", "_run", "path")

    def __init__(self, disk: SimDisk, path: str, file: _File) -> None:
        self.path = path
        self._disk = disk
        self._file = file
        self._run = disk.run
        self._open = True
        self._random = Random(f"{disk.seed} {disk.run} {path}") if disk.cold_ratio else None

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        file = self._check()
        given = bytes(data)
        self._disk.meet("write", self.path, lambda part: file.write(offset, given[: int(len(given) * part)]))
        room = self._disk.take_space(file, offset, len(given))
        self._disk.changing(lambda: file.write(offset, given[:room]) if room else None)
        file.mtime_ms = self._disk.clock.now_ms()
        if room < len(given):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)

    def read(self, offset: int, size: int) -> bytes:
        file = self._check()
        self._disk.meet("read", self.path)
        return file.read(offset, size)

    def read_now(self, offset: int, size: int) -> bytes:
        file = self._check()
        random = self._random
        if random is not None and self._disk.cold_ratio:
            pages = range(offset // PAGE, (offset + size) // PAGE + 1)
            if not file.warm.issuperset(pages):
                if random.random() < self._disk.cold_ratio:
                    raise Cold(lambda: self._fetch(offset, size))
                file.warm.update(pages)
            elif random.random() < 0.01:
                file.warm.clear()  # somebody else needed the memory
        return file.read(offset, size)

    def read_into(self, offset: int, room: memoryview) -> None:
        data = self.read_now(offset, len(room))
        if len(data) < len(room):
            size = len(room)
            raise Cold(lambda: self._fetch(offset, size))
        room[:] = data

    def _fetch(self, offset: int, size: int) -> bytes:
        data = self.read(offset, size)
        self._file.warm.update(range(offset // PAGE, (offset + size) // PAGE + 1))
        return data

    def map(self, offset: int, size: int) -> memoryview:
        file = self._check()
        if offset + size > file.length:
            raise ValueError(f"a view to {offset + size} of a file of {file.length} bytes")
        file.map()
        return memoryview(file.content)[offset : offset + size]

    def allocate(self, offset: int, size: int) -> None:
        file = self._check()
        if self._disk.take_space(file, offset, size) < size:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        if offset + size > file.length:
            self._disk.changing(lambda: file.resize(offset + size))

    def sync(self) -> None:
        file = self._check()
        self._disk.meet("sync", self.path, lambda part: file.lose())
        self._disk.changing(file.sync)

    def size(self) -> int:
        return self._check().length

    def next_data(self, offset: int) -> int | None:
        file = self._check()
        if offset >= file.length:
            return None
        page = offset // PAGE
        found = min((one for one in file.pages if one >= page), default=None)
        if found is None and not file.mapped:
            return None
        return offset if found is None or found == page else found * PAGE

    def truncate(self, size: int) -> None:
        file = self._check()
        self._disk.meet("truncate", self.path)
        self._disk.changing(lambda: file.resize(size))
        file.mtime_ms = self._disk.clock.now_ms()

    def close(self) -> None:
        self._open = False

    def _check(self) -> _File:
        if self._run != self._disk.run:
            raise StaleHandle(f"{self.path} was opened before the crash")
        if not self._open:
            raise OSError(errno.EBADF, "Bad file descriptor", self.path)
        return self._file


class SimDisk:
    def __init__(self, clock: Clock | None = None, seed: int | str = 0, *, capacity: int = 1 << 40) -> None:
        self.clock = clock or ManualClock()
        self.seed = seed
        self.capacity = capacity
        self.run = 0
        """Counts processes: raised by crash and kill."""
        self.full = False
        """Whether nothing more can be allocated."""
        self.cold_ratio = 0.0
        """How many of the `read_now` find their bytes not in memory. Set it before files are opened."""
        self.operations = 0
        """Changes made so far."""
        self.faults: list[Fault] = []
        """To come; `fail` adds one."""
        self.failures: list[str] = []
        """That came: what failed where."""
        self.rot: Random | None = None
        """Decides where a power loss spoils bits of what was not synced; None: nowhere."""
        self._random = Random(f"disk {seed}")
        self._root = _Dir()
        self._locks: set[str] = set()
        self._off_at: int | None = None

    # Trouble

    def fail(self, operation: str, number: int, where: str = "", *, after: int = 0, times: int = 1, part: float = 0.0) -> Fault:
        """Let an operation fail with this error number. Returns the fault; take it out of `faults` to end it."""
        if operation not in OPERATIONS:
            raise ValueError(f"operation {operation!r}, expected one of {', '.join(OPERATIONS)}")
        fault = Fault(operation, number, where, after, times, part)
        self.faults.append(fault)
        return fault

    @contextmanager
    def spared(self) -> Iterator[None]:
        """Faults that are to come are for who is tested, not for who looks."""
        faults, self.faults = self.faults, []
        try:
            yield
        finally:
            self.faults = faults

    def meet(self, operation: str, path: str, happened: Callable[[float], None] | None = None) -> None:
        """Every operation comes by here before it does anything; the first fault that fits it is raised."""
        for fault in self.faults:
            if fault.operation == operation and fault.where in path:
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                self.failures.append(f"{operation} {path}")
                if happened is not None and (fault.part or operation == "sync"):
                    happened(fault.part)
                raise OSError(fault.number, os.strerror(fault.number), path)

    def crash(self) -> None:
        """Power loss: only what was synced is sure to be there. Files opened before are of no use any more."""
        self._root = self._root.after_crash(self._random, self.rot)
        self.kill()

    def kill(self) -> None:
        """The process is gone. What it wrote is there, safe or not."""
        self.run += 1
        self._locks.clear()
        self._off_at = None

    def power_off_after(self, operations: int) -> None:
        """Raise PowerLost out of a change that comes after so many others."""
        self._off_at = self.operations + operations

    def stay_on(self) -> None:
        self._off_at = None

    def changing(self, change: Callable[[], None]) -> None:
        """Every change goes through here; the power may fail just before or just after it."""
        self.operations += 1
        off = self._off_at is not None and self.operations >= self._off_at
        if off and self._random.random() < 0.5:
            raise PowerLost(self)
        change()
        if off:
            raise PowerLost(self)

    def take_space(self, file: _File, offset: int, size: int) -> int:
        """Reserve pages for this range; how many bytes of it there is room for."""
        if not size:
            return 0
        needed = range(offset // PAGE, (offset + size - 1) // PAGE + 1)
        if not self.full and self.capacity >= 1 << 40:
            file.pages.update(needed)
            return size
        free = 0 if self.full else (self.capacity - self._used(self._root)) // PAGE
        for page in needed:
            if page not in file.pages:
                if free <= 0:
                    return max(0, page * PAGE - offset)
                free -= 1
                file.pages.add(page)
        return size

    def _used(self, node: _Dir) -> int:
        return sum(self._used(one) if isinstance(one, _Dir) else len(one.pages) * PAGE for one in node.names.values())

    # Disk

    def when_short(self, close_some: Callable[[], bool]) -> None:
        """Descriptors never run out here."""

    def open(self, path: str, *, size: int | None = None) -> SimFile:
        self.meet("open", path)
        parent, name = self._parent(path)
        found = parent.names.get(name)
        if isinstance(found, _Dir):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if found is None:
            if size is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            made = found = _File(self.clock.now_ms())
            self.changing(lambda: parent.change((name, made)))
        file = SimFile(self, path, found)
        if size is not None and found.length < size:
            file.truncate(size)
        return file

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, path: str) -> list[str]:
        found = self._find(path)
        return sorted(found.names) if isinstance(found, _Dir) else []

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), _Dir)

    def size(self, path: str) -> int:
        return self._file(path).length

    def mtime_ms(self, path: str) -> int:
        return self._file(path).mtime_ms

    def make_dir(self, path: str) -> None:
        self.meet("make_dir", path)
        node = self._root
        for name in _parts(path):
            found = node.names.get(name)
            if found is None:
                found = _Dir()
                self.changing(partial(node.change, (name, found)))
            if not isinstance(found, _Dir):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            node = found

    def remove(self, path: str) -> None:
        self.meet("remove", path)
        try:
            parent, name = self._parent(path)
        except FileNotFoundError:
            return
        found = parent.names.get(name)
        if isinstance(found, _Dir):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if found is not None:
            self.changing(lambda: parent.change((name, None)))

    def remove_tree(self, path: str) -> None:
        found = self._find(path)
        if isinstance(found, _Dir):
            for name in sorted(found.names):
                if isinstance(found.names[name], _Dir):
                    self.remove_tree(f"{path}/{name}")
                else:
                    self.remove(f"{path}/{name}")
            parent, name = self._parent(path)
            self.changing(lambda: parent.change((name, None)))

    def rename(self, old: str, new: str) -> None:
        self.meet("rename", new)
        above, name = self._parent(old)
        below, fresh = self._parent(new)
        node = above.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        existing = below.names.get(fresh)
        if isinstance(existing, _Dir) and not isinstance(node, _Dir):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", new)
        if existing is node:
            return
        if above is below:
            self.changing(lambda: above.change((name, None), (fresh, node)))
        else:
            self.changing(partial(below.change, (fresh, node)))
            self.changing(partial(above.change, (name, None)))

    def sync_dir(self, path: str) -> None:
        self.meet("sync_dir", path)
        self.changing(self._directory(path, path).sync)

    def used_ratio(self, path: str) -> float:
        total, free = self.total_bytes(path)
        return 1.0 - free / total

    def total_bytes(self, path: str) -> tuple[int, int]:
        return self.capacity, 0 if self.full else max(0, self.capacity - self._used(self._root))

    def lock(self, path: str) -> Callable[[], None]:
        if path in self._locks:
            raise OSError(errno.EAGAIN, "locked by somebody else", path)
        if not self.is_dir(path):
            self.open(path, size=0).write(0, b"lock")
        self._locks.add(path)
        run = self.run

        def release() -> None:
            if run == self.run:
                self._locks.discard(path)

        return release

    # Inside

    def _find(self, path: str) -> _File | _Dir | None:
        node: _File | _Dir = self._root
        for name in _parts(path):
            if not isinstance(node, _Dir) or name not in node.names:
                return None
            node = node.names[name]
        return node

    def _file(self, path: str) -> _File:
        found = self._find(path)
        if not isinstance(found, _File):
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return found

    def _parent(self, path: str) -> tuple[_Dir, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        return self._directory(above, path), name

    def _directory(self, path: str, asked: str) -> _Dir:
        """`asked` is named in errors."""
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", asked)
        if not isinstance(found, _Dir):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", asked)
        return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]
