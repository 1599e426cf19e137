"""The client's own producer: what a consumer sends for itself (messages to its retry topic, replies)."""

from __future__ import annotations

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.rhythm import HEARTBEAT_MAX_MS, PAUSE_MAX_MS

GROUP = "CLIENT_INNER_PRODUCER"


def inner_producer(client: ClientCore) -> ProducerCore:
    """Made and started at first use; it lives as long as the client."""
    found = client.producers.get(GROUP)
    if isinstance(found, ProducerCore):
        return found
    # What it sends for a consumer has a remedy of its own when it fails; nobody waits long for a broker that is away. It wants no
    # rhythm of its own.
    settings = ProducerSettings(delivery_timeout_ms=3_000, route_poll_ms=PAUSE_MAX_MS, heartbeat_ms=HEARTBEAT_MAX_MS)
    producer = ProducerCore(client, GROUP, settings)
    producer.start()
    return producer
