"""A name server and a broker inside your own process, for tests.

    async with roquet.embedded() as mq:
        async with mq.producer() as producer:
            await producer.send(Message("orders", b"hello"))

They are the real ones, on free ports of the loopback interface, with a real store in a temporary directory: what passes
against them passes against a cluster of one broker. `data=` keeps the store, to see what a restart finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from roquet.errors import RoquetError
from roquet.net.connection import Tls
from roquet.settings import BrokerSettings, NameServerSettings, of_both
from roquet.settings_file import BROKER_FILE, NAMESERVER_FILE, layered
from roquet.wire.signing import Credentials

if TYPE_CHECKING:
    from roquet.admin import Admin
    from roquet.client import Producer, PullConsumer, PushConsumer
    from roquet.client.keywords import MemberKeywords, ProducerKeywords, PushConsumerArguments

FAST_RETRIES = "1ms 5ms 10ms" + " 20ms" * 15
"""In place of 1 s to 2 h: the levels of retries and of delayed messages."""
SUSPENDED_MS = 10
"""An orderly consumer's pause after a failure, with fast retries."""
SMALL = {"mappedFileSizeCommitLog": str(64 << 20), "maxHashSlotNum": "10000", "maxIndexNum": "40000"}
"""Files of a store that is thrown away. One that is kept has the usual sizes, so that any broker can open it."""
ALONE = {"listenPort": "0", "bindAddress": "127.0.0.1", "tls.config.file": ""}
"""What the machine has set up for its servers is not for these."""


class Clients:
    """Makes clients that know where the servers are."""

    namesrv: str
    fast_retries = False
    tls: Tls | None = None
    credentials: Credentials | None = None

    def producer(self, group: str = "embedded_producer", **options: Unpack[ProducerKeywords]) -> Producer:
        """A Producer that is not started yet: use it in `async with`."""
        from roquet.client import Producer

        options.setdefault("tls", self.tls)
        options.setdefault("credentials", self.credentials)
        return Producer(group, self.namesrv, **options)

    def consumer(self, group: str = "embedded_consumer", **options: Unpack[PushConsumerArguments]) -> PushConsumer:
        """A PushConsumer that is not started yet: subscribe, then use it in `async with`."""
        from roquet.client import PushConsumer

        options.setdefault("tls", self.tls)
        options.setdefault("credentials", self.credentials)
        if self.fast_retries:
            options.setdefault("suspend_queue_ms", SUSPENDED_MS)
        return PushConsumer(group, self.namesrv, **options)

    def pull_consumer(self, group: str = "embedded_reader", **options: Unpack[MemberKeywords]) -> PullConsumer:
        """A PullConsumer that is not started yet."""
        from roquet.client import PullConsumer

        options.setdefault("tls", self.tls)
        options.setdefault("credentials", self.credentials)
        return PullConsumer(group, self.namesrv, **options)

    def admin(self, **options: Any) -> Admin:
        """An Admin that is not started yet: use it in `async with`."""
        from roquet.admin import Admin

        return Admin(self.namesrv, **{"tls": self.tls, "credentials": self.credentials, **options})


class Embedded(Clients):
    """What `embedded()` gives: where the servers are, and clients that know it."""

    def __init__(
        self, namesrv: str, broker: str, data: Path, *, fast_retries: bool = False, tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        self.namesrv = namesrv
        self.broker = broker
        self.data = data
        self.fast_retries = fast_retries
        self.tls = tls
        self.credentials = credentials

    def __repr__(self) -> str:
        return f"<Embedded name server {self.namesrv}, broker {self.broker}, data {self.data}>"


@contextlib.asynccontextmanager
async def embedded(
    data: str | Path | None = None, *, settings: Mapping[str, str] | None = None, fast_retries: bool = False, tls: bool | Tls = False,
    credentials: Credentials | None = None,
) -> AsyncIterator[Embedded]:  # fmt: skip
    """Start a name server and a broker here; stop them at the end of the block.

    `data`: directory of the store; without, a temporary one that is removed. `settings`: broker settings under
    RocketMQ's keys, {"flushDiskType": "SYNC_FLUSH"}; an unknown key raises.
    `fast_retries`: a failed message comes again after milliseconds instead of 10 s, 30 s, 1 min ... (and so do messages with a
    `delay_level`), so that a test can wait for retries and dead letters.
    `tls`: nobody gets in without TLS, and the clients made here use it: True with a self-signed certificate; a `Tls` as that says, with the
    servers' own certificate in `settings` (tls.server.certPath ...). The settings tls.* are the name server's too.
    `credentials`: nobody gets in without a key, and the clients made here sign with this one. It is an admin's; further accounts can be
    made (`Admin.change_account`, `roquet acl`). With a file of accounts in `settings` (aclEnable, aclFile) it is one of that file.
    """
    how = Tls(verify=False) if tls is True else tls or None
    async with contextlib.AsyncExitStack() as stack:
        if data is None:
            # Before the servers on the stack, so removed after they have stopped.
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roquet-")))
        else:
            root = Path(data)
        kept = str(root / "broker-0" / BROKER_FILE)
        fast = {"messageDelayLevel": FAST_RETRIES} if fast_retries else {}
        given = {**({"tls.server.mode": "enforcing"} if how else {}), **(settings or {})}
        if credentials is not None and "aclFile" not in given:
            given |= {"aclEnable": "true", "aclFile": account_file(root, credentials)}
        broker_settings = read_settings({**(SMALL if data is None else {}), **fast, **given}, kept)
        namesrv = await stack.enter_async_context(name_server(root, of_both(given)))
        broker_settings = broker_settings.replace(namesrv_addr=namesrv, store_path_root_dir=str(root / "broker-0"))
        broker = await stack.enter_async_context(one_broker(broker_settings))
        yield Embedded(namesrv, broker, root, fast_retries=fast_retries, tls=how, credentials=credentials)


def account_file(root: Path, credentials: Credentials) -> str:
    """A file with this one account, an admin's; one that is there keeps its accounts."""
    from roquet.access.yaml_text import AccountChange, with_account

    root.mkdir(parents=True, exist_ok=True)
    path = root / "plain_acl.yml"
    change = AccountChange(credentials.access_key, credentials.secret_key, admin=True)
    text = with_account(path.read_text() if path.exists() else "", str(path), change, 0)
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


def read_settings(pairs: Mapping[str, str], kept: str = "") -> BrokerSettings:
    found, warnings = BrokerSettings.read(layered(None, kept, {**ALONE, **pairs}))
    if warnings:
        raise RoquetError("; ".join(warnings))
    return found


@contextlib.asynccontextmanager
async def name_server(root: Path, pairs: Mapping[str, str] = MappingProxyType({})) -> AsyncIterator[str]:
    from roquet.programs import run_nameserver

    settings, _ = NameServerSettings.read(layered(None, str(root / NAMESERVER_FILE), {**ALONE, **pairs}))
    stop, listening = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(run_nameserver(settings, data_dir=str(root), stop=stop, ready=listening.set_result, own_process=False))
    async with running(server, listening, stop) as address:
        yield address


@contextlib.asynccontextmanager
async def one_broker(settings: BrokerSettings) -> AsyncIterator[str]:
    from roquet.acl_files import own_credentials
    from roquet.admin import Admin
    from roquet.programs import run_broker
    from roquet.settings_tls import broker_connection

    stop, listening = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(run_broker(settings, stop=stop, ready=listening.set_result, own_process=False))
    async with running(server, listening, stop) as address:
        async with Admin(settings.namesrv_addr, connection=broker_connection(settings), credentials=own_credentials(settings)) as admin:
            await admin.until_registered([settings.broker_name])
        yield address


@contextlib.asynccontextmanager
async def running(server: asyncio.Task[None], listening: asyncio.Future[str], stop: asyncio.Event) -> AsyncIterator[str]:
    """Until it listens; and, after the block, until it has stopped. A server that fails raises its own error here."""
    try:
        await asyncio.wait((server, asyncio.ensure_future(listening)), return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            await server
            raise RoquetError("the server ended before it listened")
        yield listening.result()
    finally:
        stop.set()
        await server
