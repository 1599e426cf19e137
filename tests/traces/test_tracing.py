"""Tracing: what clients write of their messages, against a real broker."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet import ClientError, Message, Outcome, Producer, ReceivedMessage, Tracing, TransactionProducer, TransactionState
from roquet.client import sync, tracing
from roquet.errors import RoquetError
from roquet.wire.names import TRACE_TOPIC
from roquet.wire.trace import EndTransaction, Pub, SubAfter, SubBefore
from tests.traces.told import PATIENCE_S, TRACED, records, stored, until


def run(test: Any, **settings: str) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(settings={**TRACED, **settings}, fast_retries=True) as mq:
            await test(mq)

    asyncio.run(bounded())


# Sends


def test_a_send_leaves_a_record_that_says_where_it_went_and_what_it_cost() -> None:
    async def test(mq: roquet.Embedded) -> None:
        before_ms = time.time_ns() // 1_000_000
        async with mq.producer("sellers", trace=True) as producer:
            receipt = await producer.send(Message("orders", b"12345", tags="paid", keys=["order-1", "customer-9"]))
        (found,) = await records(mq)
        assert isinstance(found, Pub)
        assert before_ms <= found.time_ms <= before_ms + PATIENCE_S * 1000
        assert 0 <= found.cost_ms <= PATIENCE_S * 1000
        assert (found.region, found.group, found.topic, found.unique_id) == ("DefaultRegion", "sellers", "orders", receipt.message_id)
        assert (found.tags, found.keys, found.store_host) == ("paid", "order-1 customer-9", mq.broker)
        assert (found.body_size, found.type, found.message_id) == (5, "Normal", receipt.offset_message_id)
        assert (found.success, found.client_host) == (True, None)

    run(test)


def test_records_are_found_by_the_ids_and_the_keys_of_their_messages() -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with mq.producer("sellers", trace=True) as producer:
            receipts = [await producer.send(Message("orders", b"x", keys=[f"order-{number}", "all"])) for number in range(3)]
        async with mq.admin() as admin:
            for number, receipt in enumerate(receipts):
                assert len(await admin.query_by_key(TRACE_TOPIC, receipt.message_id)) == 1
                assert len(await admin.query_by_key(TRACE_TOPIC, f"order-{number}")) == 1
            (message,) = await admin.query_by_key(TRACE_TOPIC, "all")
        first, second, third = [receipt.message_id for receipt in receipts]
        assert message.keys == [first, "order-0", "all", second, "order-1", third, "order-2"]

    run(test)


def test_kinds_of_sends_have_upstreams_types_and_oneway_leaves_nothing() -> None:
    async def test(mq: roquet.Embedded) -> None:
        traces = Tracing()
        async with mq.producer("sellers", middleware=[traces]) as producer:
            await producer.send(Message("orders", b"level", delay_level=1))
            await producer.send(Message("orders", b"timed", deliver_after=0.001))
            await producer.send_oneway(Message("orders", b"oneway"))
            batch = await producer.send_batch([Message("orders", b"1"), Message("orders", b"22")])
            assert traces.waiting == 4
        assert (traces.written, traces.dropped, traces.waiting) == (4, 0, 0)
        found = [record for record in await records(mq) if isinstance(record, Pub)]
        assert [record.type for record in found] == ["Delay", "Delay", "Normal", "Normal"]
        assert [(record.unique_id, record.message_id) for record in found[2:]] == [(one.message_id, one.offset_message_id) for one in batch]
        assert [record.body_size for record in found[2:]] == [1, 2]

    run(test)


def test_a_broker_that_wants_no_traces_gets_none() -> None:
    async def test(mq: roquet.Embedded) -> None:
        traces = Tracing()
        async with mq.producer("sellers", middleware=[traces]) as producer:
            receipt = await producer.send(Message("orders", b"x"))
            assert not receipt.trace_on
            assert [one.trace_on for one in await producer.send_batch([Message("orders", b"x")] * 2)] == [False, False]
        assert (traces.written, traces.dropped) == (0, 0)

    run(test, traceOn="false")


def test_the_region_is_the_brokers() -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with mq.producer("sellers", trace=True) as producer:
            await producer.send(Message("orders", b"x"))
        assert [record.region for record in await records(mq) if isinstance(record, Pub)] == ["north"]

    run(test, regionId="north")


def test_a_send_that_failed_is_told_too_and_one_that_never_went_is_not() -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with mq.producer("sellers", trace=True, retries=0) as producer:
            with pytest.raises(RoquetError):
                await producer.send(Message("no such topic", b"an illegal name"))
            with pytest.raises(RoquetError):
                await producer.send(Message("orders", b"x" * 20_000_000))
            with pytest.raises(RoquetError):
                await producer.send(Message("nobody_made_it", b"x"), timeout_ms=300)
        (found,) = await records(mq)
        assert isinstance(found, Pub)
        assert (found.topic, found.success, found.message_id, found.region) == ("nobody_made_it", False, None, "DefaultRegion")

    run(test, autoCreateTopicEnable="false")


def test_nothing_is_told_of_the_trace_topic_itself() -> None:
    async def test(mq: roquet.Embedded) -> None:
        traces = Tracing()
        consumer = mq.consumer("readers", consume_from="first", middleware=[traces])
        seen: list[ReceivedMessage] = []

        @consumer.on(TRACE_TOPIC)
        async def read(message: ReceivedMessage) -> None:
            seen.append(message)

        async with consumer, mq.producer("sellers", middleware=[traces]) as producer:
            await producer.send(Message(TRACE_TOPIC, b"by hand"))
            await until(lambda: seen)
        assert (traces.written, traces.dropped, traces.waiting) == (0, 0, 0)

    run(test)


def test_traces_go_to_the_topic_of_ones_own_and_members_may_share_one_object() -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with mq.admin() as admin:
            await admin.create_topic("my_traces", read_queues=1, write_queues=1)
        mine = Tracing(topic="my_traces")
        async with mq.producer("sellers", middleware=[mine]) as one:
            async with mq.producer("others", middleware=[mine]) as other:
                await one.send(Message("orders", b"x"))
                await other.send(Message("orders", b"x"))
            await one.send(Message("orders", b"after the other has gone"))
        async with mq.producer("third", trace="my_traces") as producer:
            await producer.send(Message("orders", b"x"))
        assert sorted(record.group or "" for record in await records(mq, "my_traces")) == ["others", "sellers", "sellers", "third"]
        assert await records(mq) == []

    run(test)


def test_a_topic_that_is_no_name_is_refused() -> None:
    with pytest.raises(ClientError, match="Tracing was given the topic 5"):
        Tracing(topic=5)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="illegal characters"):
        Tracing(topic="no topic")


# Consuming


def test_consuming_leaves_a_record_before_and_one_after_joined_by_an_id() -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", trace=True)
        seen: list[str] = []

        @consumer.on("orders")
        def bill(message: ReceivedMessage) -> Outcome | None:
            seen.append(message.message_id)
            if message.body == b"later" and message.reconsume_times == 0:
                return Outcome.RETRY_LATER
            if message.body == b"broken" and message.reconsume_times == 0:
                raise ValueError("it is broken")
            return None

        async with mq.producer("sellers") as producer:
            ids = [(await producer.send(Message("orders", body, keys=["k"]))).message_id for body in (b"fine", b"later", b"broken")]
            async with consumer:
                await until(lambda: len(seen) == 5)
        found = await records(mq)
        begun = {record.request_id: record for record in found if isinstance(record, SubBefore)}
        ended = {record.request_id: record for record in found if isinstance(record, SubAfter)}
        assert begun.keys() == ended.keys()
        assert len(begun) == 5
        told = sorted(
            (ids.index(one.unique_id), one.retry_times, ended[key].success, ended[key].outcome, ended[key].unique_id == one.unique_id)
            for key, one in begun.items()
        )
        assert told == [
            (0, 0, True, "SUCCESS", True),
            (1, 0, False, "FAILED", True),
            (1, 1, True, "SUCCESS", True),
            (2, 0, False, "EXCEPTION", True),
            (2, 1, True, "SUCCESS", True),
        ]
        assert {(record.group, record.region, record.keys) for record in begun.values()} == {("billing", "DefaultRegion", "k")}
        assert all((record.time_ms or 0) >= begun[key].time_ms for key, record in ended.items())
        assert {(record.group, record.keys) for record in ended.values()} == {("billing", "k")}

    run(test)


def test_of_a_batch_each_message_has_its_own_end_and_its_share_of_the_time() -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", trace=True, batch_size=4, reconsume_times_max=0)
        done = asyncio.Event()

        async def bill(messages: list[ReceivedMessage]) -> None:
            await asyncio.sleep(0.02 * len(messages))
            if messages[-1].body == b"3":
                done.set()

        consumer.subscribe("orders", "*", bill)

        async with mq.producer("sellers") as producer:
            queue = (await producer.send(Message("orders", b"0"))).queue
            for number in range(1, 4):
                await producer.send(Message("orders", b"%d" % number), queue=queue)
            async with consumer:
                await done.wait()
        ended = [record for record in await records(mq) if isinstance(record, SubAfter)]
        assert len(ended) == 4
        assert all(20 <= record.cost_ms <= 2_000 for record in ended)

    run(test)


def test_a_message_that_says_so_is_not_traced() -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", trace=True)
        seen: list[bytes] = []

        @consumer.on("orders")
        async def bill(message: ReceivedMessage) -> None:
            seen.append(message.body)

        async with mq.producer("sellers") as producer, consumer:
            await producer.send(Message("orders", b"quiet", properties={"TRACE_ON": "false"}))
            loud = await producer.send(Message("orders", b"loud", properties={"TRACE_ON": "true"}))
            await until(lambda: len(seen) == 2)
        found = await records(mq)
        assert {type(record) for record in found} == {SubBefore, SubAfter}
        assert {record.unique_id for record in found} == {loud.message_id}

    run(test, regionInMessages="false")


# Transactions


def test_the_end_of_a_transaction_is_told_by_the_producer_and_after_a_check() -> None:
    async def test(mq: roquet.Embedded) -> None:
        answers = {b"commit": TransactionState.COMMIT, b"rollback": TransactionState.ROLLBACK, b"ask": TransactionState.UNKNOWN}
        checked: list[str] = []

        def check(message: ReceivedMessage) -> TransactionState:
            checked.append(message.message_id)
            return TransactionState.COMMIT

        def execute(message: Message, _: object) -> TransactionState:
            return answers[message.body]

        traces = Tracing()
        async with TransactionProducer("payers", mq.namesrv, execute=execute, check=check, middleware=[traces]) as producer:
            sent = {body: await producer.send_in_transaction(Message("payments", body, tags="t")) for body in answers}
            await until(lambda: checked and traces.written + traces.waiting == 7)
        found = await records(mq)
        assert {record.type for record in found if isinstance(record, Pub)} == {"TransHalf"}
        ends = [record for record in found if isinstance(record, EndTransaction)]
        by_id = {receipt.receipt.message_id: body for body, receipt in sent.items()}
        assert [(by_id[end.unique_id], end.transaction_state, end.from_check) for end in ends] == [
            (b"commit", "COMMIT_MESSAGE", False),
            (b"rollback", "ROLLBACK_MESSAGE", False),
            (b"ask", "UNKNOW", False),
            (b"ask", "COMMIT_MESSAGE", True),
        ]
        told = {(end.group, end.topic, end.tags, end.type, end.store_host) for end in ends}
        assert told == {("payers", "payments", "t", "TransCommit", mq.broker)}

    run(test, transactionCheckInterval="100", transactionTimeOut="100")


# Never in the way


def test_what_finds_no_room_is_dropped_counted_and_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tracing, "WAITING_MAX", 5)
    monkeypatch.setattr(tracing, "LINGER_S", 60.0)

    async def test(mq: roquet.Embedded) -> None:
        traces = Tracing()
        async with mq.producer("sellers", middleware=[traces]) as producer:
            for _ in range(8):
                assert (await producer.send(Message("orders", b"x"))).ok
            assert (traces.waiting, traces.dropped) == (5, 3)
        assert (traces.written, traces.waiting, traces.dropped) == (5, 0, 3)

    with caplog.at_level(logging.WARNING, "roquet"):
        run(test)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "roquet.client.tracing"]
    assert "group sellers: 1 records of traces were not written to RMQ_SYS_TRACE_TOPIC: they come faster than they can be sent" in line


def test_where_there_is_no_trace_topic_messages_go_on_and_the_log_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "SEND_MS", 200)

    async def test(mq: roquet.Embedded) -> None:
        async with mq.admin() as admin:
            await admin.create_topic("orders")
        traces = Tracing()
        async with mq.producer("sellers", middleware=[traces]) as producer:
            assert (await producer.send(Message("orders", b"x"))).ok
        assert (traces.written, traces.dropped, traces.waiting) == (0, 1, 0)

    with caplog.at_level(logging.WARNING, "roquet"):
        run(test, autoCreateTopicEnable="false", traceTopicEnable="false")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "roquet.client.tracing"]
    assert line.endswith("messages are not affected. The topic must exist: set traceTopicEnable=true on a broker")


def test_a_hundred_records_go_out_without_waiting_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LINGER_S", 60.0)

    async def test(mq: roquet.Embedded) -> None:
        traces = Tracing()
        async with mq.producer("sellers", middleware=[traces]) as producer:
            await producer.send_batch([Message("orders", b"x", keys=[f"k{number}"]) for number in range(99)])
            assert traces.waiting == 99
            await producer.send(Message("orders", b"x"))
            await until(lambda: traces.written == 100)
        assert len(await stored(mq)) == 1

    run(test)


def test_fewer_go_out_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(mq: roquet.Embedded) -> None:
        traces = Tracing()
        async with mq.producer("sellers", middleware=[traces]) as producer:
            await producer.send(Message("orders", b"x"))
            await until(lambda: traces.written == 1)
            await producer.send(Message("orders", b"x"))
            await until(lambda: traces.written == 2)

    monkeypatch.setattr(tracing, "LINGER_S", 0.01)
    run(test)


def test_a_broker_that_is_away_at_the_end_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tracing, "CLOSE_S", 0.2)

    async def test() -> None:
        traces = Tracing()
        async with asyncio.timeout(PATIENCE_S):
            async with roquet.embedded(settings=TRACED) as mq:
                producer = Producer("sellers", mq.namesrv, middleware=[traces])
                await producer.start()
                await producer.send(Message("orders", b"x"))
            await producer.close()
        assert (traces.written, traces.dropped, traces.waiting) == (0, 1, 0)

    asyncio.run(test())


def test_one_object_for_two_clusters_is_an_error_that_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with roquet.embedded(settings=TRACED) as other:
            shared = Tracing()
            async with mq.producer("sellers", middleware=[shared]) as one, other.producer("sellers", middleware=[shared]) as two:
                await one.send(Message("orders", b"x"))
                await two.send(Message("orders", b"x"))

    with caplog.at_level(logging.ERROR, "roquet"):
        run(test)
    assert "give each a Tracing() of its own" in caplog.text


# The blocking face


def test_the_blocking_face_traces_too() -> None:
    async def test(mq: roquet.Embedded) -> None:
        seen: list[bytes] = []

        def work() -> None:
            consumer = sync.PushConsumer("billing", mq.namesrv, consume_from="first", trace=True)
            consumer.on("orders")(lambda message: seen.append(message.body))
            with sync.Producer("sellers", mq.namesrv, trace=True) as producer, consumer:
                producer.send(Message("orders", b"x"))
                while not seen:
                    time.sleep(0.001)

        await asyncio.to_thread(work)
        assert [type(record) for record in await records(mq)] == [SubBefore, SubAfter, Pub]

    run(test)
