"""Handlers of an app, against a real broker: what they are called with, and what becomes of their messages."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from roquet import DEAD_LETTER, RETRY_LATER, Idempotent, Message, Producer, ReceivedMessage, RetryLater, Seen
from roquet.app import App, Attempt, Depends, Header, Reject
from roquet.embed import Embedded
from tests.app.broker import against_a_broker, app_of, dead_letters, sent, until


@dataclass
class Order:
    id: int
    total: float = 0.0


def order(number: int, **properties: str) -> Message:
    return Message("orders", b'{"id": %d}' % number, properties=properties)


def test_a_handler_gets_the_payload_and_what_its_annotations_ask_for() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        calls: list[dict[str, Any]] = []

        @app.consumer("orders", group="billing")
        async def bill(
            order: Order,
            message: ReceivedMessage,
            attempt: Attempt,
            logger: logging.Logger,
            region: Annotated[str, Header()],
            weight: Annotated[int | None, Header("kilos")] = None,
            express: Annotated[bool, Header()] = False,
            *,
            producer: Producer,
            same: App,
        ) -> None:
            calls.append(locals())

        async with sent(mq, "orders", order(17, region="eu", kilos="3", express="true"), order(18, region="us")), app:
            await until(lambda: len(calls) == 2)
        first, second = sorted(calls, key=lambda call: int(call["order"].id))
        assert (first["order"], first["attempt"], first["region"], first["weight"], first["express"]) == (Order(17), 1, "eu", 3, True)
        assert (second["order"], second["region"], second["weight"], second["express"]) == (Order(18), "us", None, False)
        assert first["message"].body == b'{"id": 17}'
        assert first["logger"].name == "tests.app.test_handlers.bill"
        assert isinstance(first["producer"], Producer)
        assert first["same"] is app

    against_a_broker(test)


def test_a_plain_handler_runs_in_a_thread() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        calls: list[tuple[str, threading.Thread]] = []

        @app.consumer("words", group="g")
        def handle(text: str) -> None:
            calls.append((text, threading.current_thread()))

        async with sent(mq, "words", Message("words", "grüße".encode())), app:
            await until(lambda: calls)
        [(text, thread)] = calls
        assert text == "grüße"
        assert thread is not threading.main_thread()

    against_a_broker(test)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_payload_that_does_not_fit_becomes_a_dead_letter_at_once_with_its_reason(orderly: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[int] = []

        @app.consumer("orders", group="billing", orderly=orderly)
        async def bill(order: Order) -> None:
            seen.append(order.id)

        bad = Message("orders", b'{"id": "x"}'), Message("orders", b"\xff"), Message("orders", b'{"total": 1}')
        async with sent(mq, "orders", order(1), *bad, order(2)), app:
            dead = await dead_letters(mq, "billing", 3)
            await until(lambda: len(seen) == 2)
        assert [message.body for message in dead] == [message.body for message in bad]
        assert [message.failure for message in dead] == [
            "payload not for bill: it does not fit Order: id: expected a whole number, but it is 'x'",
            "payload not for bill: it is no JSON: str is not valid UTF-8: surrogates not allowed: line 1 column 1 (char 0)",
            "payload not for bill: it does not fit Order: id: it is missing, and Order needs it",
        ]
        assert all(message.reconsume_times == 1 for message in dead)

    against_a_broker(test)


def test_a_property_that_is_missing_or_does_not_fit_makes_a_dead_letter_too() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)

        @app.consumer("orders", group="billing")
        async def bill(order: Order, kilos: Annotated[int, Header()]) -> None:
            raise AssertionError("nobody can call it")

        async with sent(mq, "orders", order(1), order(2, kilos="many")), app:
            dead = await dead_letters(mq, "billing", 2)
        assert [message.failure for message in dead] == [
            "payload not for bill: it has no property 'kilos', which the handler needs",
            "payload not for bill: property 'kilos': expected a whole number, but it is 'many'",
        ]

    against_a_broker(test)


def test_a_handler_that_raises_gets_the_message_again_and_in_the_end_it_is_a_dead_letter() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        attempts: list[int] = []

        @app.consumer("orders", group="billing", retries=2)
        async def bill(order: Order, attempt: Attempt) -> None:
            attempts.append(attempt)
            raise LookupError("no such customer")

        async with sent(mq, "orders", order(1)), app:
            [dead] = await dead_letters(mq, "billing", 1)
        assert attempts == [1, 2, 3]
        assert dead.failure == "LookupError: no such customer"

    against_a_broker(test)


@pytest.mark.parametrize("plain", [False, True])
def test_a_handler_says_what_becomes_of_its_message(plain: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[tuple[str, int]] = []

        def decide(text: str, attempt: Attempt) -> RetryLater | object | None:
            seen.append((text, attempt))
            if text == "rejected":
                raise Reject("nobody ordered it")
            if attempt > 1:
                return None
            return {"done": None, "again": RETRY_LATER, "never": DEAD_LETTER, "no": False}[text]

        if plain:
            app.consumer("words", group="g")(decide)
        else:

            @app.consumer("words", group="g")
            async def handle(text: str, attempt: Attempt) -> RetryLater | object | None:
                return decide(text, attempt)

        words = [Message("words", text) for text in (b"done", b"again", b"never", b"no", b"rejected")]
        async with sent(mq, "words", *words), app:
            dead = await dead_letters(mq, "g", 2)
            await until(lambda: len(seen) == 7)
        assert sorted(seen) == [("again", 1), ("again", 2), ("done", 1), ("never", 1), ("no", 1), ("no", 2), ("rejected", 1)]
        name = "decide" if plain else "handle"
        assert {message.body: message.failure for message in dead} == {b"never": "", b"rejected": f"rejected by {name}: nobody ordered it"}

    against_a_broker(test)


@pytest.mark.parametrize("level", [-1, 2])
def test_the_delay_level_after_a_failure_can_be_chosen(level: int) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        attempts: list[int] = []

        @app.consumer("orders", group="billing", retries=1, retry_level=level)
        async def bill(order: Order, attempt: Attempt) -> None:
            attempts.append(attempt)
            raise ValueError("no")

        async with sent(mq, "orders", order(1)), app:
            [dead] = await dead_letters(mq, "billing", 1)
        assert attempts == ([1] if level == -1 else [1, 2])
        assert dead.failure == "ValueError: no"

    against_a_broker(test)


# -- batches


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("orderly", [False, True])
def test_of_a_batch_only_the_bad_ones_become_dead_letters(plain: bool, orderly: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[tuple[list[int], list[bytes]]] = []

        def take(orders: list[Order], messages: list[ReceivedMessage]) -> None:
            seen.append(([order.id for order in orders], [message.body for message in messages]))

        if plain:
            app.consumer("orders", group="billing", batch=4, orderly=orderly)(take)
        else:

            @app.consumer("orders", group="billing", batch=4, orderly=orderly)
            async def take_async(orders: list[Order], messages: list[ReceivedMessage]) -> None:
                take(orders, messages)

        async with sent(mq, "orders", order(1), Message("orders", b"bad"), order(2), Message("orders", b"worse")), app:
            dead = await dead_letters(mq, "billing", 2)
            await until(lambda: sum(len(one) for one, _ in seen) == 2)
        assert sorted(message.body for message in dead) == [b"bad", b"worse"]
        assert all(message.failure.startswith("payload not for take") for message in dead)
        assert [number for numbers, _ in seen for number in numbers] == [1, 2]
        assert [body for _, bodies in seen for body in bodies] == [b'{"id": 1}', b'{"id": 2}']

    against_a_broker(test)


def test_when_a_batch_fails_its_good_messages_come_again_and_the_bad_ones_do_not() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[int] = []

        @app.consumer("orders", group="billing", batch=4)
        async def bill(orders: list[Order]) -> None:
            seen.extend(order.id for order in orders)
            if len(seen) == 2:
                raise LookupError("not now")

        async with sent(mq, "orders", order(1), Message("orders", b"bad"), order(2)), app:
            [dead] = await dead_letters(mq, "billing", 1)
            await until(lambda: len(seen) == 4)
        assert dead.body == b"bad"
        assert dead.reconsume_times == 1
        assert seen[:2] == sorted(seen[2:]) == [1, 2]

    against_a_broker(test)


# -- dependencies


@pytest.mark.parametrize("plain", [False, True])
def test_dependencies_are_made_once_for_a_message_and_closed_after_the_handler(plain: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []

        def settings() -> str:
            steps.append("settings")
            return "s"

        async def connection(settings: Annotated[str, Depends(settings)]) -> AsyncIterator[str]:
            steps.append("connect")
            try:
                yield settings + "c"
            except LookupError:
                steps.append("roll back")
                raise
            finally:
                steps.append("disconnect")

        def session(connection: Annotated[str, Depends(connection)], message: ReceivedMessage) -> Iterator[str]:
            yield f"{connection}s{message.reconsume_times}"
            steps.append("commit")

        async def user(settings: Annotated[str, Depends(settings)]) -> str:
            return f"user {settings}"

        def work(text: str, session: str, user: str) -> None:
            steps.append(f"{text} {session} {user}")
            if session.endswith("0"):
                raise LookupError("not yet")

        if plain:

            @app.consumer("words", group="g")
            def handle(text: str, session: Annotated[str, Depends(session)], user: Annotated[str, Depends(user)]) -> None:
                work(text, session, user)
        else:

            @app.consumer("words", group="g")
            async def handle_async(text: str, session: Annotated[str, Depends(session)], user: Annotated[str, Depends(user)]) -> None:
                work(text, session, user)

        async with sent(mq, "words", Message("words", b"hello")), app:
            await until(lambda: steps[-1:] == ["disconnect"] and "commit" in steps)
        assert steps == [
            "settings", "connect", "hello scs0 user s", "roll back", "disconnect",
            "settings", "connect", "hello scs1 user s", "commit", "disconnect",
        ]  # fmt: skip

    against_a_broker(test)


def test_a_dependency_that_fails_is_a_retry_that_names_it() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        called: list[str] = []

        async def database() -> str:
            raise ConnectionError("it is down")

        @app.consumer("words", group="g", retries=1)
        async def handle(text: str, database: Annotated[str, Depends(database)]) -> None:
            called.append(text)

        async with sent(mq, "words", Message("words", b"hello")), app:
            [dead] = await dead_letters(mq, "g", 1)
        assert dead.failure == "DependencyFailed: dependency database failed: ConnectionError: it is down"
        assert dead.reconsume_times == 2
        assert called == []

    against_a_broker(test)


@pytest.mark.parametrize("plain", [False, True])
def test_a_dependency_that_catches_the_handlers_exception_does_not_make_a_success_of_it(plain: bool) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []

        async def session() -> AsyncIterator[str]:
            try:
                yield "session"
                steps.append("commit")
            except LookupError:
                steps.append("rollback")

        def handle_plainly(text: str, session: Annotated[str, Depends(session)]) -> None:
            raise LookupError("not now")

        async def handle(text: str, session: Annotated[str, Depends(session)]) -> None:
            handle_plainly(text, session)

        app.consumer("words", group="g", retries=1)(handle_plainly if plain else handle)
        async with sent(mq, "words", Message("words", b"hello")), app:
            [dead] = await dead_letters(mq, "g", 1)
        assert dead.failure == "LookupError: not now"
        assert steps == ["rollback", "rollback"]

    against_a_broker(test)


def test_a_test_can_put_another_function_in_the_place_of_a_dependency() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []

        def real() -> str:
            raise AssertionError("not in tests")

        @app.consumer("words", group="g")
        async def handle(text: str, database: Annotated[str, Depends(real)]) -> None:
            seen.append(database)

        app.dependency_overrides[real] = lambda: "fake"
        async with sent(mq, "words", Message("words", b"hello")), app:
            await until(lambda: seen)
        assert seen == ["fake"]
        [need] = app.handlers[0].arguments.needs
        assert need.function is real, "and after the test it is there again"

    against_a_broker(test)


# -- several handlers


def test_handlers_of_a_group_share_a_topic_by_tags() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []

        @app.consumer("orders", group="billing", tags="paid")
        async def paid(text: str) -> None:
            seen.append(f"paid {text}")

        @app.consumer("orders", group="billing", tags="refunded || lost")
        def refunded(text: str) -> None:
            seen.append(f"refunded {text}")

        @app.consumer("news", group="billing")
        async def news(text: str) -> None:
            seen.append(f"news {text}")

        messages = [Message("orders", tag.encode(), tags=tag) for tag in ("paid", "refunded", "lost", "other")]
        async with sent(mq, "orders", *messages), sent(mq, "news", Message("news", b"n")), app:
            await until(lambda: len(seen) == 4)
            assert len(app.consumers) == 1
        assert sorted(seen) == ["news n", "paid paid", "refunded lost", "refunded refunded"]

    against_a_broker(test)


def test_a_star_inside_of_a_tag_does_not_stand_for_every_tag() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []

        @app.consumer("orders", group="g", tags="paid* || last")
        async def handle(text: str) -> None:
            seen.append(text)

        tagged = [Message("orders", tag.encode(), tags=tag) for tag in ("refunded", "paid", "paid*", "last")]
        async with sent(mq, "orders", *tagged), app:
            await until(lambda: "last" in seen)
        assert sorted(seen) == ["last", "paid*"]

    against_a_broker(test)


def test_a_condition_chooses_the_handler_and_what_nobody_takes_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []

        @app.consumer("orders", group="g", when=lambda message: message.properties.get("kind") == "a")
        async def first(text: str) -> None:
            seen.append(f"a {text}")

        @app.consumer("orders", group="g", when=lambda message: message.properties.get("kind") == "b")
        async def second(text: str) -> None:
            seen.append(f"b {text}")

        kinds = [Message("orders", str(place).encode(), properties={"kind": kind}) for place, kind in enumerate("caacb")]
        async with sent(mq, "orders", *kinds), app:
            await until(lambda: len(seen) == 3)
        assert seen == ["a 1", "a 2", "b 4"]

    against_a_broker(test)
    told = [record.getMessage() for record in caplog.records if "no handler takes" in record.getMessage()]
    assert len(told) == 1


def test_of_a_plain_and_an_async_handler_of_a_topic_each_runs_where_it_belongs_and_may_raise_what_it_likes() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []

        @app.consumer("orders", group="g", tags="plain", retries=1)
        def plain(text: str) -> None:
            seen.append(threading.current_thread().name.partition("_")[0])
            raise StopIteration  # which no future of asyncio takes

        @app.consumer("orders", group="g", tags="async", retries=1)
        async def other(text: str) -> None:
            assert asyncio.current_task() in app.calls()
            seen.append("async")

        async with sent(mq, "orders", Message("orders", b"1", tags="plain"), Message("orders", b"2", tags="async")), app:
            [dead] = await dead_letters(mq, "g", 1)
            await until(lambda: "async" in seen)
        assert dead.failure.endswith("raised StopIteration")
        assert sorted(seen) == ["async", "roquet-g", "roquet-g"]

    against_a_broker(test)


def test_something_can_be_put_around_a_handler() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        seen: list[str] = []
        memory = Seen()

        @app.consumer("words", group="g", wrap=lambda listener: Idempotent(listener, memory, key=lambda message: message.keys[0]))
        async def handle(text: str) -> None:
            seen.append(text)

        async with sent(mq, "words", *(Message("words", text, keys=text.decode()) for text in (b"a", b"b", b"a", b"c"))), app:
            await until(lambda: len(seen) >= 3)
        assert seen == ["a", "b", "c"]
        memory.close()

    against_a_broker(test)


def test_what_a_handler_may_not_see_is_not_there_before_it_runs() -> None:
    """A handler that is called with what another message made would be a mistake that nobody sees."""

    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        made: list[object] = []

        def fresh() -> object:
            made.append(object())
            return made[-1]

        seen: list[object] = []

        @app.consumer("words", group="g", concurrency=8)
        async def handle(text: str, one: Annotated[object, Depends(fresh)], two: Annotated[object, Depends(fresh, cache=False)]) -> None:
            assert one is not two
            await asyncio.sleep(0)
            seen.append(one)

        async with sent(mq, "words", *(Message("words", b"%d" % number) for number in range(8))), app:
            await until(lambda: len(seen) == 8)
        assert len({id(one) for one in seen}) == 8
        assert len(made) == 16

    against_a_broker(test)
