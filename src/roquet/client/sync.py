"""The blocking face: the same classes for programs without asyncio.

    with Producer("orders-service") as producer:
        receipt = producer.send(Message("orders", b"..."))

One background thread runs one loop for all of them. Every method of the asyncio class is here under the same name and
with the same arguments, and returns what awaiting it gives; callbacks and async listeners run in that thread, plain
listeners in threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from roquet.client import lite_pull_consumer, producer, pull_consumer, push_consumer, transaction_producer
from roquet.client.core.failures import TooManySends
from roquet.client.core.transactions import TransactionReceipt, TransactionState
from roquet.client.core.verdicts import COMMIT, DEAD_LETTER, RETRY_LATER, ROLLBACK, RetryLater, Suspend
from roquet.client.stopping import Serving
from roquet.message import Message, MessageQueue, ReceivedMessage

if TYPE_CHECKING:
    from roquet.client import keywords
    from roquet.client.core.producer import Selector
    from roquet.client.core.receipt import SendReceipt
    from roquet.client.core.stats import ConsumerStats, ProducerStats
    from roquet.client.handlers import Function
    from roquet.client.push_consumer import F
    from roquet.client.transaction_producer import Check, Execute
    from roquet.errors import RoquetError

__all__ = [
    "COMMIT",
    "DEAD_LETTER",
    "RETRY_LATER",
    "ROLLBACK",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "Suspend",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "run",
]

LOOK_S = 0.2

T = TypeVar("T")


class _Background:
    """The loop and its thread, started at first use. A daemon: it does not keep a program from ending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, args=(self._loop,), name="roquet-client", daemon=True).start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """A task that raises SystemExit or KeyboardInterrupt ends asyncio's loop; whoever waits for the others would wait for ever."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self.loop()
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            work.close()
            raise RuntimeError("a blocking call inside the client's own thread would wait for itself; use a plain (not async) listener")
        waiting = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # Ctrl-C while waiting
            raise


_background = _Background()


def _after_fork() -> None:
    """The thread is not in the child, and the lock may have been held."""
    _background._lock = threading.Lock()
    _background._loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Blocking:
    """Wraps one asyncio object. Coroutine methods block; others are called on the loop's thread."""

    _kind: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls._kind.__doc__

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._inner = _background.run(_apply(lambda: self._kind(*args, **kwargs)))
        self._inner.block = "with"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        found = getattr(type(self._inner), name, None)
        if inspect.iscoroutinefunction(found):

            @functools.wraps(found)
            def blocking(*args: Any, **kwargs: Any) -> Any:
                result = _background.run(getattr(self._inner, name)(*args, **kwargs))
                return self if result is self._inner else result

            return blocking
        if callable(found):

            @functools.wraps(found)
            def direct(*args: Any, **kwargs: Any) -> Any:
                return _background.run(_apply(lambda: getattr(self._inner, name)(*args, **kwargs)))

            return direct
        return _background.run(_apply(lambda: getattr(self._inner, name)))

    def run(self) -> None:
        """Serve until SIGINT (Ctrl-C) or SIGTERM; see `run` of this module."""
        run(self)

    serve = run

    def close(self) -> None:
        """As the asyncio class has it. A handler that closes its own consumer is not waited for."""
        if self._inner._called_from_here:
            asyncio.run_coroutine_threadsafe(self._inner.close(), _background.loop())
        else:
            _background.run(self._inner.close())

    def __dir__(self) -> list[str]:
        return [name for name in dir(type(self._inner)) if not name.startswith("_")]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


async def _apply(work: Callable[[], T]) -> T:
    return work()


class Producer(_Blocking):
    _kind: Callable[..., Any] = producer.Producer

    if TYPE_CHECKING:  # the rest is typed by the asyncio class only
        stats: ProducerStats

        def __init__(
            self, group: str, namesrv: str | Sequence[str] | None = None, **settings: Unpack[keywords.ProducerKeywords]
        ) -> None: ...

        def send(
            self,
            message: Message,
            *,
            queue: MessageQueue | None = None,
            selector: Selector | None = None,
            key: object = None,
            timeout_ms: int | None = None,
        ) -> SendReceipt: ...

        def send_batch(
            self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
        ) -> Sequence[SendReceipt]: ...

    def send_async(self, message: Message, callback: Callable[[SendReceipt | RoquetError], None], **how: Any) -> None:
        """Send without waiting for the answer; `callback` gets the receipt or the error, in the client's thread. `how`: as for send().
        While sends_in_flight_max messages are under way it waits, so that a program cannot run away from its brokers."""
        _background.run(_send_async(self._inner, message, callback, how))


async def _send_async(inner: producer.Producer, message: Message, callback: producer.Callback, how: dict[str, Any]) -> None:
    while True:
        try:
            inner.send_async(message, callback, **how)
        except TooManySends:
            await inner.room()
        else:
            return


class PullConsumer(_Blocking):
    _kind = pull_consumer.PullConsumer

    if TYPE_CHECKING:
        stats: ConsumerStats

        def __init__(self, group: str, namesrv: str | Sequence[str] | None = None, **settings: Unpack[keywords.MemberKeywords]) -> None: ...


class PushConsumer(_Blocking):
    _kind = push_consumer.PushConsumer

    @property
    def concurrency(self) -> int:
        """Calls of functions at a time. May be set while it runs."""
        return _background.run(_apply(lambda: int(self._inner.concurrency)))

    @concurrency.setter
    def concurrency(self, most: int) -> None:
        _background.run(_apply(lambda: setattr(self._inner, "concurrency", most)))

    if TYPE_CHECKING:
        stats: ConsumerStats

        def __init__(
            self, group: str, namesrv: str | Sequence[str] | None = None, **settings: Unpack[keywords.PushConsumerArguments]
        ) -> None: ...

        def subscribe(self, topic: str, tags: str = "*", function: Function | None = None, *, sql: str | None = None) -> None: ...

        def on(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Callable[[F], F]: ...

        def on_orderly(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Callable[[F], F]: ...


class LitePullConsumer(_Blocking):
    _kind = lite_pull_consumer.LitePullConsumer

    if TYPE_CHECKING:
        stats: ConsumerStats

        def __init__(
            self, group: str, namesrv: str | Sequence[str] | None = None, **settings: Unpack[keywords.LitePullArguments]
        ) -> None: ...

        def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None: ...

        def poll(self, timeout_ms: int = ...) -> list[ReceivedMessage]: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _background.run(self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Message by message, until it is closed. One is finished when the next is asked for."""
        while True:
            try:
                message = _background.run(self._inner.__anext__())
            except StopAsyncIteration:
                return
            yield message


class TransactionProducer(Producer):
    _kind = transaction_producer.TransactionProducer

    if TYPE_CHECKING:

        def __init__(
            self,
            group: str,
            namesrv: str | Sequence[str] | None = None,
            *,
            execute: Execute,
            check: Check,
            checks_at_once: int = ...,
            check_immunity_s: int | None = None,
            **settings: Unpack[keywords.ProducerKeywords],
        ) -> None: ...

        def send_in_transaction(
            self, message: Message, argument: Any = None, *, timeout_ms: int | None = None, check_immunity_s: int | None = None
        ) -> TransactionReceipt: ...


def run(*members: _Blocking) -> None:
    """Start these, serve until SIGINT (Ctrl-C) or SIGTERM (or until a consumer among them is closed), close them, and return.

    Handlers that run may finish, and progress is written. A second signal does not wait for handlers. Call it in the main thread.
    """
    serving = Serving([member._inner if isinstance(member, _Blocking) else member for member in members])
    loop = _background.loop()
    with serving.signals(loop, wakes=False):
        under_way = asyncio.run_coroutine_threadsafe(serving.serve(), loop)
        # A signal that the system gives to another thread, and any on Windows, does not end a wait of this one: so many short ones.
        while not wait([under_way], timeout=LOOK_S).done:
            pass
        under_way.result()
    serving.end_program()
    serving.raise_exit()
