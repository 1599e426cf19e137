"""PostgreSQL, MariaDB and Redis for the tests: real ones, each with a port and a data directory of its own, gone when the tests are over.

    python -m tests.services               start all three, say where they listen, until Ctrl-C
    python -m tests.services --install     only see to it that their programs are there

Programs that the system has are taken. Others come from Debian's packages, unpacked into a directory of this user: no root, no service of
the system, nothing below /usr or /var/lib. Only the lists of packages of a new machine need root. Nobody's own server is asked or touched.

A test asks for the fixture `postgresql_server`, `mariadb_server` or `redis_server`: a Server with host, port and URLs, the same one for
the whole run of pytest. Where one cannot be had, its tests are skipped, and the run ends with a line that says which; in CI (CI=true) they
fail.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

HOST = "127.0.0.1"
STARTING_S = 60.0
APT_S = 900
left_out: dict[str, str] = {}
"""Which server was asked for and could not be had, and why."""


class NoService(Exception):
    """It cannot be had here; the text says what to do."""


@dataclass(frozen=True)
class Server:
    """One that runs."""

    name: str
    port: int
    pid: int
    host: str = HOST

    def url(self, driver: str = "", database: str = "") -> str:
        """For SQLAlchemy, `postgresql_server.url("psycopg")`; for Redis `redis_server.url()`. Without a database: the one that is there."""
        scheme = "mysql" if self.name == "mariadb" else self.name
        user = {"postgresql": "roquet@", "mariadb": "roquet@"}.get(self.name, "")
        name = database or {"postgresql": "postgres", "mariadb": "test"}.get(self.name, "0")
        return f"{scheme}{'+' if driver else ''}{driver}://{user}{self.host}:{self.port}/{name}"


@dataclass(frozen=True)
class Service:
    """What is known of one kind of server."""

    name: str
    title: str
    packages: tuple[str, ...]
    """Debian's and Ubuntu's names; the first that the release has is taken."""
    programs: tuple[str, ...]
    """Where the program lies below / or below the directory of unpacked packages; * stands for a version."""
    prepare: Callable[[Path, Path], Sequence[str]] | None
    """(program, empty data directory) to the command that fills it; None when it needs nothing."""
    serve: Callable[[Path, Path, int], Sequence[str]]
    """(program, data directory, port) to the command."""
    end: signal.Signals
    """The quickest: nobody reads that data again."""


def postgresql_prepare(program: Path, data: Path) -> Sequence[str]:
    options = ["--username=roquet", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    return [str(program.with_name("initdb")), "--pgdata", str(data), *options]


def postgresql_serve(program: Path, data: Path, port: int) -> Sequence[str]:
    settings = f"listen_addresses={HOST} port={port} unix_socket_directories= max_connections=60 shared_buffers=16MB jit=off"
    settings += " fsync=off synchronous_commit=off full_page_writes=off max_wal_size=64MB autovacuum=off"
    return [str(program), "-D", str(data), *(part for setting in settings.split() for part in ("-c", setting))]


def mariadb_base(program: Path) -> Path:
    return program.parents[1]


MARIADB_SMALL = ["--no-defaults", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"]
MARIADB_SMALL += ["--innodb-use-native-aio=0", "--innodb-flush-method=nosync", "--skip-log-bin", "--aria-pagecache-buffer-size=1M"]


def mariadb_prepare(program: Path, data: Path) -> Sequence[str]:
    """What mariadb-install-db does, without the client's package: the system tables, and the database "test"."""
    share = mariadb_base(program) / "share" / "mysql"
    scripts = [str(share / f"mysql_{name}.sql") for name in ("system_tables", "performance_tables", "system_tables_data")]
    server = [str(program), *MARIADB_SMALL, f"--datadir={data}", f"--lc-messages-dir={share}", "--bootstrap", "--silent-startup"]
    first = "printf '%s;\\n' 'CREATE DATABASE mysql' 'CREATE DATABASE test' 'USE mysql'"
    return ["sh", "-c", f"{{ {first}; cat {shlex.join(scripts)}; }} | {shlex.join(server)}"]


def mariadb_serve(program: Path, data: Path, port: int) -> Sequence[str]:
    messages = f"--lc-messages-dir={mariadb_base(program) / 'share' / 'mysql'}"
    place = [f"--datadir={data}", f"--socket={data / 'mariadb.sock'}", f"--pid-file={data / 'mariadb.pid'}"]
    listen = [f"--bind-address={HOST}", f"--port={port}", "--skip-networking=0", "--skip-name-resolve", "--max-connections=100"]
    # Nobody's rights are asked: the fixtures connect as roquet without a password, and the port is this machine's alone.
    return [str(program), *MARIADB_SMALL, messages, *place, *listen, "--skip-grant-tables"]


def redis_serve(program: Path, data: Path, port: int) -> Sequence[str]:
    return [str(program), "--bind", HOST, "--port", str(port), "--dir", str(data), "--save", "", "--appendonly", "no", "--daemonize", "no"]


SERVICES = {
    service.name: service
    for service in (
        Service(
            *("postgresql", "PostgreSQL", ("postgresql",), ("usr/lib/postgresql/*/bin/postgres", "usr/local/bin/postgres")),
            *(postgresql_prepare, postgresql_serve, signal.SIGQUIT if sys.platform != "win32" else signal.SIGTERM),
        ),
        Service(
            *("mariadb", "MariaDB", ("mariadb-server-core", "mariadb-server-core-10.6"), ("usr/sbin/mariadbd", "usr/local/sbin/mariadbd")),
            *(mariadb_prepare, mariadb_serve, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM),
        ),
        Service(
            *("redis", "Redis", ("redis-server",), ("usr/bin/redis-server", "usr/local/bin/redis-server")),
            *(None, redis_serve, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM),
        ),
    )
}


def unpacked() -> Path:
    """Where packages are unpacked and empty databases are kept. Outside of homes: an unprivileged user must be able to read it."""
    return Path(os.environ.get("ROQUET_SERVICES") or f"/var/tmp/roquet-services-{os.getuid()}")


def own(directory: Path) -> Path:
    """Made if it is not there; /var/tmp is everybody's, so one that somebody else made is refused."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():
        raise NoService(f"{directory} belongs to somebody else. Remove it, or set ROQUET_SERVICES to a directory of your own.")
    return directory


def find_program(service: Service) -> Path | None:
    """The system's, else the one that was unpacked."""
    for root in (Path("/"), unpacked() / service.name):
        for pattern in service.programs:
            if found := sorted(root.glob(pattern)):
                return found[-1].resolve() if service.name != "redis" else found[-1]  # redis-server is a name of another program
    return None


def install(service: Service) -> Path:
    """The program, after unpacking its packages if there is none. Raises NoService."""
    if found := find_program(service):
        return found
    if sys.platform != "linux" or not shutil.which("apt-get"):
        raise NoService(f"{service.title} is not installed, and there is no apt-get here. Install /{service.programs[0]}.")
    files = packages_of(service)
    directory = own(unpacked())
    with tempfile.TemporaryDirectory(prefix="packages-", dir=directory) as place:
        Path(place).chmod(0o777)  # apt-get downloads as a user of its own
        if problem := command(["apt-get", "download", "-qq", *files], place):
            raise NoService(f"{service.title} is not installed, and its packages could not be downloaded: {problem}.")
        root = Path(place, "root")
        for package in sorted(Path(place).glob("*.deb")):
            if problem := command(["dpkg-deb", "--extract", str(package), str(root)], place):
                raise NoService(f"{service.title} is not installed, and {package.name} could not be unpacked: {problem}.")
        with suppress(OSError):  # another run was quicker
            root.rename(directory / service.name)
    if found := find_program(service):
        return found
    raise NoService(f"{service.title} was unpacked to {directory}, and {service.programs[0]} is not in it. Remove that directory.")


def packages_of(service: Service) -> list[str]:
    """The names of the package and of all that it needs and the system has not. Raises NoService."""
    problem = ""
    for update in (False, True):
        if update and (os.getuid() or command(["apt-get", "update", "-qq"], "/")):
            break
        for package in service.packages:
            asked = ["apt-get", "install", "--simulate", "--no-install-recommends", package]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=APT_S, check=False, env=os.environ | {"LC_ALL": "C"})
            if done.returncode == 0:
                return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
            problem = problem or last_line(done.stderr)
    raise NoService(f"{service.title} is not installed, and apt-get has no {service.packages[0]}: {problem}. Run apt-get update.")


def command(words: Sequence[str], place: str) -> str:
    """What went wrong, in a line; "" when nothing."""
    try:
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=APT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{words[0]} was not finished after {APT_S} s"
    return "" if done.returncode == 0 else last_line(done.stderr or done.stdout) or f"{words[0]} ended with {done.returncode}"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].rstrip(".")


def unprivileged() -> list[str]:
    """In front of a command: PostgreSQL and MariaDB do not run as root, and a server must not outlive who started it."""
    if os.getuid() == 0:
        return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    return []


def environment(service: Service, program: Path) -> dict[str, str]:
    """Of a server; one that was unpacked has its libraries beside it."""
    base = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "HOME": "/nonexistent", "TMPDIR": tempfile.gettempdir()}
    root = unpacked() / service.name
    if not program.is_relative_to(root):
        return base
    places = {path.parent for pattern in ("usr/lib/*/*.so*", "lib/*/*.so*") for path in root.glob(pattern)}
    return base | {"LD_LIBRARY_PATH": ":".join(sorted(map(str, places)))}


def give(path: Path) -> None:
    """To the unprivileged user."""
    if os.getuid() == 0:
        for each in [path, *path.rglob("*")]:
            shutil.chown(each, "nobody", "nogroup")


def data_directory(service: Service, program: Path, place: Path) -> Path:
    """A new one in place: a copy of one that was prepared once, which takes a tenth of the time."""
    data = place / "data"
    if service.prepare is None:
        data.mkdir(mode=0o700)
        give(data)
        return data
    stat = program.stat()
    kept = own(unpacked()) / f"{service.name}-{stat.st_size}-{int(stat.st_mtime)}.tar"
    if not kept.exists():
        data.mkdir(mode=0o700)
        give(place)
        words = [*unprivileged(), *service.prepare(program, data)]
        done = subprocess.run(
            words, cwd=place, env=environment(service, program), capture_output=True, text=True, timeout=STARTING_S * 3, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise NoService(f"{service.title} could not make an empty database, exit code {done.returncode}: {said}")
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as part:
            subprocess.run(["tar", "--create", "--directory", str(place), "data"], stdout=part, check=True, timeout=STARTING_S)
        Path(part.name).replace(kept)
        return data
    subprocess.run(["tar", "--extract", "--directory", str(place), "--file", str(kept)], check=True, timeout=STARTING_S)
    give(place)
    return data


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def running(name: str) -> Iterator[Server]:
    """One server, until the block is left. Raises NoService."""
    service = SERVICES[name]
    program = install(service)
    with tempfile.TemporaryDirectory(prefix=f"roquet-{name}-", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        place.chmod(0o755)
        data = data_directory(service, program, place)
        for attempt in range(5):  # somebody may take the port before the server does
            port = free_port()
            log = place / f"log-{attempt}"
            dying = ["setpriv", f"--pdeathsig={service.end.name.removeprefix('SIG')}"] if sys.platform == "linux" else []
            with log.open("wb") as output:
                words = [*unprivileged(), *dying, *service.serve(program, data, port)]
                process = subprocess.Popen(
                    words, cwd=place, env=environment(service, program), stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            try:
                if answers(process, log):
                    yield Server(name, port, process.pid)
                    return
            finally:
                stop(process, service.end)
        raise NoService(f"{service.title} did not start: {log.read_text(errors='replace')[-2000:]}")


def answers(process: subprocess.Popen[bytes], log: Path) -> bool:
    """True once it says that it takes connections; False when it ended. A port that answers could be somebody else's, or too early."""
    until = time.monotonic() + STARTING_S
    while time.monotonic() < until:
        ended = process.poll() is not None
        if re.search(rb"ready (to accept|for) connections", log.read_bytes(), re.IGNORECASE):
            return True
        if ended:
            return False
        time.sleep(0.02)
    return False


def stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def for_tests(name: str) -> Iterator[Server]:
    """What the fixtures yield."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running(name))
        except NoService as error:
            left_out[SERVICES[name].title] = str(error)
            if os.environ.get("CI") == "true" and shutil.which("apt-get"):
                pytest.fail(f"CI runs the tests of {SERVICES[name].title}: {error}")
            pytest.skip(f"tests of {SERVICES[name].title}: {error}")
        yield server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    yield from for_tests("postgresql")


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Server]:
    yield from for_tests("mariadb")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    yield from for_tests("redis")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line; the reasons are those of the skipped tests (pytest -rs)."""
    if left_out:
        terminalreporter.line(f"left out, for want of a server: tests of {', '.join(sorted(left_out))} (make services says why)")


def main() -> int:
    if sys.argv[1:] not in ([], ["--install"]):
        print(__doc__)
        return 2
    with ExitStack() as stack:
        for name, service in SERVICES.items():
            try:
                if sys.argv[1:]:
                    install(service)
                    continue
                server = stack.enter_context(running(name))
                print(f"{service.title}: {server.url()}", flush=True)
            except NoService as error:
                print(f"make: {error} Tests that need it are left out.", flush=True)
        if not sys.argv[1:]:
            print("Ctrl-C stops them; their data is not kept.", flush=True)
            with suppress(KeyboardInterrupt):
                signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
