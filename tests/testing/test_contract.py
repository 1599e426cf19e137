"""What the test kit promises, the real broker keeps: every test runs over both."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from roquet import (
    COMMIT,
    DEAD_LETTER,
    Admin,
    LitePullConsumer,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    Rejected,
    RetryLater,
    SendReceipt,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from roquet.errors import RoquetError
from tests.testing.sides import SIDES, Side, lag

Scenario = Callable[[Side], Awaitable[None]]


@pytest.fixture(params=list(SIDES))
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    async def over(scenario: Scenario) -> None:
        async with SIDES[request.param]() as side:
            await scenario(side)

    return lambda scenario: asyncio.run(over(scenario))


Run = Callable[[Scenario], None]


def collector(group: str, side: Side, seen: list[bytes], **options: object) -> PushConsumer:
    consumer = PushConsumer(group, side.namesrv, consume_from="first", **options)  # type: ignore[arg-type]

    async def keep(message: ReceivedMessage) -> None:
        seen.append(message.body)

    consumer.subscribe("orders", function=keep)
    return consumer


def test_whatever_is_sent_in_whatever_way_is_consumed_once(run: Run) -> None:
    async def scenario(side: Side) -> None:
        seen: list[bytes] = []
        told: list[object] = []
        async with Producer("shop", side.namesrv) as producer:
            first = await producer.send(Message("orders", b"send"))
            assert first.status is SendStatus.SEND_OK
            assert [one.queue_offset for one in await producer.send_batch([Message("orders", b"a"), Message("orders", b"b")])][-1] >= 1
            await producer.send_oneway(Message("orders", b"oneway"))
            producer.send_async(Message("orders", b"callback"), told.append)
            chosen = await producer.send(Message("orders", b"queue 2"), queue=MessageQueue("orders", first.queue.broker_name, 2))
            assert chosen.queue.queue_id == 2
            keyed = {(await producer.send(Message("orders", b"keyed"), key="order-17")).queue for _ in range(5)}
            assert len(keyed) == 1, "one key, one queue"
            async with collector("billing", side, seen):
                await side.until(lambda: len(seen) >= 11)
        assert sorted(seen) == sorted([b"send", b"a", b"b", b"oneway", b"callback", b"queue 2", *[b"keyed"] * 5])
        assert isinstance(told[0], SendReceipt)

    run(scenario)


def test_what_fails_comes_again_and_becomes_a_dead_letter_after_its_last_attempt(run: Run) -> None:
    async def scenario(side: Side) -> None:
        attempts: list[int] = []
        consumer = PushConsumer("billing", side.namesrv, consume_from="first", reconsume_times_max=3)

        @consumer.on("orders")
        async def fail(message: ReceivedMessage) -> None:
            attempts.append(message.reconsume_times)
            raise ValueError("no such order")

        async with Producer("shop", side.namesrv) as producer:
            await producer.send(Message("orders", b"order 17", keys=["order-17"]))
            async with consumer:
                await side.until(lambda: len(attempts) == 4)
                async with LitePullConsumer("undertaker", side.namesrv, consume_from="first") as reader:
                    dead: list[ReceivedMessage] = []
                    reader.subscribe("%DLQ%billing")
                    polling = asyncio.create_task(poll_one(reader, dead))
                    await side.until(lambda: dead)
                    await polling
        assert attempts == [0, 1, 2, 3]
        assert (dead[0].body, dead[0].keys) == (b"order 17", ["order-17"])

    run(scenario)


async def poll_one(reader: LitePullConsumer, found: list[ReceivedMessage]) -> None:
    while not found:
        found += await reader.poll()


def test_a_handler_can_send_a_message_to_the_dead_letters_at_once(run: Run) -> None:
    async def scenario(side: Side) -> None:
        calls: list[bytes] = []
        consumer = PushConsumer("billing", side.namesrv, consume_from="first")

        @consumer.on("orders")
        def refuse(message: ReceivedMessage) -> RetryLater:
            calls.append(message.body)
            return DEAD_LETTER

        async with Producer("shop", side.namesrv) as producer, Admin(side.namesrv) as admin:
            await producer.send(Message("orders", b"nonsense"))
            async with consumer:
                await side.until(lambda: calls)
                await side.until(lambda: consumer.running == 0)
            assert sum(queue.count for queue in await admin.topic_status("%DLQ%billing")) == 1
        assert calls == [b"nonsense"]

    run(scenario)


def test_delayed_and_timed_messages_come_when_their_time_has_come_and_what_is_taken_back_does_not(run: Run) -> None:
    async def scenario(side: Side) -> None:
        waited_ms: dict[bytes, int] = {}
        consumer = PushConsumer("billing", side.namesrv, consume_from="first")

        @consumer.on("orders")
        async def keep(message: ReceivedMessage) -> None:
            waited_ms[message.body] = message.store_timestamp - message.born_timestamp

        async with Producer("shop", side.namesrv) as producer:
            await producer.send(Message("orders", b"timed", deliver_after=0.3))
            await producer.send(Message("orders", b"level", delay_level=3))
            taken_back = await producer.send(Message("orders", b"taken back", deliver_after=60))
            await producer.send(Message("orders", b"now"))
            await producer.cancel(taken_back)
            with pytest.raises(Rejected):
                await producer.cancel(taken_back)
            async with consumer:
                await side.until(lambda: len(waited_ms) == 3)
        assert waited_ms[b"timed"] >= 300
        assert waited_ms[b"level"] >= 10

    run(scenario)


def test_a_transactions_message_is_shown_when_it_is_committed_and_its_producer_is_asked_when_it_was_silent(run: Run) -> None:
    async def scenario(side: Side) -> None:
        seen: list[bytes] = []
        asked: list[bytes] = []

        def execute(message: Message, state: TransactionState) -> TransactionState:
            return state

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.body)
            return TransactionState.COMMIT if message.body == b"late" else TransactionState.ROLLBACK

        async with TransactionProducer("payments", side.namesrv, execute=execute, check=check) as producer:
            for body, state in (
                (b"paid", TransactionState.COMMIT),
                (b"refused", TransactionState.ROLLBACK),
                (b"late", TransactionState.UNKNOWN),
                (b"never", TransactionState.UNKNOWN),
            ):
                await producer.send_in_transaction(Message("orders", body), state)
            async with collector("billing", side, seen):
                await side.until(lambda: len(seen) == 2 and len(asked) == 2)
        assert seen == [b"paid", b"late"]
        assert sorted(asked) == [b"late", b"never"]

    run(scenario)


def test_an_orderly_consumer_gets_the_messages_of_a_key_in_order_and_a_failure_holds_up_its_queue(run: Run) -> None:
    async def scenario(side: Side) -> None:
        seen: list[bytes] = []
        failed: list[bytes] = []
        consumer = PushConsumer("ledger", side.namesrv, consume_from="first", suspend_queue_ms=20)

        @consumer.on_orderly("orders")
        async def book(message: ReceivedMessage) -> None:
            if message.body == b"2" and len(failed) < 2:
                failed.append(message.body)
                raise ValueError("not yet")
            seen.append(message.body)

        async with Producer("shop", side.namesrv) as producer:
            for number in range(6):
                await producer.send(Message("orders", b"%d" % number), key="order-17")
            async with consumer:
                await side.until(lambda: len(seen) == 6)
        assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert len(failed) == 2

    run(scenario)


def test_broadcasting_gives_every_message_to_every_member_and_a_member_goes_on_where_it_was(run: Run, tmp_path: object) -> None:
    async def scenario(side: Side) -> None:
        first: list[bytes] = []
        second: list[bytes] = []
        async with Producer("shop", side.namesrv) as producer:
            await producer.create_topic("orders")
            places: dict[str, object] = {"broadcasting": True, "offsets_directory": str(tmp_path)}
            async with (
                collector("chat", side, first, instance_name="a", **places),
                collector("chat", side, second, instance_name="b", **places),
            ):
                await producer.send(Message("orders", b"hello"))
                await side.until(lambda: first == second == [b"hello"])
            await producer.send(Message("orders", b"while away"))
            async with collector("chat", side, first, instance_name="a", **places):
                await side.until(lambda: len(first) == 2)
        assert first == [b"hello", b"while away"]

    run(scenario)


def test_a_request_gets_the_reply_of_whoever_consumes_it(run: Run) -> None:
    async def scenario(side: Side) -> None:
        consumer = PushConsumer("prices", side.namesrv, consume_from="first")

        @consumer.on("quotes")
        async def quote(message: ReceivedMessage) -> None:
            await consumer.reply(message, message.body + b": 3 EUR")

        async with Producer("shop", side.namesrv) as producer:
            await producer.create_topic("quotes")
            async with consumer:
                assert (await producer.request(Message("quotes", b"bread"), timeout_ms=10_000)).body == b"bread: 3 EUR"

    run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_members_share_the_queues_and_who_stays_takes_over_from_who_leaves(run: Run, orderly: bool) -> None:
    async def scenario(side: Side) -> None:
        first: list[bytes] = []
        second: list[bytes] = []
        async with Producer("shop", side.namesrv) as producer:
            await producer.create_topic("orders", 4)
            queues = await producer.fetch_queues("orders")
            stays = collector("billing", side, first, orderly=orderly)
            leaves = collector("billing", side, second, orderly=orderly)

            def shares() -> list[int]:
                return [sum(queue.topic == "orders" for queue in member.queues) for member in (stays, leaves)]

            async with stays:
                async with leaves:
                    await side.until(lambda: shares() == [2, 2])
                    assert not set(stays.queues) & {queue for queue in leaves.queues if queue.topic == "orders"}
                    for queue in queues:
                        await producer.send(Message("orders", b"both %d" % queue.queue_id), queue=queue)
                    await side.until(lambda: len(first) == len(second) == 2)
                await side.until(lambda: sum(queue.topic == "orders" for queue in stays.queues) == 4)
                for queue in queues:
                    await producer.send(Message("orders", b"one %d" % queue.queue_id), queue=queue)
                await side.until(lambda: len(first) == 6)
        assert sorted(first + second) == sorted(b"%s %d" % (word, number) for word in (b"both", b"one") for number in range(4))

    run(scenario)


def test_what_was_stored_and_how_far_a_group_came_outlive_a_restart_of_the_broker(run: Run) -> None:
    async def scenario(side: Side) -> None:
        seen: list[bytes] = []
        async with Producer("shop", side.namesrv) as producer:
            for number in range(3):
                await producer.send(Message("orders", b"before %d" % number))
            async with collector("billing", side, seen):
                await side.until(lambda: len(seen) == 3)
            assert await lag(side, "billing") == 0
            await producer.send(Message("orders", b"unread"))
            await producer.send(Message("orders", b"later", deliver_after=1))
        await side.stop()
        await side.start()
        assert await lag(side, "billing") == 1
        async with collector("billing", side, seen):
            await side.until(lambda: len(seen) == 5)
        assert seen[3:] == [b"unread", b"later"]

    run(scenario)


def test_clients_that_are_there_while_the_broker_is_away_go_on_when_it_is_back(run: Run) -> None:
    async def scenario(side: Side) -> None:
        seen: list[bytes] = []
        async with Producer("shop", side.namesrv) as producer:
            await producer.send(Message("orders", b"before"))
            async with collector("billing", side, seen):
                await side.until(lambda: seen)
                await side.stop()
                sending = asyncio.create_task(producer.send(Message("orders", b"meanwhile"), timeout_ms=60_000))
                await asyncio.sleep(0)
                assert not sending.done()
                await side.start()
                await side.until(lambda: len(seen) == 2)
                assert (await sending).status is SendStatus.SEND_OK
        assert seen == [b"before", b"meanwhile"]

    run(scenario)


def test_tags_and_sql_choose_the_messages(run: Run) -> None:
    async def scenario(side: Side) -> None:
        by_tag: list[bytes] = []
        by_sql: list[bytes] = []
        tagged = PushConsumer("tagged", side.namesrv, consume_from="first")
        queried = PushConsumer("queried", side.namesrv, consume_from="first")

        @tagged.on("orders", "paid || refunded")
        async def one(message: ReceivedMessage) -> None:
            by_tag.append(message.body)

        @queried.on("orders", sql="size > 5 AND colour IN ('red', 'blue')")
        async def two(message: ReceivedMessage) -> None:
            by_sql.append(message.body)

        async with Producer("shop", side.namesrv) as producer:
            await producer.send(Message("orders", b"a", tags="paid", properties={"size": "7", "colour": "red"}))
            await producer.send(Message("orders", b"b", tags="open", properties={"size": "9", "colour": "blue"}))
            await producer.send(Message("orders", b"c", tags="refunded", properties={"size": "4", "colour": "red"}))
            async with tagged, queried:
                await side.until(lambda: len(by_tag) == len(by_sql) == 2)
        assert (sorted(by_tag), sorted(by_sql)) == ([b"a", b"c"], [b"a", b"b"])

    run(scenario)


def test_a_lite_pull_consumer_reads_commits_and_goes_back(run: Run) -> None:
    async def scenario(side: Side) -> None:
        async with Producer("shop", side.namesrv) as producer:
            receipts = [await producer.send(Message("orders", b"%d" % number), key="one queue") for number in range(3)]
        queue = receipts[0].queue
        reader = LitePullConsumer("reports", side.namesrv, consume_from="first", auto_commit=False)
        reader.assign([queue])
        async with reader:
            found: list[bytes] = []
            while len(found) < 3:
                found += [message.body for message in await reader.poll()]
            assert found == [b"0", b"1", b"2"]
            await reader.commit()
            assert await reader.committed(queue) == 3
            assert await reader.seek(queue, 1) == 1
            assert (await reader.poll())[0].body == b"1"

    run(scenario)


def test_an_admin_sees_and_changes_what_there_is(run: Run) -> None:
    async def scenario(side: Side) -> None:
        async with Admin(side.namesrv) as admin, Producer("shop", side.namesrv) as producer:
            await admin.create_topic("orders", read_queues=2, write_queues=2)
            assert len(await producer.fetch_queues("orders")) == 2
            receipt = await producer.send(Message("orders", b"order 17", keys=["order-17"]))
            assert [message.body for message in await producer.query_message("orders", "order-17")] == [b"order 17"]
            assert (await producer.view_message(receipt.offset_message_id)).body == b"order 17"
            assert "RMQ_SYS_TRACE_TOPIC" in await admin.topic_names(), "traceTopicEnable=true"
            assert [broker.name for broker in await admin.masters()] == [receipt.queue.broker_name]
            await admin.delete_topic("orders")
            assert "orders" not in await admin.topic_names()

    run(scenario)


def test_a_pull_consumer_reads_by_hand(run: Run) -> None:
    async def scenario(side: Side) -> None:
        async with Producer("shop", side.namesrv) as producer, PullConsumer("readers", side.namesrv) as reader:
            receipt = await producer.send(Message("orders", b"order 17"))
            result = await reader.pull(receipt.queue, 0)
            assert (result.status, [message.body for message in result.messages]) == (PullStatus.FOUND, [b"order 17"])
            waiting = asyncio.create_task(reader.pull_blocking(receipt.queue, 1))
            await asyncio.sleep(0)
            await producer.send(Message("orders", b"order 18"), queue=receipt.queue)
            assert [message.body for message in (await waiting).messages] == [b"order 18"]

    run(scenario)


def test_both_refuse_in_the_same_words() -> None:
    async def refusals(side: Side) -> list[str]:
        said: list[str] = []
        async with Admin(side.namesrv) as admin, Producer("shop", side.namesrv) as producer:
            await admin.create_topic("closed", perm=4)
            for message in (
                Message("SCHEDULE_TOPIC_XXXX", b"x"),
                Message("orders", b"x", deliver_after=400 * 86_400),
                Message("closed", b"x"),
            ):
                with pytest.raises(RoquetError) as failure:
                    await producer.send(message, timeout_ms=1_000)
                said.append(f"{type(failure.value).__name__}: {re.sub(r'127.0.0.1:[0-9]+', 'it', str(failure.value))}")
        return said

    async def both() -> list[list[str]]:
        found = []
        for make in SIDES.values():
            async with make() as side:
                found.append(await refusals(side))
        return found

    one, other = asyncio.run(both())
    assert len(one) == 3
    assert one == other


def test_an_orderly_consumer_that_commits_by_hand_gets_what_it_did_not_commit_again(run: Run) -> None:
    async def scenario(side: Side) -> None:
        seen: list[bytes] = []
        consumer = PushConsumer("ledger", side.namesrv, consume_from="first", orderly=True, auto_commit=False)

        @consumer.on("orders")
        async def book(message: ReceivedMessage) -> Outcome | None:
            seen.append(message.body)
            return COMMIT if message.body == b"1" else None

        async with Producer("shop", side.namesrv) as producer:
            for number in range(3):
                await producer.send(Message("orders", b"%d" % number), key="one queue")
            async with consumer:
                await side.until(lambda: len(seen) == 3)
            async with consumer:
                await side.until(lambda: len(seen) == 4)
        assert seen == [b"0", b"1", b"2", b"2"]

    run(scenario)


@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES)
def test_a_filter_that_the_broker_does_not_take_is_refused_at_the_start(make: Callable[..., AbstractAsyncContextManager[Side]]) -> None:
    async def scenario() -> None:
        async with make(enablePropertyFilter="false") as side:
            async with Producer("shop", side.namesrv) as producer:
                await producer.create_topic("orders")
            consumer = PushConsumer("queried", side.namesrv)
            consumer.subscribe("orders", function=lambda message: None, sql="size > 5")
            with pytest.raises(Rejected):
                await consumer.start()

    asyncio.run(scenario())
