"""Bodies and values: what an annotation reads, what it refuses and in which words, and that what is written is read again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar
from uuid import UUID

import msgspec
import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.app.payloads import BYTES, JSON, TEXT, BadPayload, Unsendable, decoder_of, encode
from roquet.app.shapes import Misfit, reader_of
from roquet.errors import ClientError

T = TypeVar("T")
OrderId = NewType("OrderId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


@dataclass
class Item:
    article: str
    price: Decimal
    colour: Colour | None = None


@dataclass
class Page(Generic[T]):
    rows: list[T]
    more: bool = False


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


@dataclass
class Even:
    number: int
    doubled: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


@dataclass
class Order:
    id: OrderId
    items: list[Item]
    at: datetime
    address: Address
    where: Point = Point(0)  # noqa: RUF009 (it never changes)
    level: Level = Level.LOW
    ways: Annotated[dict[str, float], "metres"] = field(default_factory=dict)
    kind: Literal["new", "again"] = "new"
    note: Optional[str] = None  # noqa: UP045 (both spellings are read)
    tags: frozenset[str] = frozenset()
    pair: tuple[int, str] = (0, "")
    rest: timedelta = timedelta()
    payload: bytes = b""
    by_number: dict[int, str] = field(default_factory=dict)


class Model(pydantic.BaseModel):
    id: int
    items: list[Item] = []


class Struct(msgspec.Struct):
    id: int
    name: str = ""


FULL = Order(
    OrderId(17), [Item("book", Decimal("3.20"), Colour.RED), Item("pen", Decimal("0.5"))], datetime(2026, 1, 31, 12, tzinfo=UTC),
    {"street": "Rue 1", "zip": "1000"}, Point(1, 2), Level.HIGH, {"a": 1.5}, "again", "note", frozenset({"x"}), (1, "b"),
    timedelta(seconds=1.5), b"\x00\xff", {1: "one"},
)  # fmt: skip


def test_what_is_written_is_read_again() -> None:
    body, kind = encode(FULL)
    assert kind == JSON
    assert decoder_of(Order)(body) == FULL


VALUES = [
    (bytes, b"\x00"), (str, "grüße"), (int, 5), (float, 0.5), (bool, True), (list[int], [1, 2]), (dict[str, int], {"a": 1}),
    (Node, Node("a", [Node("b"), Node("c", [Node("d")])])), (Page[Item], Page([Item("a", Decimal(1))])), (Address, {"street": "s"}),
    (Point, Point(1, 2)), (tuple[int, ...], (1, 2)), (set[str], {"a"}), (UUID, UUID(int=5)), (date, date(2026, 1, 31)),
    (time, time(12, 30)),
    (list[int | str], ["a", 1]), (Item | Node, Node("a")), (Model, Model(id=1, items=[Item("a", Decimal("1.5"))])),
    (list[Model], [Model(id=1)]),
    (Struct, Struct(1, "a")), (dict[str, Struct], {"a": Struct(2)}), (Path, Path("/a/b")), (None, None), (Any, {"a": [1, None]}),
    (Sequence[int], [1]), (Mapping[Level, str], {Level.LOW: "low"}), (dict, {"a": 1}), (list, [1, "a"]), (Colour, Colour.BLUE),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda one: str(one)[:40])
def test_each_type_is_written_and_read(kind: Any, value: Any) -> None:
    found = decoder_of(kind)(encode(value)[0])
    assert found == value
    assert type(found) is type(value)


def test_marks_around_bytes_and_texts_change_nothing() -> None:
    assert decoder_of(Annotated[bytes, "raw"])(b"\xff") == b"\xff"
    assert decoder_of(NewType("Word", str))(b"a") == "a"


def test_bytes_and_texts_stay_as_they_are_and_each_body_says_what_it_is() -> None:
    assert encode(b"a") == (b"a", BYTES)
    assert encode(bytearray(b"a")) == (b"a", BYTES)
    assert encode("a") == (b"a", TEXT)
    assert encode({"a": 1}) == (b'{"a":1}', JSON)


def test_unknown_fields_are_ignored_and_an_int_may_stand_for_a_float() -> None:
    assert decoder_of(Node)(b'{"name": "a", "colour": "red"}') == Node("a")
    assert decoder_of(Address)(b'{"street": "s", "house": 5}') == {"street": "s"}
    found = decoder_of(float)(b"5")
    assert (found, type(found)) == (5.0, float)


WRONG: list[tuple[Any, bytes, str]] = [
    (Order, b'{"id": 1, "items": [], "at": "2026-01-31T12:00:00Z"}', "address: it is missing, and Order needs it"),
    (Node, b'{"name": "a", "children": [{"name": "b"}, {"name": 5}]}', "children[1].name: expected a text, but it is 5"),
    (Page[Item], b'{"rows": [{"article": "a", "price": "free"}]}', "rows[0].price: expected a decimal number, as a text or a number"),
    (Item, b'{"article": "a", "price": 1, "colour": "green"}', "colour: expected one of 'red', 'blue', but it is 'green'"),
    (int, b"true", "the payload: expected a whole number, but it is True"),
    (int, b"1.0", "the payload: expected a whole number, but it is 1.0"),
    (str | None, b"5", "the payload: expected a text, but it is 5"),
    (int | str, b"null", "the payload: expected one of int, str, but it is null"),
    (Item | Node, b'{"name": 5}', "name: expected a text, but it is 5"),
    (list[int], b'{"a": 1}', "the payload: expected an array, but it is an object with 1 fields"),
    (tuple[int, str], b"[1]", "the payload: expected an array of 2"),
    (dict[int, int], b'{"a": 1}', "a: expected a whole number as the name of a field, but it is 'a'"),
    (Even, b'{"number": 3}', "the payload: Even does not take it: 3 is odd"),
    (set[Any], b"[[1]]", "the payload: expected values that can be compared"),
    (datetime, b'"tomorrow"', "the payload: expected a time as 2026-01-31T12:00:00+00:00, but it is 'tomorrow'"),
    (timedelta, b"1e300", "the payload: expected a number of seconds"),
    (Literal["a"], b'"b"', "the payload: expected one of 'a', but it is 'b'"),
    (Level, b"true", "the payload: expected one of 1, 2, but it is True"),
    (UUID, b'"5"', "the payload: expected a UUID, but it is '5'"),
]


@pytest.mark.parametrize(("kind", "body", "text"), WRONG, ids=lambda one: str(one)[:40])
def test_what_does_not_fit_is_told_with_its_place(kind: Any, body: bytes, text: str) -> None:
    with pytest.raises(Misfit) as told:
        reader_of(kind)(orjson.loads(body))
    assert told.value.text.startswith(text)
    with pytest.raises(BadPayload, match="it does not fit"):
        decoder_of(kind)(body)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (Model, b'{"id": "x", "items": [{"article": "a"}]}', "fit Model: id: Input should be .*; items.0.price: Field required"),
        (Model, b"{", "it does not fit Model: the payload: Invalid JSON"),
        (Struct, b'{"id": "x"}', r"it does not fit Struct: Expected `int`, got `str` - at `\$.id`"),
        (Struct, b"{", "it does not fit Struct: Input data was truncated"),
        (Order, b"{", "it is no JSON: unexpected end of data"),
        (str, b"\xff", "it is no text in UTF-8"),
    ],
)  # fmt: skip
def test_models_of_libraries_tell_in_their_own_words(kind: Any, body: bytes, text: str) -> None:
    with pytest.raises(BadPayload, match=text):
        decoder_of(kind)(body)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Callable[[], None], "Callable"), (list[Thread], "Thread"), (Thread, "Thread"), ("text", "text"), (complex, "complex")],
)
def test_a_type_that_no_json_becomes_is_told_when_the_handler_is_decorated(kind: Any, name: str) -> None:
    with pytest.raises(ClientError, match=f"no JSON value can become .*{name}"):
        decoder_of(kind)


def test_models_of_two_libraries_in_one_payload_are_told() -> None:
    with pytest.raises(ClientError, match="mixes models of msgspec and pydantic"):
        decoder_of(Model | Struct)


@pytest.mark.parametrize("value", [object(), {"a": object()}, {1j: 1}, 1 << 70, "half of a pair: \ud800"])
def test_what_has_no_form_in_json_is_told(value: object) -> None:
    with pytest.raises(Unsendable, match=r"cannot be sent: .*; send bytes, str, a dataclass"):
        encode(value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_any_json_is_read_or_refused_and_nothing_else_happens(value: Any) -> None:
    for kind in (Order, Node, Page[Item], Address, Point, dict[int, Level], list[Colour], Even, int | list[str], tuple[int, str], set[str]):
        with suppress(Misfit):
            reader_of(kind)(value)
