"""A read from far behind the tail waits for the disk; nobody else does."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roquet import programs
from roquet.clock import SystemClock
from roquet.settings import BrokerSettings
from roquet.store.disk import Cold, DiskFile, RealDisk
from roquet.store.store import Store
from roquet.testing import ManualBackground
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.record import decode_records
from tests.process.line import Line, create_topic, max_offset, pull, query_key, records, send_message
from tests.process.programs import PATIENCE_S, Nursery


class SlowFile:
    """A log file of which what stood there at the start is on a disk that answers when the test lets it.

    `read_now` of that part raises Cold until `read` has brought it in, as RWF_NOWAIT does with the page cache.
    """

    def __init__(self, inner: DiskFile, slow: SlowDisk) -> None:
        self._inner = inner
        self._slow = slow
        self.path = inner.path

    def read_now(self, offset: int, size: int) -> bytes:
        if self._slow.is_cold(self.path, offset):
            raise Cold(lambda: self.read(offset, size))
        return self._inner.read_now(offset, size)

    def read_into(self, offset: int, room: memoryview) -> None:
        room[:] = self.read_now(offset, len(room))

    def read(self, offset: int, size: int) -> bytes:
        if self._slow.is_cold(self.path, offset):
            assert threading.current_thread() is not self._slow.loop_thread, "the event loop waits for the disk"
            self._slow.read_begins()
            self._slow.warm.add((self.path, offset))
        return self._inner.read(offset, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


Connect = Callable[[], Coroutine[Any, Any, "Talk"]]


class SlowDisk(RealDisk):
    def __init__(self) -> None:
        self.cold_below = 0
        self.warm: set[tuple[str, int]] = set()
        self.loop_thread: threading.Thread | None = None
        self.reading = threading.Semaphore(0)
        """One release for every cold read that is under way."""
        self.disk_answers = threading.Event()

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        file = super().open(path, size=size)
        return SlowFile(file, self) if "/commitlog/" in path else file

    def is_cold(self, path: str, offset: int) -> bool:
        return self.cold_below > 0 and offset < self.cold_below and (path, offset) not in self.warm

    def read_begins(self) -> None:
        self.reading.release()
        assert self.disk_answers.wait(PATIENCE_S), "the test never let the disk answer"


class Talk:
    """A client on the loop: `ask` without waiting, answers by opaque."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._framer = Framer()
        self._opaque = 0

    def say(self, command: Command) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        self._writer.write(command.encode())

    async def hear(self) -> tuple[bytes, bytes]:
        """(header, body) of the next answer."""
        while True:
            data = await asyncio.wait_for(self._reader.read(1 << 20), PATIENCE_S)
            assert data, "closed"
            frames = self._framer.feed(data)
            if frames:
                ((_, header, body),) = frames
                return header, body

    async def ask(self, command: Command) -> tuple[bytes, bytes]:
        self.say(command)
        return await self.hear()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


Play = Callable[[SlowDisk, Connect], Coroutine[Any, Any, None]]


def with_slow_disk(monkeypatch: pytest.MonkeyPatch, root: Path, flush: str, play: Play) -> None:
    """Run `play(disk, connect)` beside a broker program whose first messages are on a slow disk."""
    disk = SlowDisk()
    monkeypatch.setattr(programs, "RealDisk", lambda: disk)
    settings = BrokerSettings(
        store_path_root_dir=str(root), listen_port=0, flush_disk_type=flush, mapped_file_size_commit_log=1 << 22,
        max_hash_slot_num=100, max_index_num=1_000,
    )  # fmt: skip

    async def main() -> None:
        disk.loop_thread = threading.current_thread()
        stop = asyncio.Event()
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        broker = asyncio.create_task(programs.run_broker(settings, stop=stop, ready=ready.set_result))
        either: list[asyncio.Future[Any]] = [broker, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if broker.done():
            await broker
        host, _, port = ready.result().rpartition(":")
        talks: list[Talk] = []

        async def connect() -> Talk:
            talks.append(Talk(*await asyncio.open_connection(host, int(port))))
            return talks[-1]

        try:
            await play(disk, connect)
        finally:
            disk.disk_answers.set()
            for talk in talks:
                await talk.close()
            stop.set()
            await broker

    asyncio.run(main())


async def until_reading(disk: SlowDisk, count: int = 1) -> None:
    """So many cold reads are under way, in threads of their own."""
    for _ in range(count):
        assert await asyncio.to_thread(disk.reading.acquire, timeout=PATIENCE_S), "no cold read began"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sends_and_pulls_are_answered_while_a_cold_read_is_under_way(flush: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def play(disk: SlowDisk, connect: Connect) -> None:
        far_behind, other = await connect(), await connect()
        await other.ask(create_topic("topic", 1))
        for number in range(20):
            await other.ask(send_message("topic", b"%d" % number, properties={"TAGS": "t", "KEYS": f"k{number}"}))
        disk.cold_below = 1_000  # a few of the first messages
        far_behind.say(pull("topic", 0))
        await until_reading(disk)
        # The disk has not answered. Everything else goes on:
        for number in range(20, 30):
            header, _ = await other.ask(send_message("topic", b"%d" % number, properties={"TAGS": "t"}))
            assert b'"code":0' in header
            _, body = await other.ask(pull("topic", number))
            assert [record.body for record in decode_records(body)] == [b"%d" % number]
        assert not disk.disk_answers.is_set()
        waiting = asyncio.create_task(far_behind.hear())
        await other.ask(max_offset("topic"))
        assert not waiting.done(), "it cannot have an answer yet"
        disk.disk_answers.set()
        _, body = await waiting
        assert [record.body for record in decode_records(body)][:20] == [b"%d" % number for number in range(20)]

    with_slow_disk(monkeypatch, tmp_path, flush, play)


@pytest.mark.parametrize("ask", ["key", "id", "time"])
def test_queries_of_cold_messages_wait_alone_too(ask: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def play(disk: SlowDisk, connect: Connect) -> None:
        far_behind, other = await connect(), await connect()
        await other.ask(create_topic("topic", 1))
        for number in range(20):
            await other.ask(send_message("topic", b"%d" % number, properties={"TAGS": "t", "KEYS": f"k{number}"}))
        disk.cold_below = 1_000
        command = {
            "key": query_key("topic", "k0"),
            "id": Command(33, {"offset": "0"}),
            "time": Command(32, {"topic": "topic", "queueId": "0"}),
        }[ask]
        far_behind.say(command)
        await until_reading(disk)
        header, _ = await other.ask(send_message("topic", b"meanwhile", properties={"TAGS": "t"}))
        assert b'"code":0' in header
        disk.disk_answers.set()
        header, body = await far_behind.hear()
        assert b'"code":0' in header
        if ask != "time":
            assert decode_records(body)[0].body == b"0"

    with_slow_disk(monkeypatch, tmp_path, "ASYNC_FLUSH", play)


def test_many_cold_readers_do_not_hold_up_the_flush_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sixteen reads wait for the disk at once, more than there are threads; a send under SYNC_FLUSH still gets its fsync."""

    async def play(disk: SlowDisk, connect: Connect) -> None:
        other = await connect()
        await other.ask(create_topic("topic", 1))
        for number in range(20):
            await other.ask(send_message("topic", b"%d" % number, properties={"TAGS": "t"}))
        disk.cold_below = 1_000
        readers = [await connect() for _ in range(16)]
        for reader in readers:
            reader.say(pull("topic", 0))
        await until_reading(disk, 2)
        await other.ask(max_offset("topic"))  # all pulls are taken in by now
        try:
            other.say(send_message("topic", b"meanwhile", properties={"TAGS": "t"}))
            header, _ = await asyncio.wait_for(other.hear(), PATIENCE_S)
        except TimeoutError:
            pytest.fail("a send waits for the cold reads of others")
        finally:
            disk.disk_answers.set()
        assert b'"code":0' in header
        for reader in readers:
            _, body = await reader.hear()
            assert decode_records(body)[0].body == b"0"

    with_slow_disk(monkeypatch, tmp_path, "SYNC_FLUSH", play)


BODY = 256 << 10
COUNT = 840
"""210 MiB of log."""


def is_in_memory(path: Path, offset: int) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def drop_pages(directory: Path) -> None:
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDWR)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def test_a_live_broker_reads_what_was_dropped_from_memory_and_serves_others_meanwhile(nursery: Nursery, tmp_path: Path) -> None:
    """210 MiB of log with its pages dropped, read from the beginning while another connection sends: all right, nobody stalls."""
    store = Store(RealDisk(), BrokerSettings(store_path_root_dir=str(tmp_path / "store")), SystemClock(), ManualBackground())
    store.open()
    random = Random(9)
    bodies = [random.randbytes(64) * (BODY // 64) for _ in range(8)]
    for number in range(COUNT):
        store.begin(1_800_000_000_000 + number)
        store.put(
            store.queue("topic", 0), bodies[number % 8], "TAGS\x01t", sys_flag=0, flag=0, born_ms=1,
            born_host=socket.inet_aton("127.0.0.1") + struct.pack(">i", 1),
        )  # fmt: skip
        store.commit()
    store.close()
    log = tmp_path / "store" / "commitlog"
    with nursery.broker(tmp_path) as broker, Line(broker.address) as worker:
        assert worker.ask(create_topic("topic", 1)).code == 0
        drop_pages(log)
        (file,) = log.iterdir()
        cold = [offset for offset in range(0, COUNT * BODY, BODY) if not is_in_memory(file, offset)]
        print(f"{len(cold)} of {COUNT} places are cold")
        if not cold:
            pytest.skip("this file system keeps its pages (a RAM disk?): nothing can be cold here")
        failures: list[BaseException] = []
        read = threading.Event()

        def read_all() -> None:
            try:
                with Line(broker.address) as reader:
                    offset = 0
                    while offset < COUNT:
                        answer = reader.ask(pull("topic", offset))
                        assert answer.code == 0, answer
                        for record in records(answer):
                            assert record.queue_offset == offset
                            assert record.body == bodies[offset % 8]
                            offset += 1
            except BaseException as error:
                failures.append(error)
            finally:
                read.set()

        thread = threading.Thread(target=read_all)
        thread.start()
        count = 0
        while not read.is_set() or count == 0:
            assert worker.ask(send_message("other", b"meanwhile", properties={"TAGS": "t"})).code == 0
            count += 1
        thread.join()
        assert not failures, failures
        print(f"{count} sends were answered while {COUNT * BODY >> 20} MiB were read")
