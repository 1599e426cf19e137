"""Spans and metrics of OpenTelemetry, against a real broker, kept in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import roquet
from roquet import LitePullConsumer, Message, OpenTelemetry, Outcome, ReceivedMessage, TransactionProducer, TransactionState
from roquet.errors import RoquetError
from tests.traces.told import PATIENCE_S, until


class Kept:
    """A middleware whose spans and numbers stay here."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.middleware = OpenTelemetry(self.tracers, MeterProvider([self.reader]))

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if not name or span.name == name]

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Metric -> (attributes, point)."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: [(dict(point.attributes or {}), point) for point in metric.data.data_points]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def kept() -> Kept:
    return Kept()


def run(test: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(fast_retries=True) as mq:
            await test(mq)

    asyncio.run(bounded())


def test_a_handlers_span_is_the_child_of_the_senders_and_linked_to_it(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", middleware=[kept.middleware])
        inside: list[trace.Span] = []

        @consumer.on("orders")
        async def bill(message: ReceivedMessage) -> None:
            inside.append(trace.get_current_span())

        async with mq.producer("sellers", middleware=[kept.middleware]) as producer:
            with kept.tracers.get_tracer("test").start_as_current_span("checkout"):
                receipt = await producer.send(Message("orders", b"12345", tags="paid", keys=["order-1", "c-9"]))
            async with consumer:
                await until(lambda: len(kept.spans()) == 3)
            client_id = producer.client_id
        (send,), (checkout,), (process,) = kept.spans("send orders"), kept.spans("checkout"), kept.spans("process orders")
        assert send.context is not None
        assert process.context is not None
        assert send.parent == checkout.context
        assert process.parent is not None
        assert (process.parent.span_id, process.context.trace_id) == (send.context.span_id, send.context.trace_id)
        assert [link.context.span_id for link in process.links] == [send.context.span_id]
        assert [span.get_span_context() for span in inside] == [process.context]
        assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert (send.status.status_code, process.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
        host, port = mq.broker.split(":")
        both = {
            "messaging.system": "rocketmq",
            "messaging.destination.name": "orders",
            "messaging.destination.partition.id": str(receipt.queue.queue_id),
            "messaging.client.id": client_id,
            "messaging.message.id": receipt.message_id,
            "messaging.message.body.size": 5,
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("order-1", "c-9"),
        }
        assert send.attributes == both | {
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.rocketmq.client_group": "sellers",
            "messaging.rocketmq.message.type": "normal",
            "server.address": host,
            "server.port": int(port),
        }
        assert process.attributes == both | {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.rocketmq.client_group": "billing",
            "messaging.consumer.group.name": "billing",
        }

    run(test)


def test_the_context_travels_in_properties_that_any_language_reads(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first")
        seen: list[ReceivedMessage] = []
        consumer.on("orders")(seen.append)
        async with mq.producer("sellers", middleware=[kept.middleware]) as producer, consumer:
            token = context.attach(baggage.set_baggage("tenant", "nord"))
            mine = Message("orders", b"x")
            await producer.send(mine)
            context.detach(token)
            await until(lambda: seen)
        (span,) = kept.spans()
        assert span.context is not None
        assert seen[0].properties["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
        assert seen[0].properties["baggage"] == "tenant=nord"
        assert mine.properties == {}, "the caller's message is not changed"

    run(test)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "in a thread"])
def test_what_a_handler_sends_belongs_to_the_trace_of_what_it_got(kept: Kept, plain: bool) -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", middleware=[kept.middleware])
        tracer = kept.tracers.get_tracer("test")
        async with mq.producer("sellers", middleware=[kept.middleware]) as producer:
            if plain:

                @consumer.on("orders")
                def work(message: ReceivedMessage) -> None:
                    with tracer.start_as_current_span("charge"):
                        pass
            else:

                @consumer.on("orders")
                async def send_on(message: ReceivedMessage) -> None:
                    await producer.send(Message("invoices", b"x"))

            async with consumer:
                await producer.send(Message("orders", b"x"))
                await until(lambda: len(kept.spans()) == 3)
        (process,), (inner,) = kept.spans("process orders"), kept.spans("charge" if plain else "send invoices")
        assert inner.parent == process.context
        assert len({span.context.trace_id for span in kept.spans() if span.context is not None}) == 1

    run(test)


def test_of_several_messages_the_span_is_linked_to_each(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", middleware=[kept.middleware], batch_size=8)
        got: list[int] = []

        async def bill(messages: list[ReceivedMessage]) -> None:
            got.append(len(messages))

        consumer.subscribe("orders", "*", bill)
        async with mq.producer("sellers", middleware=[kept.middleware]) as producer:
            first = await producer.send(Message("orders", b"0"))
            await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")], queue=first.queue)
            async with consumer:
                await until(lambda: sum(got) == 3 and len(kept.spans("process orders")) == len(got))
        sends = {span.context.span_id for span in kept.spans("send orders") if span.context is not None}
        processes = kept.spans("process orders")
        assert len(sends) == 3
        assert {link.context.span_id for span in processes for link in span.links} == sends
        (whole,) = [span for span in processes if len(span.links) == max(got)]
        assert max(got) > 1
        assert whole.parent is None
        assert (whole.attributes or {})["messaging.batch.message_count"] == max(got)

    run(test)


def test_what_failed_says_so(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", middleware=[kept.middleware])

        @consumer.on("orders")
        async def bill(message: ReceivedMessage) -> Outcome | None:
            if message.reconsume_times == 0:
                raise KeyError("no such order")
            return Outcome.RETRY_LATER if message.reconsume_times == 1 else None

        async with mq.producer("sellers", middleware=[kept.middleware]) as producer, consumer:
            with pytest.raises(RoquetError):
                await producer.send(Message("orders", b"x" * 20_000_000))
            await producer.send(Message("orders", b"x"))
            await until(lambda: len(kept.spans("process orders")) == 3)
        refused, sent = kept.spans("send orders")
        assert (refused.status.status_code, sent.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
        assert (refused.attributes or {})["error.type"] == "InvalidMessage"
        first, second, third = kept.spans("process orders")
        assert [span.status.status_code for span in (first, second, third)] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
        assert [(span.attributes or {}).get("error.type") for span in (first, second, third)] == ["KeyError", "retry", None]
        assert [event.name for event in first.events] == ["exception"]
        assert len({span.parent.span_id for span in (first, second, third) if span.parent is not None}) == 1

        found = {
            tuple(sorted(attributes.items())): point.value for attributes, point in kept.points()["messaging.client.consumed.messages"]
        }
        assert sorted((dict(key).get("error.type", ""), value) for key, value in found.items()) == [("", 1), ("KeyError", 1), ("retry", 1)]

    run(test)


def test_the_end_of_a_transaction_is_a_span_below_that_of_its_send(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        def execute(message: Message, argument: object) -> TransactionState:
            if argument is None:
                raise LookupError("no account")
            return TransactionState.COMMIT if argument else TransactionState.ROLLBACK

        async with TransactionProducer(
            "sellers", mq.namesrv, execute=execute, check=lambda message: TransactionState.ROLLBACK, middleware=[kept.middleware]
        ) as producer:
            for argument in (True, False):
                await producer.send_in_transaction(Message("orders", b"1"), argument)
            with pytest.raises(LookupError):
                await producer.send_in_transaction(Message("orders", b"1"), None)
        sends, ends = kept.spans("send orders"), kept.spans("settle orders")
        names = ["commit", "rollback", "unknown"]
        assert [end.attributes["messaging.operation.name"] for end in ends if end.attributes] == names
        assert [end.parent.span_id for end in ends if end.parent] == [send.context.span_id for send in sends if send.context]
        assert [end.kind for end in ends] == [SpanKind.CLIENT] * 3
        assert [end.status.status_code for end in ends] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
        assert ends[2].status.description is not None
        assert "no account" in ends[2].status.description

    run(test)


def test_metrics_count_and_time_without_anything_that_differs_for_each_message(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", middleware=[kept.middleware])
        seen: list[bytes] = []
        consumer.on("orders")(lambda message: seen.append(message.body))
        async with mq.producer("sellers", middleware=[kept.middleware]) as producer, consumer:
            for number in range(3):
                await producer.send(Message("orders", b"%d" % number, keys=[f"k{number}"]))
            await producer.send_oneway(Message("orders", b"3"))
            await until(lambda: len(kept.spans("process orders")) == 4)
        host, port = mq.broker.split(":")
        points = kept.points()
        fixed = {"messaging.system": "rocketmq", "messaging.destination.name": "orders"}
        sending: dict[str, Any] = fixed | {"messaging.operation.name": "send", "messaging.operation.type": "send"}
        sending |= {"server.address": host, "server.port": int(port)}
        processing = fixed | {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        processing |= {"messaging.consumer.group.name": "billing"}
        ((attributes, point),) = points["messaging.client.sent.messages"]
        assert (attributes, point.value) == (sending, 4)
        ((attributes, point),) = points["messaging.client.operation.duration"]
        assert (attributes, point.count) == (sending, 4)
        ((attributes, point),) = points["messaging.client.consumed.messages"]
        assert (attributes, point.value) == (processing, 4)
        ((attributes, point),) = points["messaging.process.duration"]
        assert (attributes, point.count) == (processing, 4)
        assert 0 <= point.sum < PATIENCE_S

    run(test)


def test_messages_of_a_lite_pull_consumer_are_processed_until_the_next_are_asked_for(kept: Kept) -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with mq.producer("sellers", middleware=[kept.middleware]) as producer:
            await producer.send(Message("orders", b"x"))
            consumer = LitePullConsumer("readers", mq.namesrv, consume_from="first", middleware=[kept.middleware])
            consumer.subscribe("orders")
            async with consumer:
                while not await consumer.poll():
                    pass
                assert not kept.spans("process orders")
                assert trace.get_current_span().is_recording()
                await consumer.poll(timeout_ms=1)
                assert trace.get_current_span() is trace.INVALID_SPAN
        assert len(kept.spans("process orders")) == 1

    run(test)


def test_without_the_package_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from roquet import *\n"
        "from roquet import ClientError, OpenTelemetry\n"
        "try:\n    OpenTelemetry()\nexcept ClientError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OpenTelemetry() needs the package opentelemetry-api; install it: pip install 'roquet[otel]'\n"
