"""SEND_MESSAGE_V2 written by hand: what does not change from message to message is bytes made once.

`SendCommand` is an ordinary Command to everybody who looks at it; only its `encode` is short. A test holds the two
spellings together.
"""

from __future__ import annotations

import orjson

from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

LANGUAGE = "PYTHON"
END = b',"serializeTypeCurrentRPC":"JSON","version":409}'


class SendTemplate:
    """The constant parts of sends by one group to one topic on one broker."""

    __slots__ = ("batch", "broker_name", "code", "default_queues", "default_topic", "front", "group", "tail", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        broker_name: str,
        *,
        default_topic: str,
        default_queues: int,
        batch: bool = False,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> None:
        self.group = group
        self.topic = topic
        self.broker_name = broker_name
        self.default_topic = default_topic
        self.default_queues = default_queues
        self.batch = batch
        self.code = int(RequestCode.SEND_BATCH_MESSAGE if batch else code)
        text = orjson.dumps
        self.front = b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","e":"' % (
            self.code, text(group), text(topic), text(default_topic), default_queues,
        )  # fmt: skip
        self.tail = b',"j":"0","k":"false","m":"%b","n":%b},"flag":' % (b"true" if batch else b"false", text(broker_name))


class SendCommand(Command):
    """One send. The fields are made only when somebody asks for them."""

    __slots__ = ("_born", "_made", "_properties", "_queue_id", "_sys_flag", "_template", "_user_flag")

    def __init__(
        self, template: SendTemplate, queue_id: int, sys_flag: int, born_ms: int, user_flag: int, properties: str, body: bytes
    ) -> None:
        # Not through Command.__init__: it is the hot path, and half of what it sets is constant here.
        self._template = template
        self._queue_id = queue_id
        self._sys_flag = sys_flag
        self._born = born_ms
        self._user_flag = user_flag
        self._properties = properties
        self._made: dict[str, str] | None = None
        self.code = template.code
        self.body = body
        self.opaque = 0
        self.flag = 0
        self.remark = None
        self.language = LANGUAGE
        self.version = 409
        self.binary = False

    @property
    def fields(self) -> dict[str, str]:
        if self._made is None:
            template = self._template
            self._made = {
                "a": template.group,
                "b": template.topic,
                "c": template.default_topic,
                "d": str(template.default_queues),
                "e": str(self._queue_id),
                "f": str(self._sys_flag),
                "g": str(self._born),
                "h": str(self._user_flag),
                "i": self._properties,
                "j": "0",
                "k": "false",
                "m": "true" if template.batch else "false",
                "n": template.broker_name,
            }
        return self._made

    @fields.setter
    def fields(self, value: dict[str, str]) -> None:
        self._made = value

    def encode(self) -> bytes:
        if self._made is not None or self.binary:
            return super().encode()  # somebody may have changed them (a signature, a hook)
        template = self._template
        body = self.body
        header = b'%b%d","f":"%d","g":"%d","h":"%d","i":%b%b%d,"language":"PYTHON","opaque":%d%b' % (
            template.front, self._queue_id, self._sys_flag, self._born, self._user_flag, orjson.dumps(self._properties), template.tail,
            self.flag, self.opaque, END,
        )  # fmt: skip
        size = len(header)
        return b"%b%b%b%b" % ((4 + size + len(body)).to_bytes(4, "big"), size.to_bytes(4, "big"), header, body)
