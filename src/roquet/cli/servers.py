"""`roquet up`, `roquet namesrv`, `roquet broker`: settings from files and options, then run until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from roquet import __version__, speedups
from roquet.cli.options import Commands, command, default_namesrv, pair, port, positive
from roquet.cli.render import announce, emit, note
from roquet.errors import RoquetError
from roquet.listening import bind_address, given_address
from roquet.properties import escaped
from roquet.settings import BadSetting, BrokerSettings, NameServerSettings, Settings
from roquet.settings_file import BROKER_FILE, NAMESERVER_FILE, layered
from roquet.supervisor import BOOT_SUCCESS, Program, Supervisor, shard_name
from roquet.system import on_stop_signals

SHARDS_MAX = 256
PORTS_APART = 10
"""Between the brokers of one machine: a broker answers on listenPort and listenPort - 2, and replication will take + 1."""

S = TypeVar("S", bound=Settings)


def add_commands(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "start a name server and a broker here, and run until Ctrl-C",
        """
        roquet up
        roquet up --shards 4                  four brokers on four cores, one cluster
        roquet up --bind 0.0.0.0              reachable from other machines
        roquet up --namesrv-port 0 --broker-port 0 --data /tmp/try   free ports, another place
        """,
    )
    up.add_argument("--data", default="./data", metavar="DIR", help="where everything is kept (default: ./data)")
    up.add_argument("--bind", metavar="ADDRESS", help="address to listen on; 0.0.0.0 for all (default: brokerIP1, else 127.0.0.1)")
    up.add_argument("--namesrv-port", type=port, default=9876, metavar="PORT", help="of the name server; 0: a free one (default: 9876)")
    up.add_argument("--broker-port", type=port, default=10911, metavar="PORT", help="of the first broker; 0: free ones (default: 10911)")
    up.add_argument("--shards", type=positive, default=1, metavar="N", help="brokers to run, one process each (default: 1)")
    setting_option(up, "a broker setting")
    up.set_defaults(run=run_up, log_level=logging.INFO)

    namesrv = command(
        commands,
        "namesrv",
        "run a name server",
        """
        roquet namesrv
        roquet namesrv -c namesrv.conf        RocketMQ's own key=value file
        roquet namesrv -c namesrv.conf -p     print the settings and exit
        """,
    )
    file_options(namesrv)
    namesrv.add_argument("--data", default="./data", metavar="DIR", help="where the KV configuration is kept (default: ./data)")
    namesrv.set_defaults(run=run_namesrv, log_level=logging.INFO)

    broker = command(
        commands,
        "broker",
        "run a broker",
        """
        roquet broker -n 127.0.0.1:9876
        roquet broker -c broker.conf          RocketMQ's own key=value file: listenPort, storePathRootDir and all
        roquet broker -c broker.conf -p       print the settings and exit
        roquet broker -c broker.conf --shards 4   four brokers on four cores: own ports, own stores
        roquet broker --set flushDiskType=SYNC_FLUSH
        """,
    )
    file_options(broker)
    broker.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT", help="name servers, separated by ';' (default: namesrvAddr of the file, else $NAMESRV_ADDR)"
    )
    broker.add_argument("--shards", type=positive, default=1, metavar="N", help="brokers to run, one process each (default: 1)")
    broker.set_defaults(run=run_broker, log_level=logging.INFO)


def file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="key=value settings under RocketMQ's names (docs/configuration.md)")
    parser.add_argument("-p", "--print", action="store_true", help="print the settings and exit")
    setting_option(parser, "one setting; it overrides the file's")
    # For a parent that holds our standard input: its end, however it came, is ours too.
    parser.add_argument("--stop-with-parent", action="store_true", help=argparse.SUPPRESS)


def setting_option(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--set", action="append", default=[], type=pair, metavar="KEY=VALUE", help=f"{about} (may be repeated)")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")


def read_settings(kind: type[S], arguments: argparse.Namespace, kept: str = "") -> S:
    """The file's settings, those changed at run time (in `kept`) over them, and --set over all.

    Says a warning for every key that nobody knows; raises BadSetting."""
    path = getattr(arguments, "config", None)
    given = dict(arguments.set)
    for key in given:
        kind.must_know(key)  # typed just now: no file of another version
    settings, warnings = kind.read(layered(path, kept, given))
    for warning in warnings:
        note(f"roquet: {path or '--set'}: {warning}")
    return settings


def print_settings(settings: Settings) -> int:
    for key, value in settings.items():
        emit(f"{key}={escaped(value)}")
    return 0


# Running until a signal


class Stopper:
    """Ctrl-C and SIGTERM: the first asks for a clean stop, the second does not wait for it."""

    def __init__(self, *, with_parent: bool = False) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        on_stop_signals(self._signal)
        if with_parent:
            threading.Thread(target=self._stop_when_stdin_ends, name="roquet-parent", daemon=True).start()

    def _signal(self, number: signal.Signals) -> None:
        if self.event.is_set():
            note("roquet: not waiting any longer; the store recovers at its next start")
            os._exit(130 if number == signal.SIGINT else 143)
        self.event.set()
        note("roquet: stopping (the same signal again stops it at once)")

    def _stop_when_stdin_ends(self) -> None:
        """In a thread: Windows' loop cannot wait for standard input."""
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            self._loop.call_soon_threadsafe(self.event.set)


def run_namesrv(arguments: argparse.Namespace) -> Any:
    settings = read_settings(NameServerSettings, arguments, os.path.join(arguments.data, NAMESERVER_FILE))
    if arguments.print:
        return print_settings(settings.replace(bind_address=bind_address(settings)))

    async def work() -> int:
        from roquet.programs import run_nameserver

        stop = Stopper(with_parent=arguments.stop_with_parent).event
        await run_nameserver(
            settings,
            data_dir=arguments.data,
            stop=stop,
            ready=lambda address: announce(f"The Name Server {BOOT_SUCCESS}. It listens on {address}"),
        )
        return 0

    return work()


def run_broker(arguments: argparse.Namespace) -> Any:
    root = dict(arguments.set).get("storePathRootDir", BrokerSettings.store_path_root_dir)
    settings = read_settings(BrokerSettings, arguments, os.path.join(root, BROKER_FILE) if arguments.shards == 1 else "")
    settings = settings.replace(namesrv_addr=arguments.namesrv or settings.namesrv_addr or default_namesrv())
    shards = shard_settings(settings, arguments.shards, settings.store_path_root_dir) if arguments.shards > 1 else [settings]
    if arguments.print:
        for shard in shards:
            print_settings(shard.replace(bind_address=bind_address(shard)))
        return 0

    async def one() -> int:
        from roquet.programs import run_broker

        stop = Stopper(with_parent=arguments.stop_with_parent).event
        await run_broker(settings, stop=stop, ready=lambda address: announce(boot_line(settings, address)), progress=RecoveryNotes())
        return 0

    async def many() -> int:
        return await run_shards(shards, Stopper().event, arguments, announce_cluster)

    return one() if arguments.shards == 1 else many()


class RecoveryNotes:
    """Says how far the opening of a store is, once a second when it takes longer than that."""

    def __init__(self) -> None:
        self._noted = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._noted >= 1:
            self._noted = now
            note(f"roquet: opening the store: {what} {done / max(total, 1):.0%}")


def boot_line(settings: BrokerSettings, address: str) -> str:
    where = f"name server: {settings.namesrv_addr}, store: {settings.store_path_root_dir}, speedups: {speedups.in_words()}"
    return f"The broker[{settings.broker_name}, {address}] {BOOT_SUCCESS}. {where}"


async def announce_cluster(supervisor: Supervisor) -> None:
    report = supervisor.report()
    announce(f"{len(report)} brokers are up:")
    for line in report:
        announce("  " + line)


# Shards


def shard_settings(base: BrokerSettings, count: int, root: str) -> list[BrokerSettings]:
    """Settings of `count` brokers that share nothing: own name, own ports, own directory under `root`."""
    if count > SHARDS_MAX:
        raise BadSetting(f"--shards {count}: allowed are 1 to {SHARDS_MAX}")
    if count > 1 and base.store_path_commit_log:
        raise BadSetting("storePathCommitLog cannot be shared by shards; leave it out, and each keeps its log in its own directory")
    first = base.listen_port
    if first and first + PORTS_APART * (count - 1) > 65_535:
        raise BadSetting(f"{count} brokers from port {first}, {PORTS_APART} apart, end above 65535; choose a lower first port or 0")
    ports = [first + PORTS_APART * shard for shard in range(count)] if first else free_ports(count, bind_address(base))
    return [
        base.replace(
            broker_name=shard_name(base.broker_name, shard),
            listen_port=ports[shard],
            store_path_root_dir=os.path.join(root, f"broker-{shard}"),
            config_store_path=os.path.join(root, f"broker-{shard}", BROKER_FILE),
        )
        for shard in range(count)
    ]


def free_ports(count: int, bind: str) -> list[int]:
    """Ports that are free now, each with the one two below it (the VIP channel). They are fixed here, so that a broker
    which dies comes back at the address that clients know."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        for _ in range(1000):
            if len(found) == count:
                return found
            upper, lower = socket.socket(family), socket.socket(family)
            held += [upper, lower]
            upper.bind((bind, 0))
            candidate = upper.getsockname()[1]
            try:
                lower.bind((bind, candidate - 2))
            except OSError:
                continue
            found.append(candidate)
    finally:
        for one in held:
            one.close()
    raise BadSetting(f"no {count} pairs of free ports on {bind}; give a first port instead of 0")


def broker_program(settings: BrokerSettings, arguments: argparse.Namespace) -> Program:
    """The command of one shard: the same file and --set options, then what is its own."""
    own = {
        "brokerName": settings.broker_name,
        "listenPort": str(settings.listen_port),
        "storePathRootDir": settings.store_path_root_dir,
        "configStorePath": settings.config_store_path,
        "bindAddress": settings.bind_address,
        "namesrvAddr": settings.namesrv_addr,
    }
    parts = [sys.executable, "-m", "roquet", "broker", "--stop-with-parent"]
    if getattr(arguments, "config", None):
        parts += ["-c", arguments.config]
    for key, value in [*arguments.set, *own.items()]:
        parts += ["--set", f"{key}={value}"]
    if arguments.verbose:
        parts.append("--verbose")
    return Program(settings.broker_name, parts)


def warn_of_shards_left_out(root: str, count: int) -> None:
    """A store that no broker opens is a cluster with messages missing: say so."""
    for directory in sorted(Path(root).glob("broker-*")):
        number = directory.name.removeprefix("broker-")
        if number.isdigit() and int(number) >= count and (directory / "commitlog").exists():
            note(f"roquet: {directory} holds messages of an earlier run and is not served; serve it with --shards {int(number) + 1}")


# Up: all in one


DECIDED_BY_UP = {
    "listenPort": "use --broker-port",
    "storePathRootDir": "use --data",
    "namesrvAddr": "it starts its own name server; use roquet broker for another one",
    "configStorePath": "each broker keeps its changes under its store",
}


def run_up(arguments: argparse.Namespace) -> Any:
    for key, value in arguments.set:
        if key in DECIDED_BY_UP:
            raise BadSetting(f"--set {key}={value}: roquet up decides that itself; {DECIDED_BY_UP[key]}")
    kept = os.path.join(arguments.data, "broker-0", BROKER_FILE) if arguments.shards == 1 else ""  # each of several reads its own
    base = read_settings(BrokerSettings, arguments, kept).replace(listen_port=arguments.broker_port, namesrv_addr="")
    bind = arguments.bind or bind_address(base)
    base = base.replace(bind_address=bind)
    shards = shard_settings(base, arguments.shards, arguments.data)
    warn_of_shards_left_out(arguments.data, arguments.shards)
    given = {"listenPort": str(arguments.namesrv_port), "bindAddress": bind}
    namesrv, _ = NameServerSettings.read(layered(None, os.path.join(arguments.data, NAMESERVER_FILE), given))
    return up(namesrv, shards, arguments)


async def up(namesrv: NameServerSettings, shards: list[BrokerSettings], arguments: argparse.Namespace) -> int:
    from roquet.embed import running
    from roquet.programs import run_nameserver

    stop = Stopper().event
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    # The name server's own stop: it ends after the brokers, so that they can still sign off from it.
    namesrv_stop, brokers_stop = asyncio.Event(), asyncio.Event()
    name_server = asyncio.create_task(run_nameserver(namesrv, data_dir=arguments.data, stop=namesrv_stop, ready=listening.set_result))
    async with running(name_server, listening, namesrv_stop) as address:
        address = reachable(address)
        shards = [shard.replace(namesrv_addr=address) for shard in shards]
        forward = asyncio.create_task(pass_on(stop, brokers_stop))
        try:
            if len(shards) > 1:
                listed = [(shard, f"{given_address(shard)}:{shard.listen_port}") for shard in shards]
                code = await run_shards(shards, brokers_stop, arguments, lambda _: greet(address, listed))
            else:
                code = await run_one(shards[0], address, brokers_stop)
        finally:
            forward.cancel()
    if stop.is_set():
        announce("Stopped. Everything is on disk." if code == 0 else "Stopped, one of them by force.")
    return code


async def run_one(settings: BrokerSettings, namesrv: str, stop: asyncio.Event) -> int:
    from roquet.programs import run_broker

    announcing: list[asyncio.Task[None]] = []

    def ready(address: str) -> None:
        announcing.append(asyncio.create_task(greet(namesrv, [(settings, address)])))

    try:
        await run_broker(settings, stop=stop, ready=ready, progress=RecoveryNotes())
    finally:
        for task in announcing:
            task.cancel()
    return 0


async def greet(namesrv: str, brokers: Sequence[tuple[BrokerSettings, str]]) -> None:
    """Once clients can find them: the commands that are offered shall work at once."""
    from roquet.admin import Admin

    async with Admin(namesrv) as admin:
        try:
            await admin.until_registered(settings.broker_name for settings, _ in brokers)
        except RoquetError as error:
            note(f"roquet: {error}")
    announce(welcome(namesrv, brokers))


async def pass_on(stop: asyncio.Event, further: asyncio.Event) -> None:
    await stop.wait()
    further.set()


async def run_shards(
    shards: list[BrokerSettings], stop: asyncio.Event, arguments: argparse.Namespace, booted: Callable[[Supervisor], Awaitable[None]]
) -> int:
    """`booted` is called when all of them are up."""
    supervisor = Supervisor([broker_program(shard, arguments) for shard in shards], say=emit)

    async def wait() -> None:
        await supervisor.wait_until_booted()
        await booted(supervisor)

    task = asyncio.create_task(wait())
    try:
        return 0 if await supervisor.run(stop) else 1
    finally:
        task.cancel()


def reachable(address: str) -> str:
    """Where a process on this host finds a server that listens on every interface."""
    host, _, number = address.rpartition(":")
    return f"127.0.0.1:{number}" if host in ("0.0.0.0", "::", "[::]") else address


def welcome(namesrv: str, brokers: Sequence[tuple[BrokerSettings, str]]) -> str:
    """The block that `up` prints: where things are, and what to type next."""
    option = "" if namesrv == default_namesrv() else f" -n {namesrv}"
    width = max(12, *(len(settings.broker_name) for settings, _ in brokers))
    lines = ["", f"Roquet {__version__} is up.", "", f"  {'name server':<{width}}  {namesrv}"]
    lines += [f"  {settings.broker_name:<{width}}  {address:<21}  {settings.store_path_root_dir}" for settings, address in brokers]
    lines += [
        "",
        "Try it in another terminal:",
        "",
        f'  {program_name()} send{option} greetings "hello"',
        f"  {program_name()} consume{option} greetings --from first --once",
        "",
        "Ctrl-C stops it.",
        "",
    ]
    return "\n".join(lines)


def program_name() -> str:
    """As the reader can type it: `roquet` when it is on the PATH, else the way this one was started."""
    if shutil.which("roquet"):
        return "roquet"
    script = sys.argv[0]
    return script if os.path.basename(script) == "roquet" else f"{sys.executable} -m roquet"
