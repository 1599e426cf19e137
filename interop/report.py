"""Checks, their results, and how they are printed: a line a check, a block a client."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

OK, FAIL, SKIP = "ok", "FAIL", "skip"


@dataclass(frozen=True)
class Check:
    name: str
    status: str
    detail: str = ""


@dataclass
class Section:
    """The checks of one client, or of one way between two stores."""

    title: str
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0
    # (part of a check's name, why it cannot pass against these servers)
    expected: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # printed after the checks

    def ok(self, name: str) -> None:
        self.checks.append(Check(name, OK))

    def fail(self, name: str, why: str) -> None:
        reasons = [reason for part, reason in self.expected if part in name]
        if reasons:
            self.checks.append(Check(name, SKIP, f"expected here: {reasons[0]}"))
        else:
            self.checks.append(Check(name, FAIL, why))

    def skip(self, name: str, why: str) -> None:
        self.checks.append(Check(name, SKIP, why))

    def judge(self, name: str, problem: str | None) -> None:
        """Record a check that passes when there is no problem."""
        if problem is None:
            self.ok(name)
        else:
            self.fail(name, problem)

    def take(self, output: str, *, finished: bool, what: str = "") -> dict[str, str]:
        """Record the `ok` and `FAIL` lines a check program printed; return its `phase` lines.

        A program that has not finished fails one check more, by the name of the program.
        """
        phases: dict[str, str] = {}
        done = False
        for line in output.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "ok":
                self.ok(what + rest)
            elif kind == "FAIL":
                name, _, why = rest.partition(": ")
                self.fail(what + name, why)
            elif kind == "phase":
                name, _, moment = rest.partition(" ")
                phases[name] = moment
            elif line == "done":
                done = True
        if not (done and finished):
            self.fail(what + "ran to its end", output.strip().splitlines()[-1] if output.strip() else "printed nothing")
        return phases


class Reporter:
    """Prints sections as they are finished, whole, in whatever order that is."""

    def __init__(self, *, quiet: bool) -> None:
        self.sections: list[Section] = []
        self._quiet = quiet
        self._lock = threading.Lock()

    def run(self, section: Section, body: Callable[[Section], None]) -> None:
        begin = time.monotonic()
        try:
            body(section)
        except Exception as problem:  # a harness that breaks is a failed check, not a lost section
            section.fail("ran to its end", f"{type(problem).__name__}: {problem}")
        section.seconds = time.monotonic() - begin
        with self._lock:
            self.sections.append(section)
            if not self._quiet:
                print(render(section), flush=True)

    def count(self, status: str) -> int:
        return sum(check.status == status for section in self.sections for check in section.checks)

    def summary(self) -> str:
        return f"{self.count(OK)} passed, {self.count(FAIL)} failed, {self.count(SKIP)} skipped"

    def document(self) -> dict[str, object]:
        """The same results for a program."""
        return {
            "sections": [
                {
                    "title": section.title,
                    "seconds": round(section.seconds, 1),
                    "checks": [vars(check) for check in section.checks],
                    "notes": section.notes,
                }
                for section in self.sections
            ],
            "passed": self.count(OK),
            "failed": self.count(FAIL),
            "skipped": self.count(SKIP),
        }


def render(section: Section) -> str:
    lines = [f"{section.title} ({section.seconds:.0f} s)"]
    for check in section.checks:
        detail = f"  {check.detail}" if check.detail else ""
        lines.append(f"  {check.status:<4}  {check.name}{detail}" if not detail else f"  {check.status:<4}  {check.name:<52}{detail}")
    lines += [f"  {note}" for note in section.notes]
    return "\n".join(lines) + "\n"


def errors_in(log: str) -> str | None:
    """What a log of our servers tells of things that broke inside: what clients are answered then may look right to them."""
    lines = [line for line in log.splitlines() if re.search(r" (ERROR|CRITICAL) |^Traceback", line)]
    return f"{len(lines)}, the first: {lines[0][:400]}" if lines else None


# ---------------------------------------------------------------- programs

_running: set[subprocess.Popen[str]] = set()


PROGRAM_S = 900.0
"""A program of many checks, each of which waits for minutes if it must, is not stopped before."""


def run_program(command: list[str], *, timeout_s: float = PROGRAM_S, stdin: str = "", cwd: Path | None = None) -> tuple[str, bool]:
    """Run a program to its end; return what it printed and whether it ended by itself with code 0."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=cwd
    )
    _running.add(process)
    try:
        output, _ = process.communicate(stdin, timeout=timeout_s)
        return output, process.returncode == 0
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return f"{output}\nnot finished after {timeout_s:.0f} s", False
    finally:
        _running.discard(process)


def kill_programs() -> None:
    """End whatever run_program is still waiting for."""
    for process in list(_running):
        process.kill()
