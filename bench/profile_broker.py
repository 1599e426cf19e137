"""Where the CPU time of Roquet's broker goes, under the load of one of the benchmark's rows.

    python bench/profile_broker.py [--row send64|send1|batch|pull|conn16] [--seconds 8] [--top 25] [--how py-spy|cprofile]

py-spy (from PyPI; looked for on the PATH and beside this Python) samples the running broker from outside and costs it
little; without it the broker runs under cProfile, which makes small functions look dearer than they are.
"""

from __future__ import annotations

import argparse
import io
import json
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from servers import HERE, ROQUET, Launcher, Running

TOPIC, QUEUES = "BenchProfile", 8
LOADS: dict[str, tuple[str, ...]] = {
    "send64": ("send", "--count", "200000"),
    "send1": ("send", "--count", "20000", "--inflight", "1"),
    "conn16": ("send", "--count", "200000", "--connections", "16"),
    "batch": ("batch", "--count", "960000", "--inflight", "8"),
    "pull": ("pull", "--count", "1000000"),
}


class CannotTrace(Exception):
    """py-spy is there and may not look into the broker."""


def load(running: Running, row: str) -> tuple[int, float]:
    """One round; messages and seconds."""
    command = [sys.executable, str(HERE / "load.py"), *LOADS[row], "--port", str(running.port), "--topic", TOPIC, "--queues", str(QUEUES)]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the generator failed: {done.stderr}")
    outcome = json.loads(done.stdout.splitlines()[-1])
    if outcome["errors"]:
        raise SystemExit(f"{outcome['errors']} requests were refused, the first with {outcome['first_error']}")
    return outcome["messages"], outcome["seconds"]


def keep_loading(running: Running, row: str, seconds: float) -> None:
    """Rounds for at least that long, with what they cost."""
    if row == "pull":
        load(running, "batch")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        cpu = running.cpu()
        messages, took = load(running, row)
        print(f"{messages / took:,.0f} msg/s, {(running.cpu() - cpu) / messages * 1e6:.2f} us CPU a message", file=sys.stderr)


def find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def with_py_spy(program: str, row: str, seconds: float, directory: Path, launcher: Launcher, native: bool) -> Counter[tuple[str, ...]]:
    """Stacks and how often each was seen. Needs the right to trace another process (root, or ptrace_scope 0)."""
    raw = directory / "stacks.txt"
    with launcher.pair(ROQUET, directory) as running:
        running.create_topic(TOPIC, QUEUES)
        load(running, "send64")
        command = [program, "record", "--pid", str(running.pid), "--duration", str(int(seconds)), "--rate", "500", "--format", "raw"]
        command += ["--output", str(raw), *(["--native"] if native else [])]
        sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        keep_loading(running, row, seconds)
        _, problem = sampler.communicate(timeout=60)
    if not raw.exists():
        raise CannotTrace(f"py-spy wrote nothing: {problem.strip()}")
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in raw.read_text().splitlines():
        frames, _, count = line.rpartition(" ")
        stacks[tuple(frames.split(";"))] += int(count)
    return stacks


def print_stacks(stacks: Counter[tuple[str, ...]], top: int) -> None:
    """By function with what it calls, by function alone, by line alone; of the event loop's thread.

    A worker that waits for a job waits in C, and py-spy takes that for work: other threads are counted and left out.
    """
    workers = {stack: count for stack, count in stacks.items() if "_bootstrap (threading.py" in stack[0]}
    stacks = Counter({stack: count for stack, count in stacks.items() if stack not in workers})
    total = sum(stacks.values()) or 1
    print(f"{sum(workers.values())} samples of other threads are left out, waiting among them")
    inclusive: Counter[str] = Counter()
    own: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for stack, count in stacks.items():
        functions = [_function(each) for each in stack]
        inclusive.update(dict.fromkeys(functions, count))
        own[functions[-1]] += count
        lines[stack[-1]] += count
    for title, counter in (("with what it calls", inclusive), ("alone", own), ("alone, by line", lines)):
        print(f"\n{title}, % of {total} samples")
        for name, count in counter.most_common(top):
            print(f"{100 * count / total:6.1f}  {name}")


def _function(frame: str) -> str:
    """`name (file:12)` without the line."""
    name, colon, line = frame.rpartition(":")
    return f"{name})" if colon and line.rstrip(")").isdigit() else frame


def with_cprofile(row: str, seconds: float, directory: Path, launcher: Launcher, top: int) -> None:
    out = directory / "broker.prof"
    profiled = Launcher(python=launcher.python, wrapper=(launcher.python, "-m", "cProfile", "-o", str(out)))
    with profiled.pair(ROQUET, directory) as running:
        running.create_topic(TOPIC, QUEUES)
        keep_loading(running, row, seconds)
    if not out.exists():
        raise SystemExit("the broker wrote no profile: it must leave main() normally on SIGTERM")
    for order in ("tottime", "cumulative"):
        text = io.StringIO()
        pstats.Stats(str(out), stream=text).strip_dirs().sort_stats(order).print_stats(top)
        print(text.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=tuple(LOADS), default="send64")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--top", type=int, default=25, help="lines a table")
    parser.add_argument("--how", choices=("py-spy", "cprofile"), help="py-spy if it is there")
    parser.add_argument("--native", action="store_true", help="py-spy: frames of C extensions too")
    parser.add_argument("--broker-command", default="", help="start this instead of Roquet's broker; {port} and {conf} are put in")
    options = parser.parse_args()
    launcher = Launcher(broker_command=options.broker_command)
    program = find_py_spy()
    if options.how == "py-spy" and program is None:
        raise SystemExit("no py-spy: pip install py-spy, or --how cprofile")
    with tempfile.TemporaryDirectory(prefix="roquet-profile-") as name:
        if program is not None and options.how != "cprofile":
            try:
                stacks = with_py_spy(program, options.row, options.seconds, Path(name, "spy"), launcher, options.native)
            except CannotTrace as error:
                print(f"{error}; cProfile instead", file=sys.stderr)
            else:
                print_stacks(stacks, options.top)
                return
        with_cprofile(options.row, options.seconds, Path(name, "cprofile"), launcher, options.top)


if __name__ == "__main__":
    main()
