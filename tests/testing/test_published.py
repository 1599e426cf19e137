"""What was published: what consumers can see, and what waits for its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from roquet import Message, MessageQueue, Producer, PushConsumer, TransactionProducer, TransactionState
from roquet.testing import Broker

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


def run(scenario: Callable[[Broker, Producer], Awaitable[None]]) -> None:
    async def over() -> None:
        async with Broker(now=NEW_YEAR) as broker, Producer("shop", broker.namesrv) as producer:
            await scenario(broker, producer)

    asyncio.run(over())


def test_messages_stand_in_the_order_in_which_they_were_stored_with_all_that_the_producer_gave_them() -> None:
    async def scenario(broker: Broker, producer: Producer) -> None:
        published = broker.published
        assert (len(published), list(published), published.topics, published.to("orders")) == (0, [], [], [])
        for number in range(5):
            await producer.send(
                Message("orders", b"%d" % number, tags="paid", keys=[f"order-{number}"], properties={"region": "eu"}),
                queue=MessageQueue("orders", "broker-a", number % 3) if number else None,
            )
        await producer.send(Message("mails", b"hello" * 2_000))
        assert published.bodies("orders") == [b"0", b"1", b"2", b"3", b"4"]
        assert published.bodies("mails") == [b"hello" * 2_000], "larger ones are compressed on their way"
        first = published.to("orders")[0]
        assert (first.tags, first.keys, first.properties["region"], first.topic) == ("paid", ["order-0"], "eu", "orders")
        assert (published.topics, len(published)) == (["mails", "orders"], 6)
        assert [message.topic for message in published] == ["orders"] * 5 + ["mails"]
        assert repr(published) == "<Published mails: 1, orders: 5>"

    run(scenario)


def test_a_oneway_send_is_there_at_once() -> None:
    async def scenario(broker: Broker, producer: Producer) -> None:
        await producer.send_oneway(Message("orders", b"order 17"))
        assert broker.published.bodies("orders") == [b"order 17"]

    run(scenario)


def test_what_waits_for_its_time_is_scheduled_until_it_is_delivered_or_taken_back() -> None:
    async def scenario(broker: Broker, producer: Producer) -> None:
        published = broker.published
        await producer.send(Message("reminders", b"in a day", deliver_after=86_400))
        await producer.send(Message("reminders", b"in ten seconds", delay_level=3))
        await producer.send(Message("mails", b"at noon", deliver_at=NEW_YEAR + timedelta(hours=12)))
        taken_back = await producer.send(Message("mails", b"never", deliver_after=60))
        await producer.cancel(taken_back)
        waiting = published.scheduled()
        assert [(one.topic, one.body, one.due - NEW_YEAR) for one in waiting] == [
            ("reminders", b"in ten seconds", timedelta(seconds=10)),
            ("mails", b"at noon", timedelta(hours=12)),
            ("reminders", b"in a day", timedelta(days=1)),
        ]
        assert len(published) == 0
        await broker.clock.advance(hours=12)
        assert [one.body for one in published.scheduled("reminders")] == [b"in a day"]
        assert (published.scheduled("mails"), published.bodies("mails")) == ([], [b"at noon"])
        await broker.stop()
        await broker.start()
        assert [one.body for one in published.scheduled()] == [b"in a day"]
        await broker.clock.advance(hours=12)
        assert (published.scheduled(), published.bodies("reminders")) == ([], [b"in ten seconds", b"in a day"])

    run(scenario)


def test_a_transactions_message_is_published_when_it_is_committed_and_not_before() -> None:
    async def scenario(broker: Broker, producer: Producer) -> None:
        async def execute(message: Message, state: TransactionState) -> TransactionState:
            assert not broker.published.to("paid")
            return state

        async def check(message: object) -> TransactionState:
            return TransactionState.COMMIT

        async with TransactionProducer("payments", broker.namesrv, execute=execute, check=check) as payments:
            await payments.send_in_transaction(Message("paid", b"refused"), TransactionState.ROLLBACK)
            await payments.send_in_transaction(Message("paid", b"late"), TransactionState.UNKNOWN)
            assert len(broker.published) == 0
            await broker.clock.advance(minutes=2)
        assert broker.published.bodies("paid") == [b"late"]

    run(scenario)


def test_retries_are_nobodys_publications() -> None:
    async def scenario(broker: Broker, producer: Producer) -> None:
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first", reconsume_times_max=1)
        consumer.subscribe("orders", function=lambda message: False)
        await producer.send(Message("orders", b"order 17"))
        async with consumer:
            await broker.settle()
            assert broker.published.scheduled() == []
            assert [one.body for one in broker.published.scheduled("%RETRY%billing")] == [b"order 17"]
            await broker.clock.advance(seconds=10)
        assert [message.body for message in broker.published.dead_letters("billing")] == [b"order 17"]
        assert (broker.published.topics, len(broker.published)) == (["orders"], 1)

    run(scenario)


def test_clear_leaves_out_what_was_there_and_consumers_get_it_all_the_same() -> None:
    async def scenario(broker: Broker, producer: Producer) -> None:
        seen: list[bytes] = []
        await producer.send(Message("orders", b"before"))
        broker.published.clear()
        assert len(broker.published) == 0
        await producer.send(Message("orders", b"after"))
        assert broker.published.bodies("orders") == [b"after"]
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")
        consumer.subscribe("orders", function=lambda message: seen.append(message.body))
        async with consumer:
            await broker.settle()
        assert sorted(seen) == [b"after", b"before"]

    run(scenario)


def test_looking_needs_no_loop() -> None:
    async def send(namesrv: str) -> None:
        async with Producer("shop", namesrv) as producer:
            await producer.send(Message("orders", b"order 17"))

    with Broker() as broker:
        asyncio.run(send(broker.namesrv))
        assert broker.published.bodies("orders") == [b"order 17"]
        with pytest.raises(AttributeError):
            broker.published.nonsense  # type: ignore[attr-defined] # noqa: B018
