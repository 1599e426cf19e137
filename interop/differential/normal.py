"""What two brokers can be expected to agree in: answers as plain values, with times, ids and addresses named instead of spelled.

A time near now becomes `<time>`; an offset id of this broker `<offset id>`; an address what it stands for (`<broker>`, or
the name of the connection). A place in the log becomes `<place>`. Everything else stays as it came.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import orjson

from roquet.errors import RoquetError
from roquet.wire import fastjson
from roquet.wire.calls.call import Records
from roquet.wire.calls.table import CALLS
from roquet.wire.command import Command
from roquet.wire.record import BadRecord, Record, decode_properties, decode_records

DAY_MS = 86_400_000
PLACES = {"commitLogOffset", "indexLastUpdatePhyoffset", "physicOffset", "offset_of_log"}
"""Fields that hold a place in the log."""

# Java's remark of an exception is its class, its text, and the first stack frame.
FRAME = re.compile(r", (?:[\w$.<>/]+\.)+[\w$<>]+\((?:[\w$]+\.java:\d+|Native Method|Unknown Source|<generated>)\)$")
JAVA_TIME = re.compile(r"\b\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d\d\d\b")
PLACE = re.compile(r"\b(none begins at) \d+")
OFFSET_ID = re.compile(r"\b[0-9A-F]{32}\b")


class Names:
    """What addresses and ids of one cluster are called."""

    def __init__(self, broker: str, namesrv: str) -> None:
        self._names = {broker: "<broker>", namesrv: "<name server>"}
        host, port = broker.rsplit(":", 1)
        self._names[f"{host}:{int(port) + 1}"] = "<broker's HA port>"
        self._id_front = (bytes(map(int, host.split("."))) + int(port).to_bytes(4, "big")).hex().upper()
        self._now = int(time.time() * 1000)

    def add(self, address: str, name: str) -> None:
        self._names[address] = name

    def text(self, text: str) -> str:
        for address, name in sorted(self._names.items(), key=lambda item: -len(item[0])):
            text = re.sub(re.escape(address) + r"(?!\d)", name, text)
        text = PLACE.sub(r"\1 <place>", JAVA_TIME.sub("<time>", text))
        return OFFSET_ID.sub(lambda found: "<offset id>" if found[0].startswith(self._id_front) else found[0], text)

    def number(self, number: int) -> int | str:
        return "<time>" if abs(number - self._now) < DAY_MS else number

    def host(self, host: bytes) -> str:
        return self.text(".".join(map(str, host[:4])) + f":{int.from_bytes(host[4:], 'big')}")

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value, or a header's field. Lists are sets in Java nearly always, so they are put in order."""
        if isinstance(value, dict):
            return {self._key(name): self.value(inner, str(name)) for name, inner in value.items()}
        if isinstance(value, list):
            return sorted((self.value(inner) for inner in value), key=repr)
        if key in PLACES and str(value).isdigit():
            return "<place>"
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.number(value)
        if isinstance(value, str):
            if value.isascii() and value.isdigit():
                return str(self.number(int(value)))
            return self.text(value)
        return value

    def _key(self, key: Any) -> str:
        if isinstance(key, fastjson.ObjectKey):
            return str(dict(key))
        return self.text(str(key))

    def record(self, record: Record) -> dict[str, Any]:
        return {
            "topic": record.topic,
            "queue": record.queue_id,
            "offset": record.queue_offset,
            "flag": record.flag,
            "sys flag": record.sys_flag,
            "born": self.number(record.born_timestamp),
            "born host": self.host(record.born_host),
            "stored": self.number(record.store_timestamp),
            "store host": self.host(record.store_host),
            "reconsumed": record.reconsume_times,
            "prepared at": "<place>" if record.prepared_transaction_offset > 0 else record.prepared_transaction_offset,
            "body": self.text(record.body[:4000].decode("utf-8", "backslashreplace")),
            "properties": self.value(decode_properties(record.properties)),
            "magic": record.magic,
        }


def seen_answer(
    command: Command,
    request: Command,
    names: Names,
    *,
    only: str = "",
    without: Iterable[str] = (),
    shape: Iterable[str] = (),
) -> dict[str, Any]:
    """An answer as a value. `only`: this part of it. `without`: these paths are left out. `shape`: of these the keys alone."""
    call = CALLS.get(request.code)
    return _seen(command, call is not None and call.answer_body_type is Records, names, only, without, shape)


def seen_push(push: Command, names: Names, *, only: str = "", without: Iterable[str] = (), shape: Iterable[str] = ()) -> dict[str, Any]:
    """A request of the server as a value."""
    call = CALLS.get(push.code)
    return _seen(push, call is not None and call.body_type is Records, names, only, without, shape)


def _seen(command: Command, records: bool, names: Names, only: str, without: Iterable[str], shape: Iterable[str]) -> dict[str, Any]:
    value: dict[str, Any] = {
        "code": command.code,
        "flag": command.flag,
        "form": "binary" if command.binary else "JSON",
        "language": command.language,
        "remark": None if command.remark is None else names.text(FRAME.sub("", command.remark)),
        "fields": _fields(command, names),
        "body": _body(command, records, names),
    }
    for path in shape:
        _change(value, path.split("."), _shape)
    for path in without:
        _remove(value, path.split("."))
    if only == "version":  # the same in every answer, so one step looks at it
        return {"version": command.version}
    return {only: value[only]} if only else value


def _fields(command: Command, names: Names) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in command.fields.items():
        if name == "properties":
            fields[name] = names.value(decode_properties(value))
        elif value.startswith("{"):
            fields[name] = names.value(fastjson.loads(value))
        else:
            fields[name] = names.value(value, name)
    return fields


def _body(command: Command, records: bool, names: Names) -> Any:
    body = command.body
    if not body:
        return None
    if records:
        try:
            return [names.record(record) for record in decode_records(body)]
        except BadRecord as error:
            return f"no records: {error}"
    if body[:1] in b"{[":
        try:
            value = names.value(fastjson.loads(body))
        except RoquetError as error:
            return f"no JSON: {error}"
        return {"JSON": value, "strict": _is_strict(body)}
    text = body.decode("utf-8", "backslashreplace")
    lines = text.splitlines()
    if lines and all("=" in line for line in lines):
        return {name: names.text(value) for name, _, value in (line.partition("=") for line in lines)}
    return names.text(text)


def _shape(value: Any) -> Any:
    return dict.fromkeys(value, "there") if isinstance(value, dict) else type(value).__name__


def _is_strict(body: bytes) -> bool:
    """Whether any JSON reader takes it, or only Java's kind."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def _change(value: Any, path: list[str], change: Any) -> None:
    for inner in _parents(value, path):
        if path[-1] in inner:
            inner[path[-1]] = change(inner[path[-1]])


def _remove(value: Any, path: list[str]) -> None:
    for inner in _parents(value, path):
        inner.pop(path[-1], None)


def _parents(value: Any, path: list[str]) -> list[dict[str, Any]]:
    """The dictionaries that the last word of the path is looked up in; `*` stands for everything in a list or dictionary."""
    found = [value]
    for word in path[:-1]:
        if word == "*":
            found = [inner for one in found if isinstance(one, (dict, list)) for inner in (one.values() if isinstance(one, dict) else one)]
        else:
            found = [one[word] for one in found if isinstance(one, dict) and word in one]
    return [one for one in found if isinstance(one, dict)]


# ---- comparing


class Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()
Difference = tuple[str, Any, Any]
"""(path, theirs, ours)."""


def differences(theirs: Any, ours: Any, path: str = "") -> list[Difference]:
    """Where two values differ, as deep as both have the same shape."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found: list[Difference] = []
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            found += differences(theirs.get(key, ABSENT), ours.get(key, ABSENT), f"{path}.{key}" if path else str(key))
        return found
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [
            each
            for index, (one, other) in enumerate(zip(theirs, ours, strict=True))
            for each in differences(one, other, f"{path}[{index}]")
        ]
    return [] if theirs == ours and type(theirs) is type(ours) else [(path or "answer", theirs, ours)]
