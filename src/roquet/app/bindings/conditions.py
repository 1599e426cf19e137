"""Which messages a handler takes: condition="headers['key'] == 'tag'"."""

from __future__ import annotations

from typing import Any

import orjson

from roquet.app.bindings.expressions import compiled
from roquet.app.handlers import When
from roquet.message import ReceivedMessage


def condition_of(text: str | None) -> When | None:
    """Raises BadExpression."""
    if text is None:
        return None
    evaluate = compiled(text)

    def when(message: ReceivedMessage) -> bool:
        return bool(evaluate(lambda name: received_header(message, name), lambda: payload_of(message)))

    when.__name__ = text
    return when


def payload_of(message: ReceivedMessage) -> Any:
    try:
        return orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return message.body.decode(errors="replace")


def received_header(message: ReceivedMessage, name: str) -> Any:
    """A property; ROCKET_TAGS is TAGS, as Spring's binder shows it."""
    properties = message.properties
    for spelled in (name, name.removeprefix("ROCKET_"), name.removeprefix("rocketmq_")):
        if spelled in properties:
            return properties[spelled]
    return message.topic if name in ("ROCKET_TOPIC", "rocketmq_TOPIC") else None
