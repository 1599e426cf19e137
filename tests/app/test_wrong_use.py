"""What is told when a handler is decorated, and not when the first message comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Thread
from typing import Annotated, Any

import pytest

from roquet import BadSql, ReceivedMessage
from roquet.app import App, Attempt, Depends, Header
from roquet.errors import ClientError, NotStarted


@dataclass
class Order:
    id: int


@dataclass
class Shipment:
    order: int


async def ship(order: Order) -> None: ...


async def bill(order: Order) -> None: ...


def two_payloads(order: Order, shipment: Shipment) -> None: ...


def old_depends(order: Order, session: str = Depends(ship)) -> None:  # type: ignore[assignment] # as other libraries have it
    ...


def one_message(order: list[Order], message: ReceivedMessage) -> None: ...


def one_attempt(orders: list[Order], attempt: Attempt) -> None: ...


def one_header(orders: list[Order], region: Annotated[str, Header()]) -> None: ...


def thread(order: Thread) -> None: ...


def unknown(order: Nothing) -> None:  # type: ignore[name-defined] # noqa: F821
    ...


def needs_payload(order: Order) -> str:
    return str(order.id)


def payload_for_a_dependency(text: str, other: Annotated[str, Depends(needs_payload)]) -> None: ...


def called(text: str, other: Annotated[str, Depends("text")]) -> None: ...


def with_yield(order: Order) -> Iterator[int]:
    yield 1


def one_group(app: App, **second: Any) -> None:
    app.consumer("orders", group="g", tags="paid", concurrency=5)(ship)
    app.consumer(**{"topic": "orders", "group": "g", "tags": "refunded", **second})(bill)


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda app: app.consumer("orders")(two_payloads), r"nothing can be given for its parameter 'shipment' \('order' takes the payload\)"),
    (lambda app: app.consumer("orders")(old_depends), "write it into the annotation: session: Annotated"),
    (lambda app: app.consumer("orders", batch=5)(ship), r"it gets many payloads; annotate 'order' with list\[...\] in place of Order"),
    (lambda app: app.consumer("orders", batch=5)(one_message), r"annotate 'message' with list\[ReceivedMessage\]"),
    (lambda app: app.consumer("orders", batch=5)(one_attempt), "each message has its own attempt"),
    (lambda app: app.consumer("orders", batch=5)(one_header), "each message has its own 'region'"),
    (lambda app: app.consumer("orders")(thread), "no JSON value can become Thread"),
    (lambda app: app.consumer("orders")(unknown), "annotations cannot be read: name 'Nothing' is not defined"),
    (lambda app: app.consumer("orders")(payload_for_a_dependency), r"dependency needs_payload of .* \(a dependency gets no payload\)"),
    (lambda app: app.consumer("orders")(called), r"Depends\('text'\) is no function"),
    (lambda app: app.consumer("orders")(with_yield), "has a `yield`"),
    (lambda app: app.consumer("orders", payload=Shipment)(ship), "payload=Shipment is given, but its parameter 'order' takes Order"),
    (lambda app: app.consumer("orders", payload=Order)(lambda: None), "payload=Order is given, but its first parameter takes none"),
    (lambda app: app.consumer("orders", when=bill)(ship), r"when=<function bill .*; expected is a plain function"),
    (lambda app: app.consumer("orders", decode=bill)(ship), r"decode=<function bill .*; expected is a plain function"),
    (lambda app: app.consumer("orders", when=True)(ship), "when=True; expected is a plain function"),
    (lambda app: app.consumer("")(ship), "the topic is ''"),
    (lambda app: app.consumer(ship), "the topic is <function ship"),
    (lambda app: app.consumer("orders")(5), "was given 5; expected is a function"),
    (lambda app: app.consumer("orders", concurrency=0)(ship), "concurrency=0"),
    (lambda app: app.consumer("orders", batch=0)(ship), "batch_size=0"),
    (lambda app: one_group(app, concurrency=9), "bill wants concurrency=9 in group 'g', where ship has 5; a group is one consumer"),
    (lambda app: one_group(app, tags="paid || new"), "ship and bill both take topic 'orders' in group 'g', and paid would go to either"),
    (lambda app: one_group(app, tags="*"), "every message would go to either; give them tags that differ, or when="),
    (lambda app: one_group(app, tags="*", sql="a > 1"), "with sql=None and sql='a > 1'; a group has one subscription of a topic"),
    (lambda app: app.add("producer"), "app.add"),
    (lambda app: app.publisher(""), "the topic is ''"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "text"), WRONG)
def test_wrong_use_is_told_at_once_and_leaves_the_app_as_it_was(use: Callable[[App], Any], text: str) -> None:
    app = App()
    with pytest.raises(ClientError, match=text):
        use(app)
    assert len(app.handlers) in (0, 1)
    assert [handler.name for handler in app.handlers] == ["ship"] * len(app.handlers)
    before = len(app.handlers)
    app.consumer("others", group="g")(bill)  # nothing of the wrong one is in the way
    assert len(app.handlers) == before + 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"sql": "a >"}, BadSql),
        ({"nonsense": 5}, TypeError),
        ({"consume_from": "earliest"}, ClientError),
        ({"group": "a group"}, ClientError),
    ],
)
def test_settings_that_the_consumer_refuses_are_told_at_once(settings: dict[str, Any], error: type[Exception]) -> None:
    app = App()
    with pytest.raises(error):
        app.consumer("orders", **settings)(ship)
    assert app.handlers == []


def test_settings_that_the_producer_refuses_are_told_at_once() -> None:
    with pytest.raises(ClientError, match="linger_ms"):
        App(producer={"linger_ms": -1})


async def nothing() -> None: ...


def test_what_needs_a_running_app_says_so() -> None:
    app = App()
    with pytest.raises(NotStarted, match="does not run; publish in a handler or a hook, or in `async with app:`"):
        app.producer  # noqa: B018 (looking is the test)
    with pytest.raises(NotStarted, match="does not run"):
        app.from_thread(nothing())


def test_classes_of_the_function_that_makes_an_app_are_found() -> None:
    def make() -> App:
        @dataclass
        class Local:
            id: int

        app = App()

        @app.consumer("orders")
        async def handle(local: Local, logger: logging.Logger) -> None: ...

        return app

    [handler] = make().handlers
    assert handler.payload.__name__ == "Local"
    assert handler.decode is not None
    assert handler.decode(b'{"id": 5}').id == 5
