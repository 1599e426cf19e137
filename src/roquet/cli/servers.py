"""`roquet up`, `roquet namesrv`, `roquet broker`: settings from files and options, then run until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from roquet import __version__, speedups
from roquet.acl_files import own_credentials
from roquet.cli.options import Commands, command, pair, port, positive
from roquet.cli.render import announce, emit, note
from roquet.cli.shards import Node, broker_program, nodes, warn_of_stores_left_out
from roquet.client.name_servers import default_name_servers
from roquet.errors import BadSetting, RoquetError
from roquet.listening import bind_address, given_address
from roquet.properties import escaped
from roquet.settings import BrokerSettings, NameServerSettings, Settings, of_both
from roquet.settings_file import BROKER_FILE, NAMESERVER_FILE, layered
from roquet.supervisor import BOOT_SUCCESS, Supervisor
from roquet.system import on_stop_signals

S = TypeVar("S", bound=Settings)


def add_commands(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "start a name server and a broker here, and run until Ctrl-C",
        """
        roquet up
        roquet up --shards 4                  four brokers on four cores, one cluster
        roquet up --slave                     a master and its slave: each message is on both before it is acknowledged
        roquet up --replicas 3                a DLedger group: when its master dies, another takes over
        roquet up --bind 0.0.0.0              reachable from other machines
        roquet up --namesrv-port 0 --broker-port 0 --data /tmp/try   free ports, another place
        """,
    )
    up.add_argument("--data", default="./data", metavar="DIR", help="where everything is kept (default: ./data)")
    up.add_argument("--bind", metavar="ADDRESS", help="address to listen on; 0.0.0.0 for all (default: brokerIP1, else 127.0.0.1)")
    up.add_argument("--namesrv-port", type=port, default=9876, metavar="PORT", help="of the name server; 0: a free one (default: 9876)")
    up.add_argument("--broker-port", type=port, default=10911, metavar="PORT", help="of the first broker; 0: free ones (default: 10911)")
    up.add_argument(
        "--shards", type=positive, default=1, metavar="N", help="groups of brokers, each with its own topics' queues (default: 1)"
    )
    copies = up.add_mutually_exclusive_group()
    copies.add_argument("--slave", action="store_true", help="each group is a master and a slave")
    copies.add_argument("--replicas", type=positive, default=1, metavar="N", help="each group is a DLedger group of 3, 5, 7 or 9 brokers")
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
    settings = settings.replace(namesrv_addr=arguments.namesrv or settings.namesrv_addr or default_name_servers())
    root = settings.store_path_root_dir
    shards = nodes(settings, arguments.shards, root) if arguments.shards > 1 else [Node(settings.broker_name, settings)]
    if arguments.print:
        for shard in shards:
            print_settings(shard.settings.replace(bind_address=bind_address(shard.settings)))
        return 0

    async def one() -> int:
        from roquet.programs import run_broker

        stop = Stopper(with_parent=arguments.stop_with_parent).event
        await run_broker(settings, stop=stop, ready=lambda address: announce(boot_line(settings, address)), progress=RecoveryNotes())
        return 0

    async def many() -> int:
        return await run_many(shards, Stopper().event, arguments, announce_cluster)

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


# Up: all in one


DECIDED_BY_UP = {
    "listenPort": "use --broker-port",
    "storePathRootDir": "use --data",
    "namesrvAddr": "it starts its own name server; use roquet broker for another one",
    "configStorePath": "each broker keeps its changes under its store",
    **dict.fromkeys(("brokerRole", "brokerId", "haListenPort", "haMasterAddress"), "use --slave"),
    **dict.fromkeys(("enableDLegerCommitLog", "dLegerGroup", "dLegerPeers", "dLegerSelfId"), "use --replicas"),
}


def run_up(arguments: argparse.Namespace) -> Any:
    for key, value in arguments.set:
        if key in DECIDED_BY_UP:
            raise BadSetting(f"--set {key}={value}: roquet up decides that itself; {DECIDED_BY_UP[key]}")
    alone = arguments.shards == arguments.replicas == 1 and not arguments.slave
    kept = os.path.join(arguments.data, "broker-0", BROKER_FILE) if alone else ""  # each of several reads its own
    base = read_settings(BrokerSettings, arguments, kept).replace(listen_port=arguments.broker_port, namesrv_addr="")
    bind = arguments.bind or bind_address(base)
    base = base.replace(bind_address=bind)
    brokers = nodes(base, arguments.shards, arguments.data, slave=arguments.slave, replicas=arguments.replicas)
    warn_of_stores_left_out(arguments.data, brokers)
    given = {**of_both(dict(arguments.set)), "listenPort": str(arguments.namesrv_port), "bindAddress": bind}
    if base.acl_enable:
        given["aclFile"] = shared_acl_file(base)
    namesrv, _ = NameServerSettings.read(layered(None, os.path.join(arguments.data, NAMESERVER_FILE), given))
    return up(namesrv, brokers, arguments)


def shared_acl_file(base: BrokerSettings) -> str:
    """One for the name server and all brokers. "": under ROCKETMQ_HOME."""
    if not base.acl_file and not os.environ.get("ROCKETMQ_HOME"):
        raise BadSetting("--set aclEnable=true: roquet up needs --set aclFile=FILE too, the accounts of its name server and its brokers")
    return base.acl_file


async def up(namesrv: NameServerSettings, brokers: list[Node], arguments: argparse.Namespace) -> int:
    from roquet.embed import running
    from roquet.programs import run_nameserver

    stop = Stopper().event
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    # The name server's own stop: it ends after the brokers, so that they can still sign off from it.
    namesrv_stop, brokers_stop = asyncio.Event(), asyncio.Event()
    name_server = asyncio.create_task(run_nameserver(namesrv, data_dir=arguments.data, stop=namesrv_stop, ready=listening.set_result))
    async with running(name_server, listening, namesrv_stop) as address:
        address = reachable(address)
        brokers = [replace(one, settings=one.settings.replace(namesrv_addr=address)) for one in brokers]
        forward = asyncio.create_task(pass_on(stop, brokers_stop))
        try:
            if len(brokers) > 1:
                listed = [(one, f"{given_address(one.settings)}:{one.settings.listen_port}") for one in brokers]
                code = await run_many(brokers, brokers_stop, arguments, lambda _: greet(address, listed))
            else:
                code = await run_one(brokers[0], address, brokers_stop)
        finally:
            forward.cancel()
    if stop.is_set():
        announce("Stopped. Everything is on disk." if code == 0 else "Stopped, one of them by force.")
    return code


async def run_one(broker: Node, namesrv: str, stop: asyncio.Event) -> int:
    from roquet.programs import run_broker

    announcing: list[asyncio.Task[None]] = []

    def ready(address: str) -> None:
        announcing.append(asyncio.create_task(greet(namesrv, [(broker, address)])))

    try:
        await run_broker(broker.settings, stop=stop, ready=ready, progress=RecoveryNotes())
    finally:
        for task in announcing:
            task.cancel()
    return 0


async def greet(namesrv: str, brokers: Sequence[tuple[Node, str]]) -> None:
    """Once clients can find them: the commands that are offered shall work at once."""
    from roquet.admin import Admin
    from roquet.settings_tls import broker_connection

    settings = brokers[0][0].settings
    async with Admin(namesrv, connection=broker_connection(settings), credentials=own_credentials(settings)) as admin:
        try:
            await admin.until_registered(one.settings.broker_name for one, _ in brokers)
            for one, _ in brokers:
                if one.copying.get("brokerRole") == "SLAVE":
                    await admin.until_copied(one.settings.broker_name)
        except RoquetError as error:
            note(f"roquet: {error}")
    announce(welcome(namesrv, brokers))


async def pass_on(stop: asyncio.Event, further: asyncio.Event) -> None:
    await stop.wait()
    further.set()


async def run_many(
    brokers: list[Node], stop: asyncio.Event, arguments: argparse.Namespace, booted: Callable[[Supervisor], Awaitable[None]]
) -> int:
    """`booted` is called when all of them are up."""
    supervisor = Supervisor([broker_program(one, arguments) for one in brokers], say=emit)

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


def welcome(namesrv: str, brokers: Sequence[tuple[Node, str]]) -> str:
    """The block that `up` prints: where things are, and what to type next."""
    option = "" if namesrv == default_name_servers() else f" -n {namesrv}"
    width = max(12, *(len(one.name) for one, _ in brokers))
    lines = ["", f"Roquet {__version__} is up.", "", f"  {'name server':<{width}}  {namesrv}"]
    lines += [f"  {one.name:<{width}}  {address:<21}  {one.settings.store_path_root_dir}" for one, address in brokers]
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
