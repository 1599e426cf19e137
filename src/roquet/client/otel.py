"""OpenTelemetry: spans and metrics of sends and of handlers, by the semantic conventions for messaging.

    Producer("orders-service", middleware=[OpenTelemetry()])
    PushConsumer("billing", middleware=[OpenTelemetry()])

A message carries its span as the properties `traceparent` and `tracestate`, so that a handler's span belongs to the same trace, in whatever
language the producer is written. Needs `pip install 'roquet[otel]'`; where spans go is decided by the providers of your program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.client.middleware import Middleware
from roquet.errors import ClientError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from roquet.client.core.events import ConsumeEvent, SendEvent, TransactionEvent


class OpenTelemetry(Middleware):
    """Makes a span `send TOPIC` of each message that is sent, `process TOPIC` of each call of a handler, `settle TOPIC` of each end of a
    transaction that a broker is told; and counts and times sends and calls."""

    def __init__(self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        """Without providers: the ones that your program has set for all. Raises ClientError where OpenTelemetry is not installed."""
        try:
            from roquet.client.otel_spans import Instruments, Spans
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise ClientError("OpenTelemetry() needs the package opentelemetry-api; install it: pip install 'roquet[otel]'") from None
        self._spans = Spans(tracer_provider)
        self._instruments = Instruments(meter_provider)

    def before_send(self, event: SendEvent) -> None:
        """A span begins, and the message carries it."""
        self._spans.begin_send(event)

    def after_send(self, event: SendEvent) -> None:
        """It ends with the receipt, or the error."""
        self._spans.end_send(event)
        self._instruments.sent(event)

    def before_consume(self, event: ConsumeEvent) -> None:
        """A span begins, inside of which the handler runs."""
        self._spans.begin_consume(event)

    def after_consume(self, event: ConsumeEvent) -> None:
        """It ends with the outcome."""
        self._spans.end_consume(event)
        self._instruments.consumed(event)

    def after_transaction(self, event: TransactionEvent) -> None:
        """A span of the end, below that of the send."""
        self._spans.settled(event)
