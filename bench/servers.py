"""Starting and measuring the servers under test. Apache's are run as its own scripts run them, Roquet's as its users do."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "interop"))  # last: it has a run.py of its own

import apache  # noqa: E402  (interop/apache.py)
from frames import Admin, Refused  # noqa: E402

__all__ = ["APACHE", "BEFORE", "HERE", "ROQUET", "Admin", "Launcher", "Running", "anonymous_mib", "apache", "cpu_seconds"]

TICKS = os.sysconf("SC_CLK_TCK")
APACHE, ROQUET, BEFORE = "apache", "roquet", "before"

# distribution/bin/runbroker.sh of 4.9.7, less AlwaysPreTouch (it would slow its start and fill its memory) and with half its heap
BROKER_JAVA = ("-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25",
               "-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:-OmitStackTraceInFastThrow",
               "-XX:MaxDirectMemorySize=2g", "-XX:-UseLargePages")  # fmt: skip
SERIAL_JAVA = ("-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=2g")


# ---------------------------------------------------------------- /proc


def tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found, at = [pid], 0
    while at < len(found):
        with contextlib.suppress(OSError):
            found += [int(child) for child in Path(f"/proc/{found[at]}/task/{found[at]}/children").read_text().split()]
        at += 1
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (state) on: the second may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """User and system time of the process tree so far, children that have ended included."""
    return sum(sum(map(int, _stat(each)[11:15])) for each in tree(pid)) / TICKS


def started_at(pid: int) -> float:
    """When the process was started, on the clock of CLOCK_BOOTTIME; exact to a hundredth."""
    return int(_stat(pid)[19]) / TICKS


def anonymous_mib(pid: int) -> float:
    """RssAnon of the process tree: memory that is its own, not the page cache's."""
    total = 0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
    return total / 1024


# ---------------------------------------------------------------- servers


@dataclass
class Running:
    """A broker under test, with the name server it registered at."""

    kind: str
    broker: apache.Server
    namesrv: str
    start_seconds: float  # from the process's start to its first acknowledged send
    broker_name: str = "broker-a"
    stand_in: bool = False  # not a broker: answers sends and nothing else
    source: str = ""  # the address from which it is asked, if that matters

    @property
    def pid(self) -> int:
        return self.broker.pid

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def address(self) -> str:
        return self.broker.address

    def cpu(self) -> float:
        if self.broker.process.poll() is not None:
            raise apache.InteropError(f"{self.kind}'s broker ended with {self.broker.process.returncode}:\n{self.broker.log()[-2000:]}")
        return cpu_seconds(self.pid)

    def create_topic(self, topic: str, queues: int) -> None:
        if not self.stand_in:
            with Admin(self.address, source=self.source) as admin:
                admin.create_topic(topic, queues)

    def stored(self, topic: str, queues: int) -> int:
        if self.stand_in:
            return 0
        with Admin(self.address, source=self.source) as admin:
            return admin.stored(topic, queues)

    def consumed(self, group: str, topic: str, queues: int) -> int:
        with Admin(self.address, source=self.source) as admin:
            return admin.consumed(group, topic, queues)

    def rewind(self, group: str, topic: str, queues: int) -> None:
        with Admin(self.address, source=self.source) as admin:
            admin.rewind(group, topic, queues)

    def sends(self) -> tuple[int, int]:
        """Sends that took the short way so far, and the others."""
        if self.stand_in or self.kind == APACHE:
            return 0, 0
        with Admin(self.address, source=self.source) as admin:
            return admin.sends()


@dataclass
class Cluster:
    """Brokers behind one name server, as clients see them."""

    namesrv: str
    shards: list[Running]

    def cpu(self) -> float:
        return sum(shard.cpu() for shard in self.shards)

    def stored(self, topic: str, queues: int) -> int:
        return sum(shard.stored(topic, queues) for shard in self.shards)

    def consumed(self, group: str, topic: str, queues: int) -> int:
        return sum(shard.consumed(group, topic, queues) for shard in self.shards)

    def rewind(self, group: str, topic: str, queues: int) -> None:
        for shard in self.shards:
            shard.rewind(group, topic, queues)

    def create_topic(self, topic: str, queues: int) -> None:
        """On every shard; and wait until clients can find it on all of them."""
        for shard in self.shards:
            shard.create_topic(topic, queues)

        def known() -> bool:
            with Admin(self.namesrv) as admin:
                return admin.has_route(topic, len(self.shards))

        apache.wait_until(known, f"the route of {topic} on {len(self.shards)} shards", timeout_s=40.0)


@dataclass(frozen=True)
class Launcher:
    """How to start what is measured."""

    python: str = sys.executable
    broker_command: str = ""  # instead of Roquet's broker; {port} and {conf} are put in
    wrapper: tuple[str, ...] = ()  # put before Roquet's broker command, as a profiler wants it
    core: int | None = None  # run brokers on this core only
    serial_gc: bool = False  # Apache's broker with the serial collector
    before: Path | None = None  # another checkout of Roquet, to compare with: kind BEFORE

    @contextlib.contextmanager
    def namesrv(self, kind: str, directory: Path) -> Iterator[str]:
        directory.mkdir(parents=True, exist_ok=True)
        port = apache.free_port()
        if kind == APACHE:
            with apache.NameServer(apache.SERVER, port, directory) as server:
                yield server.address
        elif self.broker_command:
            yield f"127.0.0.1:{port}"
        else:
            conf = apache.write_settings(directory / "namesrv.conf", apache.namesrv_settings(port, directory, {}))
            command = [self.python, "-m", "roquet", "namesrv", "-c", str(conf)]
            with apache.Server(command, name="namesrv", port=port, directory=directory, env=self._environment(kind)) as server:
                server.wait_booted()
                yield server.address

    @contextlib.contextmanager
    def broker(
        self, kind: str, namesrv: str, directory: Path, *, kill: bool = False, source: str = "", **settings: object
    ) -> Iterator[Running]:
        """A broker that has acknowledged a send; at the end it is stopped, or killed if it will not stop or `kill` says so. `source`: the
        address from which it is asked."""
        server = self.start(kind, namesrv, directory, apache.free_port(), settings)
        try:
            seconds = _first_acknowledged_send(server, source=source)
            name = str(settings.get("brokerName", "broker-a"))
            yield Running(kind, server, namesrv, seconds, name, stand_in=kind == ROQUET and bool(self.broker_command), source=source)
        finally:
            if kill:
                server.kill()
            with contextlib.suppress(apache.InteropError):  # it did not stop in time and was killed
                server.stop(timeout_s=20.0)

    def start(self, kind: str, namesrv: str, directory: Path, port: int, settings: dict[str, object], heap: str = "4g") -> apache.Server:
        """A broker's process, which has just begun. `heap`: of Apache's."""
        directory.mkdir(parents=True, exist_ok=True)
        # a nearly full disk must not make either of them refuse
        all_settings = apache.broker_settings(port, namesrv, directory, {"diskMaxUsedSpaceRatio": 95, **settings})
        conf = apache.write_settings(directory / "broker.conf", all_settings)
        command = self._apache_command(directory, conf, heap) if kind == APACHE else self._roquet_command(port, conf)
        if self.core is not None:
            command = ["taskset", "-c", str(self.core), *command]  # replaces itself: the process id stays
        return apache.Server(command, name="broker", port=port, directory=directory, env=self._environment(kind))

    @contextlib.contextmanager
    def pair(self, kind: str, directory: Path, *, kill: bool = False, source: str = "", **settings: object) -> Iterator[Running]:
        """A name server and a broker that it knows."""
        with (
            self.namesrv(kind, directory / "namesrv") as namesrv,
            self.broker(kind, namesrv, directory / "broker", kill=kill, source=source, **settings) as running,
        ):
            if not running.stand_in:
                apache.wait_until(lambda: apache.is_registered(namesrv, running.address), "the registration", timeout_s=40.0)
            yield running

    def _apache_command(self, directory: Path, conf: Path, heap: str) -> list[str]:
        home = apache._home(directory)
        properties = [f"-Drocketmq.home.dir={home}", f"-Duser.home={directory}"]
        classes = apache.classpath(f"rocketmq-broker:{apache.SERVER}")
        main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]
        flags = ["-server", f"-Xms{heap}", f"-Xmx{heap}", *(SERIAL_JAVA if self.serial_gc else BROKER_JAVA)]
        return ["java", *flags, *apache.JAVA_17_OPTIONS, *properties, "-cp", classes, *main]

    def _roquet_command(self, port: int, conf: Path) -> list[str]:
        if self.broker_command:
            return shlex.split(self.broker_command.format(port=port, conf=conf))
        if self.wrapper:
            return [*self.wrapper, "-m", "roquet", "broker", "-c", str(conf)]
        return [self.python, "-m", "roquet", "broker", "-c", str(conf)]

    def _environment(self, kind: str) -> dict[str, str]:
        checkout = self.before if kind == BEFORE and self.before is not None else HERE.parent
        # With bytecode, as an installed package has it, whatever this shell says about writing it; the first server of a run fills it in.
        bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(HERE.parent / "build" / "bytecode")}
        return {**os.environ, **bytecode, "PYTHONPATH": str(checkout / "src")}


def _first_acknowledged_send(server: apache.Server, timeout_s: float = 60.0, source: str = "") -> float:
    """Knock until a send is acknowledged; the seconds since the process was started."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise apache.InteropError(f"{server.name} exited with {server.process.returncode} at start:\n{server.log()[-3000:]}")
        try:
            with Admin(server.address, source=source) as admin:
                admin.send("BenchStart", b"the first")
            return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at(server.pid)
        except (OSError, Refused):
            time.sleep(0.002)
    server.kill()
    raise apache.InteropError(f"{server.name} acknowledged no send within {timeout_s:.0f} s:\n{server.log()[-3000:]}")
