"""With real namespaces, processes and disks, where this user may make them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 600.0
IMPOSSIBLE = 2


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode == IMPOSSIBLE:
        pytest.skip(f"no machines can be made here: {(done.stdout + done.stderr).strip()}")
    return done


def test_machines_have_addresses_of_their_own_and_a_network_that_can_be_late_cut_and_lossy(tmp_path: Path) -> None:
    done = program("tests.chaos.machines_program", str(tmp_path))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["the other's address"] == "EADDRNOTAVAIL"
    assert seen["plain"] > 0
    assert seen["delayed"] >= 0.4
    assert seen["cut"] == -1
    assert seen["healed"] == 100
    assert seen["lossy"] == [True] * 20
    assert seen["dropped"] > 0
    assert seen["free"] == 1 << 20
    assert seen["full"] == "ENOSPC"
    assert os.statvfs(tmp_path / "disk").f_blocks != 256  # it was the program's alone, and went with it


@pytest.mark.slow
def test_a_broker_that_is_killed_and_started_again_is_judged_sound(tmp_path: Path) -> None:
    where = ["--directory", str(tmp_path), "--keep", "--picture", str(tmp_path / "here.svg")]
    done = program("chaos.run", "--minutes", "0.2", "--seed", "3", "--faults", "kill,full-disk", *where)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["findings"] == []
    assert result["counts"]["acknowledged"] > 0
    assert {fault["kind"] for fault in result["faults"]} <= {"kill", "full-disk"}
    assert result["faults"]
    assert (tmp_path / "here.svg").stat().st_size > 1_000


@pytest.mark.slow
def test_a_broker_that_loses_the_end_of_its_log_when_it_is_killed_is_found_faulty(tmp_path: Path) -> None:
    done = program("chaos.run", "--minutes", "0.2", "--seed", "3", "--faults", "kill", "--plant", "lose-tail", "--directory", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FOUND lost: " in done.stdout
    assert "--seed 3" in done.stdout
    assert str(tmp_path) in done.stdout
    assert list(tmp_path.glob("history-*.jsonl"))
    assert list(tmp_path.glob("stores/broker-1/store/commitlog/*"))


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-m", "chaos.run", "--directory", str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    deadline = time.monotonic() + PATIENCE_S
    while not children_of(run.pid) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if run.poll() == IMPOSSIBLE:
        pytest.skip(f"no machines can be made here: {run.stderr.read().strip()}")
    children = children_of(run.pid)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stderr.close()
    assert children
    while time.monotonic() < deadline and any(is_running(pid) for pid in children):
        time.sleep(0.01)
    assert [pid for pid in children if is_running(pid)] == []


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    """A dead one may still wait for its new parent to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
