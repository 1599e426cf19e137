"""App: handlers, publishers and what they need, as one program.

app = App("127.0.0.1:9876")

@app.consumer("orders", group="billing", tags="paid || refunded", retries=5)
async def bill(order: Order, attempt: Attempt) -> None: ...

app.run()                                   # or: roquet run module:app --workers 4
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from types import FrameType, TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, get_args, get_origin, is_typeddict, overload

from roquet.app.bindings.wired import Wired
from roquet.app.groups import Group
from roquet.app.handlers import Handler, Listener, When
from roquet.app.parameters import EMPTY, Arguments, Reading, arguments_of
from roquet.app.payloads import Decode, Encode, decoder_of, own_decoder
from roquet.app.publishing import Publisher, check_topic, message_of
from roquet.app.shapes import name_of as type_name
from roquet.client import Middleware, Producer, PushConsumer, SendReceipt
from roquet.client.functions import is_async, name_of
from roquet.client.keywords import MemberKeywords, ProducerKeywords, PushConsumerKeywords
from roquet.client.served import Served
from roquet.client.stopping import run_on, serve
from roquet.errors import ClientError, NotStarted
from roquet.message import ReceivedMessage
from roquet.system import fast_loop

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Served)
Hook = Callable[..., Any]
Lifespan = Callable[..., AbstractAsyncContextManager[Any]]

DEFAULT_NAMESRV = "127.0.0.1:9876"
LINGER_MS = 5
"""Messages that are published at the same time share requests. The first goes at once, so nobody waits who is alone."""


class ConsumerKeywords(PushConsumerKeywords, total=False):
    """What @app.consumer takes beside its own: the settings of PushConsumer, and where one that is broadcasting keeps its progress."""

    offsets_directory: str | os.PathLike[str] | None


class Takes(Protocol[T]):
    """A decorator of handlers whose first parameter is a T."""

    def __call__(self, function: Callable[Concatenate[T, P], R], /) -> Callable[Concatenate[T, P], R]: ...


class App(Wired, Served):
    """Handlers, publishers, hooks: decorated with this, run as one program.

    `app.run()` serves until SIGINT or SIGTERM; `async with app:` serves inside the block; `roquet run module:app` runs several processes.
    """

    stops_first = True

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str = "app",
        title: str = "",
        version: str = "0.1.0",
        description: str = "",
        lifespan: Lifespan | None = None,
        producer: ProducerKeywords | None = None,
        consumer: ConsumerKeywords | None = None,
        close_wait_ms: int = 30_000,
        **member: Unpack[MemberKeywords],
    ) -> None:
        """`namesrv`: name servers; None: $NAMESRV_ADDR, else 127.0.0.1:9876. `group`: of the producer, and of handlers that name none.
        `title`, `version` and `description` are for the AsyncAPI document. `middleware` goes to the producer and every consumer.
        `lifespan(app)` gives an async context: entered before the first message, left after the last. `producer` and `consumer`: settings
        of the producer, and of every consumer that has none of its own. `close_wait_ms`: how long the end waits for handlers that run.
        The rest (tls, credentials, namespace ...) is for all of them."""
        self.namesrv: str | Sequence[str] = namesrv or os.environ.get("NAMESRV_ADDR", "").strip() or DEFAULT_NAMESRV
        self.group = group
        self.title = title or group
        self.version = version
        self.description = description
        self.middleware: list[Middleware] = list(member.pop("middleware", ()))
        """Of the producer and of every consumer."""
        self.lifespan = lifespan
        self.close_wait_ms = close_wait_ms
        self.state: dict[str, Any] = {}
        """For what hooks make and handlers use."""
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Functions in place of dependencies, for tests: set them before the start."""
        self.handlers: list[Handler] = []
        self.publishers: list[Publisher[Any]] = []
        self.connecting = dict(member)
        """How every producer and consumer connects: tls, credentials, namespace ..."""
        self._producer_settings: dict[str, Any] = {"linger_ms": LINGER_MS, **(producer or {})}
        self._consumer_settings: dict[str, Any] = dict(consumer or {})
        self._results: dict[Callable[..., Any], list[Publisher[Any]]] = {}
        self._groups: dict[str, Group] = {}
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._members: list[Served] = []
        self._producer: Producer | None = None
        self._consumers: list[PushConsumer] = []
        self._stack: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = False
        self._closer: asyncio.Task[None] | None = None
        """Made by a handler that asked for the end."""
        self._closing: asyncio.Task[Any] | None = None
        """Whose close() is under way."""
        self._closed = asyncio.Event()
        self._on_exit: Callable[[BaseException], None] | None = None
        self._made_producer()  # settings that cannot work are told now

    # -- decorators

    @overload
    def consumer(
        self,
        topic: str,
        *,
        payload: type[T],
        batch: int,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        retries: int | None = None,
        retry_level: int = 0,
        reply: bool = False,
        decode: Decode | None = None,
        when: When | None = None,
        wrap: Callable[[Listener], Listener] | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> Takes[list[T]]: ...

    @overload
    def consumer(
        self,
        topic: str,
        *,
        payload: type[T],
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        retries: int | None = None,
        retry_level: int = 0,
        reply: bool = False,
        decode: Decode | None = None,
        when: When | None = None,
        wrap: Callable[[Listener], Listener] | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> Takes[T]: ...

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        retries: int | None = None,
        retry_level: int = 0,
        batch: int | None = None,
        reply: bool = False,
        decode: Decode | None = None,
        when: When | None = None,
        wrap: Callable[[Listener], Listener] | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> Callable[[F], F]: ...

    def consumer(
        self,
        topic: str,
        *,
        payload: Any = EMPTY,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        retries: int | None = None,
        retry_level: int = 0,
        batch: int | None = None,
        reply: bool = False,
        decode: Decode | None = None,
        when: When | None = None,
        wrap: Callable[[Listener], Listener] | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> Any:
        """Decorator: this function handles the messages of a topic. Its annotations say what it is called with (docs/app.md).

        `group`: the consumer group; handlers of one group are one consumer, so their settings must agree, and two of them share a topic
        only with tags that differ, or with `when`. `tags` or `sql`: which messages. `payload`: the type of the payload, where the first
        parameter's annotation must agree with it; else that annotation says it. `decode`: from the body to the payload, in place of JSON.
        `retries`: how often a message that failed comes again before it becomes a dead letter (16; orderly, no limit). `retry_level`:
        the delay level after a failure (0: longer each time; -1: a dead letter at once). `batch`: the function gets lists of up to so
        many. `reply`: what it returns is the reply to a request. `when(message)`: whether this handler takes it. `wrap`: put something
        around the listener, such as an Idempotent. The rest are PushConsumer's settings: orderly, concurrency, broadcasting,
        consume_from ...

        Raises ClientError for what cannot work."""
        check_topic(topic)
        given: dict[str, Any] = dict(settings)
        if retries is not None:
            given["reconsume_times_max"] = retries
        if batch is not None:
            given["batch_size"] = batch

        def register(function: F, local_names: Mapping[str, Any] | None = None) -> F:
            local_names = names_around(sys._getframe(1)) if local_names is None else local_names
            name = self.group if group is None else group
            handler = self._handler(
                function, local_names, topic=topic, group=name, tags=tags, sql=sql, when=when, batch=batch, retry_level=retry_level,
                reply=reply, decode=decode, payload=payload, wrap=wrap, settings=given,
            )  # fmt: skip
            known = self._groups.get(name) or Group(self, name)
            known.add(handler, given)
            self._groups[name] = known
            self.handlers.append(handler)
            return function

        return register

    def _handler(
        self, function: Any, local_names: Mapping[str, Any], *, payload: Any, batch: int | None, settings: dict[str, Any], **about: Any
    ) -> Handler:
        if not callable(function):
            raise ClientError(f"@app.consumer({about['topic']!r}) was given {function!r}; expected is a function")
        what = f"handler {name_of(function)} of topic {about['topic']!r}"
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ClientError(f"{what} has a `yield`, so a call would run nothing of it; return what it gives")
        for word, given in (("when", about["when"]), ("decode", about["decode"])):
            if given is not None and (not callable(given) or is_async(given)):
                raise ClientError(f"{what}: {word}={given!r:.80}; expected is a plain function (`def`), which is called without `await`")
        if self._loop is not None:
            raise ClientError(f"{what} comes too late: the app runs; decorate handlers before its start")
        size = int({**self._consumer_settings, **settings}.get("batch_size", 1))
        reading = Reading(self, what, f"{getattr(function, '__module__', 'roquet.app')}.{name_of(function)}", size > 1, local_names)
        arguments = arguments_of(function, reading, takes_payload=True, payload_first=payload is not EMPTY)
        kind = payload_type(arguments, payload, reading)
        own: Decode | None = about.pop("decode")
        read = None if kind is EMPTY else own_decoder(own) if own is not None else decoder_of(kind)
        return Handler(
            self, function, arguments=arguments, payload=kind, payload_first=payload is not EMPTY, decode=read, batch=size, reading=reading,
            own_decode=own is not None, returns=arguments.returns, publishers=self._results.setdefault(function, []), **about,
        )  # fmt: skip

    @overload
    def publisher(
        self,
        topic: str,
        payload: None = None,
        *,
        key: Callable[[Any], object] | None = None,
        order_key: Callable[[Any], object] | None = None,
        tags: str | Callable[[Any], str] = "",
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        encode: Encode | None = None,
        content_type: str | None = None,
        producer: Producer | None = None,
    ) -> Publisher[Any]: ...

    @overload
    def publisher(
        self,
        topic: str,
        payload: type[T],
        *,
        key: Callable[[T], object] | None = None,
        order_key: Callable[[T], object] | None = None,
        tags: str | Callable[[T], str] = "",
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        encode: Encode | None = None,
        content_type: str | None = None,
        producer: Producer | None = None,
    ) -> Publisher[T]: ...

    def publisher(
        self,
        topic: str,
        payload: type[T] | None = None,
        *,
        key: Callable[[T], object] | None = None,
        order_key: Callable[[T], object] | None = None,
        tags: str | Callable[[T], str] = "",
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        encode: Encode | None = None,
        content_type: str | None = None,
        producer: Producer | None = None,
    ) -> Publisher[T]:
        """Where values of one type go. `await it.publish(value)`; as a decorator of a handler: what the handler returns is published.

        `key(value)`: a word by which the message is found again. `order_key(value)`: messages of which this is the same stay in order.
        `tags`: one for all, or made from the value. `delay`: seconds until it is delivered. `encode`: from the value to the body, in place
        of JSON; give its `content_type` with it. `producer`: another one than the app's, see `app.add`."""
        check_topic(topic)
        made: Publisher[T] = Publisher(
            self, topic, payload, key=key, order_key=order_key, tags=tags, delay=delay, properties=properties, encode=encode,
            content_type=content_type, producer=producer,
        )  # fmt: skip
        self.publishers.append(made)
        return made

    def _publish_results(self, function: Callable[..., Any], publisher: Publisher[Any]) -> None:
        self._results.setdefault(function, []).append(publisher)

    def on_startup(self, function: F) -> F:
        """Decorator: called when the producer runs and no handler does yet. Plain or async, without parameters or with the app."""
        self._startup.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Decorator: called when the last handler has ended; the producer still runs. The last one first. One that fails is logged."""
        self._shutdown.append(function)
        return function

    def add(self, member: M) -> M:
        """Have this producer (a TransactionProducer, one of another group ...) started before the consumers, and closed after them."""
        if not isinstance(member, Served):
            raise ClientError(f"app.add() was given {member!r}; it takes producers and consumers")
        self._members.append(member)
        return member

    # -- publishing

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: str | Iterable[str] | None = None,
        tags: str = "",
        delay: float | timedelta | None = None,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: object = None,
        encode: Encode | None = None,
        content_type: str | None = None,
    ) -> SendReceipt:
        """Send a value and wait until a broker has stored it: bytes and str as they are, all else as JSON.

        `key`: one or more words by which it is found again. `delay`: seconds until it is delivered, or `delay_level`, or `deliver_at`.
        `order_key`: messages with the same one stay in order. Raises Unsendable for a value that has no form as a message, and what
        Producer.send raises."""
        message = message_of(
            topic, value, key=key, tags=tags, delay=delay, delay_level=delay_level, deliver_at=deliver_at, properties=properties,
            own_encode=encode, content_type=content_type,
        )  # fmt: skip
        return await self.producer.send(message, key=order_key)

    async def request(
        self, topic: str, value: Any, *, timeout_ms: int | None = None, key: str | Iterable[str] | None = None, tags: str = ""
    ) -> ReceivedMessage:
        """Send a value and wait for the reply of the handler that takes it (reply=True). Raises RequestTimedOut when none comes in time."""
        return await self.producer.request(message_of(topic, value, key=key, tags=tags), timeout_ms)

    @property
    def producer(self) -> Producer:
        """The app's own producer. Raises NotStarted before the start and after the end."""
        if self._producer is None:
            raise NotStarted(
                f"the app {self.group!r} does not run; publish in a handler or a hook, or in `async with app:` (or, where nothing shall be"
                " consumed, `async with app.publishing():`)"
            )
        return self._producer

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's loop and wait for it, in a plain handler: app.from_thread(app.publish("sent", order))."""
        if self._loop is None:
            work.close()
            raise NotStarted(f"the app {self.group!r} does not run")
        if asyncio._get_running_loop() is self._loop:
            work.close()
            raise ClientError("from_thread() was called on the event loop, which would wait for itself; await the coroutine there")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- running

    def run(self) -> None:
        """Be a program: start, consume until SIGINT (Ctrl-C) or SIGTERM, let running handlers finish, and return. On uvloop's event loop,
        where that is installed."""
        run_on(fast_loop(), self)

    async def serve(self) -> None:
        """The same inside an event loop that runs already."""
        await serve(self)

    async def start(self) -> Self:
        """Start the producer, run the hooks, start the consumers. Idempotent. What was started is closed again when one of them fails."""
        return await self._start(consuming=True)

    async def _start(self, *, consuming: bool) -> Self:
        if self._loop is not None:
            return self
        self._closed, self._began = asyncio.Event(), True
        self._loop = asyncio.get_running_loop()
        stack = self._stack = AsyncExitStack()
        try:
            producer = await self._made_producer().start()
            stack.push_async_callback(producer.close)
            self._producer = producer
            for member in [*self._members, *self._bound_members(consuming=consuming)]:
                await member.start()
                stack.push_async_callback(member.close)
            if consuming:
                await self._begin(stack)
        except BaseException:
            await self.close()
            raise
        return self

    async def _begin(self, stack: AsyncExitStack) -> None:
        if self.lifespan is not None:
            await stack.enter_async_context(self.lifespan(self))
        for hook in self._shutdown:
            stack.push_async_callback(self._last_words, hook)
        for hook in self._startup:
            await self._hook(hook)
            if self._stack is None:
                raise ClientError(f"the start-up hook {name_of(hook)} closed the app, so it does not start")
        self._consumers = [group.consumer(listening=True) for group in self._groups.values()]
        stack.push_async_callback(self._close_consumers)
        for consumer in self._consumers:
            consumer.on_exit = self._on_exit
        # At once: each waits some seconds for a topic that nobody has yet.
        await all_of(consumer.start() for consumer in self._consumers)

    async def _hook(self, hook: Hook) -> None:
        result = hook(self) if takes_one(hook) else hook()
        if inspect.isawaitable(result):
            await result

    async def _last_words(self, hook: Hook) -> None:
        try:
            await self._hook(hook)
        except Exception:
            log.exception("! the shutdown hook %s failed; the app goes on closing", name_of(hook))

    async def _close_consumers(self) -> None:
        """All of them at once: each waits for the handlers that it has running."""
        await all_of(consumer.close() for consumer in self._consumers)

    async def close(self) -> None:
        """Let running handlers finish, write progress down, leave the groups, run the shutdown hooks, close the producer. Idempotent."""
        if asyncio.current_task() in self.calls():
            # A handler asks for it: it must end first, and cannot wait for itself.
            self._closer = asyncio.get_running_loop().create_task(self.close())
            return
        stack, self._stack = self._stack, None
        if stack is None:
            if self._closing not in (None, asyncio.current_task()):  # a hook may ask for it, too, and cannot wait for itself
                await self._closed.wait()
            return
        self._closing = asyncio.current_task()
        try:
            await stack.aclose()
        finally:
            self._producer, self._loop, self._closing = None, None, None
            self._closed.set()

    async def closed(self) -> None:
        """Wait until close() was called and is through. Raises NotStarted when nobody started it."""
        if not self._began:
            raise NotStarted("closed() was awaited, but the app was never started, so nothing would end the wait")
        await self._closed.wait()

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[Self]:
        """`async with app.publishing():` runs the producer without consumers and hooks: in a web service, say, that only publishes."""
        await self._start(consuming=False)
        try:
            yield self
        finally:
            await self.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def consumers(self) -> list[PushConsumer]:
        """Those that run, one for each group."""
        return list(self._consumers)

    @property
    def running(self) -> int:  # type: ignore[override] # counted, not kept
        """Calls of handlers under way."""
        return sum(consumer.running for consumer in self._consumers)

    @property
    def in_threads(self) -> int:  # type: ignore[override]
        """Of these, those in threads."""
        return sum(consumer.in_threads for consumer in self._consumers)

    @property
    def on_exit(self) -> Callable[[BaseException], None] | None:
        """Told when a handler calls sys.exit()."""
        return self._on_exit

    @on_exit.setter
    def on_exit(self, told: Callable[[BaseException], None] | None) -> None:
        self._on_exit = told
        for consumer in self._consumers:
            consumer.on_exit = told

    def calls(self) -> set[asyncio.Task[None]]:
        """Calls of handlers that the loop still has."""
        return set().union(*(consumer.calls() for consumer in self._consumers))

    def hurry(self) -> None:
        """Do not wait any longer for handlers that run."""
        for consumer in self._consumers:
            consumer.hurry()

    # -- what it is made of

    def settings_of(self, handler: Handler) -> dict[str, Any]:
        """What its consumer was given, with the settings for all consumers."""
        return {**self._consumer_settings, **self._groups[handler.group].settings}

    def _settings(self, *more: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {**self.connecting}
        if self.middleware:
            found["middleware"] = self.middleware
        for one in more:
            found.update(one)
        return found

    def _made_producer(self) -> Producer:
        return Producer(self.group, self.namesrv, **cast(Any, self._settings(self._producer_settings)))

    def __repr__(self) -> str:
        state = "runs" if self._loop else "does not run"
        return f"<App {self.group!r}: {len(self.handlers)} handlers, {len(self.publishers)} publishers, {state}>"


def names_around(frame: FrameType) -> dict[str, Any]:
    """Names of the place where a function is decorated: an app may be made by a function."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


async def all_of(works: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """At the same time, each to its end. Raises the first failure then."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def payload_type(arguments: Arguments, payload: Any, reading: Reading) -> Any:
    """Of one message. Raises ClientError where the annotation, payload= and batch= contradict each other."""
    hint = arguments.payload
    if hint is EMPTY:
        if payload is not EMPTY:
            raise reading.wrong(f"payload={type_name(payload)} is given, but its first parameter takes none")
        return EMPTY
    if reading.batch:
        if get_origin(hint) is not list:
            raise reading.wrong(
                f"with batch= it gets many payloads; annotate {arguments.payload_name!r} with list[...] in place of {type_name(hint)}"
            )
        [hint] = get_args(hint)
    if payload is EMPTY:
        return hint
    if not takes(hint, payload):
        raise reading.wrong(f"payload={type_name(payload)} is given, but its parameter {arguments.payload_name!r} takes {type_name(hint)}")
    return payload


def takes(hint: Any, payload: Any) -> bool:
    """Whether a parameter of this annotation takes such a payload. True where only a type checker can tell."""
    if hint is payload or not isinstance(hint, type) or not isinstance(payload, type):
        return True
    if is_typeddict(hint) or is_typeddict(payload):
        return not is_typeddict(hint) and issubclass(dict, hint)
    return issubclass(payload, hint)


def takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False
