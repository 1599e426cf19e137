"""Apache RocketMQ from Maven Central: its jars and its servers.

Standard library only. Jars are resolved once by Maven into the cache directory
($XDG_CACHE_HOME/roquet, else ~/.cache/roquet) and reused from there without
calling Maven again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

SERVER = "4.9.7"  # the last 4.x whose broker and name server are on Maven Central
SERVER_5 = "5.5.0"

GROUP = "org.apache.rocketmq"

# RocketMQ reaches into these packages to unmap files; Java 17 keeps them shut otherwise.
JAVA_17_OPTIONS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

GET_BROKER_CLUSTER_INFO = 106


class InteropError(RuntimeError):
    """A peer could not be fetched, started or stopped."""


# ---------------------------------------------------------------- waiting, ports


PATIENCE_S = 240.0
"""For what must come; a machine may be busy with other things. Only what never comes takes so long."""


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.05) -> None:
    """Return as soon as `condition` holds; raise InteropError naming `what` when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise InteropError(f"gave up after {timeout_s:.0f} s waiting for {what}")
        time.sleep(every_s)


def free_port() -> int:
    """A port P on 127.0.0.1 with P-2 (VIP), P-1 and P+1 (HA) free as well, below the ephemeral range.

    It stays this process's: neither another call nor another run on this machine is given it before this process has ended.
    """
    candidates = list(range(11_000, 31_000, 10))
    start = int.from_bytes(os.urandom(2), "big") % len(candidates)
    for port in candidates[start:] + candidates[:start]:
        if all(_bindable(port + step) for step in (-2, -1, 0, 1)) and _reserve(port):
            return port
    raise InteropError("no free port range on 127.0.0.1")


_reserved: list[IO[bytes]] = []
"""Files whose locks hold this process's ports."""


def _reserve(port: int) -> bool:
    directory = Path(tempfile.gettempdir()) / f"roquet-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    lock = open(directory / str(port), "wb")  # noqa: SIM115 - open for as long as this process lives
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _reserved.append(lock)
    return True


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# ---------------------------------------------------------------- jars


def missing_tools() -> list[str]:
    """The programs this module needs and does not find: any of java, javac, mvn."""
    return [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(root) / "roquet"
    path.mkdir(parents=True, exist_ok=True)
    return path


def classpath(*artifacts: str) -> str:
    """The class path of the named artifacts and all they depend on.

    An artifact is "name:version" (of org.apache.rocketmq) or "group:name:version".
    """
    return os.path.join(jars(*artifacts), "*")


def jars(*artifacts: str) -> str:
    """The directory with the jars of `artifacts` and all they depend on, fetched if it is not there yet."""
    wanted = sorted(_coordinates(artifact) for artifact in artifacts)
    digest = hashlib.sha256("\n".join(":".join(each) for each in wanted).encode()).hexdigest()[:12]
    name = "+".join(f"{artifact}-{version}" for _, artifact, version in wanted)
    target = cache_dir() / "jars" / f"{name[:80]}-{digest}"
    if target.is_dir():
        return str(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / "maven.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(wanted, target)
    return str(target)


def _coordinates(artifact: str) -> tuple[str, str, str]:
    parts = artifact.split(":")
    if len(parts) == 2:
        return GROUP, parts[0], parts[1]
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    raise ValueError(f"not name:version or group:name:version: {artifact!r}")


def _fetch(wanted: list[tuple[str, str, str]], target: Path) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in wanted
    )
    pom = (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>roquet</groupId><artifactId>interop</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        Path(scratch, "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "-f", "pom.xml", f"{DEPENDENCY_PLUGIN}:copy-dependencies", "-DoutputDirectory=lib"]
        result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise InteropError(f"mvn could not fetch {wanted}:\n{result.stdout}{result.stderr}")
        Path(scratch, "lib").rename(target)


def java(*, heap: str = "256m", properties: dict[str, str] | None = None) -> list[str]:
    """The start of a Java command line, up to and without the class path."""
    defines = [f"-D{key}={value}" for key, value in (properties or {}).items()]
    return ["java", f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseSerialGC", *JAVA_17_OPTIONS, *defines]


# ---------------------------------------------------------------- one question of our own


def call(
    address: str, code: int, ext_fields: dict[str, str] | None = None, *, timeout_s: float = 30.0, tls: ssl.SSLContext | None = None
) -> tuple[dict[str, Any], bytes]:
    """Send one request with a JSON header to `address` and return the answer's header and body."""
    header = {"code": code, "language": "JAVA", "version": 401, "opaque": 1, "flag": 0, "extFields": ext_fields or {}}
    encoded = json.dumps(header).encode()
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=timeout_s))
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection, server_hostname=host))
        # total size (counts all that follows it), header size, header; no body
        connection.sendall(struct.pack(">ii", 4 + len(encoded), len(encoded)) + encoded)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        frame = _receive(connection, size)
    (header_size,) = struct.unpack_from(">i", frame)
    answer = json.loads(frame[4 : 4 + header_size])
    assert isinstance(answer, dict)
    return answer, frame[4 + header_size :]


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError("closed in the middle of an answer")
        data += chunk
    return data


def is_registered(namesrv: str, broker_address: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether the name server knows a broker that listens at `broker_address`."""
    try:
        _, body = call(namesrv, GET_BROKER_CLUSTER_INFO, tls=tls)
    except (OSError, ValueError):
        return False
    return f'"{broker_address}"'.encode() in body  # text, since Java writes {0:"address"}, which is not quite JSON


# ---------------------------------------------------------------- servers


class Server:
    """A server process with its output in a file. A context manager: leaving it stops the process."""

    def __init__(self, command: list[str], *, name: str, port: int, directory: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.port = port
        self.directory = directory
        self.address = f"127.0.0.1:{port}"
        self.output = directory / f"{name}.out"
        self._start = self.output.stat().st_size if self.output.exists() else 0
        with open(self.output, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, cwd=directory)

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """What the process has printed since it was started."""
        with open(self.output, "rb") as out:
            out.seek(self._start)
            return out.read().decode(errors="replace")

    def wait_booted(self, *, timeout_s: float = PATIENCE_S) -> None:
        def booted() -> bool:
            if self.process.poll() is not None:
                raise InteropError(f"{self.name} exited with {self.process.returncode} at start:\n{self.log()[-3000:]}")
            return "boot success" in self.log()

        try:
            wait_until(booted, f'"boot success" of {self.name}', timeout_s=timeout_s)
        except BaseException:
            self.kill()
            raise

    def wait_registered(self, namesrv: str, tls: ssl.SSLContext | None = None) -> None:
        """Wait until the process has booted and the name server knows it as a broker."""
        self.wait_booted()
        try:
            wait_until(lambda: is_registered(namesrv, self.address, tls), f"{self.address} at the name server")
        except BaseException:
            self.kill()
            raise

    def stop(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Ask the process to stop (SIGTERM) and wait for it; harmless when it is gone already."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL, PATIENCE_S)

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired as late:
                self.process.kill()
                self.process.wait()
                raise InteropError(f"{self.name} did not end within {timeout_s:.0f} s of {how.name}") from late

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def write_settings(path: Path, settings: dict[str, object]) -> Path:
    """Write a RocketMQ settings file: key=value lines, booleans in lower case."""

    def text(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    path.write_text("".join(f"{key}={text(value)}\n" for key, value in settings.items()))
    return path


def broker_settings(port: int, namesrv: str, directory: Path, overrides: dict[str, object]) -> dict[str, object]:
    """The settings every broker here is started with, whoever wrote it."""
    settings: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": namesrv,
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        "autoCreateTopicEnable": True,
        "autoCreateSubscriptionGroup": True,
        "flushDiskType": "ASYNC_FLUSH",
        "brokerRole": "ASYNC_MASTER",
    }
    return settings | overrides


def namesrv_settings(port: int, directory: Path, overrides: dict[str, object]) -> dict[str, object]:
    settings: dict[str, object] = {
        "listenPort": port,
        "kvConfigPath": directory / "kvConfig.json",
        "configStorePath": directory / "namesrv.properties",
    }
    return settings | overrides


class _ApacheServer(Server):
    def __init__(
        self, artifact: str, version: str, main_class: str, name: str, port: int, directory: Path, settings: dict[str, object], heap: str
    ) -> None:
        home = _home(directory)
        conf = write_settings(directory / f"{name}.conf", settings)
        # user.home too: logs and whatever has no setting stay inside the directory
        properties = {"rocketmq.home.dir": str(home), "user.home": str(directory)}
        command = java(heap=heap, properties=properties)
        command += ["-XX:MaxDirectMemorySize=1g", "-cp", classpath(f"{artifact}:{version}"), main_class, "-c", str(conf)]
        super().__init__(command, name=name, port=port, directory=directory)
        self.version = version


def _home(directory: Path) -> Path:
    """A rocketmq.home.dir: all the servers ask of it is that their log settings exist."""
    home = directory / "home"
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback_broker", "logback_namesrv"):
        (conf / f"{name}.xml").write_text("<configuration/>\n")
    return home


def write_accounts(directory: Path, accounts: list[dict[str, str]]) -> Path:
    """Who may do what at a broker that is started in `directory` with aclEnable: plain_acl.yml, by its own names."""
    lines = ["globalWhiteRemoteAddresses: []", "accounts:"]
    for account in accounts:
        lines += [f"{'  ' if number else '- '}{key}: {value}" for number, (key, value) in enumerate(account.items())]
    file = _home(directory) / "conf" / "plain_acl.yml"
    file.write_text("\n".join(lines) + "\n")
    return file


class NameServer(_ApacheServer):
    """An Apache name server that listens by the time the constructor returns."""

    def __init__(self, version: str, port: int, dir: str | os.PathLike[str], *, heap: str = "128m", **settings: object) -> None:
        directory = Path(dir).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        all_settings = namesrv_settings(port, directory, settings)
        main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
        super().__init__("rocketmq-namesrv", version, main_class, "namesrv", port, directory, all_settings, heap)
        self.wait_booted()


class Broker(_ApacheServer):
    """An Apache broker, booted and known to the name server by the time the constructor returns.

    The store is `dir`/store. Settings are RocketMQ's own, by their own names.
    """

    def __init__(
        self, version: str, port: int, namesrv: str, dir: str | os.PathLike[str], *, heap: str = "512m", **settings: object
    ) -> None:
        directory = Path(dir).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        all_settings = broker_settings(port, namesrv, directory, settings)
        main_class = "org.apache.rocketmq.broker.BrokerStartup"
        super().__init__("rocketmq-broker", version, main_class, "broker", port, directory, all_settings, heap)
        self.namesrv = namesrv
        self.wait_registered(namesrv)


# ---------------------------------------------------------------- a cluster


@contextlib.contextmanager
def cluster(version: str, directory: Path, **settings: object) -> Iterator[tuple[NameServer, Broker]]:
    """A name server and one broker on free ports, stopped at the end."""
    with (
        NameServer(version, free_port(), directory / "namesrv") as namesrv,
        Broker(version, free_port(), namesrv.address, directory / "broker", **settings) as broker,  # type: ignore[arg-type]
    ):
        yield namesrv, broker
