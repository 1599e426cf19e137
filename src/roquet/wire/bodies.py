"""JSON bodies: how a dataclass reads and writes what a command carries besides its fields. The classes stand in `wire/calls/`.

    body = HeartbeatBody.decode(command.body)        raises Refused(1) with the place and the value that does not fit
    data = body.encode()                             as upstream writes it, bare numbers and object keys included

A field's name on the wire is its Python name in camel case; where it is not, `named` says it. Absent and null fields take
the default, None is not written, unknown fields are ignored. Sets travel as arrays; ours are written sorted.
What other clients do differently is taken too: C++ sends enums as numbers and a version as text.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, dataclass_transform

from roquet.message import MessageQueue
from roquet.wire.codes import refused
from roquet.wire.fastjson import ObjectKey, dumps, loads
from roquet.wire.headers import INT32, INT64, NUMBER, once_per_class
from roquet.wire.values import Value

B = TypeVar("B", bound="Body")


class Misfit(ValueError):
    """A value that does not fit, and the way to it. Becomes Refused at the top."""

    def __init__(self, what: str, *path: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = list(path)  # innermost first


@dataclass_transform()
class Body(Value):
    """Base: reading, checking and writing. Each body is a dataclass of its fields."""

    def __init_subclass__(cls, *, frozen: bool = False) -> None:
        dataclass(frozen=frozen, eq=frozen, repr=False)(cls)

    @classmethod
    def decode(cls: type[B], data: bytes) -> B:
        """Raises Refused(1) when the bytes are not JSON or not of this shape."""
        return cls.from_json(loads(data))

    @classmethod
    def from_json(cls: type[B], value: Any) -> B:
        try:
            return read_body(cls, value)
        except Misfit as misfit:
            place = ".".join(reversed(misfit.path)) or "it"
            raise refused(f"{cls.__name__}: {place} {misfit.what}") from None

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for field in fields_of(type(self)):
            value = getattr(self, field.attribute)
            if field.is_rest:
                made |= value
            elif value is not None:
                made[field.name] = field.write(value)
        return made

    def encode(self) -> bytes:
        return dumps(self.to_json())


Read = Callable[[Any], Any]
Write = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class BodyField:
    attribute: str
    name: str
    also: tuple[str, ...]
    required: bool
    read: Read
    write: Write
    is_rest: bool


REST = {"rest": True}
"""Metadata of a field that holds all those that nobody declared, by their names: carried along, for whoever knows them."""


def named(name: str, *, also: tuple[str, ...] = (), bits: int = 64, default: Any = dataclasses.MISSING) -> Any:
    """A field whose name on the wire is not its Python name in camel case, or whose int is bounded to 32 bits."""
    return dataclasses.field(default=default, metadata={"name": name, "also": also, "bits": bits})


def int32(default: Any = dataclasses.MISSING) -> Any:
    """An int of 32 bits."""
    return named("", bits=32, default=default)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


@once_per_class
def fields_of(kind: type) -> tuple[BodyField, ...]:
    hints = typing.get_type_hints(kind)
    made: list[BodyField] = []
    for one in dataclasses.fields(kind):
        is_rest = "rest" in one.metadata
        read, write = (dict, dict) if is_rest else codec(hints[one.name], one.metadata.get("bits", 64))
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        name, also = one.metadata.get("name") or camel(one.name), one.metadata.get("also", ())
        made.append(BodyField(one.name, name, also, required, read, write, is_rest))
    return tuple(made)


def read_body(kind: type[B], value: Any) -> B:
    if not isinstance(value, dict):
        raise Misfit(f"is {shown(value)}, expected an object")
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.is_rest:
            known = {one.name for one in fields_of(kind) if not one.is_rest}
            values[field.attribute] = {name: inner for name, inner in value.items() if name not in known and inner is not None}
            continue
        given = value.get(field.name)
        if given is None:
            for name in field.also:
                given = value.get(name, given)
        if given is not None:
            try:
                values[field.attribute] = field.read(given)
            except Misfit as misfit:
                misfit.path.append(field.name)
                raise
        elif field.required:
            raise Misfit("is missing", field.name)
    return kind(**values)


def codec(hint: Any, bits: int = 64) -> tuple[Read, Write]:
    """Reader and writer of a type; collections are put together from those of their parts."""
    if isinstance(hint, types.UnionType):  # X | None; None never gets here
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    outer = typing.get_origin(hint)
    if outer is list or outer is set:
        read, write = codec(typing.get_args(hint)[0], bits)
        if outer is list:
            return lambda value: [read(one) for one in items(value)], lambda value: [write(one) for one in value]
        return lambda value: {read(one) for one in items(value)}, lambda value: [write(one) for one in sorted(value)]
    if outer is dict:
        key_hint, inner_hint = typing.get_args(hint)
        read_key, write_key = KEYS[key_hint]
        read, write = codec(inner_hint, bits)
        return (
            lambda value: read_table(value, read_key, read),
            lambda value: {write_key(key): write(inner) for key, inner in value.items()},
        )
    if hint is int:
        low, high = INT32 if bits == 32 else INT64
        return lambda value: to_int(value, low, high), int
    if hint in PLAIN:
        return PLAIN[hint]
    if issubclass(hint, StrEnum):
        return lambda value: to_enum(hint, value), str
    assert issubclass(hint, Body), hint
    return lambda value: read_body(hint, value), lambda value: value.to_json()


def as_is(value: Any) -> Any:
    return value


def shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else f"a JSON {'object' if isinstance(value, dict) else 'array'}"
    return text if len(text) <= 60 else text[:60] + "..."


def items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit(f"is {shown(value)}, expected an array")
    return value


def to_int(value: Any, low: int, high: int) -> int:
    if isinstance(value, str) and NUMBER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misfit(f"is {shown(value)}, expected a whole number")
    if not low <= value <= high:
        raise Misfit(f"is {value}, allowed are {low} to {high}")
    return value


def to_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    if isinstance(value, int):  # bool too
        return value != 0
    raise Misfit(f"is {shown(value)}, expected true or false")


def to_float(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise Misfit(f"is {shown(value)}, expected a number")


def to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise Misfit(f"is {shown(value)}, expected text")


def to_enum(kind: type[StrEnum], value: Any) -> StrEnum:
    """By name, or by position as C++ sends it."""
    members = list(kind)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(members):
            return members[value]
    elif isinstance(value, str) and value in kind.__members__:
        return kind[value]
    raise Misfit(f"is {shown(value)}, expected one of {', '.join(members)} or its position")


def read_table(value: Any, read_key: Read, read: Read) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Misfit(f"is {shown(value)}, expected an object")
    made: dict[Any, Any] = {}
    for key, inner in value.items():
        try:
            if inner is None:
                raise Misfit("is null")
            made[read_key(key)] = read(inner)
        except Misfit as misfit:
            misfit.path.append(str(key)[:60])
            raise
    return made


def read_queue(value: Any) -> MessageQueue:
    if not isinstance(value, dict):
        raise Misfit(f"is {shown(value)}, expected a queue: brokerName, queueId, topic")
    topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
    if not isinstance(topic, str) or not isinstance(broker_name, str):
        raise Misfit(f"has topic {shown(topic)} and brokerName {shown(broker_name)}, expected texts")
    return MessageQueue(topic, broker_name, to_int(queue_id, *INT32))


def write_queue(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def read_text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise Misfit("is an object that stands as a key, expected a text")
    return key


PLAIN: dict[Any, tuple[Read, Write]] = {
    bool: (to_bool, as_is),
    float: (to_float, as_is),
    str: (to_text, as_is),
    MessageQueue: (read_queue, write_queue),
}
KEYS: dict[Any, tuple[Read, Write]] = {
    str: (read_text_key, as_is),
    int: (lambda key: to_int(key, *INT64), int),
    MessageQueue: (lambda key: read_queue(dict(key) if isinstance(key, ObjectKey) else key), as_is),
}
