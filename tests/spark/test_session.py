"""What Spark needs before it starts, and what a person is told when it is not there."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from roquet.spark import home, java, register
from roquet.spark import session as sessions
from roquet.spark.java import NoJava, ensure_java, find_java, main, release_of
from roquet.spark.session import NoSpark, need_spark


def program(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / name
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(0o755)
    return made


def a_java(directory: Path, version: str = "17.0.15") -> Path:
    return program(directory, "java", f"echo 'openjdk version \"{version}\"' >&2")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that is the whole PATH, and no JAVA_HOME."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return path


@pytest.mark.parametrize(
    ("text", "release"), [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ('version "21"', 21), ("?", 0)]
)
def test_releases_are_read_from_what_java_says(text: str, release: int) -> None:
    assert release_of(text) == release


def test_java_is_found_on_the_path_and_in_its_home_first(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (str(a_java(bare)), 17) == find_java()
    home = a_java(tmp_path / "home" / "bin", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == (str(home), 21)


def test_without_java_the_sentence_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoJava, match=r"Java 17 or newer, and there is no java on PATH\. Install one"):
        find_java()
    a_java(bare, "11.0.2")
    with pytest.raises(NoJava, match="is release 11"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(bare))
    with pytest.raises(NoJava, match=f"JAVA_HOME={bare} holds no bin/java. Point JAVA_HOME to one"):
        find_java()


def test_a_missing_java_is_installed_where_we_are_root(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made = bare / "java"
    # Has only the second of the packages, and "installs" it by making a java.
    script = f"""case "$*" in *openjdk-17*) echo '#!/bin/sh' >{made}; echo "echo 'version \\"17\\"' >&2" >>{made}; /bin/chmod +x {made};;
install*) echo "E: Unable to locate package" >&2; exit 100;; esac"""
    program(bare, "apt-get", script)
    assert main(["--install"]) == 0
    assert capsys.readouterr().out.endswith(f"{made}, release 17\n")
    assert main([]) == 0


def test_nothing_is_installed_without_root_or_against_a_choice(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare, "apt-get", "exit 1")
    monkeypatch.setattr(java, "apt_get", lambda *arguments: pytest.fail("it was asked"))
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with pytest.raises(NoJava, match="as root"):
        ensure_java()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("JAVA_HOME", str(bare))
    with pytest.raises(NoJava, match="JAVA_HOME"):
        ensure_java()


def test_an_installation_that_fails_tells_why(bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(bare, "apt-get", "echo 'E: no network' >&2; exit 100")
    assert main(["--install"]) == 1
    assert "openjdk-21-jre-headless: E: no network" in capsys.readouterr().err


def test_without_the_extra_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name))
    with pytest.raises(NoSpark, match=r"pip install 'roquet\[spark\]'"):
        need_spark()


def test_pyspark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "version", lambda name: "4.1.4")
    with pytest.raises(NoSpark, match=r"pyspark 4.1.4 .* 4.2"):
        need_spark()


def test_the_session_has_our_settings(spark: Any) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_format_can_be_registered_by_hand(spark: Any) -> None:
    register(spark)
    with pytest.raises(Exception, match="nothing says where to read"):
        spark.read.format("rocketmq").load()


class TestTheHomeOfSpark:
    """Spark's own makes every Python that it starts compile pyspark anew."""

    def test_has_no_zip_for_its_pythons_to_import_from(self, spark: Any) -> None:
        """The tests' own sitecustomize keeps them from the zip, too, so what counts is the path that Spark gives them."""

        def zips(_: Any) -> list[tuple[str, bool]]:
            return [(path, os.path.exists(path)) for path in os.environ["PYTHONPATH"].split(os.pathsep) if path.endswith("pyspark.zip")]

        [(_, is_there)] = spark.sparkContext.parallelize([1], 1).mapPartitions(zips).collect()
        assert not is_there
        assert "SPARK_HOME" not in os.environ, "it is for the JVM alone"

    @pytest.mark.parametrize(
        ("name", "value"), [("SPARK_HOME", "/opt/spark"), ("PYSPARK_PYTHON", "python3"), ("PYSPARK_GATEWAY_PORT", "1")]
    )
    def test_is_left_alone_where_somebody_chose(self, name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(home, "spark_runs", lambda: "PYSPARK_GATEWAY_PORT" in os.environ)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.delenv("SPARK_HOME", raising=False)
        with home.light_home() as made:
            assert made.path is not None
        made.remove()
        monkeypatch.setenv(name, value)
        with home.light_home() as made:
            assert made.path is None
            assert os.environ[name] == value
        assert os.environ[name] == value

    def test_has_all_that_spark_s_own_has_but_the_zip_and_is_gone_when_the_start_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(home, "spark_runs", lambda: False)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.delenv("SPARK_HOME", raising=False)
        light = home.light_home()
        path = light.__enter__().path
        assert path is not None
        assert os.environ["SPARK_HOME"] == str(path)
        assert (path / "bin" / "spark-submit").exists()
        assert list((path / "jars").glob("spark-core_*.jar"))
        assert not (path / "python").exists()
        interrupt = KeyboardInterrupt()
        light.__exit__(KeyboardInterrupt, interrupt, None)
        assert not path.exists()
        assert "SPARK_HOME" not in os.environ
