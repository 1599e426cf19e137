"""Programs that do what they are told, one a language: java/Agent.java, go/agent.go, python_client.py.

A request is a line `ID verb key=value ...`, parted by tabs. The verbs, the same in every language:

    produce   name group [transaction] [namespace] [poll] [timeout]         start a producer; `poll`, `timeout`: see below
    send      producer topic body [tags keys delay at queue broker p.NAME]  -> "SEND_OK ID"; of a transaction producer: in a transaction
    request   producer topic body timeout                                   -> the reply's body
    consume   name group topic [tags sql orderly broadcasting work fail retries reply namespace]
    lite      name group topic [tags]                                       a lite pull consumer
    close     name
    mqadmin   line                                                          -> what it printed (Java only)

`poll=MS`: a Java client asks for routes so often (2 s, by itself 30 s). `timeout=MS`: of a Java producer's send (60 s, by itself 3 s).
`work=MS`: consuming a message takes so long (orderly). `fail=N`: a message's first N deliveries fail, and it is to come again after
1 s. `reply=PRODUCER`: answers every message with "re: " and its body. A message in a transaction has the properties `local` (commit,
rollback, unknown, hang) and `checked`, which say how it goes.
What happens is told in lines `- got client=... body=...`, `- executed ...`, `- checked ...`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apache
import client_logs
import java_client
from entry import AS_THEY_ARE, Entry
from java_client import JavaClient

ANSWER_S = apache.PATIENCE_S


class AgentError(apache.InteropError):
    """An agent refused a request, failed in it, or is gone."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a client of an agent."""

    language: str
    kind: str
    fields: dict[str, str]
    at_ms: int

    @property
    def client(self) -> str:
        return self.fields.get("client", "")

    @property
    def body(self) -> str:
        return self.fields.get("body", "")

    def number(self, name: str) -> int:
        return int(self.fields[name])


class Agent:
    """One running program. Requests may be made from many threads at once."""

    def __init__(self, language: str, command: list[str], log: Callable[[], tuple[int, list[str]]]) -> None:
        self.language = language
        self._command = command
        self._log = log
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[str, tuple[bool, str]] = {}
        self._events: list[Event] = []
        self._said: list[str] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        threading.Thread(target=self._read, name=f"agent-{language}", daemon=True).start()
        try:
            self.wait(lambda: any(event.kind == "ready" for event in self.events), "it is ready", timeout_s=apache.PATIENCE_S)
        except BaseException:
            self.kill()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, *fields = line.rstrip("\n").split("\t")
            with self._changed:
                if first.startswith("- "):
                    about = dict(field.partition("=")[::2] for field in fields)
                    self._events.append(Event(self.language, first[2:], about, time.time_ns() // 1_000_000))
                elif len(fields) == 2 and first.isdigit():
                    self._answers[first] = (fields[0] == "ok", fields[1])
                else:
                    self._said.append(line.strip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    def ask(self, verb: str, **given: object) -> str:
        """Make a request and wait for its answer."""
        return self.begin(verb, **given)()

    def begin(self, verb: str, **given: object) -> Callable[[], str]:
        """Make a request; what is returned waits for its answer. `p_x="1"` is the property x."""
        number = str(next(self._numbers))
        fields = [f"{re.sub('^p_', 'p.', key)}={value}" for key, value in given.items()]
        assert self._process.stdin is not None
        with self._changed:
            try:
                self._process.stdin.write("\t".join([number, verb, *fields]) + "\n")
                self._process.stdin.flush()
            except OSError as gone:
                raise AgentError(f"the {self.language} agent is gone: {self._said[-3:]}") from gone

        def answer() -> str:
            self.wait(lambda: number in self._answers, f"it answers {verb} {' '.join(fields)}", timeout_s=ANSWER_S)
            fine, value = self._answers[number]
            if not fine:
                raise AgentError(f"{self.language}: {verb} {' '.join(fields)}: {value}")
            return value

        return answer

    def wait(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        with self._changed:
            deadline = time.monotonic() + timeout_s
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or self._process.poll() is not None:
                    raise AgentError(f"waited {timeout_s:.0f} s until {what}: {self.language} said {self._said[-3:]}")
                self._changed.wait(min(left, 0.5))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not yet written has nobody to go to
                    pipe.close()

    def log_problem(self, *, kept: bool = False) -> str | None:
        """What is wrong with what its clients logged, or that there is no log although there must be (`kept`)."""
        troubles = [event.fields.get("why", "") for event in self.events if event.kind == "trouble"]
        entries, left = self._log()
        left = troubles + left
        if kept and not entries:
            return "the log was not kept: it has no entry, not even of what is passed over"
        return f"{len(left)} entries, the first: {left[0][:600]}" if left else None


class Agents:
    """Starts agents against one cluster, and ends them all."""

    def __init__(
        self, namesrv: str, directory: Path, java: dict[str, JavaClient], go: Path | None, extra: tuple[client_logs.PassedOver, ...],
        entry: Entry = AS_THEY_ARE,
    ) -> None:  # fmt: skip
        self._entry = entry
        self._namesrv = namesrv
        self._directory = directory
        self._java = java
        self._go = go
        self._extra = extra
        self._numbers = itertools.count(1)
        self.all: list[Agent] = []

    def start(self, language: str, header: str = "json") -> Agent:
        """`language`: python, go, java-4.9.8 or java-5.5.0."""
        run = f"agent-{next(self._numbers)}-{threading.get_native_id()}"
        home = self._directory / f"{language}-{run}"
        home.mkdir(parents=True)
        environment = ["env", *(f"{name}={value}" for name, value in self._entry.environment().items())]
        if language == "python":
            program = str(Path(__file__).with_name("python_client.py"))
            command = [*environment, sys.executable, program, self._namesrv, run, str(home / "client.log")]
        elif language == "go":
            assert self._go is not None
            command = [*environment, f"HOME={home}", str(self._go), "agent", self._namesrv, run, str(home), header]
        else:
            client = self._java[language.removeprefix("java-")]
            self._entry.tools(client.directory / run)
            properties = java_client.PROMPT | self._entry.java()
            command, java_log = client.command(run, "Agent", self._namesrv, run, header=header, properties=properties)

        def log() -> tuple[int, list[str]]:
            if language == "python":
                entries = client_logs.python_entries(home / "client.log")
                return len(entries), client_logs.complaints(entries, client_logs.PYTHON + self._extra, ())
            if language == "go":
                entries = client_logs.go_entries(home)
                return len(entries), client_logs.complaints(
                    entries, client_logs.GO_WORKING + self._extra, client_logs.GO_LEAVING + client_logs.GO_TOGETHER
                )
            entries = client_logs.java_entries(java_log, {client_logs.LEAVING: ""})
            return len(entries), client_logs.complaints(
                entries, client_logs.JAVA_WORKING + self._extra, client_logs.JAVA_LEAVING + client_logs.JAVA_TOGETHER
            )

        agent = Agent(language, command, log)
        self.all.append(agent)
        return agent

    def end(self) -> None:
        for agent in self.all:
            agent.kill()
