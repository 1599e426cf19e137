"""An app whose document test_commands.py reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic

from roquet import ReceivedMessage, RetryLater
from roquet.app import App

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(TypedDict):
    article: str
    count: NotRequired[int]


@dataclass
class Order:
    """What
    somebody wants."""

    id: int
    items: list[Item]
    at: datetime | None = None
    colour: Colour = Colour.RED
    next: Order | None = None
    prices: dict[str, Decimal] = field(default_factory=dict)


@dataclass
class Page(Generic[T]):
    rows: list[T]


class Line(pydantic.BaseModel):
    text: str


class Bill(pydantic.BaseModel):
    lines: list[Line]


class Struct(msgspec.Struct):
    id: int


app = App("10.0.0.1:9876;10.0.0.2:9876", title="shop", version="2.0.0", description="sells")


@app.publisher("bills")
@app.consumer("orders", group="billing", tags="paid", orderly=True, retries=5)
async def bill(order: Order) -> Bill | RetryLater | None:
    """Bill an order.

    Once."""
    return None


@app.consumer("orders", group="prices", sql="a > 1", reply=True)
async def price(order: Order) -> Decimal:
    return Decimal(1)


@app.consumer("pages", group="pages", batch=5)
async def pages(pages: list[Page[Item]]) -> None: ...


@app.consumer("structs")
def structs(struct: Struct) -> None: ...


@app.consumer("raw")
def raw(message: ReceivedMessage) -> None: ...


@app.consumer("own", decode=int)
def own(number: int) -> None: ...


app.publisher("%odd|topic", dict[str, Any])
