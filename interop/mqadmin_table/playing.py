"""One cluster of two broker groups with clients in it, and what every command prints there."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import apache
from java_client import JavaClient
from report import run_program
from store_exchange import Peer

from mqadmin_table.commands import AFTERWARDS, COMMANDS, ENDLESS, STRANGERS, WITH_KEYS, Command
from mqadmin_table.normal import Names, exported

SETTINGS: dict[str, object] = {
    "transactionCheckInterval": 3_600_000,  # Apache makes the topic of half messages with the first check
    # Both clusters share few processors: nobody is turned away for having waited.
    "waitTimeMillsInSendQueue": 20_000,
    "waitTimeMillsInPullQueue": 20_000,
}
BROKERS = ("a", "b")
END = "### end\n"
ADMIN = {"accessKey": "the-admin", "secretKey": "secret-of-the-admin"}
ENDLESS_S = 60.0
"""A command that never ends has printed what it is asked for by then."""

MONITOR_LOG = """<configuration>
    <appender name="console" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%m%n</pattern></encoder></appender>
    <logger name="RocketmqClient" level="info"><appender-ref ref="console"/></logger>
</configuration>
"""
"""startMonitoring tells what it finds to its log alone."""
MONITOR = ("[MONITOR]", "Execute one round")
"""How its own lines begin, among those of its clients."""
MONITORS_GROUP = "__MONITOR_CONSUMER"
"""Of what it reads itself it tells when it was soon enough."""


@dataclass
class Played:
    """The normalised lines of each command, in the order of COMMANDS and ENDLESS; `problem`: why that is not all."""

    lines: list[tuple[Command, list[str]]] = field(default_factory=list)
    problem: str | None = None
    logs: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def cluster(peer: Peer, directory: Path, *, keys: bool) -> Iterator[tuple[apache.Server, list[apache.Server]]]:
    """A name server and two brokers. They are killed at the end: nothing of theirs is looked at any more."""
    with contextlib.ExitStack() as ends:
        namesrv = peer.name_server(apache.free_port(), directory / "namesrv")
        ends.callback(namesrv.kill)

        def start(name: str) -> apache.Server:
            # traces at one of them, so that it is known where they are; messages are stored as 4.9 stores them
            settings = SETTINGS | {"brokerName": f"broker-{name}", "traceTopicEnable": name == BROKERS[0], "regionInMessages": "false"}
            if keys:  # Apache finds the file by itself, and does not know the setting
                accounts = apache.write_accounts(directory / name, [{**ADMIN, "admin": "true"}])
                settings |= {"aclEnable": True, "aclFile": accounts}
            broker = peer.broker(apache.free_port(), namesrv.address, directory / name, settings)
            ends.callback(broker.kill)
            return broker

        with ThreadPoolExecutor(len(BROKERS)) as pool:
            brokers = list(pool.map(start, BROKERS))
        yield namesrv, brokers


def play(peer: Peer, client: JavaClient, directory: Path, *, keys: bool = False) -> Played:
    """`keys`: with access control on; the clients are an admin's."""
    with cluster(peer, directory, keys=keys) as (namesrv, brokers):
        properties = {f"interop.{name}": value for name, value in ADMIN.items()} if keys else {}
        run = f"watched-{directory.parent.name}-{directory.name}"
        program, _ = client.command(run, "Watched", namesrv.address, brokers[0].address, properties=properties)
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watched:
            try:
                assert watched.stdout is not None
                said = watched.stdout.readline().split()
                if said[:1] != ["watched"]:
                    return Played(problem=f"no clients to look at: said {said}")
                playing = Playing(client, directory, namesrv, brokers, said[1:])
                played = playing.with_keys() if keys else playing.all()
            finally:
                watched.kill()
        played.logs = {f"{server.name} {server.directory.name}": server.log() for server in (namesrv, *brokers)}
        return played


def write_keys(home: Path) -> None:
    """The admin's, where mqadmin looks for them."""
    (home / "conf" / "tools.yml").write_text("".join(f"{key}: {value}\n" for key, value in ADMIN.items()))


class Playing:
    """Commands against one cluster."""

    def __init__(self, client: JavaClient, directory: Path, namesrv: apache.Server, brokers: list[apache.Server], said: list[str]) -> None:
        self._client = client
        self._directory = directory
        self._namesrv = namesrv.address
        first_id, unique, traced, single, client_id = said
        self._values = {"a": brokers[0].address, "b": brokers[1].address, "id": first_id, "key": unique, "traced": traced}
        self._values |= {"single": single, "client": client_id}
        names = {
            namesrv.address: "<name server>",
            str(directory): "<dir>",
            first_id: "<first id>",
            unique: "<first key>",
            single: "<single id>",
            traced: "<traced key>",
            client_id.partition("@")[0]: "<host>",
        }
        for broker, name in zip(brokers, BROKERS, strict=True):
            names[broker.address] = f"<{name}>"
        self._names = Names(names)

    def all(self) -> Played:
        """The commands that end in one process, one after the other; then those that do not, each in its own."""
        played = self._play(COMMANDS, "mqadmin")
        if played.problem is None:
            with ThreadPoolExecutor(len(ENDLESS)) as pool:
                played.lines += zip(ENDLESS, pool.map(self._endless, ENDLESS), strict=True)
        return played

    def with_keys(self) -> Played:
        """An admin's, then a stranger's, then those of the admin that have to wait."""
        played = self._play(WITH_KEYS, "admin", keys=True)
        for later in (self._play(STRANGERS, "stranger"), self._play(AFTERWARDS, "later", keys=True)):
            played.lines += later.lines
            played.problem = played.problem or later.problem
        return played

    def _play(self, commands: tuple[Command, ...], who: str, *, keys: bool = False) -> Played:
        program, log = self._client.command(f"{who}-{self._directory.parent.name}-{self._directory.name}", "Mqadmin")
        if keys:
            write_keys(log.parent)
        arguments = [self._arguments(command, number) for number, command in enumerate(commands)]
        # consumerStatus writes files where it stands
        output, finished = run_program(program, stdin="".join("\t".join(each) + "\n" for each in arguments), cwd=self._directory)
        answers = output.split(END)
        played = Played()
        for number, (command, answer) in enumerate(zip(commands, answers, strict=False)):
            text = "\n".join((answer.rstrip("\n"), exported(self._output(number)) if "{dir}" in command.line else ""))
            played.lines.append((command, self._names.lines(text)))
        if not finished or len(answers) != len(commands) + 1:
            played.problem = f"mqadmin ended after {len(answers) - 1} of {len(commands)} commands: {answers[-1][-300:]}"
        return played

    def _output(self, number: int) -> Path:
        return self._directory / f"output-{number}"

    def _arguments(self, command: Command, number: int) -> list[str]:
        words = command.line.format(**self._values, dir=self._output(number)).split()
        return words if command.name in ("help", "nosuchCommand") else [*words, "-n", self._namesrv]

    def _endless(self, command: Command) -> list[str]:
        program, log = self._client.command(
            f"{command.name}-{self._directory.parent.name}-{self._directory.name}",
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            *self._arguments(command, 0),
        )
        if command.name == "startMonitoring":
            (log.parent / "conf" / "logback_tools.xml").write_text(MONITOR_LOG)
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            timer = threading.Timer(ENDLESS_S, process.kill)
            timer.start()
            try:
                return self._until(process, command.until)
            finally:
                timer.cancel()
                process.kill()

    def _until(self, process: subprocess.Popen[str], pattern: str) -> list[str]:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if re.search(pattern, text):
                break
        lines = self._names.lines(text)
        if MONITOR[0] not in text:
            return lines
        return [line for line in lines if line.startswith(MONITOR) and MONITORS_GROUP not in line]
