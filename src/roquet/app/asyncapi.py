"""The AsyncAPI 3.0 document of an app: which topics it takes and sends, and what is in their messages.

AsyncAPI has no words of its own for RocketMQ: groups, tags and order stand in `x-rocketmq`.
"""

from __future__ import annotations

import inspect
import io
import types
import typing
from typing import Any

from roquet.app.app import App
from roquet.app.handlers import VERDICTS, Handler
from roquet.app.parameters import EMPTY
from roquet.app.payloads import BYTES, JSON, TEXT
from roquet.app.publishing import Publisher
from roquet.app.schemas import Schemas, safe
from roquet.app.shapes import name_of

Object = dict[str, Any]
VERSION = "3.0.0"


def document(app: App) -> Object:
    """As JSON has it."""
    return Document(app).made


class Document:
    def __init__(self, app: App) -> None:
        self.app = app
        self.schemas = Schemas()
        self.messages: Object = {}
        self.channels: Object = {}
        self.operations: Object = {}
        for handler in app.handlers:
            self._handler(handler)
        for publisher in app.publishers:
            self._publisher(publisher)

    @property
    def made(self) -> Object:
        app = self.app
        info: Object = {"title": app.title, "version": app.version}
        if app.description:
            info["description"] = app.description
        servers = app.namesrv.split(";") if isinstance(app.namesrv, str) else list(app.namesrv)
        return {
            "asyncapi": VERSION,
            "info": info,
            "defaultContentType": JSON,
            "servers": {
                f"nameserver-{number}": {"host": address.strip(), "protocol": "rocketmq", "description": "name server"}
                for number, address in enumerate(servers, 1)
            },
            "channels": self.channels,
            "operations": self.operations,
            "components": {"messages": self.messages, "schemas": self.schemas.components},
        }

    # -- operations

    def _handler(self, handler: Handler) -> None:
        channel = self._channel(handler.topic)
        message = self._message(channel, bytes if handler.own_decode else handler.payload, bytes)
        facts: Object = {"group": handler.group}
        if handler.sql is not None:
            facts["sql"] = handler.sql
        elif handler.tags != "*":
            facts["tags"] = handler.tags
        settings = self.app.settings_of(handler)
        for name, word in (("orderly", "orderly"), ("broadcasting", "broadcasting"), ("reconsume_times_max", "retries")):
            if name in settings:
                facts[word] = settings[name]
        if handler.batch > 1:
            facts["batch"] = handler.batch
        operation: Object = {"action": "receive", **described(handler.function), **pointers(channel, message), "x-rocketmq": facts}
        if handler.reply:
            reply = self._channel(None, f"{handler.name}-reply")
            operation["reply"] = pointers(reply, self._message(reply, result_type(handler), str))
        self._operation(handler.name, operation)

    def _publisher(self, publisher: Publisher[Any]) -> None:
        channel = self._channel(publisher.topic)
        makers = [handler for handler in self.app.handlers if publisher in handler.publishers]
        kind = publisher.payload
        if kind is None:
            kind = result_type(makers[0]) if makers else Any
        message = self._message(channel, bytes if publisher.encode is not None else kind, Any, publisher.content_type)
        facts: Object = {"group": (publisher.producer or self.app).group}
        if isinstance(publisher.tags, str) and publisher.tags:
            facts["tags"] = publisher.tags
        summary = {"summary": f"what {' and '.join(handler.name for handler in makers)} returns"} if makers else {}
        self._operation(f"publish-{publisher.topic}", {"action": "send", **summary, **pointers(channel, message), "x-rocketmq": facts})

    def _operation(self, name: str, operation: Object) -> None:
        name = free = safe(name)
        number = 2
        while free in self.operations:
            free = f"{name}-{number}"
            number += 1
        self.operations[free] = operation

    # -- channels and messages

    def _channel(self, topic: str | None, name: str = "") -> str:
        key = safe(topic or name)
        self.channels.setdefault(key, {"address": topic, "messages": {}})
        return key

    def _message(self, channel: str, kind: Any, otherwise: Any, content_type: str | None = None) -> str:
        """The name of a message of the channel that carries this type."""
        kind = otherwise if kind is EMPTY or kind is None else kind
        name = safe(f"{channel}.{name_of(kind)}")
        if name not in self.messages:
            made: Object = {"name": name_of(kind), "contentType": content_type or content_type_of(kind)}
            self.messages[name] = {**made, "payload": self.schemas.of(kind)} if made["contentType"] == JSON else made
            self.channels[channel]["messages"][name] = {"$ref": f"#/components/messages/{name}"}
        return name


def pointers(channel: str, message: str) -> Object:
    return {"channel": {"$ref": f"#/channels/{channel}"}, "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}]}


def content_type_of(kind: Any) -> str:
    return BYTES if kind is bytes else TEXT if kind is str else JSON


def described(function: Any) -> Object:
    text = inspect.getdoc(function) or ""
    first, _, rest = text.partition("\n\n")
    found: Object = {}
    if first and inspect.isroutine(function):
        found["summary"] = " ".join(first.split())
        if rest.strip():
            found["description"] = rest.strip()
    return found


def result_type(handler: Handler) -> Any:
    """What it returns that is a value: without the verdicts."""
    hint = handler.returns
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if not is_verdict(kind)]
        return typing.Union[tuple(kinds)] if kinds else Any  # noqa: UP007 (of a list)
    return Any if hint is EMPTY or is_verdict(hint) else hint


def is_verdict(kind: Any) -> bool:
    return kind is type(None) or kind is None or (isinstance(kind, type) and issubclass(kind, VERDICTS))


def yaml_of(value: Object) -> str:
    """The same document for people."""
    from ruamel.yaml import YAML

    yaml, text = YAML(), io.StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 140
    yaml.dump(value, text)
    return text.getvalue()
