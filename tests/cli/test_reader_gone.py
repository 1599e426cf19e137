"""`roquet ... | head -1`: who has seen enough is not told about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.servers import up


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server, address = up(tmp_path_factory.mktemp("data"))
    with server:
        yield address


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["topic", "--help"],
        ["pipeline", "archive", "--help"],
        ["topic", "list"],
        ["topic", "list", "--json"],
        ["status"],
        ["status", "--json"],
        ["group", "list"],
        ["send", "gone", "hello"],
    ],
)
def test_a_reader_that_leaves_ends_the_command_in_silence(cluster: str, arguments: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"} | {"NAMESRV_ADDR": cluster}
    with open(writer, "wb") as out:
        command = [sys.executable, "-m", "roquet", *arguments]
        done = subprocess.run(command, env=env, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr, "BrokenPipe" in done.stderr) == (0, False, False), done.stderr
