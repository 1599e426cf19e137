"""What `make quick` runs: everything but what takes long, and it says what that was.

    python -m pytest -p tests.quick

Whole folders and files are left out here, each with its reason, and single tests by `@pytest.mark.slow`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEFT_OUT = {
    "tests/spark": "Spark and its Java machine",
    "tests/clusters": "clusters of Spark whose members are killed",
    "tests/process": "real servers that are killed, stopped and started again",
    "tests/hostile": "floods, and tens of thousands of damaged frames",
    "tests/sim/test_simulation.py": "40 seeds of a simulated cluster",
    "tests/model": "200 random sequences against a model of the broker",
    "tests/docs": "every example and every snippet",
    "tests/outbox/test_killed.py": "writers and relays of an outbox that are killed",
    "tests/cli/test_server_processes.py": "real servers, supervised",
}
left_out: list[str] = []


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """True: not this one. None: whatever others say."""
    path = collection_path.relative_to(ROOT).as_posix()
    if path not in LEFT_OUT:
        return None
    left_out.append(f"{path}: {LEFT_OUT[path]}")
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.nodeid for item in items if item.get_closest_marker("slow")}
    left_out.extend(f"{name}: slow" for name in sorted(slow))
    items[:] = [item for item in items if item.nodeid not in slow]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if left_out:
        terminalreporter.section("left out; make test and make test-spark run it")
    for line in left_out:
        terminalreporter.line(line)
