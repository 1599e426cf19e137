"""Typed headers: how a class reads and writes the string fields of a command. The classes stand in `wire/calls/`.

The wire's spelling lives there only: each field carries upstream's name and, for sends, its one-letter form.
Past `decode` there are Python names and checked values. Fields nobody declared are ignored.

Optional fields are None when they did not come and are then not written, so a header encodes to the fields it came from.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, dataclass_transform

from roquet.wire.codes import refused
from roquet.wire.values import Value

H = TypeVar("H")
T = TypeVar("T")

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)


def wire(name: str, *, short: str | None = None, bits: int = 32, default: Any = dataclasses.MISSING) -> Any:
    """A field by upstream's name. Without a default it is required; `bits` bounds an int as Java's int or long does."""
    return dataclasses.field(default=default, metadata={"wire": name, "short": short, "bits": bits})


def optional(name: str, *, short: str | None = None, bits: int = 32) -> Any:
    return wire(name, short=short, bits=bits, default=None)


@dataclass_transform(frozen_default=True)
class Header(Value):
    """Base of the headers: each is a dataclass of its fields. Nobody changes one, and mypy sees to that."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)


# ---- reading and writing ----------------------------------------------------------------------------------------------

Convert = Callable[[str, str], Any]
"""(wire name, text) -> value; None for an absent one."""


@dataclass(frozen=True, slots=True)
class HeaderField:
    """One field of a header class, worked out once."""

    attribute: str
    name: str
    short: str | None
    convert: Convert
    required: bool


def once_per_class(make: Callable[[type], T]) -> Callable[[type], T]:
    """What it makes of a class is made once. Typed, since mypy does not know that a class can be hashed."""
    return cache(make)


@once_per_class
def fields_of(kind: type) -> tuple[HeaderField, ...]:
    hints = typing.get_type_hints(kind)
    made: list[HeaderField] = []
    for one in dataclasses.fields(kind):
        convert = converter(hints[one.name], one.metadata["bits"])
        made.append(HeaderField(one.name, one.metadata["wire"], one.metadata["short"], convert, one.default is dataclasses.MISSING))
    return tuple(made)


@once_per_class
def reading_of(kind: type) -> tuple[tuple[str, str | None, Convert, bool, Any], ...]:
    """(name, one-letter name, how to read it, is it a number, its default) of the fields, as plain as can be: every request comes here."""
    fields, defaults = fields_of(kind), [one.default for one in dataclasses.fields(kind)]
    hints = typing.get_type_hints(kind)
    numbers = [hints[field.attribute] in (int, int | None) for field in fields]
    rows = zip(fields, numbers, defaults, strict=True)
    return tuple((field.name, field.short, field.convert, is_number, default) for field, is_number, default in rows)


def decode(kind: type[H], fields: Mapping[str, str]) -> H:
    """The typed header. Raises Refused(1) for a required field that is missing and a value that does not fit.

    Takes the long names and the one-letter names alike; a long name wins.
    """
    values: list[Any] = []
    get = fields.get
    for name, short, convert, is_number, default in reading_of(kind):
        text = get(name)
        if text is None and short is not None:
            text = get(short)
        if text is None:
            value = None
        elif is_number and len(text) < 10 and text.isdigit() and text.isascii():
            value = int(text)  # most are, and these fit any bound
        else:
            value = convert(name, text)
        if value is None:
            if default is dataclasses.MISSING:
                names = f" (as {name} or {short})" if short else ""
                raise refused(f"the custom field <{name}> is null, but this request needs it{names}")
            value = default
        values.append(value)
    return kind(*values)


def encode(header: object, short: bool = False) -> dict[str, str]:
    """The command's fields; `short` writes the one-letter names of those that have one. What is None is left out."""
    fields: dict[str, str] = {}
    for field in fields_of(type(header)):
        value = getattr(header, field.attribute)
        if value is None:
            continue
        name = field.short if short and field.short is not None else field.name
        if value is True:
            fields[name] = "true"
        elif value is False:
            fields[name] = "false"
        elif isinstance(value, int):
            fields[name] = str(int(value))  # int(): an IntEnum writes its number
        else:
            fields[name] = value
    return fields


def converter(hint: Any, bits: int) -> Convert:
    if isinstance(hint, types.UnionType):  # X | None
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if hint is bool:
        return to_bool
    if hint is int:
        low, high = INT32 if bits == 32 else INT64
        return lambda name, text: to_int(name, text, low, high)
    assert hint is str, hint
    return to_text


def to_text(name: str, text: str) -> str:
    return text


def to_bool(name: str, text: str) -> bool | None:
    """Java's Boolean.parseBoolean: only "true", in any case, is true."""
    return text.lower() == "true" if text else None


NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def to_int(name: str, text: str, low: int, high: int) -> int | None:
    """What Java's parseInt takes, and no more: not 1_000, not " 1". An empty text is absent, as the binary header has it."""
    if not text:
        return None
    if NUMBER.fullmatch(text) is None:
        raise refused(f"the custom field <{name}> is {text[:40]!r}, expected a whole number")
    value = int(text)
    if not low <= value <= high:
        raise refused(f"the custom field <{name}> is {value}, allowed are {low} to {high}")
    return value
