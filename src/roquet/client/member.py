"""What producers and consumers have in common: joining a client, leaving it, and the questions any of them may ask."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from threading import get_ident
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast
from weakref import WeakSet

from roquet.client.core.beginning import FROM_FIRST, FROM_LAST, FROM_TIMESTAMP
from roquet.client.core.hooks import Hooks, check_middleware, overridden
from roquet.client.core.instance import ClientCore
from roquet.client.core.namespaces import Namespace
from roquet.client.core.queries import FOREVER_MS, Queries
from roquet.client.core.queue_calls import QueueCalls
from roquet.client.core.tasks import Cancelled, Wait, Work
from roquet.client.middleware import Middleware
from roquet.client.name_servers import default_name_servers
from roquet.client.place import MACHINE, Place, place_of
from roquet.client.running import finished, running_loop
from roquet.client.served import Served
from roquet.client.shared import ClientOptions, SharedClient, join
from roquet.errors import ClientError, ConnectFailed, NotStarted
from roquet.message import MessageQueue, ReceivedMessage
from roquet.net.connection import PLAIN, ConnectionOptions, Tls
from roquet.routing.assign import STRATEGIES
from roquet.routing.name_servers import lookup_url, parse_name_servers
from roquet.wire.calls.members import ConsumeFromWhere
from roquet.wire.signing import Credentials

log = logging.getLogger(__name__)

SETTLE_MS = 5_000
START_MS = 5_000
HOOK_MAX_S = 10.0
"""How long started and closing of a middleware may wait."""

T = TypeVar("T")


CHOICES: dict[str, dict[str, Any]] = {
    "consume_from": {"first": FROM_FIRST, "last": FROM_LAST, "timestamp": FROM_TIMESTAMP},
    "strategy": dict(STRATEGIES),
}
"""Settings that a user gives by a name."""


def by_name(settings: dict[str, Any]) -> dict[str, Any]:
    """The same with the values that the names stand for. Raises ClientError for a name that nobody knows."""
    for name, values in CHOICES.items():
        given = settings.get(name, "")
        if name not in settings or isinstance(given, ConsumeFromWhere) or (name == "strategy" and not isinstance(given, str)):
            continue
        if not isinstance(given, str) or given not in values:
            others = ", others from roquet.routing.assign" if name == "strategy" else ""
            raise ClientError(f"{name}={given!r}; known are {', '.join(values)}{others}")
        settings = {**settings, name: values[given]}
    return settings


def with_traces(middleware: Sequence[Middleware], trace: bool | str) -> Sequence[Middleware]:
    from roquet.client.tracing import Tracing

    return [*middleware, Tracing(trace) if isinstance(trace, str) else Tracing()]


OF_EVERY_MEMBER = ("connection", "credentials", "instance_name", "middleware", "namespace", "start_timeout_ms", "tls", "trace", "unit_name")


def known_settings(settings: Callable[..., Any]) -> set[str]:
    return {field.name for field in fields(cast(Any, settings))}


class Core(Protocol):
    group: str

    def start(self) -> None: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=Core)


class Member(Served, Generic[C]):
    """Use as `async with`, or call start() and close(). Belongs to the loop it was started in."""

    Settings: ClassVar[Callable[..., Any]]
    """What the keyword arguments of this kind of member are, with their defaults, which are upstream's."""
    block = "async with"

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        namespace: str = "",
        instance_name: str | None = None,
        unit_name: str = "",
        connection: ConnectionOptions = PLAIN,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        start_timeout_ms: int = START_MS,
        middleware: Sequence[Middleware] = (),
        trace: bool | str = False,
        **settings: Any,
    ) -> None:
        """`namesrv`: the name servers, "10.0.0.1:9876;10.0.0.2:9876", or where an HTTP server tells them, "http://host/path"; None:
        $NAMESRV_ADDR, else 127.0.0.1:9876. `credentials`: sign all requests with these keys; `tls`: encrypt all connections so. Both are
        the same as in `connection`. `start_timeout_ms`: how long start() waits for a name server to answer; 0: not at all. `middleware`:
        whose hooks are called around sends, handlers, transactions and requests. `trace`: write traces, as middleware=[Tracing()] does; a
        text is the topic that they go to. The rest of the keyword arguments are the fields of `Settings`."""
        self.group = group
        self.namespace = Namespace(namespace)
        """Names of topics and groups are taken, and shown, without it."""
        if unknown := settings.keys() - known_settings(self.Settings):
            first = min(unknown)
            takes = ", ".join(sorted({*known_settings(self.Settings), *OF_EVERY_MEMBER}))
            raise TypeError(f"{type(self).__name__}() was given {first}={settings[first]!r}, which it does not know; it takes {takes}")
        self.settings = self.Settings(**by_name(settings), namespace=self.namespace)
        self.start_timeout_ms = start_timeout_ms
        self._hooks = self._hooks_of(with_traces(middleware, trace) if trace else middleware)
        how = connection.over(tls).signed_by(credentials)
        where = default_name_servers() if namesrv is None else namesrv
        lookup = lookup_url(where)
        self._options = ClientOptions(() if lookup else parse_name_servers(where), instance_name, unit_name, how, lookup or "")
        self.place: Place = MACHINE
        """Where it lives since it was started."""
        self._shared: SharedClient | None = None
        self._core: C | None = None
        self._began = False
        self._is_forked = False
        self._pid = 0
        self._closed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """The one that the loop ran in when it was started."""
        self._starting: asyncio.Future[None] | None = None

    def _hooks_of(self, middleware: Sequence[Middleware]) -> Hooks | None:
        if isinstance(middleware, Middleware) or not isinstance(middleware, Sequence):
            raise ClientError(f"middleware is {middleware!r}; expected is a list: middleware=[...]")
        for one in middleware:
            check_middleware(one, Middleware)
        return Hooks(middleware, self.group, self.namespace) if middleware else None

    def _make(self, client: ClientCore) -> C:
        raise NotImplementedError

    def _joined(self, client: ClientCore) -> C:
        if self._hooks is not None:
            self._hooks.join(client)
        return self._make(client)

    async def start(self) -> Self:
        """Idempotent. Raises for settings that cannot work, and ConnectFailed when no name server answers within start_timeout_ms."""
        while self._starting is not None:  # another task starts it
            await asyncio.wait([self._starting])
        self._look_where()
        if self._core is None:
            loop = self._loop = asyncio.get_running_loop()
            self._thread = get_ident()
            starting = self._starting = loop.create_future()
            self.place = place_of(self._options.name_servers)
            try:
                async with self.place.hurrying():
                    await self._begin()
            except BaseException:
                await self.close()
                self._closed.set()
                if self._hooks is not None:
                    self._hooks.leave()
                raise
            finally:
                self._starting = None
                starting.set_result(None)
        return self

    async def _begin(self) -> None:
        self._closed = asyncio.Event()
        self._began = True
        self._pid = os.getpid()
        STARTED.add(self)
        self._shared, self._core = await join(self._options, self._joined)
        if self._hooks is not None:
            await self._tell(self._hooks, "started")
        await self._reach()

    def _look_where(self) -> None:
        """Raises NotStarted in another event loop than the one it was started in. What belonged to a loop that has ended is forgotten."""
        if self._core is None or self._loop is None:
            return
        if self._loop.is_closed():
            self._core = self._shared = None
            self._closed.set()
        elif running_loop() is not self._loop:
            raise self._elsewhere()

    def _here(self) -> asyncio.AbstractEventLoop:
        """The loop that runs here. Raises NotStarted when it is another one than that it was started in."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise self._elsewhere()
        return loop

    def _elsewhere(self) -> NotStarted:
        ended = self._loop is not None and self._loop.is_closed()
        return NotStarted(
            f"{type(self).__name__} {self.group!r} was started in another event loop{', which has ended,' if ended else ''} and is used"
            f" {'outside of it' if running_loop() is None else 'in this one'}; make and start one in each loop (asyncio.run() makes a new"
            " one every time), or use roquet.client.sync, which works from every thread"
        )

    async def _reach(self) -> None:
        if not self.start_timeout_ms:
            return
        try:
            await self._wait(self._client().reach_name_server(self.start_timeout_ms))
        except ConnectFailed as failure:
            raise ConnectFailed(
                f"{type(self).__name__} {self.group!r} is not started: {failure}; check the address and that a name server runs there,"
                " or pass start_timeout_ms=0 to start without one and go on trying"
            ) from None

    def forked(self) -> None:
        """This is a child of the process that started it: neither its loop nor its connections are here."""
        if self._core is not None:
            self._core = self._shared = None
            self._is_forked = True
        self._starting = None

    async def close(self) -> None:
        """Say goodbye to the brokers and close what nobody else uses. Idempotent."""
        self._look_where()
        core, self._core = self._core, None
        shared, self._shared = self._shared, None
        if core is None or shared is None:
            return
        try:
            async with self.place.hurrying():
                await self._closing(core)
                await finished(shared.core.tasks, core.close())
        finally:
            try:
                if self._hooks is not None:
                    await self._tell(self._hooks, "closing")
                    self._hooks.leave()
            finally:
                await shared.leave()
                self._closed.set()

    async def _tell(self, hooks: Hooks, name: str) -> None:
        """started in the order in which the middleware was given, closing in the reverse order."""
        for one in hooks.middleware if name == "started" else reversed(hooks.middleware):
            if not overridden(one, name):
                continue
            try:
                told = getattr(one, name)(self)
                if told is not None:
                    async with asyncio.timeout(HOOK_MAX_S):
                        await told
            except Exception as error:
                hooks.hook(one, name).failed(error)

    async def closed(self) -> None:
        """Wait until close() was called and is through. Raises NotStarted when nobody started it."""
        if not self._began:
            raise NotStarted(
                f"closed() was awaited, but {type(self).__name__} {self.group!r} was never started, so nothing would end the wait;"
                " start it first: `async with`, start(), or run()"
            )
        await self._closed.wait()

    async def _closing(self, core: C) -> None:
        """What must end before the core does."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def options(self) -> ClientOptions:
        """How it connects: members with equal options share their connections."""
        return self._options

    @property
    def client_id(self) -> str:
        """Under which brokers know this client. Members of one program with the same options share it."""
        return self._client().client_id

    def _client(self) -> ClientCore:
        return self._started().core

    def _started(self) -> SharedClient:
        if self._shared is not None and self._loop is not (running_loop() or self._loop):
            raise self._elsewhere()
        if self._shared is None:
            who = f"{type(self).__name__} {self.group!r}"
            if self._is_forked:
                raise NotStarted(
                    f"{who} was started in process {self._pid}, and this is a child of it (process {os.getpid()}); connections do not"
                    " survive a fork: make and start another one in the child"
                )
            raise NotStarted(f"{who} is not started or was closed; use it inside `{self.block}`, or call start()")
        return self._shared

    def _part(self) -> C:
        self._started()
        assert self._core is not None
        return self._core

    async def _wait(self, work: Work[T], *, cancel: bool = False) -> T:
        """Run a coroutine of the core and await what it gives."""
        return await finished(self._client().tasks, work, cancel=cancel)

    async def _settle(self, settled: Wait[bool]) -> None:
        """A consumer's first share of queues, five seconds at most."""
        with suppress(Cancelled):  # somebody closed it meanwhile
            if not await self._wait(self._client().within(settled, SETTLE_MS, False)):
                log.warning("! group %s has no share of queues yet; it goes on trying", self.group)

    # -- what any client may ask

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first queue offset that the queue still has."""
        return await self._wait(QueueCalls(self._client()).min_offset(self.namespace.wrap_queue(queue)))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will get."""
        return await self._wait(QueueCalls(self._client()).max_offset(self.namespace.wrap_queue(queue)))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of what was stored at about this time."""
        return await self._wait(QueueCalls(self._client()).search_offset(self.namespace.wrap_queue(queue), timestamp_ms))

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Store time in ms of the first message that still exists."""
        return await self._wait(QueueCalls(self._client()).earliest_time(self.namespace.wrap_queue(queue)))

    async def query_message(
        self, topic: str, key: str, count_max: int = 32, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> list[ReceivedMessage]:
        """Messages with this key, stored between the two times, oldest first."""
        queries, topic = Queries(self._client()), self.namespace.wrap(topic)
        found = await self._wait(queries.query_message(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms))
        return [self._shown(message) for message in found]

    def _shown(self, message: ReceivedMessage) -> ReceivedMessage:
        message.record.topic = self.namespace.unwrap(message.record.topic)
        return message

    async def view_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """One message by the broker's id (offset_message_id), or by the producer's (message_id) when the topic is given too."""
        queries = Queries(self._client())
        real = None if topic is None else self.namespace.wrap(topic)
        return self._shown(await self._wait(queries.view_message(message_id, topic=real)))

    async def create_topic(self, topic: str, queues: int = 4, *, cluster: str | None = None, perm: int = 6) -> list[str]:
        """Create the topic on every master (of the cluster), or change its queues there. The names of the brokers."""
        queries, topic = Queries(self._client()), self.namespace.wrap(topic)
        return await self._wait(queries.create_topic(topic, queues=queues, cluster=cluster, perm=perm))


STARTED: WeakSet[Member[Any]] = WeakSet()
"""Everything that was started in this process."""


def _after_fork() -> None:
    for member in list(STARTED):
        member.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
