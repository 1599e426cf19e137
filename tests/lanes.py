"""`make test`, `make test-spark` and `make quick`: pytest in several runs beside each other, and one verdict.

    python -m tests.lanes [--spark | --quick]

Several for two cores: the others wait for real programs most of the time, or are over early; together they keep the second core as
busy as the first run keeps its own. Each run has its own process, servers and temporary directories; nothing is shared but the machine.
What needs a Java machine is the Spark extra's, and takes as long as all else.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parent.parent
WITH_JAVA = ["tests/spark", "tests/clusters"]
"""What `make test-spark` runs."""
BESIDE = {
    "programs": ["tests/process"],
    "broker, copies": ["tests/broker", "tests/ha"],
    "commands, hostile peers, chaos": ["tests/cli", "tests/hostile", "tests/chaos"],
    "hostile peers again, Python alone": ["-p", "tests.python_alone", "tests/hostile"],
    "documents": ["tests/docs"],
    "simulations": ["tests/sim", "tests/raft", "tests/model"],
    "applications": ["tests/app", "tests/idempotence", "tests/outbox", "tests/testing", "tests/traces", "tests/examples"],
}
BESIDE_PATHS = {path for arguments in BESIDE.values() for path in arguments if path.startswith("tests/")}
LANES = {
    "all others": [*(f"--ignore={path}" for path in [*WITH_JAVA, *sorted(BESIDE_PATHS)]), "tests"],
    **BESIDE,
}
OWN_JVMS = ["tests/clusters", "tests/spark/test_tour.py", "tests/spark/test_demo.py"]
"""They start Sparks of their own; the others share one."""
SPARK_LANES = {"Spark": [*(f"--ignore={path}" for path in OWN_JVMS), "tests/spark"], "clusters, the tour, the demo": OWN_JVMS}
QUICK_LANES = {
    "all others": ["-p", "tests.quick", "--ignore=tests/broker", "--ignore=tests/wire", "tests"],
    "broker and wire": ["-p", "tests.quick", "tests/broker", "tests/wire"],
}


def start(arguments: list[str], log: Path | None) -> subprocess.Popen[bytes]:
    """With bytecode that is kept, whatever the environment says: hundreds of processes import Roquet here, and pytest looks for asserts
    in each module of tests once."""
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if log is None:
        return subprocess.Popen(command, cwd=ROOT, env=environment)
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Its exit code, and the CPU time that it and its children took."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def run(lanes: dict[str, list[str]], logs: Path) -> list[str]:
    """All of them; what went wrong, in words. Each is shown when it is over."""
    first, *others = lanes
    print(f"{len(lanes)} runs of pytest beside each other. Here are the dots of {first!r}; shown when they are over: {', '.join(others)}.")
    began, wrong = time.monotonic(), []
    runs: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in lanes.items():
            runs[name] = start(arguments, logs / name if runs else None)
        with ThreadPoolExecutor(len(runs)) as waiting:
            ends = {waiting.submit(ended, process): name for name, process in runs.items()}
            for end in as_completed(ends):
                name = ends[end]
                text = (logs / name).read_text(errors="replace") if (logs / name).exists() else ""
                code, cpu_s = end.result()
                print(f"\n{name}, over after {time.monotonic() - began:.0f} s with {cpu_s:.0f} s of CPU:\n{text}", flush=True)
                if code:
                    wrong.append(f"{name}: pytest ended with {code}")
    finally:
        for process in runs.values():
            if process.poll() is None:
                process.terminate()
                process.wait()
    return wrong


DOORS = {"": LANES, "--spark": SPARK_LANES, "--quick": QUICK_LANES}


def main() -> int:
    door = " ".join(sys.argv[1:])
    if door not in DOORS:
        print(__doc__)
        return 2
    began = time.monotonic()
    compileall.compile_dir(ROOT / "src" / "roquet", quiet=1)  # once, and not by each run that begins now
    with tempfile.TemporaryDirectory(prefix="roquet-tests-") as logs:
        wrong = run(DOORS[door], Path(logs))
    print("\n".join([*wrong, f"{'failed' if wrong else 'passed'} in {time.monotonic() - began:.0f} s"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
