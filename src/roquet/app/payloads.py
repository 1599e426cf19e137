"""Bodies into what a handler's annotation names, and values into bodies. What is done is decided once for an annotation."""

from __future__ import annotations

import dataclasses
import enum
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any

import orjson

from roquet.app.shapes import Misfit, hints_of, name_of, reader_of
from roquet.errors import ClientError, error_text

CONTENT_TYPE = "contentType"
"""The property that says what a body is, under the name that Spring uses."""
JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


class BadPayload(ClientError):
    """A body that does not fit what the handler takes. No other attempt would change that, so the message becomes a dead letter."""


class Unsendable(ClientError):
    """A value that has no form as a message's body."""


# -- reading


def decoder_of(annotation: Any) -> Decode:
    """From a body to a value of this type; it raises BadPayload. Raises ClientError for a type that no body can become."""
    bare = without_marks(annotation)
    if bare is bytes:
        return unchanged
    if bare is str:
        return as_text
    libraries = {owner for kind in classes_in(annotation) if (owner := model_library(kind))}
    if len(libraries) > 1:
        raise ClientError(f"{name_of(annotation)} mixes models of {' and '.join(sorted(libraries))}; use one of them in a payload")
    if libraries:
        return (pydantic_decoder if libraries == {"pydantic"} else msgspec_decoder)(annotation)
    read, name = reader_of(annotation), name_of(annotation)

    def decode(body: bytes) -> Any:
        try:
            return read(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            raise BadPayload(f"it is no JSON: {error}") from None
        except Misfit as misfit:
            raise BadPayload(f"it does not fit {name}: {misfit.text}") from None

    return decode


def without_marks(annotation: Any) -> Any:
    """Of Annotated[bytes, ...] and NewType("Body", bytes): bytes."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def unchanged(body: bytes) -> bytes:
    return body


def as_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadPayload(f"it is no text in UTF-8: {error}") from None


def own_decoder(decode: Decode) -> Decode:
    """A user's decode=: whatever it raises means that the body does not fit."""

    def read(body: bytes) -> Any:
        try:
            return decode(body)
        except Exception as error:
            raise BadPayload(f"{getattr(decode, '__name__', decode)} does not take it: {error_text(error)}") from error

    return read


def pydantic_decoder(annotation: Any) -> Decode:
    import pydantic

    adapter, name = pydantic.TypeAdapter(annotation), name_of(annotation)

    def decode(body: bytes) -> Any:
        try:
            return adapter.validate_json(body)
        except pydantic.ValidationError as error:
            raise BadPayload(f"it does not fit {name}: {'; '.join(pydantic_problems(error))}") from None

    return decode


def pydantic_problems(error: Any) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(step) for step in problem["loc"]) or "the payload"
        yield f"{place}: {problem['msg']}"


def msgspec_decoder(annotation: Any) -> Decode:
    import msgspec

    decoder, name = msgspec.json.Decoder(annotation), name_of(annotation)

    def decode(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadPayload(f"it does not fit {name}: {error}") from None

    return decode


def model_library(kind: Any) -> str:
    """The library that reads this class itself: "pydantic", "msgspec", or "". It is imported already, where such a class exists."""
    if isinstance(kind, type):
        if (pydantic := sys.modules.get("pydantic")) is not None and issubclass(kind, pydantic.BaseModel):
            return "pydantic"
        if (msgspec := sys.modules.get("msgspec")) is not None and issubclass(kind, msgspec.Struct):
            return "msgspec"
    return ""


def classes_in(annotation: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Every class that a value of this type may hold."""
    seen = set() if seen is None else seen
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    if isinstance(annotation, typing.NewType):
        annotation = annotation.__supertype__
    yield annotation
    for inner in typing.get_args(annotation):
        yield from classes_in(inner, seen)
    kind = typing.get_origin(annotation) or annotation
    if isinstance(kind, type) and not model_library(kind) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
        for hint in hints_of(kind).values():
            yield from classes_in(hint, seen)


# -- writing


def encoded(value: Any, own: Encode | None) -> tuple[bytes, str]:
    """With a user's encode=, where there is one. Raises Unsendable."""
    if own is None:
        return encode(value)
    try:
        return own(value), BYTES
    except Exception as error:
        raise Unsendable(f"{getattr(own, '__name__', own)} does not take it: {error_text(error)}") from error


def encode(value: Any) -> tuple[bytes, str]:
    """The body of a message, and what it is. Raises Unsendable for what has no form in JSON."""
    kind = type(value)
    if kind is bytes:
        return value, BYTES
    if kind is bytearray or kind is memoryview:
        return bytes(value), BYTES
    library = model_library(kind)
    try:
        if kind is str:
            return value.encode(), TEXT
        if library == "pydantic":
            return value.model_dump_json().encode(), JSON
        if library == "msgspec":
            return sys.modules["msgspec"].json.encode(value), JSON
        return orjson.dumps(value, plain, OPTIONS), JSON
    except (TypeError, ValueError) as error:
        raise Unsendable(
            f"a {kind.__name__} cannot be sent: {error.__cause__ or error}; send bytes, str, a dataclass, a pydantic or msgspec model, or"
            " what JSON has, or give encode="
        ) from None


OPTIONS = orjson.OPT_NON_STR_KEYS


def plain(value: Any) -> Any:
    """What orjson does not know, in a form that it knows: the forms that `shapes` reads."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        import base64

        return base64.b64encode(value).decode()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    library = model_library(type(value))
    if library == "pydantic":
        return value.model_dump(mode="json")
    if library == "msgspec":
        return sys.modules["msgspec"].to_builtins(value)
    if isinstance(value, tuple) or hasattr(type(value), "__iter__"):
        return list(value)
    raise TypeError(f"JSON has no form for a {type(value).__name__}")
