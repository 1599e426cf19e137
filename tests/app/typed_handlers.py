"""A user's module of typed handlers: mypy --strict has nothing to say against it (tests/client/test_types.py)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, TypedDict

from roquet import RETRY_LATER, Outcome, ReceivedMessage, RetryLater, SendReceipt
from roquet.app import App, Attempt, Depends, Header, Reject


@dataclass
class Order:
    id: int
    customer: str


class Paid(TypedDict):
    order: int


@dataclass
class Shipment:
    order: int


class Session:
    async def commit(self) -> None: ...


async def session(logger: logging.Logger) -> AsyncIterator[Session]:
    one = Session()
    yield one
    await one.commit()


app = App(group="shop", consumer={"consume_from": "first"})
shipments = app.publisher("shipments", Shipment, key=lambda shipment: shipment.order, order_key=lambda shipment: shipment.order)


@shipments
@app.consumer("orders", group="shipping", tags="paid || refunded", orderly=True, retries=5)
async def ship(
    order: Order, attempt: Attempt, session: Annotated[Session, Depends(session)], region: Annotated[str, Header()] = "eu"
) -> Shipment | RetryLater | None:
    if not order.customer:
        raise Reject("nobody ordered it")
    return Shipment(order.id) if attempt < 3 else None


@app.consumer("paid", payload=Paid, group="billing", concurrency=5)
async def paid(payment: Paid, message: ReceivedMessage) -> Outcome | None:
    return RETRY_LATER if payment["order"] < 0 else None


@app.consumer("paid", payload=Paid, batch=32, group="archive")
def archive(payments: list[Paid], messages: list[ReceivedMessage]) -> None: ...


@app.consumer("prices", group="prices", reply=True)
async def price(article: str) -> int:
    return len(article)


@app.publisher("audit")
@app.consumer("orders", group="audit")
def audit(order: Order) -> str:
    return f"{order.customer} ordered {order.id}"


@app.on_startup
async def ready() -> None: ...


async def place(order: Order) -> SendReceipt:
    await shipments.publish(Shipment(order.id), delay=30)
    return await app.publish("orders", order, key=str(order.id), tags="paid")


def one_from_a_thread(order: Order) -> SendReceipt:
    return app.from_thread(place(order))


async def call_a_handler(order: Order) -> int:
    """A decorated handler is still the function that it was."""
    await paid({"order": 1}, NotImplemented)
    return await price("book")
