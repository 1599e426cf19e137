"""The extension as a whole: found or not, turned off, built or not. What it does is held to Python in the tests of each part."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roquet import speedups

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "roquet" / "speedups"
LINES_MAX = 1_500
"""Of the broker's step: sends, pulls, journeys, the index."""
CLIENT_MAX = 80
"""Of the Python client: the body of a batch, and records of a pull."""
SIGNATURES_MAX = 260
"""Of access control, which came later: HMAC-SHA1 over the fields of signed sends."""
REPLICATION_MAX = 170
"""Of replication, which came later, too: entries of DLedger's log, and what follows from another node's records."""

needs_native = pytest.mark.skipif(speedups.native is None, reason=f"the extension is not here: {speedups.why_not}")


def test_the_switch_turns_it_off() -> None:
    assert speedups.load("0") == (None, "ROQUET_SPEEDUPS=0")


def test_a_switch_that_says_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="ROQUET_SPEEDUPS='no': 0 turns"):
        speedups.load("no")


def test_an_extension_that_is_not_built_is_no_error(tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "roquet" / "speedups", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "roquet" / "__init__.py").touch()
    code = "from roquet import speedups; print(speedups.in_words())"
    environment = {name: value for name, value in os.environ.items() if name != speedups.SWITCH} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "Python (not built)\n"


@needs_native
def test_an_extension_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups.native, "EDITION", 0)
    found, why_not = speedups.load("")
    assert found is None
    assert "it is of edition 0" in why_not


@needs_native
def test_the_extension_was_built_from_these_sources() -> None:
    assert speedups.native is not None
    files = sorted((*SOURCES.glob("*.c"), *SOURCES.glob("*.h")))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    assert digest == speedups.native.SOURCES, "build it again: python setup.py build_ext --inplace"


def test_the_sources_stay_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (*SOURCES.glob("*.c"), *SOURCES.glob("*.h"))}
    assert lines.pop("client.c") <= CLIENT_MAX
    assert lines.pop("sign.c") <= SIGNATURES_MAX
    assert lines.pop("ledger.c") + lines.pop("apply.c") <= REPLICATION_MAX
    assert sum(lines.values()) <= LINES_MAX


def test_a_machine_without_a_compiler_builds_the_package_without_it(tmp_path: Path) -> None:
    """As pip does it: the build ends well, and says that something is missing."""
    here = tmp_path / "checkout"
    shutil.copytree(SOURCES, here / "src" / "roquet" / "speedups", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (here / "src" / "roquet" / "__init__.py").touch()
    shutil.copy(ROOT / "setup.py", here)
    environment = {**os.environ, "CC": "no-such-compiler", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert 'building extension "roquet.speedups._native" failed' in done.stdout + done.stderr
    assert not list(here.rglob("*.so"))
