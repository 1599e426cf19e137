"""Spans and metrics of middleware's events, by the semantic conventions for messaging (as of 1.36). Imports OpenTelemetry: see `otel.py`.

span `send TOPIC`      PRODUCER   parent: what runs now. Its context goes into the message.
span `process TOPIC`   CONSUMER   of one message: child of the producer's span, and linked to it. Of several: linked to each.
span `settle TOPIC`    CLIENT     a broker is told how a transaction ends: child of the span of its send.
metrics                messaging.client.sent.messages, messaging.client.operation.duration,
                       messaging.client.consumed.messages, messaging.process.duration
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from roquet.message import Property

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider

    from roquet.client.core.events import ConsumeEvent, SendEvent, TransactionEvent

SCOPE = "roquet"
SPAN, TOKEN = "roquet.otel.span", "roquet.otel.token"
"""In `event.data`."""
BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
"""Of durations, in seconds, as the conventions have them."""
LINKS_MAX = 128
"""What OpenTelemetry keeps of a span's links by default."""
HALVES_MAX = 10_000
TYPES = {"half": "transaction", "delay": "delay", "timed": "delay"}
NOT_DONE = {"retry": "retry", "dead letter": "dead_letter", "suspend": "suspend", "given up": "given_up"}
"""error.type of a handler that did not raise, and was not done with its messages."""

Attributes = dict[str, Any]


class Spans:
    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._halves: dict[str, Context] = {}  # message id -> the span of its send, until its transaction ends

    def begin_send(self, event: SendEvent) -> None:
        message = event.message
        attributes = common(event, "send") | described(message.properties) | {"messaging.message.body.size": len(message.body)}
        attributes["messaging.message.id"] = event.message_id
        kind = "fifo" if Property.SHARDING_KEY in message.properties else TYPES.get(event.kind, "normal")
        attributes["messaging.rocketmq.message.type"] = kind
        span = self._tracer.start_span(f"send {event.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        event.data[SPAN] = span
        propagate.inject(message.properties, context=trace.set_span_in_context(span))

    def end_send(self, event: SendEvent) -> None:
        span = event.data.pop(SPAN, None)
        if span is None:
            return
        span.set_attributes(server(event.broker_address))
        if event.queue is not None:
            span.set_attribute("messaging.destination.partition.id", str(event.queue.queue_id))
        if event.error is not None:
            failed(span, event.error)
        elif event.kind == "half":
            while len(self._halves) >= HALVES_MAX:
                del self._halves[next(iter(self._halves))]
            self._halves[event.message_id] = trace.set_span_in_context(span)
        span.end()

    def begin_consume(self, event: ConsumeEvent) -> None:
        contexts = [propagate.extract(message.properties, context=context.Context()) for message in event.messages[:LINKS_MAX]]
        links = [Link(span_context) for span_context in map(span_context_of, contexts) if span_context.is_valid]
        attributes = common(event, "process") | {"messaging.destination.partition.id": str(event.queue.queue_id)}
        attributes["messaging.consumer.group.name"] = event.group
        if len(event.messages) == 1:
            (message,) = event.messages
            attributes |= described(message.properties) | {"messaging.message.id": message.message_id}
            attributes["messaging.message.body.size"] = message.stored_size
            parent = propagate.extract(message.properties) if links else None  # with what runs now around it: baggage of both
        else:
            attributes["messaging.batch.message_count"] = len(event.messages)
            parent = None
        span = self._tracer.start_span(f"process {event.topic}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links)
        event.data[SPAN] = span
        event.data[TOKEN] = context.attach(trace.set_span_in_context(span, parent))

    def end_consume(self, event: ConsumeEvent) -> None:
        span, token = event.data.pop(SPAN, None), event.data.pop(TOKEN, None)
        if span is None:
            return
        if trace.get_current_span() is span:  # else it ends in another task than it began in: a LitePullConsumer that is closed there
            context.detach(token)
        if event.error is not None:
            failed(span, event.error)
        elif event.failed:
            span.set_attribute("error.type", NOT_DONE.get(event.outcome, event.outcome))
            span.set_status(Status(StatusCode.ERROR, event.outcome))
        span.end()

    def settled(self, event: TransactionEvent) -> None:
        """A moment, not a time: nobody waits for the broker to answer."""
        attributes = common(event, "settle") | {"messaging.message.id": event.message_id} | server(event.broker_address)
        attributes["messaging.operation.name"] = str(event.state).lower()
        attributes["messaging.rocketmq.message.type"] = "transaction"
        # Another process may have sent it: then a broker asked, and gave the message with its properties.
        parent = self._halves.pop(event.message_id, None) or propagate.extract(event.message.properties)
        begun_ns = event.begun_ms * 1_000_000
        span = self._tracer.start_span(
            f"settle {event.topic}", context=parent, kind=SpanKind.CLIENT, attributes=attributes, start_time=begun_ns
        )
        if event.error is not None:
            failed(span, event.error)
        elif event.reason:
            span.set_status(Status(StatusCode.ERROR, event.reason[:500]))
        span.end(begun_ns)


class Instruments:
    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages that a producer tried to send.")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages given to a handler.")
        self._sending = histogram(meter, "messaging.client.operation.duration", "How long a send took.")
        self._processing = histogram(meter, "messaging.process.duration", "How long a handler took.")

    def sent(self, event: SendEvent) -> None:
        attributes = measured(event, "send") | server(event.broker_address) | error_type(event.error)
        self._sent.add(1, attributes)
        self._sending.record(event.duration_ms / 1000, attributes)

    def consumed(self, event: ConsumeEvent) -> None:
        attributes = measured(event, "process") | {"messaging.consumer.group.name": event.group} | error_type(event.error)
        if event.error is None and event.failed:
            attributes["error.type"] = NOT_DONE.get(event.outcome, event.outcome)
        self._consumed.add(len(event.messages), attributes)
        self._processing.record(event.duration_ms / 1000, attributes)


def histogram(meter: metrics.Meter, name: str, about: str) -> metrics.Histogram:
    try:
        return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=BUCKETS)
    except TypeError:  # OpenTelemetry before 1.29
        return meter.create_histogram(name, "s", about)


def measured(event: SendEvent | ConsumeEvent | TransactionEvent, operation: str) -> Attributes:
    """What metrics have: nothing that is different for each message."""
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": event.topic,
    }


def common(event: SendEvent | ConsumeEvent | TransactionEvent, operation: str) -> Attributes:
    return measured(event, operation) | {"messaging.client.id": event.client_id, "messaging.rocketmq.client_group": event.group}


def described(properties: Mapping[str, str]) -> Attributes:
    """What is only there for some messages."""
    found: Attributes = {}
    if tag := properties.get(Property.TAGS):
        found["messaging.rocketmq.message.tag"] = tag
    if keys := properties.get(Property.KEYS, "").split():
        found["messaging.rocketmq.message.keys"] = keys
    if group := properties.get(Property.SHARDING_KEY):
        found["messaging.rocketmq.message.group"] = group
    for name, attribute in NUMBERS.items():
        text = properties.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 19:
            found[attribute] = int(text)
    return found


NUMBERS = {
    Property.DELAY: "messaging.rocketmq.message.delay_time_level",
    Property.TIMER_DELIVER_MS: "messaging.rocketmq.message.delivery_timestamp",
}


def server(address: str) -> Attributes:
    host, _, port = address.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port)} if host and port.isdigit() else {}


def error_type(error: BaseException | None) -> Attributes:
    return {} if error is None else {"error.type": type(error).__qualname__}


def failed(span: Span, error: BaseException) -> None:
    span.set_attributes(error_type(error))
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__qualname__}: {error}"[:500]))


def span_context_of(found: Context) -> trace.SpanContext:
    return trace.get_current_span(found).get_span_context()
