"""Once: the guard around a handler. It asks the store, calls the handler with what is new, and tells the store what became of it.

What happens to a call is written once, as a generator whose steps are calls: of the store, and of the handler (`Once._steps`). A plain
handler's guard makes these calls one after the other; an async handler's guard awaits them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload
from uuid import uuid4

from roquet.client.core.verdicts import Outcome, RetryLater, Suspend
from roquet.errors import ClientError, error_text
from roquet.idempotence.delays import level_after, suspend_ms
from roquet.idempotence.keys import business_key, digest
from roquet.idempotence.store import AsyncStore, Claim, LeaseLost, Mark, State, Store, StoreFailed
from roquet.message import ReceivedMessage

log = logging.getLogger(__name__)

LEASE_S = 60.0
LEASE_MIN_S, LEASE_MAX_S = 0.05, 86_400.0
GROUP_MAX = 255
ERROR_MAX = 200

Answer = Outcome | RetryLater | Suspend | bool | None
"""None and True: done. False and RETRY_LATER: again, later."""
Messages = ReceivedMessage | list[ReceivedMessage]
M = TypeVar("M", bound=Messages)
P = ParamSpec("P")
Step = Callable[[], Any]
Steps = Generator[Step, Any, Any]

_session: ContextVar[Any] = ContextVar("roquet_session")


def current_session() -> Any:
    """Of the handler that runs here: the session or connection that its store gave it. For a handler of one parameter, and for what it
    calls. Raises ClientError where no such handler runs."""
    try:
        return _session.get()
    except LookupError:
        raise ClientError("no handler with a session runs here; expected is a call from a handler whose guard has an SQL store") from None


class Once:
    """Makes a handler's guard: a function of one message (or of a list of them) that calls the handler unless it was done before.

        @consumer.on("orders")
        @Once(MemoryStore(), group="billing")
        async def bill(message): ...

    With a store that has sessions the handler gets one as its second parameter: `def bill(message, session)`. A handler of one parameter
    finds it with current_session(). The guard of a plain handler is plain and that of an async one is async.

    Not for orderly consumers with auto_commit=False, where a success can still be rolled back.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        group: str,
        key: Callable[[ReceivedMessage], str] = business_key,
        lease_s: float = LEASE_S,
        orderly: bool = False,
        store_away: Literal["retry", "run"] = "retry",
    ) -> None:
        """`group`: the consumer's; groups that share a store do not see each other's marks. `key`: what a message is known by, if not by
        its keys, topic and tag. `lease_s`: after a crash of the whole process a message is tried again when so many seconds are over; keep
        it well below the time in which retries make it a dead letter. `orderly`: the consumer is. `store_away="run"`: while the store does
        not answer, messages are handled without a mark, perhaps twice; else they come again later.
        """
        check(store, group, key, lease_s, store_away)
        self.store = store
        self.group = group
        self.key = key
        self.orderly = orderly
        self.store_away = store_away
        self.lease_ms = round(lease_s * 1000)
        self._counting = threading.Lock()
        self.handled = 0
        """How many messages handlers were called with."""
        self.dropped = 0
        """How many deliveries were dropped, since their message was done."""
        self.postponed = 0
        """How many deliveries were put off, since their message was being handled."""

    @overload
    def __call__(self, handler: Callable[Concatenate[M, P], Awaitable[Answer]]) -> Callable[[M], Coroutine[Any, Any, Answer]]: ...

    @overload
    def __call__(self, handler: Callable[Concatenate[M, P], Answer]) -> Callable[[M], Answer]: ...

    def __call__(self, handler: Callable[..., Any]) -> Callable[[Any], Any]:
        """The guard. Raises ClientError for a handler that does not fit the store."""
        name = getattr(handler, "__name__", None) or repr(handler)
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        if not is_async and inspect.iscoroutinefunction(self.store.claim):
            raise ClientError(
                f"handler {name}() is plain, and {type(self.store).__name__} is async; expected is `async def {name}`, or the plain store"
            )
        steps = partial(self._steps, self._caller(handler, name))
        if not is_async:
            guard = plain_guard(partial(steps, self.store), name)
        else:
            guard = async_guard(partial(steps, InThreads(self.store) if getattr(self.store, "blocks", False) else self.store))
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):  # not its signature: the guard takes a message alone
            if hasattr(handler, attribute):
                setattr(guard, attribute, getattr(handler, attribute))
        return guard

    def _caller(self, handler: Callable[..., Any], name: str) -> Callable[[Any, Any], Step]:
        """(what to give it, its session) to the call of the handler."""
        if takes(handler, 2) and self.store.has_session:
            return lambda given, session: partial(handler, given, session)
        if not takes(handler, 1):
            more = ", session" if self.store.has_session else ""
            raise ClientError(f"handler {name}() cannot be called with a message; expected is: def {name}(message{more})")
        return lambda given, _: partial(handler, given)

    # -- one call

    def _steps(self, caller: Callable[[Any, Any], Step], store: Any, given: Messages) -> Steps:
        messages = given if isinstance(given, list) else [given]
        marked: dict[Mark, ReceivedMessage] = {}  # of two with one key in one list the first counts
        for message in messages:
            marked.setdefault(self._mark(message), message)
        claim = Claim(list(marked), uuid4().hex, self.lease_ms)
        try:
            standings = yield partial(store.claim, claim)
        except Exception as error:
            if self.store_away == "run":
                log.warning("! %s; %d messages are handled without a mark, perhaps for the second time", self._away(error), len(messages))
                self._count(handled=len(messages))
                return (yield caller(given, None))
            raise StoreFailed(f"{self._away(error)}; nothing was handled") from error
        found = list(zip(marked.items(), standings, strict=True))
        busy = {message: standing.left_ms for (_, message), standing in found if standing.state is State.RUNNING}
        mine = {mark: message for (mark, message), standing in found if standing.state is State.MINE}
        self._count(dropped=len(messages) - len(mine) - len(busy))
        claim.marks = list(mine)
        if mine and busy and self.orderly:  # none of them overtakes one that is busy
            yield from self._fail(store, claim)
            mine = {}
        if not mine:
            return self._put_off(given, busy)
        if len(mine) == len(messages):
            return (yield from self._handle(caller, store, claim, given, mine))
        try:
            result = yield from self._handle(caller, store, claim, list(mine.values()), mine)
        except Exception as error:
            log.exception("! consuming %s failed", ", ".join(message.message_id for message in mine.values()))
            result = RetryLater(why=error_text(error))
        return self._together(result, list(mine.values()), busy)

    def _handle(
        self, caller: Callable[[Any, Any], Step], store: Any, claim: Claim, given: Messages, mine: dict[Mark, ReceivedMessage]
    ) -> Steps:
        """The handler's answer, after the store knows of it."""
        began = False
        try:
            session = yield partial(store.begin, claim)
            began = True
            self._count(handled=len(mine))
            token = _session.set(session) if self.store.has_session else None
            try:
                result = yield caller(given, session)
            finally:
                if token is not None:
                    _session.reset(token)
        except GeneratorExit:  # nobody waits for it any more: no further step is made
            raise
        except BaseException as error:
            yield from self._fail(store, claim)
            if began or not isinstance(error, Exception):
                raise
            if isinstance(error, LeaseLost):
                self._count(postponed=len(mine))
                return self._again(list(mine.values()), 0)
            raise StoreFailed(f"{self._away(error)}; nothing was handled") from error
        failed = failed_of(result, list(mine.values()))
        done = [mark for mark, message in mine.items() if message not in failed]
        if not done:
            yield from self._fail(store, claim)
            return result
        try:
            yield partial(store.finish, claim, done, [mark for mark in mine if mark not in done])
        except GeneratorExit:
            raise
        except BaseException as error:
            if self.store.has_session:
                yield from self._fail(store, claim)
            if not isinstance(error, Exception):
                raise
            if self.store.has_session:
                raise StoreFailed(f"{self._away(error)}; what the handler did was rolled back") from error
            # They are handled: to have them delivered again would be the worse mistake.
            log.exception("! %d handled messages could not be remembered; should they come again, they are handled again", len(done))
        return result

    def _fail(self, store: Any, claim: Claim) -> Steps:
        """As well as it can be told: else the lease tells it later."""
        try:
            yield partial(store.fail, claim)
        except Exception as error:
            log.warning("! %s; %d messages that failed are tried again after their lease", self._away(error), len(claim.marks))

    # -- what is answered

    def _put_off(self, given: Messages, busy: dict[ReceivedMessage, int]) -> Answer:
        """None of them is ours."""
        if not busy:
            return None
        self._count(postponed=len(busy))
        again = self._again(list(busy), max(busy.values()))
        return again if isinstance(given, list) or isinstance(again, Suspend) else RetryLater(again.delay_level, why=again.why)

    def _together(self, result: Any, mine: list[ReceivedMessage], busy: dict[ReceivedMessage, int]) -> Any:
        """The handler's answer is about those that it got: the dropped ones are consumed, and the busy ones come again."""
        if isinstance(result, Suspend) or result is Outcome.ROLLBACK:
            return result
        failed = result if isinstance(result, RetryLater) else RetryLater(messages=failed_of(result, mine))
        parts: dict[tuple[int, str], list[ReceivedMessage]] = {}
        for message, level, why in failed.failed(mine):
            parts.setdefault((level, why), []).append(message)
        verdicts = [RetryLater(level, messages, why) for (level, why), messages in parts.items()]
        if busy:
            self._count(postponed=len(busy))
            verdicts.append(self._later(list(busy), max(busy.values())))
        return RetryLater(verdicts[0].delay_level, verdicts[0].messages, verdicts[0].why, tuple(verdicts[1:])) if verdicts else result

    def _again(self, messages: Sequence[ReceivedMessage], left_ms: int) -> RetryLater | Suspend:
        return Suspend(suspend_ms(left_ms)) if self.orderly else self._later(messages, left_ms)

    def _later(self, messages: Sequence[ReceivedMessage], left_ms: int) -> RetryLater:
        level = level_after(left_ms, max(message.reconsume_times for message in messages))
        return RetryLater(level, messages, "it was delivered while another delivery of it was being handled")

    def _mark(self, message: ReceivedMessage) -> Mark:
        key = self.key(message)
        if not isinstance(key, str) or not key:
            raise ClientError(f"key {key!r} of message {message.message_id} cannot be remembered; expected of the key function is a text")
        return Mark(digest(self.group, key), self.group, key)

    def _count(self, *, handled: int = 0, dropped: int = 0, postponed: int = 0) -> None:
        with self._counting:  # plain handlers run in threads
            self.handled += handled
            self.dropped += dropped
            self.postponed += postponed

    def _away(self, error: BaseException) -> str:
        said = error_text(error).splitlines()[0][:ERROR_MAX]
        return f"the store of marks of group {self.group}, {type(self.store).__name__}, failed: {said}"


class InThreads:
    """A plain store for an async handler: whoever waits for it waits in a thread. What ends a handler has threads of its own: claims that
    wait for its locks may have all the others."""

    def __init__(self, store: Any) -> None:
        ending = ThreadPoolExecutor(thread_name_prefix="roquet-once")
        self.claim = partial(in_thread, store.claim)
        self.begin = partial(in_thread, store.begin)
        self.finish = partial(in_thread, store.finish, threads=ending)
        self.fail = partial(in_thread, store.fail, threads=ending)


async def in_thread(function: Callable[..., Any], *args: Any, threads: ThreadPoolExecutor | None = None) -> Any:
    """One that is cancelled waits for its thread, so that nothing is begun behind the back of who ends it."""
    call = asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, function, *args))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


def plain_guard(begin: Callable[[Any], Steps], name: str) -> Callable[[Any], Any]:
    """The guard of a plain handler."""

    def guard(given: Any) -> Any:
        return run_plain(begin(given), name)

    return guard


def async_guard(begin: Callable[[Any], Steps]) -> Callable[[Any], Any]:
    """The guard of an async handler."""

    async def guard(given: Any) -> Any:
        return await run_async(begin(given))

    return guard


def run_plain(steps: Steps, name: str) -> Any:
    """Make the calls one after the other."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
                if isinstance(result, Coroutine):
                    result.close()
                    raise ClientError(f"handler {name} is plain and returned a coroutine, so nothing of it ran; expected is an `async def`")
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


async def run_async(steps: Steps) -> Any:
    """The same; what is awaitable is awaited."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
                if isinstance(result, Awaitable):
                    result = await result
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


def failed_of(result: Any, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """Those that the handler says it is not done with."""
    if isinstance(result, RetryLater):
        return [message for message, _, _ in result.failed(messages)]
    if result is False or result is Outcome.RETRY_LATER or result is Outcome.ROLLBACK or isinstance(result, Suspend):
        return messages
    return []


def takes(handler: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many."""
    try:
        inspect.signature(handler).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return count == 1
    return True


def check(store: Any, group: Any, key: Any, lease_s: Any, store_away: Any) -> None:
    """Raises ClientError for what cannot work."""
    if not callable(getattr(store, "claim", None)):
        raise ClientError(f"store={store!r}; expected is a store of marks, such as MemoryStore()")
    if not isinstance(group, str) or not 0 < len(group) <= GROUP_MAX:
        raise ClientError(f"group={group!r}; expected is the name of the consumer's group, a text of 1 to {GROUP_MAX} characters")
    if not callable(key):
        raise ClientError(f"key={key!r}; expected is a function of a message that returns a text")
    if isinstance(lease_s, bool) or not isinstance(lease_s, (int, float)) or not LEASE_MIN_S <= lease_s <= LEASE_MAX_S:
        raise ClientError(f"lease_s={lease_s!r}; allowed are {LEASE_MIN_S} to {LEASE_MAX_S:.0f} seconds")
    if store_away not in ("retry", "run"):
        raise ClientError(f'store_away={store_away!r}; allowed are "retry" and "run"')
    if store_away == "run" and store.has_session:
        raise ClientError(f'store_away="run" has no meaning with {type(store).__name__}: without it there is no session; leave it out')
