"""The servers that tests use: whose they are, how they end, and what is said when one cannot be had."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import services
from tests.services import HOST, Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the servers are those of Debian's packages")


def wait_until_nobody_listens(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as asking:
            if asking.connect_ex((HOST, port)):
                return
        time.sleep(0.02)
    raise AssertionError(f"somebody still listens on port {port}")


def test_all_three_run_as_a_user_who_is_not_root_with_data_below_the_temporary_directory(
    postgresql_server: Server, mariadb_server: Server, redis_server: Server
) -> None:
    for server in (postgresql_server, mariadb_server, redis_server):
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0, server
        assert f"/roquet-{server.name}-" in str(Path(f"/proc/{server.pid}/cwd").readlink())
        with socket.create_connection((server.host, server.port), timeout=5):
            pass


def test_a_server_is_gone_when_its_block_is_left_and_when_its_starter_was_killed() -> None:
    try:
        with services.running("redis") as server:
            pass
    except services.NoService as error:
        pytest.skip(str(error))
    wait_until_nobody_listens(server.port)
    assert not Path(f"/proc/{server.pid}").exists()
    starter = "from tests.services import running\nwith running('redis') as server: print(server.port, server.pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, pid = map(int, process.stdout.readline().split())
        place = Path(f"/proc/{pid}/cwd").readlink()
        os.kill(process.pid, signal.SIGKILL)
    wait_until_nobody_listens(port)
    shutil.rmtree(next(path for path in (place, *place.parents) if path.name.startswith("roquet-redis-")))


@pytest.mark.parametrize("ci", [False, True], ids=["elsewhere", "in CI"])
def test_what_cannot_be_had_is_named_in_one_line_and_is_an_error_in_ci_alone(tmp_path: Path, ci: bool) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(redis_server): ...\ndef test_two(redis_server): ...\n")
    (tmp_path / "conftest.py").write_text(
        "from tests import services\nfrom tests.services import *\nfrom tests.services import pytest_terminal_summary\n"
        "def no(service): raise services.NoService('Redis is not installed.')\nservices.install = no\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-q", str(tmp_path)]
    environment = {**os.environ, "CI": "true" if ci else "", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.count("left out, for want of a server: tests of Redis") == 1, done.stdout + done.stderr
    assert ("2 errors" if ci else "2 skipped") in done.stdout
    assert done.returncode == (1 if ci else 0)
