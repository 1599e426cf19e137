"""What a call is: a request code with the shapes of what is asked and of what is answered.

    GET_TOPIC_STATS_INFO = Call(Code.GET_TOPIC_STATS_INFO, TopicHeader, Nothing, Nothing, TopicStats)

    command = GET_TOPIC_STATS_INFO.request(TopicHeader("orders"))             who asks
    header = GET_TOPIC_STATS_INFO.read_header(command)                        who answers
    reply = GET_TOPIC_STATS_INFO.reply(command, body=TopicStats(...))
    stats = GET_TOPIC_STATS_INFO.answer(reply).body                           who asked

An answer has these shapes when it is a success; a refusal has a code and a remark, and `Command.reply` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from roquet.properties import parse_properties
from roquet.wire import headers
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command


class Carried(Protocol):
    """A body: JSON mostly (`Body`), else one of the forms below."""

    @classmethod
    def decode(cls, data: bytes) -> Self: ...

    def encode(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fields that mean anything, or no body."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls()

    def encode(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class Bytes:
    data: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(data)

    def encode(self) -> bytes:
        return self.data


class Message(Bytes):
    """What the user sent, as it is."""


class Batch(Bytes):
    """Messages of one send, see `wire/batch.py`."""


class Records(Bytes):
    """Records as they are stored, one after the other, see `wire/record.py`."""


class Properties(Bytes):
    """Settings as Java's properties text."""

    def pairs(self) -> dict[str, str]:
        """Raises UnicodeDecodeError."""
        return parse_properties(self.data.decode())


Header = TypeVar("Header")
Asked = TypeVar("Asked", bound=Carried)
AnswerHeader = TypeVar("AnswerHeader")
Answered = TypeVar("Answered", bound=Carried)


@dataclass(frozen=True, slots=True)
class Call(Generic[Header, Asked, AnswerHeader, Answered]):
    code: RequestCode
    header_type: type[Header]
    body_type: type[Asked]
    answer_header_type: type[AnswerHeader]
    answer_body_type: type[Answered]

    def request(self, header: Header | None = None, body: Asked | bytes = b"", *, flag: int = 0, language: str = "JAVA") -> Command:
        """A body that is bytes is encoded already."""
        fields = {} if header is None else headers.encode(header)
        return Command(int(self.code), fields, body if isinstance(body, bytes) else body.encode(), flag=flag, language=language)

    def read_header(self, command: Command) -> Header:
        """Raises Refused."""
        return headers.decode(self.header_type, command.fields)

    def read_body(self, command: Command) -> Asked:
        """Raises Refused."""
        return self.body_type.decode(command.body)

    def reply(
        self,
        command: Command,
        header: AnswerHeader | None = None,
        body: Answered | bytes = b"",
        *,
        code: int = 0,
        remark: str | None = None,
    ) -> Command:
        """A body that is bytes is encoded already."""
        fields = None if header is None else headers.encode(header)
        return command.reply(code, remark, fields, body if isinstance(body, bytes) else body.encode())

    def answer(self, command: Command) -> Answer[AnswerHeader, Answered]:
        return Answer(command, self.answer_header_type, self.answer_body_type)


AnyCall = Call[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Answer(Generic[AnswerHeader, Answered]):
    """An answer, read when it is looked at."""

    command: Command
    header_type: type[AnswerHeader]
    body_type: type[Answered]

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def ok(self) -> bool:
        return self.command.code == ResponseCode.SUCCESS

    @property
    def header(self) -> AnswerHeader:
        """Raises Refused."""
        return headers.decode(self.header_type, self.command.fields)

    @property
    def body(self) -> Answered:
        """Raises Refused."""
        return self.body_type.decode(self.command.body)
