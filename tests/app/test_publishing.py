"""What an app sends: values as messages, what handlers return, replies."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from roquet import RETRY_LATER, Message, Producer, RequestTimedOut, TransactionProducer, TransactionState
from roquet.app import App, Attempt, Depends, Unsendable
from roquet.embed import Embedded
from roquet.errors import InvalidMessage
from tests.app.broker import against_a_broker, app_of, dead_letters, sent, stored, until


@dataclass
class Order:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Struct(msgspec.Struct):
    id: int


def test_values_are_sent_with_what_they_are() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        async with app.publishing():
            for value in (Order(1), Model(id=2), Struct(3), {"id": 4}, "five", b"six"):
                await app.publish("values", value, key="k", tags="t", properties={"region": "eu"}, order_key=1)
        found = await stored(mq, "values", 6)
        assert [(one.body, one.properties["contentType"]) for one in found] == [
            (b'{"id":1}', "application/json"), (b'{"id":2}', "application/json"), (b'{"id":3}', "application/json"),
            (b'{"id":4}', "application/json"), (b"five", "text/plain"), (b"six", "application/octet-stream"),
        ]  # fmt: skip
        assert {(tuple(one.keys), one.tags, one.properties["region"]) for one in found} == {(("k",), "t", "eu")}
        assert len({one.queue_id for one in found}) == 1, "they have one order_key"

    against_a_broker(test)


def test_what_a_handler_returns_is_published_after_its_dependencies_were_closed() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []
        shipments = app.publisher("shipments", Order, key=lambda order: order.id, tags=lambda order: f"t{order.id}", properties={"a": "b"})

        async def session() -> Any:
            yield 1
            steps.append("committed")

        class Noting(Producer):
            async def send(self, message: Message, **how: Any) -> Any:
                steps.append(f"sent to {message.topic}")
                return await super().send(message, **how)

        noting = app.add(Noting("noting", mq.namesrv))

        @app.publisher("audit", producer=noting)
        @shipments
        @app.consumer("orders", group="g")
        async def ship(order: Order, session: Annotated[int, Depends(session)], attempt: Attempt) -> Order | Any:
            return RETRY_LATER if attempt == 1 else None if order.id == 2 else Order(order.id + 100)

        async with sent(mq, "orders", Message("orders", b'{"id": 1}'), Message("orders", b'{"id": 2}')), app:
            [one] = await stored(mq, "shipments", 1)
            await stored(mq, "audit", 1)
            await until(lambda: len(steps) == 5)
        assert (one.body, one.keys, one.tags, one.properties["a"]) == (b'{"id":101}', ["101"], "t101", "b")
        assert steps.count("committed") == 4
        assert steps.index("sent to audit") > 2

    against_a_broker(test)


@pytest.mark.parametrize("plain", [False, True])
def test_what_a_handler_returns_answers_a_request(plain: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)

        if plain:

            @app.consumer("prices", group="g", reply=True)
            def price(article: str) -> Order:
                return Order(len(article))
        else:

            @app.consumer("prices", group="g", reply=True)
            async def price_async(article: str) -> Order:
                return Order(len(article))

        async with sent(mq, "prices", Message("prices", b"nobody waits for it")), app:
            reply = await app.request("prices", "book", timeout_ms=60_000)
            assert (reply.body, reply.properties["contentType"]) == (b'{"id":4}', "application/json")

    against_a_broker(test)


def test_a_request_whose_payload_does_not_fit_gets_no_reply() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)

        @app.consumer("prices", group="g", reply=True)
        async def price(order: Order) -> int:
            return order.id

        async with sent(mq, "prices"), app:
            with pytest.raises(RequestTimedOut):
                await app.request("prices", "book", timeout_ms=300)
            [dead] = await dead_letters(mq, "g", 1)
        assert dead.failure.startswith("payload not for price: it is no JSON")

    against_a_broker(test)


@pytest.mark.parametrize("plain", [False, True])
def test_what_cannot_be_encoded_makes_a_dead_letter_of_the_message_that_it_answers(plain: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        calls: list[str] = []

        def work(text: str) -> object:
            calls.append(text)
            return object()

        async def work_async(text: str) -> object:
            return work(text)

        app.publisher("results")(app.consumer("words", group="g")(work if plain else work_async))
        async with sent(mq, "words", Message("words", b"a")), app:
            [dead] = await dead_letters(mq, "g", 1)
        assert calls == ["a"]
        name = "work" if plain else "work_async"
        assert dead.failure.startswith(f"{name} returned what cannot be sent: a object cannot be sent: JSON has no form for a object")

    against_a_broker(test)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"key": lambda order: order.number}, "cannot make the key or the tag of Order(id=1): AttributeError: 'Order' object has no"),
        ({"encode": lambda order: order.number}, "<lambda> does not take it: AttributeError"),
        ({"key": lambda order: "two\x01words"}, "property 'KEYS' holds the character"),
    ],
)  # fmt: skip
def test_a_publisher_that_cannot_make_its_message_makes_a_dead_letter(how: dict[str, Any], reason: str) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)

        @app.publisher("results", **how)
        @app.consumer("words", group="g")
        async def work(text: str) -> Order:
            return Order(1)

        async with sent(mq, "words", Message("words", b"a")), app:
            [dead] = await dead_letters(mq, "g", 1)
        assert dead.failure.startswith("work returned what cannot be sent: ")
        assert reason in dead.failure

    against_a_broker(test)


def test_when_the_result_cannot_be_sent_the_message_comes_again() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        attempts: list[int] = []

        class Failing(Producer):
            async def send(self, message: Message, **how: Any) -> Any:
                if len(attempts) == 1:
                    raise ConnectionError("the broker is away")
                return await super().send(message, **how)

        failing = app.add(Failing("failing", mq.namesrv))

        @app.publisher("results", producer=failing)
        @app.consumer("words", group="g")
        async def work(text: str, attempt: Attempt) -> str:
            attempts.append(attempt)
            return text.upper()

        async with sent(mq, "words", Message("words", b"a")), app:
            [result] = await stored(mq, "results", 1)
        assert attempts == [1, 2]
        assert result.body == b"A"

    against_a_broker(test)


def test_publish_raises_to_its_caller_what_is_wrong() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        async with app.publishing():
            with pytest.raises(Unsendable):
                await app.publish("t", object())
            with pytest.raises(InvalidMessage, match="exclude each other"):
                await app.publish("t", "x", delay=5, delay_level=1)
            with pytest.raises(InvalidMessage):
                await app.publish("no such topic!", "x")
            receipt = await app.publish("t", "x", delay=timedelta(days=1))
            assert await app.producer.cancel(receipt) == receipt.message_id

    against_a_broker(test)


def test_a_thread_publishes_through_the_loop() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)

        @app.consumer("words", group="g")
        def work(text: str, app: App, logger: logging.Logger) -> None:
            app.from_thread(app.publish("results", text.upper()))

        async with sent(mq, "words", Message("words", b"a")), app:
            [result] = await stored(mq, "results", 1)
            assert result.body == b"A"
            with pytest.raises(Exception, match="would wait for itself"):
                app.from_thread(app.publish("results", "b"))

    against_a_broker(test)


def test_a_transaction_producer_lives_with_the_app() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []

        async def decide(*_: Any) -> TransactionState:
            return TransactionState.COMMIT

        payments = app.add(TransactionProducer("payments", mq.namesrv, execute=decide, check=decide))

        @app.consumer("paid", group="g")
        async def paid(text: str) -> None:
            seen.append(text)

        async with sent(mq, "paid"), app:
            await payments.send_in_transaction(Message("paid", b"17"))
            await until(lambda: seen)
        assert seen == ["17"]

    against_a_broker(test)


def test_many_publishes_share_requests_and_keep_their_receipts() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        async with app.publishing():
            receipts = await asyncio.gather(*(app.publish("many", number) for number in range(200)))
        assert len({receipt.message_id for receipt in receipts}) == 200

    against_a_broker(test)
