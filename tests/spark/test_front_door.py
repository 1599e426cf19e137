"""`roquet pipeline` as a person at a shell meets it: what is wrong is told before Spark starts, and nothing else is said."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

import roquet
from roquet import Message
from roquet.spark.banners import telling
from tests import small_jvm
from tests.cli.servers import run
from tests.spark.conftest import Servers

EXTRA = ("pyspark", "py4j", "pyarrow", "pandas", "deltalake", "matplotlib")


@pytest.fixture(scope="module")
def topic(servers: Servers) -> str:
    name = servers.topic("door-orders", 1)
    servers.send([Message(name, b'{"n": %d}' % number, tags="paid") for number in range(9)])
    return name


@pytest.fixture
def no_jvm(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """An environment whose java says its version, and leaves a mark when somebody starts it; (environment, mark)."""
    mark, home = tmp_path / "started", tmp_path / "java" / "bin"
    home.mkdir(parents=True)
    (home / "java").write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit 0\ntouch {mark}\nexit 1\n')
    (home / "java").chmod(0o755)
    return {**os.environ, "JAVA_HOME": str(home.parent)}, mark


def roquet_at(python: str, arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-m", "roquet", *arguments], env=env, text=True, timeout=300, check=False, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["archive", "door-nowhere", "--to", "TMP"], "topic door-nowhere is not there"),
        (["archive", "door-nowhere", "--to", "TMP", "--follow"], "topic door-nowhere is not there"),
        (["archive", "door-orders", "--to", "TMP", "--columns", "bodi"], "there is no column bodi; there are topic"),
        (["archive", "door-orders", "--to", "TMP", "--property", "region:text"], "text"),
        (["archive", "--compact", "--to", "TMP"], "TMP"),
        (["sql", "select * from `door-order`"], "the statement reads door-order, and there is no such topic; did you mean door-orders?"),
        (["analytics", "door-nowhere", "--to", "x", "--checkpoint", "TMP"], "no name server knows topic 'door-nowhere'"),
        (["analytics", "door-orders", "--to", "x", "--checkpoint", "TMP", "--window", "5 minuts"], "--window 5 minuts: expected a number"),
        (["restore", "door-nowhere", "--dry-run"], "topic door-nowhere is not there"),
        (["verify", "--store", "TMP/nowhere"], "TMP/nowhere"),
    ],
)
def test_what_is_wrong_is_told_before_the_jvm_starts(
    servers: Servers, topic: str, no_jvm: tuple[dict[str, str], Path], tmp_path: Path, arguments: list[str], told: str
) -> None:
    env, mark = no_jvm
    given = [part.replace("TMP", str(tmp_path / "there")) for part in arguments]
    done = run("pipeline", *given, env=env | {"NAMESRV_ADDR": servers.namesrv})
    assert done.returncode == 1
    assert done.stderr.startswith("roquet: ")
    assert told.replace("TMP", str(tmp_path / "there")) in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert not mark.exists()


def test_an_address_where_nobody_answers_is_told_before_the_jvm_starts(no_jvm: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    env, mark = no_jvm
    for command in (["sql", "select 1"], ["archive", "orders", "--to", str(tmp_path / "a")]):
        done = run("pipeline", *command, "-n", "127.0.0.1:1", env=env)
        assert (done.returncode, done.stdout, mark.exists()) == (1, "", False)
        assert "127.0.0.1:1" in done.stderr.splitlines()[0]


@pytest.fixture(scope="module")
def without_extra(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment that has `pip install roquet` and no extra."""
    home = tmp_path_factory.mktemp("plain")
    venv.create(home, with_pip=False, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    for one in Path(pytest.__file__).resolve().parent.parent.iterdir():
        if not one.name.lower().startswith((*EXTRA, "__editable__", "_roquet", "roquet", "pip")) and one.suffix != ".pth":
            (packages / one.name).unlink(missing_ok=True)
            (packages / one.name).symlink_to(one)
    (packages / "roquet.pth").write_text(f"{Path(roquet.__file__).resolve().parent.parent}\n")
    return str(home / "bin" / "python")


def test_without_the_extra_every_pipeline_says_what_to_install(without_extra: str, tmp_path: Path) -> None:
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    for arguments in (
        ["sql", "select 1"],
        ["archive", "orders", "--to", str(tmp_path)],
        ["verify", "--store", str(tmp_path)],
        ["dlq"],
        ["lag"],
    ):
        done = roquet_at(without_extra, ["pipeline", *arguments], env)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "roquet: pyspark is not installed, which this command needs; install it with: pip install 'roquet[spark]'\n"
    assert roquet_at(without_extra, ["pipeline", "--help"], env).returncode == 0


def test_a_missing_package_of_a_format_is_told_before_the_jvm_starts(
    servers: Servers, topic: str, no_jvm: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    env, mark = no_jvm
    (tmp_path / "deltalake.py").write_text("raise ImportError('not here')\n")
    env = env | {"PYTHONPATH": f"{tmp_path}:{env.get('PYTHONPATH', '')}"}
    done = roquet_at(
        sys.executable, ["pipeline", "archive", topic, "--to", str(tmp_path / "a"), "--format", "delta", "-n", servers.namesrv], env
    )
    assert done.returncode == 1
    assert "pip install 'roquet[delta]'" in done.stderr.splitlines()[0]
    assert not mark.exists()


def test_nothing_is_printed_that_nobody_asked_for(servers: Servers, topic: str) -> None:
    """A whole run, JVM and all, in the home that a user's Spark has: one document on standard output, nothing on standard error."""
    env = {**os.environ, **small_jvm.LAUNCHER, "NAMESRV_ADDR": servers.namesrv}
    done = roquet_at(sys.executable, ["pipeline", "sql", "--json", f"select tags, count(*) as n from `{topic}` group by tags"], env)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [{"tags": "paid", "n": 9}]


def test_on_a_terminal_a_spinner_says_that_spark_starts(servers: Servers, topic: str) -> None:
    """And what is wrong in the statement is the first line, without any Java."""
    env = {**os.environ, **small_jvm.alone(), "NAMESRV_ADDR": servers.namesrv}
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "roquet", "pipeline", "sql", f"select tagz from `{topic}`"]
    text = b""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=end) as done, open(terminal, "rb", buffering=0) as shown:
        os.close(end)
        with contextlib.suppress(OSError):  # how a terminal tells that nobody holds its other end
            while part := shown.read(65_536):
                text += part
        assert done.communicate(timeout=60)[0] == b""
    assert done.returncode == 1
    assert b"starting Spark, 0 s" in text
    rest = text.split(b"\x1b[K")[-1].decode().strip()
    assert rest.startswith("roquet: the statement names tagz, which is no column of a topic; did you mean tags?")
    assert "\tat " not in rest
    assert len(rest.splitlines()) < 4


def test_ctrl_c_while_spark_starts_leaves_no_process_behind(servers: Servers, topic: str, tmp_path: Path) -> None:
    """PySpark forgets a JVM that has not told its port yet, and such a one waits for ever. Here it is a program that only waits."""
    (tmp_path / "bin").mkdir()
    submit, started = tmp_path / "bin" / "spark-submit", tmp_path / "started"
    submit.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 600\n")
    submit.chmod(0o755)
    env = {**os.environ, "SPARK_HOME": str(tmp_path), "NAMESRV_ADDR": servers.namesrv}
    command = [sys.executable, "-m", "roquet", "pipeline", "sql", f"select 1 from `{topic}`"]
    with (tmp_path / "told").open("wb") as told, subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=told) as done:
        deadline = time.monotonic() + 120
        while not started.exists():
            assert done.poll() is None, (tmp_path / "told").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 130
    assert (tmp_path / "told").read_text() == ""
    jvm = int(started.read_text())
    try:
        with pytest.raises(ProcessLookupError):
            os.kill(jvm, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGKILL)


def test_ctrl_c_in_a_call_of_the_jvm_shows_no_traceback(tmp_path: Path) -> None:
    """The call that Py4J makes when it is interrupted, in a process whose session is started as a command starts it."""
    script = (
        "import argparse, logging, py4j, roquet.spark.session as sessions\n"
        "from roquet.cli.pipelines.starting import start\n"
        "logging.basicConfig()\n"
        "sessions.session = lambda *given, **more: None\n"
        "start('sql', argparse.Namespace(master=None, verbose=False))\n"
        "text = 'logging.exception(\"KeyboardInterrupt while sending command.\")'\n"
        "exec(compile(text, py4j.__file__, 'exec'), {'logging': logging})\n"
        "logging.warning('this one is shown')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "WARNING:root:this one is shown\n")


def test_lines_that_say_nothing_are_left_out_and_others_are_not() -> None:
    first, last = b"Traceback (most recent call last):\n", b"BrokenPipeError: [Errno 32] Broken pipe\n"
    daemon = first + b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n' + last
    real = first + b'  File "/x/job.py", line 2, in <module>\n' + last
    lines = (
        b"WARNING: Using incubator modules: jdk.incubator.vector\n"
        b"Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n"
        b'Setting default log level to "WARN".\n'
        b"To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).\n"
        b"26/11/16 08:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\n"
        + daemon + b"java.lang.OutOfMemoryError: Java heap space\n" + real + b"last words"
    ).splitlines(keepends=True)  # fmt: skip
    assert b"".join(telling(lines)) == b"java.lang.OutOfMemoryError: Java heap space\n" + real + b"last words"
