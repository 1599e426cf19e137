"""What `make test` and `make quick` run, and that they say what they did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import lanes, quick


def test_every_path_that_is_named_is_there() -> None:
    named = [*quick.LEFT_OUT, *lanes.WITH_JAVA, *lanes.OWN_JVMS, *lanes.BESIDE_PATHS]
    assert [path for path in named if not (lanes.ROOT / path).exists()] == []


def test_one_run_that_fails_is_named_and_those_beside_it_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, verdict in {"good": "True", "bad": "False"}.items():
        (tmp_path / f"test_{name}.py").write_text(f"def test_it() -> None:\n    assert {verdict}\n")
    options = ["-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    found = lanes.run({name: [*options, str(tmp_path / f"test_{name}.py")] for name in ("good", "bad")}, tmp_path)
    assert found == ["bad: pytest ended with 1"]
    said = capsys.readouterr().out
    assert said.startswith("2 runs of pytest beside each other.")
    assert "bad, over after" in said
    assert "assert False" in said


def test_hostile_peers_meet_both_spellings() -> None:
    assert any("tests/hostile" in arguments for arguments in lanes.BESIDE.values() if "tests.python_alone" not in arguments)
    [alone] = [arguments for arguments in lanes.BESIDE.values() if "tests.python_alone" in arguments]
    assert "tests/hostile" in alone
    command = [sys.executable, "-m", "pytest", *alone, "-p", "no:cacheprovider", "--collect-only", "-k", "hostile_frames_and"]
    said = subprocess.run(command, cwd=lanes.ROOT, capture_output=True, text=True, check=True).stdout
    assert "damaged-1-python" in said
    assert "compiled" not in said


def test_a_quick_run_says_what_it_left_out() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-p", "no:cacheprovider", "--collect-only", "tests/sim"]
    said = subprocess.run(command, cwd=lanes.ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/sim/test_simulation.py: 40 seeds of a simulated cluster" in said
    assert "tests/sim/test_sim_disk.py::" in said, "and runs the others"
