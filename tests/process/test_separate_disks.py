"""A commit log on a file system of its own, really mounted: watched, named, freed, and read without waiting."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.line import Line, create_topic, pull, records, send_message
from tests.process.programs import PATIENCE_S, SMALL_FILES, Nursery


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_of_the_log_refuses_by_its_name_and_is_freed_by_itself(small_disk: Path, nursery: Nursery, tmp_path: Path) -> None:
    settings = SMALL_FILES | {"storePathCommitLog": str(small_disk / "commitlog"), "cleanResourceInterval": "1000"}
    body = bytes(100_000)
    with nursery.broker(tmp_path, settings) as broker, Line(broker.address) as line:
        assert line.ask(create_topic("topic", 1)).code == 0
        remark = ""
        for _ in range(400):
            answer = line.ask(send_message("topic", body, properties={"TAGS": "t"}))
            if answer.code != 0:
                remark = answer.remark or ""
                break
        assert "full" in remark or str(small_disk) in remark, remark
        deadline = time.monotonic() + PATIENCE_S
        while (answer := line.ask(send_message("topic", b"again", properties={"TAGS": "t"}))).code != 0:
            assert time.monotonic() < deadline, answer
            threading.Event().wait(0.1)
        offset = int(answer.fields["queueOffset"])
        assert [record.body for record in records(line.ask(pull("topic", offset)))] == [b"again"]
        assert f"the disk of {small_disk}/commitlog is" in broker.program.text
        assert "Traceback" not in broker.program.text
        first = int(line.ask(pull("topic", 0)).fields["minOffset"])
        assert first > 0, "the oldest files went"
    with nursery.broker(tmp_path, settings) as broker, Line(broker.address) as line:
        assert [record.body for record in records(line.ask(pull("topic", offset)))] == [b"again"]
