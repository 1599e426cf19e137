"""Which Python Spark runs: the one that Roquet is installed in, or a sentence that says what to set."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import roquet
from roquet import Message
from roquet.spark import pythons
from roquet.spark.pythons import WrongPython, need_python, use_this_python
from tests import small_jvm
from tests.spark.conftest import Servers

SCRIPT = """
import sys
{imports}
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
{then}
frame = spark.read.format("rocketmq").option("namesrvAddr", "{namesrv}").option("subscribe", "{topic}").load()
print("rows", frame.count())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has Roquet and Spark, as `pip install` makes it; nobody activates it. Its Python."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    installed = Path(pytest.__file__).resolve().parent.parent
    (packages / "all.pth").write_text(f"{Path(roquet.__file__).resolve().parent.parent}\n{installed}\n")
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has nothing installed."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    return home / "bin" / "python3"


@pytest.fixture(scope="module")
def topic(servers: Servers) -> str:
    name = servers.topic("python_orders", 1)
    servers.send([Message(name, b"x") for _ in range(5)])
    return name


def outside(bare_python: Path, **more: str) -> dict[str, str]:
    """What a shell has where no environment is active: the first python3 on PATH knows nothing of Roquet."""
    given = {name: text for name, text in os.environ.items() if name != "PYTHONPATH" and not name.startswith(("SPARK_", "PYSPARK_"))}
    return given | {"PATH": f"{bare_python.parent}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"} | small_jvm.alone() | more


def run(python: Path, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), "-c", script], env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_quick_start_works_where_no_environment_is_active(servers: Servers, topic: str, environment: Path, bare_python: Path) -> None:
    again = "roquet.spark.register(spark)\nprint('registered', frame.count())\n"  # first the format is found by itself
    script = SCRIPT.format(imports="import roquet.spark", then="", namesrv=servers.namesrv, topic=topic) + again
    done = run(environment, script, outside(bare_python))
    assert done.stdout.splitlines() == ["rows 5", "registered 5"], done.stderr[-3000:]


def test_a_session_that_runs_with_another_python_is_told_what_to_set(
    servers: Servers, topic: str, environment: Path, bare_python: Path
) -> None:
    late = "import roquet.spark\nroquet.spark.register(spark)"
    done = run(environment, SCRIPT.format(imports="", then=late, namesrv=servers.namesrv, topic=topic), outside(bare_python))
    assert done.returncode == 1
    *before, last = done.stderr.strip().splitlines()
    by_import = [line for line in before if line.startswith("Spark runs its Python code with python3, which cannot import roquet")]
    assert len(by_import) == 1  # before register() is called
    assert f"PYSPARK_PYTHON={environment}" in by_import[0]
    assert "WrongPython: Spark runs its Python code with python3" in last
    assert "cannot import roquet" in last
    assert f"PYSPARK_PYTHON={environment}" in last


# The same, without a JVM.


@pytest.fixture
def no_choice(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(name, "")  # so that what is set meanwhile goes away
        monkeypatch.delenv(name)
    monkeypatch.setattr(pythons, "spark_runs", lambda: False)
    return monkeypatch


def test_what_the_user_set_is_left_alone(no_choice: pytest.MonkeyPatch) -> None:
    no_choice.setenv("PYSPARK_PYTHON", "/opt/python")
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
    no_choice.delenv("PYSPARK_PYTHON")
    no_choice.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    use_this_python()
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, "jupyter")


def test_nothing_is_set_for_a_spark_that_runs_already(no_choice: pytest.MonkeyPatch) -> None:
    no_choice.setattr(pythons, "spark_runs", lambda: True)
    use_this_python()
    assert "PYSPARK_PYTHON" not in os.environ


def test_a_python_is_asked_before_spark_runs_it(bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_python(sys.executable)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(WrongPython, match=rf"with {bare_python}, which cannot import roquet .*PYSPARK_PYTHON={sys.executable}"):
        need_python(str(bare_python))
    with pytest.raises(WrongPython, match="no-such-python, which is not there"):
        need_python("no-such-python")
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x00no program")
    broken.chmod(0o755)
    with pytest.raises(WrongPython, match=r"broken, which did not run \(.*Exec format error"):
        need_python(str(broken))
    other = tmp_path / "python3.9"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    with pytest.raises(WrongPython, match=r"which is Python 3\.9, and this program runs 3\.\d+"):
        need_python(str(other))


def test_a_session_of_ours_is_refused_before_the_jvm_starts(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roquet.spark.session import session

    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(pythons, "spark_runs", lambda: False)
    with pytest.raises(WrongPython, match="unset PYSPARK_PYTHON") as caught:
        session("never")
    assert "import roquet.spark" not in str(caught.value)  # which would not change what the user has set
