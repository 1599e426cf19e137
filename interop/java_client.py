"""Apache's Java clients: the programs of java/, compiled against each version's own jars."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import apache
import client_logs
from report import Section, run_program

SOURCES = Path(__file__).parent / "java"
VERSIONS = ("4.9.8", "5.5.0")
HEADERS = {"json": "JSON", "binary": "ROCKETMQ"}

# Members of a group that is watched while it changes: queues are given up and asked for every second, not every 20.
PROMPT = {
    "rocketmq.client.rebalance.waitInterval": "1000",
    "rocketmq.client.rebalance.lockInterval": "1000",
    "rocketmq.client.unlockDelayTimeMills": "1000",
}


class JavaClient:
    """One version of the client, ready to run. Each run has its own directory for its log and its offsets."""

    def __init__(self, version: str, directory: Path) -> None:
        self.version = version
        self.directory = directory / f"java-{version}"
        self._classes = self.directory / "classes"
        self._classes.mkdir(parents=True)
        self._jars = apache.classpath(f"rocketmq-tools:{version}")
        sources = [*SOURCES.glob("*.java"), SOURCES / f"v{version[0]}" / "Versions.java"]
        command = ["javac", "-nowarn", "-d", str(self._classes), "-cp", self._jars, *map(str, sources)]
        output, compiled = run_program(command)
        if not compiled:
            raise apache.InteropError(f"javac against {version}: {output}")
        # 4.x reads the one name, 5.x (with its own copy of logback) the other
        for name in ("logback.xml", "rmq.logback.xml"):
            shutil.copy(SOURCES / "logback.xml", self._classes / name)

    def command(
        self, run: str, main_class: str, *arguments: str, header: str = "json", properties: dict[str, str] | None = None
    ) -> tuple[list[str], Path]:
        """The command line of one of our programs, and the log its client will write."""
        home = self.directory / run
        (home / "conf").mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / "logback.xml", home / "conf" / "logback_tools.xml")  # mqadmin 4.x insists on it
        properties = {
            **(properties or {}),
            "user.home": str(home),
            "rocketmq.home.dir": str(home),
            "rocketmq.log.root": str(home),
            "rocketmq.client.logUseSlf4j": "true",
            "rocketmq.serialize.type": HEADERS[header],
        }
        # the first compiler tier only: these programs live for seconds, and there are few processors
        command = [*apache.java(heap="192m", properties=properties), "-XX:TieredStopAtLevel=1"]
        return [*command, "-cp", f"{self._classes}:{self._jars}", main_class, *arguments], home / "rocketmq_client.log"


def log_problem(log: Path, phases: dict[str, str], extra: tuple[client_logs.PassedOver, ...] = (), *, provoked: bool = True) -> str | None:
    """What is wrong with a client's log: a line that should not be there, or the provoked one that is not."""
    entries = client_logs.java_entries(log, phases)
    if provoked and not any(re.search(client_logs.PROVOKED_JAVA, text) for _, text in entries):
        return f"the log was not kept: the provoked warning is not among its {len(entries)} entries"
    left = client_logs.complaints(entries, client_logs.JAVA_WORKING + extra, client_logs.JAVA_LEAVING)
    # the second too: Netty's tells of what the first one is about
    return f"{len(left)} entries, the first: {' || '.join(entry[:1_500] for entry in left[:2])}" if left else None


def check(
    section: Section,
    client: JavaClient,
    namesrv: str,
    header: str,
    *,
    extra: tuple[client_logs.PassedOver, ...] = (),
    run: str = "check",
    properties: dict[str, str] | None = None,
) -> None:
    """Everything a client can do. `run` names its directory, `properties` are system properties of its Java."""
    prefix = f"j{client.version[0]}{header[0]}"
    command, log = client.command(f"{run}-{header}", "Interop", "check", namesrv, prefix, header=header, properties=properties)
    output, finished = run_program(command)
    phases = section.take(output, finished=finished)
    section.judge("no warning or error in the client's log", log_problem(log, phases, extra))
