"""Fewer file descriptors than queues, or than connections: slower, and never the end of anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from roquet.wire.command import Command
from roquet.wire.record import Record
from tests.process.beside import beside
from tests.process.line import Line, create_topic, pull, records, send_message
from tests.process.programs import PATIENCE_S, SMALL_FILES, Broker, Nursery

FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
FILES = 256
QUEUES = 400


def wait_for_checkpoint(broker: Broker, end: int) -> None:
    """Everything derived from the log before `end` is on disk, says the store."""
    deadline = time.monotonic() + PATIENCE_S
    manifest = broker.store / "config" / "roquet.json"
    said = -1
    while said < end:
        assert time.monotonic() < deadline, f"no checkpoint since {said}\n{broker.program.text}"
        with suppress(FileNotFoundError):  # there is none before the first, and none for a moment while one takes another's place
            said = json.loads(manifest.read_text())["end"]
        threading.Event().wait(0.1)


def check(broker: Broker, rounds: int) -> None:
    with Line(broker.address) as line:
        for queue in range(QUEUES):
            found: list[Record] = []
            while len(found) < rounds:  # an answer has what is in memory, which the system may drop at any moment
                more = records(line.ask(pull("wide", len(found), queue)))
                assert more, f"queue {queue} ends at {len(found)}, expected {rounds}"
                found += more
            assert [record.body for record in found] == [b"%d of %d" % (number, queue) for number in range(rounds)]


def write(broker: Broker, number: int) -> int:
    end = 0
    with Line(broker.address) as line:
        for queue in range(QUEUES):
            answer = line.ask(send_message("wide", b"%d of %d" % (number, queue), queue, properties={"TAGS": "t", "KEYS": f"{queue}"}))
            assert answer.code == 0, answer
            end = int(answer.fields["msgId"][16:], 16)
    return end


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    def scenario(flush: str) -> None:
        with closing(Nursery()) as nursery:
            live_with_few_files(flush, nursery, tmp_path_factory.mktemp(flush))

    with beside(scenario, FLUSHES) as begun:
        yield begun


@pytest.mark.parametrize("flush", FLUSHES)
def test_400_queues_live_with_256_files(flush: str, outcomes: dict[str, Future[None]]) -> None:
    outcomes[flush].result()


def live_with_few_files(flush: str, nursery: Nursery, tmp_path: Path) -> None:
    settings = SMALL_FILES | {"flushDiskType": flush}
    with nursery.broker(tmp_path, settings, FILES) as broker:
        with Line(broker.address) as line:
            assert line.ask(create_topic("wide", QUEUES)).code == 0
        write(broker, 0)
        wait_for_checkpoint(broker, write(broker, 1))
        check(broker, 2)
        assert "Too many open files" not in broker.program.text
        assert "connectionsMax=20000" in broker.program.text, "a limit that does not fit is told at the start"
    with nursery.broker(tmp_path, settings, FILES) as broker:
        check(broker, 2)
        write(broker, 2)
        broker.kill()
    with nursery.broker(tmp_path, settings, FILES) as broker:
        check(broker, 3)
        wait_for_checkpoint(broker, write(broker, 3))
        check(broker, 4)


def test_more_connections_than_files_end_neither_listening_nor_writing(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.broker(tmp_path, SMALL_FILES, FILES) as broker, Line(broker.address) as honest:
        assert honest.ask(create_topic("wide", QUEUES)).code == 0
        with ExitStack() as stack:
            for _ in range(2 * FILES):
                with suppress(OSError):
                    stack.enter_context(Line(broker.address))
            for queue in range(QUEUES):
                assert honest.ask(send_message("wide", b"0 of %d" % queue, queue, properties={"TAGS": "t"})).code == 0
            answer = honest.ask(send_message("wide", b"1 of 0", 0, properties={"TAGS": "t"}))
            wait_for_checkpoint(broker, int(answer.fields["msgId"][16:], 16))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError), Line(broker.address) as late:
                late.send(Command(26, opaque=5).encode())
                if late.receive() is not None:
                    break
            assert time.monotonic() < deadline, "nobody comes in any more"
        assert "Traceback" not in broker.program.text
