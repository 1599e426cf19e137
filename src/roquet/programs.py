"""The name server and the broker as programs: cores put into sockets, threads and the machine's clock."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from functools import partial

from roquet.access.guard import AccessGuard
from roquet.acl_files import acl_files, read_credentials
from roquet.broker.core import Broker
from roquet.broker.dledger import GroupDoor, GroupMember
from roquet.clock import SystemClock
from roquet.collector import quiet_collector
from roquet.hosts import source_of
from roquet.listening import LOOPBACK, bind_address, given_address, reachable, resolved, tell
from roquet.nameserver.core import NameServer
from roquet.net.background import ThreadBackground
from roquet.net.buffers import keep_memory
from roquet.net.caller import AsyncCaller
from roquet.net.connection import ConnectionOptions
from roquet.net.entrance import OF_ONE_MAX
from roquet.net.server import Core, Server, host_bytes
from roquet.net.strangers import Strangers
from roquet.net.streams import STREAMS_MAX, NetDialer, StreamHost
from roquet.net.tls import ServerTls
from roquet.ports import Clock, Peer
from roquet.settings import BrokerSettings, NameServerSettings
from roquet.settings_file import BROKER_FILE, NAMESERVER_FILE, keep
from roquet.settings_tls import broker_connection, server_tls
from roquet.store.disk import RealDisk, how_reads_wait
from roquet.store.recovery import ShowProgress
from roquet.store.store import Store
from roquet.system import allow_many_files, memory_bytes, slower_without
from roquet.wire.arrays import load
from roquet.wire.frame import FRAME_SIZE_MAX

log = logging.getLogger("roquet")

Ready = Callable[[str], None]
"""Called once with the "ip:port" that is listened on."""

OPEN_FILES_MAX = 4_096
"""Files of the log and the queues that stay open; fewer where the system allows few."""
OTHER_FILES = 64
"""Descriptors for all else: libraries, the loop, tables being saved, calls to name servers."""

GROUP_CONNECTIONS_MAX = 128
"""Connections to the port where members of a DLedger group meet."""
BESIDE_A_MESSAGE = 1 << 20
"""Bytes of a frame besides its message, of somebody who is not known yet."""
LOAD_LATER_S = 0.3
"""After its start a broker loads what its first answers did without (numpy), beside its work."""


def _loaded(result: object) -> None:
    if isinstance(result, Exception):
        log.error("! numpy cannot be loaded: %s; install it again (pip install --force-reinstall numpy)", result)


async def run_nameserver(
    settings: NameServerSettings, *, data_dir: str, stop: asyncio.Event, ready: Ready, own_process: bool = True
) -> None:
    """Serve until `stop` is set. `own_process`: as `run_broker` has it."""
    connections_max = connections_within(allow_many_files(), settings.connections_max)
    clock = SystemClock()
    settings = settings.replace(
        bind_address=bind_address(settings), config_store_path=settings.config_store_path or os.path.join(data_dir, NAMESERVER_FILE)
    )
    tls = server_tls(settings)
    accounts = acl_files(settings.acl_file, settings.config_store_path) if settings.acl_enable else None
    core = NameServer(settings, clock, RealDisk(), data_dir, partial(keep, settings.config_store_path), accounts)
    server = server_of(core, clock, settings, connections_max, tls)
    if core.access.guard is not None:
        keep_strangers_apart(server, core.access.guard.knows, FRAME_SIZE_MAX)  # a broker begins with all its topics
    port = await listen_on(server, settings.bind_address, settings.listen_port)
    if own_process:
        quiet_collector()
    server.start_ticking()

    def warn(text: str) -> None:
        core.open_to = text
        log.warning("%s", text)

    tell(settings, warn)
    async with kept_fresh(tls):
        ready(f"{reachable(settings.bind_address)}:{port}")
        await stop.wait()
    await server.close()


async def run_broker(
    settings: BrokerSettings,
    *,
    stop: asyncio.Event,
    ready: Ready,
    progress: ShowProgress = lambda what, done, total: None,
    own_process: bool = True,
) -> None:
    """Open the store, serve until `stop` is set, then stop cleanly: routes withdrawn, everything on disk.

    `own_process`: nobody else's objects live here, so the garbage collector may be tuned for ours.
    """
    files_max = allow_many_files()
    store_files = min(OPEN_FILES_MAX, files_max // 4)
    members_max = min(GROUP_CONNECTIONS_MAX, files_max // 8) if settings.enable_dleger_commit_log else 0
    slaves_max = min(STREAMS_MAX, files_max // 8)
    connections_max = connections_within(files_max - store_files - members_max - slaves_max, settings.connections_max)
    tls, connection = server_tls(settings), broker_connection(settings)
    clock = SystemClock()
    background = ThreadBackground(asyncio.get_running_loop())
    reading = ThreadBackground(asyncio.get_running_loop())
    caller = AsyncCaller(connection=connection)
    dialer = NetDialer(connection)
    settings = settings.replace(
        bind_address=bind_address(settings),
        config_store_path=settings.config_store_path or os.path.join(settings.store_path_root_dir, BROKER_FILE),
    )
    kept = partial(keep, settings.config_store_path)
    accounts = acl_files(settings.acl_file, settings.config_store_path) if settings.acl_enable else None
    own = read_credentials(settings.acl_credentials_file) if settings.acl_credentials_file else None
    broker = Broker(
        settings, RealDisk(), clock, background, caller, random.Random(), memory_bytes(), reading, kept,
        dialer=dialer, accounts=accounts, credentials=own,
    )  # fmt: skip
    slaves = StreamHost(broker.slaves, tls)
    slaves.is_spare = broker.slaves.is_spare
    broker.store.files.limit = store_files
    server = server_of(broker, clock, settings, connections_max, tls)
    if broker.access.guard is not None:
        keep_strangers_apart(server, broker.access.guard.knows, min(FRAME_SIZE_MAX, settings.max_message_size + BESIDE_A_MESSAGE))
    group = None if broker.group is None else group_server(broker.group, broker.access.guard, clock, settings, members_max, tls)
    try:
        broker.open(progress)
        log_how_reads_wait(broker.store)
        port = await listen_on(server, settings.bind_address, settings.listen_port)
        if settings.vip_channel_enable and settings.listen_port > 2:
            try:
                await listen_on(server, settings.bind_address, port - 2)
            except OSError as error:
                log.warning("the VIP port %d (listenPort - 2) cannot be opened: %s; clients that ask for it use the other", port - 2, error)
        if group is not None and broker.group is not None:
            await listen_on(group, settings.bind_address, broker.group.port)
        else:
            await listen_for_slaves(slaves, settings, port + 1)
        tell(settings, partial(broker.notices.warn, "open to everybody"))
        tell_what_is_missing()
        tell_of_trust(connection)
        ip = given_address(settings)
        broker.listening(f"{ip}:{port}", host_bytes(resolved(ip) or LOOPBACK, port), f"{settings.broker_ip2 or ip}:{port + 1}")
        if own_process:
            quiet_collector()
            keep_memory()
        server.on_lateness = broker.flow.loop_came_round
        server.on_processor_awaited = broker.puller.pace.processor_awaited
        server.start_ticking()
        if group is not None:
            group.start_ticking()
        # Whoever reads "ready" may ask a name server at once. One that does not answer must not keep us from serving.
        await done_within(3, broker.registration.now)
        ready(f"{ip}:{port}")
        asyncio.get_running_loop().call_later(LOAD_LATER_S, reading.run, load, _loaded)
        async with kept_fresh(tls):
            await stop.wait()
        if broker.group is not None:
            await done_within(1, broker.group.leave)
        await server.stop_listening()
        slaves.close()
        await done_within(2, broker.registration.unregister)
        await server.close()
        if group is not None:
            await group.close()
        while broker.saving:
            await asyncio.sleep(0.005)
    finally:
        slaves.close()
        dialer.close()
        await caller.close()
        reading.close()
        background.close()
        broker.close()


async def listen_for_slaves(slaves: StreamHost, settings: BrokerSettings, port: int) -> None:
    """On listenPort + 1, as RocketMQ. A slave has none of its own."""
    if settings.broker_role == "SLAVE":
        return
    try:
        await slaves.listen(settings.bind_address, port)
        if settings.bind_address == "::":
            await slaves.listen("0.0.0.0", port)
    except (OSError, OverflowError) as error:
        if settings.broker_role == "SYNC_MASTER":
            raise OSError(f"the HA port {port} (listenPort + 1) cannot be opened: {error}; brokerRole=SYNC_MASTER needs it") from error
        log.warning("the HA port %d (listenPort + 1) cannot be opened: %s; slaves cannot copy this broker", port, error)


async def listen_on(server: Server, bind: str, port: int) -> int:
    """Returns the port. Every address of IPv6 means those of IPv4 too, which the loop would leave out: clients may be told one of them."""
    try:
        port = await server.listen(bind, port)
        if bind == "::":
            await server.listen("0.0.0.0", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        raise OSError(
            error.errno, f"cannot listen on {bind}, port {port}: {error.strerror or error}; bindAddress must be an address of this machine"
        ) from error
    return port


async def done_within(seconds: float, work: Callable[[Callable[[], None]], None]) -> None:
    """Wait until the work says that it is done, and no longer than this."""
    done = asyncio.Event()
    work(done.set)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), seconds)


@contextlib.asynccontextmanager
async def kept_fresh(tls: ServerTls) -> AsyncIterator[None]:
    """Meanwhile changed certificates are taken."""
    task = asyncio.create_task(tls.keep_fresh())
    try:
        yield
    finally:
        task.cancel()


def server_of(core: Core, clock: Clock, settings: BrokerSettings | NameServerSettings, connections_max: int, tls: ServerTls) -> Server:
    idle_s, unfinished_max = settings.server_channel_max_idle_time_seconds, settings.unfinished_frames_max
    return Server(core, clock, idle_s=idle_s, connections_max=connections_max, unfinished_max=unfinished_max, tls=tls)


def keep_strangers_apart(server: Server, knows: Callable[[Peer], bool], frame_max: int) -> None:
    """With access control: whoever has not shown who it is gets so much of this server, and no more."""
    server.strangers = Strangers(knows, source_of, frame_max)
    server.entrance.of_one_max = OF_ONE_MAX


def group_server(
    member: GroupMember, guard: AccessGuard | None, clock: Clock, settings: BrokerSettings, connections_max: int, tls: ServerTls
) -> Server:
    """Members have two connections each, tools some; whoever else opens many must not keep them out."""
    door = GroupDoor(member, guard)
    server = server_of(door, clock, settings, connections_max, tls)
    server.is_spare = lambda peer: not member.knows(peer)
    if guard is not None:
        keep_strangers_apart(server, door.knows, FRAME_SIZE_MAX)  # the first word of a member that is given by name may be a large entry
    return server


def log_how_reads_wait(store: Store) -> None:
    """Of the log and of what is derived from it: the event loop never waits for either, and the way depends on the file system."""
    segments = store.log.segments
    # Not one of the files that are locked: closing it here would end the lock.
    for what, path in (("log", segments.path(segments.bases[-1])), ("queues", f"{store.root}/config/topics.json")):
        with contextlib.suppress(OSError):
            log.info("%s: %s", what, how_reads_wait(path))


def tell_of_trust(connection: ConnectionOptions) -> None:
    if connection.tls is not None and not connection.tls.verify:
        log.warning(
            "this broker encrypts its connections to name servers, master and members and trusts whoever answers; for more than a trial "
            "name the authorities of their certificates in tls.client.trustCertPath"
        )


def tell_what_is_missing() -> None:
    missing = slower_without()
    if missing:
        log.info("running without %s, which this system or Python does not have: everything works, slower", ", ".join(missing))


def connections_within(files_max: int, asked: int) -> int:
    """How many connections may be open, so that accepting one does not take the descriptor that the store or a call needs."""
    room = max(1, files_max - OTHER_FILES)
    if asked > room:
        # Nearly as many as asked for, by default, is nothing to worry about.
        say = log.warning if room < asked // 2 else log.info
        say("connectionsMax=%d, but the limit of open files leaves room for %d: raise it (ulimit -n), or others are refused", asked, room)
    return min(asked, room)
