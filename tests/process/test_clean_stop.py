"""SIGTERM under load, a second broker on one store, a port that is taken: each ends as it says."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from threading import Timer

import pytest

from roquet.cli.shards import free_ports
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.cli.servers import Roquet
from tests.process.line import Line, create_topic, send_message
from tests.process.programs import PATIENCE_S, SMALL_FILES, Nursery
from tests.process.test_sigkill import QUEUES, TOPIC, Load, check, open_store, read_on, stored


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_sigterm_under_load_ends_cleanly_and_loses_nothing(flush: str, nursery: Nursery, tmp_path: Path) -> None:
    settings = {**SMALL_FILES, "flushDiskType": flush}
    load, upto = Load(Random(5)), dict[int, int]()
    for round_number in range(4):
        broker = nursery.broker(tmp_path, settings)
        with Line(broker.address) as line:
            if round_number == 0:
                assert line.ask(create_topic(TOPIC, QUEUES)).code == 0
            read_on(line, load, upto)
        stopper = Timer(0.1 + 0.05 * round_number, broker.program.send_signal, (signal.SIGTERM,))
        load.run(broker.address, stopper.start)
        stopper.join()
        # Its connections are closed by now, which is the last but one thing that a clean stop does.
        assert broker.program.end() == 0, broker.program.text
        assert "Traceback" not in broker.program.text
        assert not (broker.store / "abort").exists()
        store = open_store(broker, flush)
        assert store.recovered_records == 0, "a clean stop leaves nothing to recover"
        found = dict(stored(store))
        store.close()
        for place, record in found.items():
            check(record, place, load)
        assert not load.acknowledged.keys() - found.keys()
    assert load.acknowledged


def test_a_broker_whose_output_goes_to_a_full_disk_starts_serves_and_stops(tmp_path: Path) -> None:
    """Its log lies on the disk that its messages filled. Whatever it cannot say, SIGTERM is heard."""
    (port,) = free_ports(1, "127.0.0.1")
    config = tmp_path / "broker.conf"
    settings = {"listenPort": port, "storePathRootDir": tmp_path / "store", "brokerIP1": "127.0.0.1", "namesrvAddr": "127.0.0.1:9"}
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen([sys.executable, "-m", "roquet", "broker", "-c", str(config)], stdout=full, stderr=full)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = Line(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                assert process.poll() is None, "it ended"
                assert time.monotonic() < deadline
                time.sleep(0.02)
        with line:
            assert line.ask(create_topic(TOPIC)).code == 0
            assert line.ask(send_message(TOPIC, b"x")).code == 0
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        assert not (tmp_path / "store" / "abort").exists(), "it stopped cleanly"
    finally:
        process.kill()
        process.wait()


def test_a_second_broker_on_the_same_directory_is_refused_with_a_sentence(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.broker(tmp_path) as broker:
        (tmp_path / "second.conf").write_text(f"listenPort=0\nstorePathRootDir={broker.store}\n")
        with Roquet("broker", "-c", str(tmp_path / "second.conf")) as second:
            assert second.wait() == 1
        text = "\n".join(second.lines)
        assert "in use by another broker" in text
        assert str(broker.store) in text
        assert "Traceback" not in text
        with Line(broker.address) as line:
            assert line.ask(create_topic("still_there")).code == 0


def test_a_port_that_is_taken_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "broker.conf").write_text(f"listenPort={port}\nstorePathRootDir={tmp_path / 'store'}\n")
        (tmp_path / "namesrv.conf").write_text(f"listenPort={port}\n")
        for kind in ("broker", "namesrv"):
            with Roquet(kind, "-c", f"{kind}.conf", cwd=tmp_path) as program:
                assert program.wait() == 1
            text = "\n".join(program.lines)
            assert str(port) in text
            assert "listens there already" in text
            assert "Traceback" not in text
        assert not (tmp_path / "store" / "abort").exists(), "it never served, so nothing was aborted"


def test_a_refused_start_leaves_a_store_that_the_next_right_one_serves(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.broker(tmp_path, SMALL_FILES) as broker, Line(broker.address) as line:
        assert line.ask(create_topic("kept")).code == 0
    wrong = {**SMALL_FILES, "mappedFileSizeCommitLog": str(8 * int(SMALL_FILES["mappedFileSizeCommitLog"]))}
    lines = "\n".join(f"{key}={value}" for key, value in wrong.items())
    (tmp_path / "wrong.conf").write_text(f"listenPort=0\nstorePathRootDir={broker.store}\n{lines}\n")
    for _ in range(2):
        with Roquet("broker", "-c", str(tmp_path / "wrong.conf")) as refused:
            assert refused.wait() == 1
        text = "\n".join(refused.lines)
        assert "mappedFileSizeCommitLog" in text
        assert "Traceback" not in text
        assert not (broker.store / "abort").exists()
    with nursery.broker(tmp_path, SMALL_FILES) as broker, Line(broker.address) as line:
        assert b'"kept"' in line.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body
