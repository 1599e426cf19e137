"""Apache's Go client: the program of go/."""

from __future__ import annotations

import re
from pathlib import Path

import apache
import client_logs
from entry import AS_THEY_ARE, Entry
from java_client import JavaClient
from report import Section, run_program

MODULE = Path(__file__).parent / "go"


def build(directory: Path) -> Path:
    program = directory / "go-interop"
    output, built = run_program(["go", "build", "-o", str(program), "."], cwd=MODULE)
    if not built:
        raise apache.InteropError(f"go build: {output}")
    return program


def check(
    section: Section,
    program: Path,
    namesrv: str,
    broker: str,
    header: str,
    finder: JavaClient | None,
    entry: Entry = AS_THEY_ARE,
) -> None:
    """Everything the Go client can do.

    It has no call to query a message, so `finder` looks for one that Go has sent.
    """
    run = f"{header}-signed" if entry.access_key else header
    logs = program.parent / f"go-{run}"
    logs.mkdir()
    # HOME: this client keeps the offsets of broadcasting consumers there
    keys = [f"{name}={value}" for name, value in entry.environment().items()]
    command = ["env", f"HOME={logs}", *keys, str(program), namesrv, broker, f"go{header[0]}", str(logs), header]
    output, finished = run_program(command)
    section.take(output, finished=finished)
    if finder is not None:
        entry.tools(finder.directory / f"find-go-{run}")
    _find(section, output, namesrv, finder, run)
    entries = client_logs.go_entries(logs)
    problem = None
    left = client_logs.complaints(entries, client_logs.GO_WORKING, client_logs.GO_LEAVING)
    if left:
        problem = f"{len(left)} entries, the first: {left[0][:600]}"
    elif not any(re.search(client_logs.PROVOKED_GO, text) for _, text in entries):
        problem = f"the log was not kept: the provoked warning is not among its {len(entries)} entries"
    section.judge("no warning or error in the client's log", problem)


def _find(section: Section, output: str, namesrv: str, finder: JavaClient | None, run: str) -> None:
    name = "query by key, offset id and unique id (by mqadmin)"
    if finder is None:
        section.skip(name, "java is missing")
        return
    sent = re.search(r"^sent (\S+) (\S+) (\S+) (\S+)$", output, re.MULTILINE)
    if sent is None:
        section.fail(name, "the program named no message to look for")
        return
    topic, key, offset_id, unique_id = sent.groups()
    commands = [
        ["queryMsgByKey", "-n", namesrv, "-t", topic, "-k", key],
        ["queryMsgById", "-n", namesrv, "-i", offset_id],
        ["queryMsgByUniqueKey", "-n", namesrv, "-t", topic, "-i", unique_id],
    ]
    command, _ = finder.command(f"find-go-{run}", "Mqadmin")
    found, finished = run_program(command, stdin="".join("\t".join(each) + "\n" for each in commands))
    answers = found.split("### end")[:3]
    missing = [each[0] for each, answer in zip(commands, answers, strict=False) if unique_id.upper() not in answer.upper()]
    problem = f"not found by {', '.join(missing)}: {found[:600]}" if missing or not finished or len(answers) < 3 else None
    section.judge(name, problem)
