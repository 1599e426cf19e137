"""Other systems have less than Linux: `roquet up`, send, consume, a kill and its recovery without what macOS and Windows do not have.

The names are taken away from the real programs by bare/sitecustomize.py. What only a real macOS or Windows shows is left to the
workflow file's jobs.
"""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.servers import Roquet
from tests.process.bare.sitecustomize import MACOS, WINDOWS

BARE = Path(__file__).parent / "bare"
SOURCES = Path(__file__).parents[2] / "src" / "roquet"
SYSTEMS = ["macos", "windows"]

EMBEDDED = """
import asyncio, sys
import roquet

async def main() -> None:
    async with roquet.embedded() as mq, mq.producer() as producer:
        assert (await producer.send(roquet.Message("orders", b"order 17"))).ok
        got = asyncio.Event()
        consumer = mq.consumer(consume_from="first")
        async def take(message: roquet.ReceivedMessage) -> None:
            assert message.body == b"order 17"
            got.set()
        consumer.subscribe("orders", "*", take)
        async with consumer:
            await asyncio.wait_for(got.wait(), 300)

asyncio.run(main())
print("it works")
"""


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is started from now on has no more than this system has."""
    monkeypatch.setenv("ROQUET_WITHOUT", request.param)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BARE), str(SOURCES.parent), os.environ.get("PYTHONPATH", "")]))
    return str(request.param)


def ran(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done
    return done.stdout


def up(data: Path, *more: str) -> tuple[Roquet, str]:
    server = Roquet("up", "--data", str(data), "--namesrv-port", "0", "--broker-port", "0", *more, anew=True)
    try:
        address = server.wait_for(r"name server\s+(\S+:\d+)")[1]
        server.wait_for("Ctrl-C stops it")
    except BaseException:
        server.end()
        raise
    return server, address


def test_the_names_are_gone(system: str) -> None:
    assert ran("-c", "import os; print(hasattr(os, 'RWF_NOWAIT'), hasattr(os, 'posix_fallocate'))") == "False False\n"
    assert ran("-c", "import os; print(hasattr(os, 'pread'))") == f"{system == 'macos'}\n"


def test_servers_and_commands_run_stop_and_recover(system: str, tmp_path: Path) -> None:
    """With SYNC_FLUSH first, and then with ASYNC_FLUSH, which is the default."""
    roquet = ("-m", "roquet")
    server, address = up(tmp_path, "--set", "flushDiskType=SYNC_FLUSH")
    with server:
        assert any("without " in line and "RWF_NOWAIT" in line and "slower" in line for line in server.lines), server.lines
        assert "50 stored" in ran(*roquet, "send", "-n", address, "there", "first {n}", "--count", "50", "--keys", "k")
        assert len(ran(*roquet, "consume", "-n", address, "there", "--from", "first", "--once", "--body").splitlines()) == 50
        assert "first" in ran(*roquet, "query", "key", "-n", address, "there", "k")
        server.signal(signal.SIGINT)
        assert server.wait() == 0
    assert "Stopped. Everything is on disk." in server.lines
    server, address = up(tmp_path)
    with server:
        assert "50 stored" in ran(*roquet, "send", "-n", address, "there", "second {n}", "--count", "50")
        server.signal(signal.SIGKILL)
        server.wait()
    server, address = up(tmp_path)
    with server:
        once = ran(*roquet, "consume", "-n", address, "there", "--group", "readers", "--from", "first", "--once", "--body").splitlines()
        assert sorted(once) == sorted(f"{word} {number}" for word in ("first", "second") for number in range(50))
        ran(*roquet, "config", "set", "-n", address, "fileReservedTime=48")
        assert "lag 0" in ran(*roquet, "status", "-n", address)
        assert server.end() == 0


def test_a_member_of_a_group_leaves_on_ctrl_c(system: str, tmp_path: Path) -> None:
    server, address = up(tmp_path)
    with server:
        ran("-m", "roquet", "topic", "create", "-n", address, "followed")
        with Roquet("consume", "followed", "--group", "followers", "--from", "first", "-n", address, anew=True) as follower:
            follower.wait_for("member .* of followers")
            ran("-m", "roquet", "send", "-n", address, "followed", "live one")
            follower.wait_for("live one")
            follower.signal(signal.SIGINT)
            assert follower.wait() == 0
        assert server.end() == 0


def test_shards_run_and_stop(system: str, tmp_path: Path) -> None:
    server, address = up(tmp_path, "--shards", "2")
    with server:
        assert "50 stored" in ran("-m", "roquet", "send", "-n", address, "there", "first {n}", "--count", "50")
        server.signal(signal.SIGINT)
        assert server.wait() == 0
    assert not (tmp_path / "broker-0" / "abort").exists()


def test_embedded_servers_run(system: str) -> None:
    assert ran("-c", EMBEDDED) == "it works\n"


def test_a_store_in_use_is_not_opened_twice(system: str, tmp_path: Path) -> None:
    server, _ = up(tmp_path)
    with server:
        code = "import asyncio, roquet, sys\nasync def main():\n    async with roquet.embedded(sys.argv[1]): pass\nasyncio.run(main())"
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False)
        # A Python without any lock of files, which is what is left here of Windows, cannot know of other processes.
        assert ("is in use by another broker" in done.stderr) == (system == "macos"), done


# Every name that one of them does not have stands in system.py, where it may be missing.

ELSEWHERE = {
    ("cli/pipelines/sql.py", "readline"), ("client/member.py", "register_at_fork"), ("client/sync.py", "register_at_fork"),  # if there
    ("outbox/outbox.py", "register_at_fork"),
    ("spark/archive/ledger.py", "fcntl"), ("spark/archive/ledger.py", "O_CLOEXEC"), ("spark/archive/ledger.py", "O_DIRECTORY"),
    ("spark/java.py", "geteuid"), ("spark/pipelines/store_files.py", "SEEK_DATA"),
}  # fmt: skip
"""Of the Spark extra, whose archives and store files are for POSIX systems; it is imported when a pipeline runs."""


def names_of(path: Path) -> set[str]:
    """Names of modules whose attributes are used, and modules that are imported."""
    missing = {name for place in (MACOS, WINDOWS) for kind, names in place.items() if kind != "modules" for name in names}
    modules = set(WINDOWS["modules"])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "socket", "signal"):
            found |= {node.attr} & missing
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names} & modules
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} & modules
    return found


def test_no_other_file_uses_what_a_system_may_not_have() -> None:
    places = {(str(path.relative_to(SOURCES)), name) for path in SOURCES.rglob("*.py") for name in names_of(path)}
    outside = {(file, name) for file, name in places if file != "system.py"} - ELSEWHERE
    assert not outside, sorted(outside)


def test_a_disk_that_fails_a_full_sync_is_not_asked_for_a_lesser_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS. The second call may say that all is well, and what was not written is gone."""
    from roquet import system

    given: list[int] = []

    class Drive:
        F_FULLFSYNC = 51
        code = errno.EIO

        def fcntl(self, fd: int, what: int) -> None:
            raise OSError(self.code, "of the drive")

    drive = Drive()
    monkeypatch.setattr(system, "fcntl", drive)
    monkeypatch.setattr("os.fsync", given.append)
    for code in (errno.EIO, errno.ENOSPC):
        drive.code = code
        with pytest.raises(OSError, match="of the drive"):
            system._full_sync(7)
    assert given == []
    for code in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):  # file systems of a network have none
        drive.code = code
        system._full_sync(7)
    assert given == [7, 7, 7]
