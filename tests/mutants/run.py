"""Faults of one line, each in a copy of the sources; the test that is named for it must fail.

    python -m tests.mutants.run [word ...] [--jobs 2]        only faults whose file, text or test has such a word

First every named test must pass on the unchanged copy. Then each fault: the test fails in its time, or the fault "survived", and
a test is missing. The tree itself is never changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.table import FAULTS, Fault

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "src"


def faulty(fault: Fault) -> str:
    """The text of the file with the fault in it. Raises ValueError when its place is not there exactly once."""
    text = (SOURCES / "roquet" / fault.file).read_text()
    found = text.count(fault.old)
    if found != 1:
        raise ValueError(f"{fault.file}: {fault.old!r} stands there {found} times, expected 1. Has it changed? Then change the table")
    return text.replace(fault.old, fault.new)


def run_tests(sources: Path, tests: list[str], scratch: Path, within_s: float) -> subprocess.CompletedProcess[str]:
    """pytest with these sources. Raises TimeoutExpired."""
    environment = os.environ | {"PYTHONPATH": f"{sources}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--basetemp", str(scratch), *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=within_s, check=False)


def copy_to(directory: Path) -> Path:
    sources = directory / "src"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return sources


def verdict_on(fault: Fault, directory: Path) -> str:
    """ "" when it was killed, else what happened instead."""
    with tempfile.TemporaryDirectory(dir=directory) as own:
        sources = copy_to(Path(own))
        (sources / "roquet" / fault.file).write_text(faulty(fault))
        try:
            outcome = run_tests(sources, [fault.test], Path(own) / "tests", fault.within_s)
        except subprocess.TimeoutExpired:
            return f"no verdict within {fault.within_s:.0f} s"
    if outcome.returncode == 0:
        return "survived"
    if outcome.returncode != 1:  # 1: tests failed; anything else: there was no test
        return f"pytest ended with {outcome.returncode}: {outcome.stdout[-400:]}{outcome.stderr[-400:]}"
    return ""


def check_unchanged(faults: list[Fault], directory: Path) -> str:
    """ "" when all named tests pass on sources without a fault."""
    tests = list(dict.fromkeys(fault.test for fault in faults))
    outcome = run_tests(copy_to(directory / "unchanged"), tests, directory / "tests", 60 + sum(fault.within_s for fault in faults))
    return "" if outcome.returncode == 0 else outcome.stdout[-3_000:] + outcome.stderr[-1_000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    faults = [one for one in FAULTS if not options.words or any(word in f"{one.file} {one.old} {one.test}" for word in options.words)]
    if not faults:
        parser.error(f"no fault has one of these words in its file, its text or its test: {' '.join(options.words)}")
    for fault in faults:
        faulty(fault)
    began, survived = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="roquet-mutants-") as directory:
        place = Path(directory)
        (place / "unchanged").mkdir()
        if trouble := check_unchanged(faults, place):
            print(f"without any fault the tests do not pass:\n{trouble}")
            return 1
        print(f"{len(faults)} faults; their tests pass without them ({time.monotonic() - began:.0f} s)", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            for fault, verdict in zip(faults, pool.map(lambda one: verdict_on(one, place), faults), strict=True):
                survived += bool(verdict)
                print(f"{'SURVIVED' if verdict else 'killed  '} {fault.file}: {fault.what}", flush=True)
                if verdict:
                    print(f"         {verdict}; expected of {fault.test}\n         {fault.old.strip()!r} -> {fault.new.strip()!r}")
    print(f"{len(faults) - survived} of {len(faults)} killed in {time.monotonic() - began:.0f} s")
    return 1 if survived or not faults else 0


if __name__ == "__main__":
    sys.exit(main())
