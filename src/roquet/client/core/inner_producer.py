"""The client's own producer: what a consumer sends for itself (messages to its retry topic, replies)."""

from __future__ import annotations

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore, ProducerSettings

GROUP = "CLIENT_INNER_PRODUCER"


def inner_producer(client: ClientCore) -> ProducerCore:
    """Made and started at first use; it lives as long as the client."""
    found = client.producers.get(GROUP)
    if isinstance(found, ProducerCore):
        return found
    # What it sends for a consumer has a remedy of its own when it fails; nobody waits long for a broker that is away.
    producer = ProducerCore(client, GROUP, ProducerSettings(delivery_timeout_ms=3_000))
    producer.start()
    return producer
