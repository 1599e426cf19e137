"""The client's own producer: what a consumer sends for itself (messages to its retry topic, replies)."""

from __future__ import annotations

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore

GROUP = "CLIENT_INNER_PRODUCER"


def inner_producer(client: ClientCore) -> ProducerCore:
    """Made and started at first use; it lives as long as the client."""
    found = client.producers.get(GROUP)
    if isinstance(found, ProducerCore):
        return found
    producer = ProducerCore(client, GROUP)
    producer.start()
    return producer
