"""What members say to each other, and its bytes: one JSON object in the body of a remoting frame, as fastjson writes it.

    request_of(code, body)      bytes -> request        raises Unreadable, with a sentence
    body_of(message)            request or answer -> bytes: names sorted, nothing that is None
    answer_of(code, body)       bytes -> the answer to a request of that code

Reading is tolerant as Java's is: unknown names are passed over, missing ones have defaults, the order is free. What is there has to
have its type and to be in its range.

`ours` is Roquet's own addition to each message, the field "roquet": a member that sends it knows trial votes and dense pushes and takes
over a larger term at once. Java ignores the field. Answers carry it only when the request did.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import orjson

from roquet.errors import RoquetError
from roquet.raft.codes import Call, Code, PushType, VoteResult
from roquet.raft.ledger import HEAD
from roquet.wire.ledger_entry import Entry

OURS = 1
"""The version of our additions."""
BATCH_MAX = 10_000
"""Entries in one push; Java sends a few."""
NAME_MAX = 255
LONG = 1 << 63
INT = 1 << 31

E = TypeVar("E", PushType, VoteResult)


class Unreadable(RoquetError):
    """A body that is no message: what stands there, and what was expected."""


@dataclass(slots=True, kw_only=True)
class Message:
    """What every request and every answer has."""

    group: str | None = None
    remote_id: str | None = None
    """Of a request: who is asked."""
    local_id: str | None = None
    """Of a request: who asks."""
    leader_id: str | None = None
    term: int = -1
    code: int = Code.SUCCESS
    ours: int = 0


@dataclass(slots=True, kw_only=True)
class Request(Message):
    pass


@dataclass(slots=True, kw_only=True)
class Answer(Message):
    pass


@dataclass(slots=True, kw_only=True)
class MetadataRequest(Request):
    pass


@dataclass(slots=True, kw_only=True)
class MetadataAnswer(Answer):
    peers: dict[str, str] | None = None


@dataclass(slots=True, kw_only=True)
class AppendRequest(Request):
    body: bytes | None = None


@dataclass(slots=True, kw_only=True)
class AppendAnswer(Answer):
    index: int = -1
    pos: int = -1


@dataclass(slots=True, kw_only=True)
class GetRequest(Request):
    begin_index: int = -1


@dataclass(slots=True, kw_only=True)
class GetAnswer(Answer):
    entries: Sequence[Entry] = ()


@dataclass(slots=True, kw_only=True)
class VoteRequest(Request):
    ledger_end_index: int = -1
    ledger_end_term: int = -1
    trial: bool = False
    """Ours: would you vote for me? Nothing changes at the one who is asked."""


@dataclass(slots=True, kw_only=True)
class VoteAnswer(Answer):
    result: VoteResult = VoteResult.UNKNOWN


@dataclass(slots=True, kw_only=True)
class HeartBeatRequest(Request):
    every_ms: int = 0
    """Ours: how often it comes; 0: as often as DLedger's."""


@dataclass(slots=True, kw_only=True)
class HeartBeatAnswer(Answer):
    cannot_write: bool = False
    """Told among Roquet's members: its disk is full, or has failed."""


@dataclass(slots=True, kw_only=True)
class PushRequest(Request):
    kind: PushType = PushType.APPEND
    commit_index: int = -1
    entries: Sequence[Entry] = ()
    """One entry, or the entries of a batch."""
    batch: bool = False

    @property
    def first(self) -> int:
        return self.entries[0].index if self.entries else -1

    @property
    def last(self) -> int:
        return self.entries[-1].index if self.entries else -1


@dataclass(slots=True, kw_only=True)
class PushAnswer(Answer):
    index: int | None = None
    count: int = 0
    begin_index: int = 0
    end_index: int = 0
    committed: int = -1
    """Ours: up to here its entries are those of any leader."""


@dataclass(slots=True, kw_only=True)
class TransferRequest(Request):
    transfer_id: str | None = None
    """Who leads."""
    transferee_id: str | None = None
    """Who is to lead."""
    take_leadership_ledger_index: int = 0


@dataclass(slots=True, kw_only=True)
class TransferAnswer(Answer):
    pass


@dataclass(slots=True, kw_only=True)
class DensePush(Request):
    """Ours: entries as they stand in the data files, one after another (`dense` has its bytes)."""

    commit_index: int = -1
    first: int = 0
    count: int = 0
    before_term: int = -1
    """Term of the entry before the first; -1 when there is none."""
    data: bytes | memoryview = field(default=b"", repr=False)

    @property
    def last(self) -> int:
        return self.first + self.count - 1


# Reading


class Fields:
    """A JSON object whose fields are read with their type and range."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > NAME_MAX:
            raise Unreadable(f"{name} is {shown(value)}, expected a text of at most {NAME_MAX} characters")
        return value

    def number(self, name: str, default: int, limit: int = LONG) -> int:
        value = self.values.get(name)
        if value is None:
            return default
        if type(value) is not int or not -limit <= value < limit:
            raise Unreadable(f"{name} is {shown(value)}, expected a whole number of {limit.bit_length()} bits")
        return value

    def flag(self, name: str) -> bool:
        return self.values.get(name) is True

    def name_of(self, name: str, kind: type[E], default: E) -> E:
        value = self.values.get(name)
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError:
            raise Unreadable(f"{name} is {shown(value)}, expected one of {', '.join(kind)}") from None

    def data(self, name: str) -> bytes | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise Unreadable(f"{name} is {shown(value)}, expected base64")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Unreadable(f"{name} is {shown(value)}, expected base64") from None

    def entries(self, name: str) -> list[Entry]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > BATCH_MAX:
            raise Unreadable(f"{name} is {shown(value)}, expected at most {BATCH_MAX} entries")
        return [read_entry(each) for each in value]


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}... ({len(text)} characters)"


def read_object(body: bytes) -> Fields:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"the body is a JSON {type(value).__name__}, expected an object")
    return Fields(value)


def read_entry(value: object) -> Entry:
    if not isinstance(value, dict):
        raise Unreadable(f"an entry is {shown(value)}, expected an object")
    fields = Fields(value)
    body = fields.data("body") or b""
    entry = Entry(
        fields.number("magic", 0, INT),
        fields.number("size", 0, INT),
        fields.number("index", 0),
        fields.number("term", 0),
        fields.number("pos", 0),
        fields.number("channel", 0, INT),
        fields.number("chainCrc", 0, INT),
        fields.number("bodyCrc", 0, INT),
        body,
    )
    if entry.size != HEAD + len(body) or entry.index < 0 or entry.pos < 0 or entry.term < 0:
        raise Unreadable(
            f"an entry of {len(body)} bytes says size {entry.size}, index {entry.index}, term {entry.term}, position {entry.pos}; "
            f"expected size {HEAD + len(body)}, and no number below 0"
        )
    return entry


def common(fields: Fields) -> dict[str, Any]:
    return {
        "group": fields.text("group"),
        "remote_id": fields.text("remoteId"),
        "local_id": fields.text("localId"),
        "leader_id": fields.text("leaderId"),
        "term": fields.number("term", -1),
        "code": fields.number("code", Code.SUCCESS, INT),
        "ours": fields.number("roquet", 0, INT),
    }


def read_push(fields: Fields) -> PushRequest:
    single = fields.values.get("entry")
    entries = fields.entries("batchEntry")
    batch = bool(entries)
    if not entries and single is not None:
        entries = [read_entry(single)]
    for before, after in pairwise(entries):
        if after.index != before.index + 1:
            raise Unreadable(f"entry {after.index} follows entry {before.index} in one batch, expected {before.index + 1}")
    return PushRequest(
        **common(fields),
        kind=fields.name_of("type", PushType, PushType.APPEND),
        commit_index=fields.number("commitIndex", -1),
        entries=entries,
        batch=batch,
    )


def read_peers(fields: Fields) -> dict[str, str] | None:
    value = fields.values.get("peers")
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(address, str) for address in value.values()):
        raise Unreadable(f"peers is {shown(value)}, expected addresses by id")
    return value


REQUESTS: dict[int, Callable[[Fields], Request]] = {
    Call.METADATA: lambda fields: MetadataRequest(**common(fields)),
    Call.APPEND: lambda fields: AppendRequest(**common(fields), body=fields.data("body")),
    Call.GET: lambda fields: GetRequest(**common(fields), begin_index=fields.number("beginIndex", -1)),
    Call.VOTE: lambda fields: VoteRequest(
        **common(fields),
        ledger_end_index=fields.number("ledgerEndIndex", -1),
        ledger_end_term=fields.number("ledgerEndTerm", -1),
        trial=fields.flag("trial"),
    ),
    Call.HEART_BEAT: lambda fields: HeartBeatRequest(**common(fields), every_ms=fields.number("everyMs", 0, INT)),
    Call.PUSH: read_push,
    Call.LEADERSHIP_TRANSFER: lambda fields: TransferRequest(
        **common(fields),
        transfer_id=fields.text("transferId"),
        transferee_id=fields.text("transfereeId"),
        take_leadership_ledger_index=fields.number("takeLeadershipLedgerIndex", 0),
    ),
}

ANSWERS: dict[int, Callable[[Fields], Answer]] = {
    Call.METADATA: lambda fields: MetadataAnswer(**common(fields), peers=read_peers(fields)),
    Call.APPEND: lambda fields: AppendAnswer(**common(fields), index=fields.number("index", -1), pos=fields.number("pos", -1)),
    Call.GET: lambda fields: GetAnswer(**common(fields), entries=fields.entries("entries")),
    Call.VOTE: lambda fields: VoteAnswer(**common(fields), result=fields.name_of("voteResult", VoteResult, VoteResult.UNKNOWN)),
    Call.HEART_BEAT: lambda fields: HeartBeatAnswer(**common(fields), cannot_write=fields.flag("cannotWrite")),
    Call.PUSH: lambda fields: PushAnswer(
        **common(fields),
        index=fields.number("index", 0) if "index" in fields.values else None,
        count=fields.number("count", 0, INT),
        begin_index=fields.number("beginIndex", 0),
        end_index=fields.number("endIndex", 0),
        committed=fields.number("committed", -1),
    ),
    Call.LEADERSHIP_TRANSFER: lambda fields: TransferAnswer(**common(fields)),
}


def request_of(code: int, body: bytes) -> Request:
    """Raises Unreadable, KeyError for a code that is none of ours."""
    return REQUESTS[code](read_object(body))


def answer_of(code: int, body: bytes) -> Answer:
    """The answer to a request of this code. Raises Unreadable, KeyError."""
    return ANSWERS[code](read_object(body))


# Writing


def base(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"code": int(message.code), "term": message.term}
    for name, text in (
        ("group", message.group),
        ("leaderId", message.leader_id),
        ("localId", message.local_id),
        ("remoteId", message.remote_id),
    ):
        if text is not None:
            found[name] = text
    if message.ours:
        found["roquet"] = message.ours
    return found


def entry_object(entry: Entry) -> dict[str, Any]:
    return {
        "body": base64.b64encode(entry.body).decode("ascii"),
        "bodyCrc": entry.body_crc,
        "chainCrc": entry.chain_crc,
        "channel": entry.channel,
        "index": entry.index,
        "magic": entry.magic,
        "pos": entry.pos,
        "size": entry.size,
        "term": entry.term,
    }


def push_object(push: PushRequest) -> dict[str, Any]:
    found: dict[str, Any] = {
        "batch": push.batch,
        "batchEntry": [entry_object(entry) for entry in push.entries] if push.batch else [],
        "commitIndex": push.commit_index,
        "count": len(push.entries),
        "firstEntryIndex": push.first,
        "lastEntryIndex": push.last,
        "totalSize": sum(entry.size for entry in push.entries) if push.batch else 0,
        "type": str(push.kind),
    }
    if push.entries and not push.batch:
        found["entry"] = entry_object(push.entries[0])
    return found


def push_answer_object(answer: PushAnswer) -> dict[str, Any]:
    found: dict[str, Any] = {"beginIndex": answer.begin_index, "count": answer.count, "endIndex": answer.end_index}
    if answer.index is not None:
        found["index"] = answer.index
    if answer.ours:
        found["committed"] = answer.committed
    return found


def transfer_object(request: TransferRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"takeLeadershipLedgerIndex": request.take_leadership_ledger_index}
    if request.transfer_id is not None:
        found["transferId"] = request.transfer_id
    if request.transferee_id is not None:
        found["transfereeId"] = request.transferee_id
    return found


def vote_object(request: VoteRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"ledgerEndIndex": request.ledger_end_index, "ledgerEndTerm": request.ledger_end_term}
    if request.trial:
        found["trial"] = True
    return found


def more_of(message: Message) -> dict[str, Any]:
    """The fields beyond the common ones."""
    match message:
        case PushRequest():
            return push_object(message)
        case PushAnswer():
            return push_answer_object(message)
        case VoteRequest():
            return vote_object(message)
        case VoteAnswer():
            return {"voteResult": str(message.result)}
        case HeartBeatRequest():
            return {"everyMs": message.every_ms} if message.every_ms else {}
        case HeartBeatAnswer():
            return {"cannotWrite": True} if message.cannot_write and message.ours else {}
        case TransferRequest():
            return transfer_object(message)
        case MetadataAnswer():
            return {"peers": message.peers} if message.peers is not None else {}
        case AppendRequest():
            return {"body": base64.b64encode(message.body).decode("ascii")} if message.body is not None else {}
        case AppendAnswer():
            return {"index": message.index, "pos": message.pos}
        case GetRequest():
            return {"beginIndex": message.begin_index}
        case GetAnswer():
            return {"entries": [entry_object(entry) for entry in message.entries]}
        case _:
            return {}


def body_of(message: Message) -> bytes:
    return orjson.dumps(base(message) | more_of(message), option=orjson.OPT_SORT_KEYS)


CALLS: dict[type[Request], Call] = {
    MetadataRequest: Call.METADATA,
    AppendRequest: Call.APPEND,
    GetRequest: Call.GET,
    VoteRequest: Call.VOTE,
    HeartBeatRequest: Call.HEART_BEAT,
    PushRequest: Call.PUSH,
    TransferRequest: Call.LEADERSHIP_TRANSFER,
    DensePush: Call.DENSE_PUSH,
}
