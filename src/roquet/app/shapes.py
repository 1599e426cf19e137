"""JSON values into the types of Python that an annotation names: a reader is made once for each annotation, and called for each message.

    reader_of(Order)({"id": 17, "items": [{"price": "3.20"}]})  ->  Order(id=17, items=[Item(price=Decimal("3.20"))])

None, bool, int, float, str        as JSON has them; an int may stand for a float, nothing else stands for another
bytes                              a text in base64
Decimal, UUID, datetime, date, time, timedelta, Path    a text (ISO 8601); Decimal also a number, timedelta a number of seconds
Enum, Literal                      the value of a member; one of the values
list, set, frozenset, tuple, deque, Sequence, dict, Mapping    with what is in them
dataclass, TypedDict, NamedTuple   an object: unknown fields are ignored, missing ones that have no default are errors
X | Y, Optional                    the first that fits
"""

from __future__ import annotations

import base64
import binascii
import collections
import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

from roquet.errors import ClientError

Reader = Callable[[Any], Any]
"""Takes a JSON value; raises Misfit."""


class Misfit(ValueError):
    """A JSON value that does not fit. `path` grows from the inside to the outside, while the exception passes by."""

    def __init__(self, expected: str, given: Any) -> None:
        super().__init__(f"expected {expected}, but it is {shown(given)}")
        self.path: list[str | int] = []

    @property
    def text(self) -> str:
        """Where, and what is wrong there: "items[2].price: expected a number, but it is 'free'"."""
        place = ""
        for step in reversed(self.path):
            place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
        return f"{place or 'the payload'}: {self.args[0]}"


SHOWN_MAX = 60


def shown(value: Any) -> str:
    text = "null" if value is None else f"an object with {len(value)} fields" if isinstance(value, dict) else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def reader_of(annotation: Any) -> Reader:
    """Raises ClientError for an annotation that no JSON value can become."""
    return Shapes().reader(annotation)


SCALARS: dict[type, str] = {bool: "true or false", int: "a whole number", str: "a text"}
SEQUENCES: dict[Any, Callable[[list[Any]], Any]] = {
    list: list, set: set, frozenset: frozenset, collections.deque: collections.deque, collections.abc.Sequence: list,
    collections.abc.MutableSequence: list, collections.abc.Iterable: list, collections.abc.Collection: list, collections.abc.Set: frozenset,
}  # fmt: skip
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict)


class Shapes:
    """Readers by annotation, so that a type may hold itself."""

    def __init__(self) -> None:
        self._made: dict[Any, Reader] = {}

    def reader(self, annotation: Any) -> Reader:
        try:
            known = self._made.get(annotation)
        except TypeError:  # Literal of what has no hash
            return self._make(annotation)
        if known is not None:
            return known
        self._made[annotation] = lambda value: self._made[annotation](value)  # inside of itself: looked up when it is called
        made = self._made[annotation] = self._make(annotation)
        return made

    def _make(self, annotation: Any) -> Reader:
        if isinstance(annotation, typing.NewType):
            return self.reader(annotation.__supertype__)
        if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
            return same
        if annotation is None or annotation is type(None):
            return exactly(type(None), "null")
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
            return self.reader(inner[0])
        if origin is Union or origin is types.UnionType:
            return self._union(inner)
        if origin is Literal:
            return literal(inner)
        if origin is not None or annotation in SEQUENCES or annotation is tuple or annotation in MAPPINGS:
            return self._container(annotation, origin or annotation, inner)
        if isinstance(annotation, type):
            return self._class(annotation)
        raise unreadable(annotation)

    def _class(self, kind: type) -> Reader:
        if kind in SCALARS:
            return exactly(kind, SCALARS[kind])
        if kind is float:
            return number
        if kind in TEXTS:
            return TEXTS[kind]
        if issubclass(kind, enum.Enum):
            return member_of(kind)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, {})
        if typing.is_typeddict(kind):
            return self._typed_dict(kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        raise unreadable(kind)

    def _union(self, kinds: tuple[Any, ...]) -> Reader:
        others = [kind for kind in kinds if kind is not type(None)]
        readers = [self.reader(kind) for kind in others]
        if len(readers) == 1:
            [read] = readers
            return lambda value: None if value is None else read(value)
        may_be_none = len(others) < len(kinds)
        names = ", ".join(map(name_of, others))

        def read_one(value: Any) -> Any:
            if value is None and may_be_none:
                return None
            misfits = []
            for read in readers:
                try:
                    return read(value)
                except Misfit as misfit:
                    misfits.append(misfit)
            # The one that came furthest was meant, most likely.
            best = max(misfits, key=lambda misfit: (len(misfit.path), not isinstance(misfit, Missing)))
            raise best if best.path else Misfit(f"one of {names}", value)

        return read_one

    def _container(self, annotation: Any, origin: Any, inner: tuple[Any, ...]) -> Reader:
        if origin in SEQUENCES:
            return many(self.reader(inner[0] if inner else Any), SEQUENCES[origin])
        if origin is tuple:
            if not inner:
                return many(same, tuple)
            if len(inner) == 2 and inner[1] is Ellipsis:
                return many(self.reader(inner[0]), tuple)
            return in_order([self.reader(kind) for kind in inner])
        if origin in MAPPINGS:
            key, value = inner or (Any, Any)
            return mapping(key_reader(key, self.reader(key)), self.reader(value))
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self._dataclass(origin, dict(zip(getattr(origin, "__parameters__", ()), inner, strict=False)))
        raise unreadable(annotation)

    # -- objects with fields

    def _dataclass(self, kind: Any, variables: Mapping[Any, Any]) -> Reader:
        hints = hints_of(kind)
        fields = []
        for field in dataclasses.fields(kind):
            if field.init:
                needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
                fields.append((field.name, self.reader(filled(hints[field.name], variables)), needed))
        return fields_of(kind, fields, kind)

    def _typed_dict(self, kind: Any) -> Reader:
        return fields_of(kind, [(name, self.reader(hint), is_needed(kind, name, hint)) for name, hint in hints_of(kind).items()], dict)

    def _named_tuple(self, kind: Any) -> Reader:
        hints = hints_of(kind)
        given = kind._field_defaults
        return fields_of(kind, [(name, self.reader(hints.get(name, Any)), name not in given) for name in kind._fields], kind)


def hints_of(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise ClientError(
            f"the fields of {kind.__qualname__} cannot be read: {error}; its annotations must be names of its module (a class inside of a"
            " function cannot be found there)"
        ) from None


def filled(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """With types in place of the variables: of list[T], in a Page[Item], list[Item]."""
    if isinstance(hint, TypeVar):
        return variables.get(hint, Any)
    inside = getattr(hint, "__parameters__", ())
    return hint[tuple(variables.get(one, Any) for one in inside)] if inside and variables else hint


def is_needed(kind: Any, name: str, hint: Any) -> bool:
    """Python itself does not see NotRequired in an annotation that is a text."""
    mark = get_origin(hint)
    return mark is typing.Required or (mark is not typing.NotRequired and name in kind.__required_keys__)


def unreadable(annotation: Any) -> ClientError:
    return ClientError(
        f"no JSON value can become {name_of(annotation)}; use a dataclass, a TypedDict, a pydantic or msgspec model, str, bytes, int,"
        " float, bool, Decimal, datetime, an Enum, list or dict, or give decode="
    )


def name_of(annotation: Any) -> str:
    return annotation.__qualname__ if inspect.isclass(annotation) else str(annotation).removeprefix("typing.")


# -- one value


def same(value: Any) -> Any:
    return value


def exactly(kind: type, expected: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Misfit(expected, value)

    return read


def number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise Misfit("a number", value)


def decimal(value: Any) -> Decimal:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            found = Decimal(str(value))
        except InvalidOperation:
            found = Decimal("NaN")
        if found.is_finite():
            return found
    raise Misfit("a decimal number, as a text or a number", value)


def seconds(value: Any) -> timedelta:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return timedelta(seconds=value)
        except (OverflowError, ValueError):
            pass
    raise Misfit("a number of seconds", value)


def from_text(make: Callable[[str], Any], expected: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is str:
            try:
                return make(value)
            except (ValueError, binascii.Error):
                pass
        raise Misfit(expected, value)

    return read


def from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


TEXTS: dict[type, Reader] = {
    Decimal: decimal,
    timedelta: seconds,
    bytes: from_text(from_base64, "bytes as a text in base64"),
    UUID: from_text(UUID, "a UUID"),
    datetime: from_text(datetime.fromisoformat, "a time as 2026-01-31T12:00:00+00:00"),
    date: from_text(date.fromisoformat, "a date as 2026-01-31"),
    time: from_text(time.fromisoformat, "a time as 12:00:00"),
    Path: from_text(Path, "a path"),
}


def member_of(kind: type[enum.Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            if type(value) is not bool:
                return kind(value)
        except (ValueError, TypeError):
            pass
        raise Misfit(f"one of {', '.join(repr(member.value) for member in kind)}", value)

    return read


def literal(values: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        for one in values:
            if value == one and type(value) is type(one):
                return one
        raise Misfit(f"one of {', '.join(map(repr, values))}", value)

    return read


# -- many values


def many(read: Reader, make: Callable[[list[Any]], Any]) -> Reader:
    def read_all(value: Any) -> Any:
        if type(value) is not list:
            raise Misfit("an array", value)
        found: list[Any] = []
        try:
            for one in value:
                found.append(read(one))
        except Misfit as misfit:
            misfit.path.append(len(found))
            raise
        try:
            return make(found)
        except TypeError:  # a set of what has no hash
            raise Misfit("values that can be compared", value) from None

    return read_all


def in_order(readers: list[Reader]) -> Reader:
    def read_all(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise Misfit(f"an array of {len(readers)}", value)
        found: list[Any] = []
        try:
            for read, one in zip(readers, value, strict=True):
                found.append(read(one))
        except Misfit as misfit:
            misfit.path.append(len(found))
            raise
        return tuple(found)

    return read_all


def key_reader(kind: Any, read: Reader) -> Reader:
    """Names in JSON are texts: a whole number is written as one."""
    if kind is not int and not (isinstance(kind, type) and issubclass(kind, int)):
        return read

    def read_number(name: str) -> Any:
        try:
            return read(int(name))
        except ValueError:
            raise Misfit("a whole number as the name of a field", name) from None

    return read_number


def mapping(read_key: Reader, read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit("an object", value)
        name = ""
        try:
            found = {}
            for name, one in value.items():
                found[read_key(name)] = read(one)
            return found
        except Misfit as misfit:
            misfit.path.append(name)
            raise

    return read_all


def fields_of(kind: Any, fields: list[tuple[str, Reader, bool]], make: Callable[..., Any]) -> Reader:
    """`fields`: name, reader, whether it must be there."""
    expected = f"an object ({kind.__name__})"
    nothing = object()

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(expected, value)
        found = {}
        name = ""
        try:
            for name, read_field, needed in fields:
                one = value.get(name, nothing)
                if one is not nothing:
                    found[name] = read_field(one)
                elif needed:
                    raise Missing(kind.__name__)
        except Misfit as misfit:
            misfit.path.append(name)
            raise
        try:
            return make(**found)
        except Exception as error:  # its own check, in __post_init__
            raise Refused(kind.__name__, error) from error

    return read


class Missing(Misfit):
    def __init__(self, kind: str) -> None:
        ValueError.__init__(self, f"it is missing, and {kind} needs it")
        self.path = []


class Refused(Misfit):
    def __init__(self, kind: str, error: Exception) -> None:
        ValueError.__init__(self, f"{kind} does not take it: {error}")
        self.path = []
