"""What a handler, or a dependency of one, is called with: decided by the annotations of its parameters, once, when it is decorated.

async def bill(order: Order,                                    the payload
               message: ReceivedMessage,                        the message it came in
               attempt: Attempt,                                1 the first time
               logger: logging.Logger,                          of this handler
               region: Annotated[str, Header("region")],        a property of the message
               session: Annotated[Session, Depends(session)],   what a function of yours gives
               app: App) -> None
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_origin

from roquet.app.payloads import BadPayload
from roquet.app.shapes import Misfit, Reader, reader_of
from roquet.client import Producer
from roquet.client.functions import is_async, name_of
from roquet.errors import ClientError, error_text
from roquet.message import ReceivedMessage

if TYPE_CHECKING:
    from roquet.app.app import App

Function = Callable[..., Any]
EMPTY = inspect.Parameter.empty


class Attempt(int):
    """How often the message is delivered with this time: 1 for the first. Annotate a parameter with it."""


@dataclass(frozen=True, slots=True)
class Depends:
    """`Annotated[Session, Depends(get_session)]`: the handler is given what get_session gives. That may be a plain or an async function, or
    a generator of either kind: what stands after its `yield` runs when the handler has ended, and a failure of the handler is raised at
    the `yield`. It may have parameters as a handler has, but for the payload. Within one call each function is called once; not with
    `cache=False`. A plain one runs where the handler does: on the event loop, if that is async."""

    function: Function
    cache: bool = True


@dataclass(frozen=True, slots=True)
class Header:
    """`Annotated[str, Header("region")]`: a property of the message; without a name, the one that is called like the parameter. `int`,
    `bool`, `Decimal`, `datetime`, an Enum ... are read from its text. For a message without it the parameter has its default;
    if there is none, the message does not fit, and becomes a dead letter."""

    name: str = ""


class DependencyFailed(ClientError):
    """A dependency raised. The handler was not called, and the message comes again."""


class Call:
    """What one call of a handler is about."""

    __slots__ = ("app", "cache", "message", "messages", "payload")

    def __init__(self, app: App, messages: list[ReceivedMessage], payload: Any) -> None:
        self.app = app
        self.messages = messages
        self.message = messages[0]
        self.payload = payload
        self.cache: dict[Function, Any] = {}


Get = Callable[[Call], Any]


@dataclass(slots=True)
class Need:
    """A dependency, with what it needs itself."""

    function: Function
    is_cached: bool
    arguments: Arguments
    is_async: bool
    is_context: bool

    @property
    def name(self) -> str:
        return name_of(self.function)


@dataclass(slots=True)
class Given:
    """One parameter: `get` for what is at hand, or `need`."""

    name: str
    by_name: bool
    get: Get | None = None
    need: Need | None = None


@dataclass(slots=True)
class Arguments:
    given: list[Given] = field(default_factory=list)
    payload: Any = EMPTY
    """The annotation of the parameter that takes the payload; EMPTY: there is none."""
    payload_name: str = ""
    returns: Any = EMPTY

    @property
    def needs(self) -> list[Need]:
        return [one.need for one in self.given if one.need is not None]

    @property
    def only_payload(self) -> bool:
        return len(self.given) == 1 and self.payload is not EMPTY and not self.given[0].by_name

    def at_hand(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """Where there are no needs."""
        values: list[Any] = []
        named: dict[str, Any] = {}
        for one in self.given:
            assert one.get is not None
            if one.by_name:
                named[one.name] = one.get(call)
            else:
                values.append(one.get(call))
        return values, named

    async def awaited(self, call: Call, stack: AsyncExitStack) -> tuple[list[Any], dict[str, Any]]:
        values: list[Any] = []
        named: dict[str, Any] = {}
        for one in self.given:
            value = one.get(call) if one.get is not None else await provided(typing.cast(Need, one.need), call, stack)
            if one.by_name:
                named[one.name] = value
            else:
                values.append(value)
        return values, named

    def in_thread(self, call: Call, stack: ExitStack) -> tuple[list[Any], dict[str, Any]]:
        values: list[Any] = []
        named: dict[str, Any] = {}
        for one in self.given:
            value = one.get(call) if one.get is not None else provided_in_thread(typing.cast(Need, one.need), call, stack)
            if one.by_name:
                named[one.name] = value
            else:
                values.append(value)
        return values, named


async def provided(need: Need, call: Call, stack: AsyncExitStack) -> Any:
    """What a dependency gives to an async handler."""
    if need.is_cached and need.function in call.cache:
        return call.cache[need.function]
    values, named = await need.arguments.awaited(call, stack)
    try:
        if need.is_context and need.is_async:
            found = await stack.enter_async_context(asynccontextmanager(need.function)(*values, **named))
        elif need.is_context:
            found = stack.enter_context(contextmanager(need.function)(*values, **named))
        else:
            found = need.function(*values, **named)
            if inspect.isawaitable(found):
                found = await found
    except (Reject, BadPayload):
        raise
    except Exception as error:
        raise DependencyFailed(f"dependency {need.name} failed: {error_text(error)}") from error
    call.cache[need.function] = found
    return found


async def awaited(work: Awaitable[Any]) -> Any:
    return await work


def provided_in_thread(need: Need, call: Call, stack: ExitStack) -> Any:
    """The same for a plain handler, in its thread. Async ones run on the loop meanwhile."""
    if need.is_cached and need.function in call.cache:
        return call.cache[need.function]
    values, named = need.arguments.in_thread(call, stack)
    try:
        if need.is_context and need.is_async:
            found = stack.enter_context(OnLoop(call.app, asynccontextmanager(need.function)(*values, **named)))
        elif need.is_context:
            found = stack.enter_context(contextmanager(need.function)(*values, **named))
        else:
            found = need.function(*values, **named)
            if inspect.isawaitable(found):
                found = call.app.from_thread(awaited(found))
    except (Reject, BadPayload):
        raise
    except Exception as error:
        raise DependencyFailed(f"dependency {need.name} failed: {error_text(error)}") from error
    call.cache[need.function] = found
    return found


class OnLoop:
    """An async context as a plain one."""

    def __init__(self, app: App, context: Any) -> None:
        self._app = app
        self._context = context

    def __enter__(self) -> Any:
        return self._app.from_thread(self._context.__aenter__())

    def __exit__(self, *failure: Any) -> Any:
        return self._app.from_thread(self._context.__aexit__(*failure))


class Reject(ClientError):
    """Raise it in a handler or a dependency: the message becomes a dead letter at once, and the text is its reason."""


# -- reading a signature


@dataclass(frozen=True, slots=True)
class Reading:
    """What a signature is read for."""

    app: App
    what: str
    """"handler bill", for sentences."""
    logger: str
    batch: bool
    local_names: Mapping[str, Any]

    def wrong(self, text: str) -> ClientError:
        return ClientError(f"{self.what}: {text}")


def arguments_of(function: Function, reading: Reading, *, takes_payload: bool, payload_first: bool = False) -> Arguments:
    """Raises ClientError for a parameter that nothing can be given to."""
    hints = annotations_of(function, reading)
    found = Arguments(returns=hints.get("return", EMPTY))
    by_name = False
    for place, parameter in enumerate(signature_of(function, reading)):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(parameter.name, EMPTY)
        by_name = by_name or parameter.kind is parameter.KEYWORD_ONLY
        given = Given(parameter.name, by_name)
        is_payload = takes_payload and found.payload is EMPTY and place == 0 if payload_first else False
        if not is_payload and given_by_annotation(given, parameter, hint, reading):
            found.given.append(given)
        elif takes_payload and found.payload is EMPTY:
            given.get = payload_of
            found.payload, found.payload_name = hint, parameter.name
            found.given.append(given)
        elif parameter.default is not EMPTY:
            by_name = True  # it keeps its default; the next ones are given by their names
        else:
            raise reading.wrong(nothing_for(parameter.name, found.payload_name, takes_payload))
    return found


def nothing_for(name: str, payload_name: str, takes_payload: bool) -> str:
    first = f" ({payload_name!r} takes the payload)" if payload_name else "" if takes_payload else " (a dependency gets no payload)"
    return (
        f"nothing can be given for its parameter {name!r}{first}; annotate it with ReceivedMessage, Attempt, logging.Logger, App, Producer,"
        f" Annotated[..., Depends(function)] or Annotated[str, Header()], or give it a default"
    )


def signature_of(function: Function, reading: Reading) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise reading.wrong(f"{function!r} is no function whose parameters can be read") from None


def annotations_of(function: Function, reading: Reading) -> dict[str, Any]:
    bare = function
    while isinstance(bare, partial):
        bare = bare.func
    if not inspect.isroutine(bare) and not inspect.isclass(bare):
        bare = type(bare).__call__
    if inspect.isclass(bare):
        bare = bare.__init__
    bare = inspect.unwrap(bare)
    try:
        return typing.get_type_hints(bare, localns=dict(reading.local_names), include_extras=True)
    except NameError as error:
        raise reading.wrong(f"its annotations cannot be read: {error}; import that name, or define it before the handler") from None


def given_by_annotation(given: Given, parameter: inspect.Parameter, hint: Any, reading: Reading) -> bool:
    """Whether the annotation says what this parameter gets."""
    from roquet.app.app import App

    marks = get_args(hint)[1:] if get_origin(hint) is typing.Annotated else ()
    for mark in marks:
        if isinstance(mark, Depends):
            given.need = need_of(mark, reading)
            return True
        if isinstance(mark, Header):
            given.get = header(mark.name or parameter.name, get_args(hint)[0], parameter.default, reading)
            return True
    if isinstance(parameter.default, (Depends, Header)):
        mark = type(parameter.default).__name__
        raise reading.wrong(
            f"{mark}(...) is the default of its parameter {parameter.name!r}; write it into the annotation:"
            f" {parameter.name}: Annotated[T, {mark}(...)]"
        )
    if hint is EMPTY and not reading.batch and parameter.default is EMPTY:
        given.get = message_of
    elif hint is ReceivedMessage:
        if reading.batch:
            raise reading.wrong(f"with batch= it gets many messages; annotate {parameter.name!r} with list[ReceivedMessage]")
        given.get = message_of
    elif hint == list[ReceivedMessage]:
        given.get = messages_of
    elif hint is Attempt:
        if reading.batch:
            raise reading.wrong("with batch= each message has its own attempt; take list[ReceivedMessage], and of each reconsume_times + 1")
        given.get = attempt_of
    elif hint is logging.Logger:
        logger = logging.getLogger(reading.logger)
        given.get = lambda call: logger
    elif hint is Producer:
        given.get = producer_of
    elif isinstance(hint, type) and issubclass(hint, App):
        given.get = app_of
    else:
        return False
    return True


def need_of(mark: Depends, reading: Reading) -> Need:
    function = reading.app.dependency_overrides.get(mark.function, mark.function)
    if not callable(function):
        raise reading.wrong(f"Depends({function!r}) is no function; give the function itself, without calling it")
    inner = Reading(reading.app, f"dependency {name_of(function)} of {reading.what}", reading.logger, reading.batch, reading.local_names)
    arguments = arguments_of(function, inner, takes_payload=False)
    if inspect.isasyncgenfunction(function):
        return Need(function, mark.cache, arguments, is_async=True, is_context=True)
    if inspect.isgeneratorfunction(function):
        return Need(function, mark.cache, arguments, is_async=False, is_context=True)
    return Need(function, mark.cache, arguments, is_async=is_async(function), is_context=False)


# -- what is at hand


def payload_of(call: Call) -> Any:
    return call.payload


def message_of(call: Call) -> ReceivedMessage:
    return call.message


def messages_of(call: Call) -> list[ReceivedMessage]:
    return call.messages


def attempt_of(call: Call) -> Attempt:
    return Attempt(call.message.reconsume_times + 1)


def producer_of(call: Call) -> Producer:
    return call.app.producer


def app_of(call: Call) -> App:
    return call.app


TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")


def header(name: str, kind: Any, default: Any, reading: Reading) -> Get:
    if reading.batch:
        raise reading.wrong(
            f"with batch= each message has its own {name!r}; take list[ReceivedMessage], and look at the properties of each"
        )
    read = text_reader(kind)

    def get(call: Call) -> Any:
        text = call.message.properties.get(name)
        if text is None:
            if default is EMPTY:
                raise BadPayload(f"it has no property {name!r}, which the handler needs")
            return default
        try:
            return read(text)
        except Misfit as misfit:
            raise BadPayload(f"property {name!r}: {misfit.args[0]}") from None

    return get


def text_reader(kind: Any) -> Reader:
    """Of a property, which is always a text. JSON's numbers and truths are read from it; a type that takes texts gets it as it is."""
    read = reader_of(kind)

    def from_text(text: str) -> Any:
        try:
            return read(text)
        except Misfit as misfit:
            for other in others(text):
                try:
                    return read(other)
                except Misfit:
                    pass
            raise misfit from None

    return from_text


def others(text: str) -> typing.Iterator[Any]:
    if text.lower() in TRUE + FALSE:
        yield text.lower() in TRUE
    for kind in (int, float):
        with suppress(ValueError):
            yield kind(text)
