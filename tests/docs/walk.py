"""Runs a document as its reader would, from top to bottom: commands, files and Python, in an empty directory and on free ports.

What the walk understands:

    Save this as `name`:   the block below it is written to that file
    ```console             lines with `$ ` are commands; the lines below each are what it prints
    ```python              run in this process, each with the names of those before it; `await` is allowed
    ```text                below Python: what it prints
    ^C                     the first line of a console block: Ctrl-C for the program that the sentence before it names in backquotes

and four comments that readers do not see, on the line before a block:

    <!-- runs on -->       its last command does not end by itself; the walk goes on when everything shown was printed
    <!-- fails -->         its last command ends with an exit code that is not 0
    <!-- soon -->          its commands are repeated until everything shown was printed
    <!-- not run: why -->

A printed line must come as it is shown, except for blanks, ids, times, ports, queues and numbers with a point. `...` is anything.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from roquet.cli.main import main
from roquet.cli.shards import free_ports
from tests.docs.snippets import PRINTED_ADDRESS

PATIENCE_S = 600.0
SOON_S = 60.0
PRINTED_BROKER_PORT = "10911"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"Save this as `([\w.-]+)`")
CHANGING = re.compile(r"\b[0-9A-F]{32}\b|\d{4}-\d\d-\d\d[ T][\d:.]+Z?|(?<=:)\d+\b|\d+\.\d+")
"""Ids, times, ports, the queue that a message went to, and what was measured."""
LANGUAGES = ("console", "python", "properties", "text", "toml", "yaml", "sql", "")


@dataclass
class Block:
    """One fenced block, and the paragraph before it."""

    language: str
    text: str
    before: str

    @property
    def file(self) -> str:
        found = FILE.search(self.before)
        return found[1] if found else ""

    def is_marked(self, mark: str) -> bool:
        return f"<!-- {mark}" in self.before


def blocks(text: str) -> Iterator[Block]:
    end = 0
    for found in BLOCK.finditer(text):
        paragraphs = re.split(r"\n\s*\n", text[end : found.start()].strip())
        yield Block(found[1], found[2], paragraphs[-1])
        end = found.end()


def lasting(line: str) -> str:
    """What two runs of one command have in common."""
    return " ".join(CHANGING.sub("~", line).split())


def missing(shown: list[str], printed: str) -> list[str]:
    """The shown lines that were not printed."""
    lines = {lasting(line) for line in printed.splitlines()}

    def came(line: str) -> bool:
        pattern = ".*".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", lasting(line)))
        return any(re.fullmatch(pattern, one) for one in lines)

    return [line for line in shown if line.strip() and not came(line)]


@dataclass
class Running:
    """A command that is under way, in a process group of its own."""

    command: str
    process: subprocess.Popen[str]
    printed: str = ""
    _reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def until_printed(self, shown: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while absent := missing(shown, self.printed):
            assert self.process.poll() is None or missing(shown, self.printed) == [], self.complaint(absent)
            assert time.monotonic() < deadline, self.complaint(absent)
            time.sleep(0.01)

    def complaint(self, absent: list[str]) -> str:
        shown = "\n".join(absent)
        return f"$ {self.command}\ndid not print:\n{shown}\nbut:\n{self.printed}"


class Walk:
    """`in_process`: how commands begin that run here and not in a process of their own. `absolute`: files of the page that others than
    this process write, and who may be in another directory."""

    def __init__(self, directory: Path, *, in_process: str | None = None, absolute: Sequence[str] = ()) -> None:
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "walk"}
        self.absolute = absolute
        self.namesrv_port, self.broker_port = free_ports(2, "127.0.0.1")
        self.namesrv = f"127.0.0.1:{self.namesrv_port}"
        self.in_process = in_process
        self.running: list[Running] = []
        self.printed = ""
        """By the last Python block."""
        self._loop = asyncio.Runner()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Walk:
        environment = {"NAMESRV_ADDR": self.namesrv, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        for name in environment:
            self._stack.callback(set_variable, name, os.environ.get(name))
        os.environ.update(environment)
        self._stack.enter_context(contextlib.chdir(self.directory))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for one in reversed(self.running):
            one.signal(signal.SIGTERM)
            one.wait()
        self._loop.close()
        self._stack.close()

    # -- a document

    def through(self, text: str) -> None:
        for block in blocks(text):
            if not block.is_marked("not run:"):
                self.step(block)

    def step(self, block: Block) -> None:
        assert block.language in LANGUAGES, f"the walk does not know ```{block.language}"
        if block.file:
            (self.directory / block.file).write_text(self.here(block.text))
        elif block.language == "console":
            self.console(block)
        elif block.language == "python":
            self.python(block.text)
        elif block.language == "text" and not block.before:
            absent = missing(block.text.splitlines(), self.printed)
            assert not absent, "\n".join([*absent, "was not printed, but:", self.printed])

    def here(self, text: str) -> str:
        """With the ports and places that are ours."""
        ours = text.replace(PRINTED_ADDRESS, self.namesrv).replace("9876", str(self.namesrv_port))
        ours = ours.replace(PRINTED_BROKER_PORT, str(self.broker_port))
        for name in self.absolute:
            ours = ours.replace(name, str(self.directory / name))
        return re.sub(r"^roquet up\b", f"roquet up --namesrv-port {self.namesrv_port} --broker-port {self.broker_port}", ours)

    # -- commands

    def console(self, block: Block) -> None:
        lines = block.text.splitlines()
        if lines[0] == "^C":
            self.interrupt(block.before, lines[1:])
            return
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        assert starts[:1] == [0], f"a console block begins with a command: {lines[0]}"
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            is_last = end == len(lines)
            shown = lines[start + 1 : end]
            if is_last and block.is_marked("runs on"):
                self.begin(lines[start][2:]).until_printed(shown)
            else:
                self.command(lines[start][2:], shown, fails=is_last and block.is_marked("fails"), repeats=block.is_marked("soon"))

    def begin(self, command: str) -> Running:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            ["bash", "-c", self.here(command)], env=environment, text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.running.append(Running(command, process))
        return self.running[-1]

    def command(self, command: str, shown: list[str], *, fails: bool, repeats: bool) -> None:
        deadline = time.monotonic() + (SOON_S if repeats else 0)
        while True:
            code, printed = self.outcome(command)
            assert (code != 0) == fails, f"$ {command}\nended with {code}:\n{printed}"
            absent = missing(shown, printed)
            if not absent or time.monotonic() > deadline:
                break
        assert not absent, "\n".join([f"$ {command}", "did not print:", *absent, "but:", printed])

    def outcome(self, command: str) -> tuple[int, str]:
        """Its exit code, and all that it printed."""
        if self.in_process and command.startswith(self.in_process):
            return run_here(self.here(command))
        one = self.begin(command)
        code = one.wait()
        self.running.remove(one)
        return code, one.printed

    def interrupt(self, sentence: str, shown: list[str]) -> None:
        named = re.findall(r"`([^`]+)`", sentence)
        chosen = [one for one in self.running if one.command in named]
        assert len(chosen) == 1, f"which program gets ^C? The sentence before it names {named}, running are {self.running}"
        chosen[0].signal(signal.SIGINT)
        code = chosen[0].wait()
        self.running.remove(chosen[0])
        assert code == 0, f"{chosen[0].command} ended with {code} after Ctrl-C:\n{chosen[0].printed}"
        absent = missing(shown, chosen[0].printed)
        assert not absent, chosen[0].complaint(absent)

    # -- Python

    def python(self, snippet: str) -> None:
        code = compile(self.here(snippet), "<document>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = eval(code, self.names)  # as it is printed is the test
            if inspect.isawaitable(result):
                self.run(result)
        self.printed = printed.getvalue()

    def run(self, work: Awaitable[Any]) -> None:
        async def awaited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await work

        self._loop.run(awaited())


def set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def run_here(command: str) -> tuple[int, str]:
    """A command of roquet in this process, where a Spark session is already."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        code = main(shlex.split(command)[1:])
    return code, printed.getvalue()
