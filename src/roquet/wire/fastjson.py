"""JSON as upstream writes it. Its library leaves the quotes off numeric keys and writes objects as keys:

    {0:"10.0.0.1:10911"}        {{"brokerName":"b","queueId":0,"topic":"t"}:12}

`loads` takes these besides strict JSON. A numeric key becomes its text ("0"), an object key an `ObjectKey`. Strict JSON,
which nearly everything is, goes through orjson.

`dumps` writes int keys bare and ObjectKey or MessageQueue keys as objects; `dumps_standard` quotes every key, sorts them
and keeps to ASCII, as upstream does for clients that ask for standard JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out; in the module since Python 3.0
from typing import Any

import orjson

from roquet.errors import Refused
from roquet.message import MessageQueue
from roquet.wire.codes import ResponseCode

DEPTH_MAX = 64
"""Deepest nesting accepted. The deepest document of upstream has 7."""


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object that stood as a key: its items sorted by name, so that equal objects are equal keys."""

    __slots__ = ()

    @classmethod
    def of(cls, items: Mapping[str, Any]) -> ObjectKey:
        return cls(sorted(items.items()))


def loads(data: bytes | str) -> Any:
    """The value. Raises Refused(1) with the place where it stops being JSON, or when it nests deeper than DEPTH_MAX."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    else:
        brackets = (data.count("[") + data.count("{")) if isinstance(data, str) else (data.count(b"[") + data.count(b"{"))
        if brackets > DEPTH_MAX:
            check_depth(value)
        return value
    try:
        text = data if isinstance(data, str) else data.decode()
        text.encode()
    except UnicodeError as error:
        raise wrong(f"it is not UTF-8: {error}") from None
    return Reader(text).document()


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        inner: list[Any] = []
        for one in level:
            if type(one) is dict:
                inner += one.values()
            elif type(one) is list:
                inner += one
        level = [one for one in inner if type(one) is dict or type(one) is list]
        if not level:
            return
    raise wrong(f"it nests deeper than {DEPTH_MAX}")


def wrong(what: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"the body is not the JSON expected: {what}")


SPACE = re.compile(r"[ \t\n\r]*")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
INTEGER = re.compile(r"-?[0-9]{1,20}")
NUMBER_LENGTH_MAX = 400
LITERALS = (("true", True), ("false", False), ("null", None))


class Reader:
    """The forgiving reader: recursive, bounded in depth, each step moves `at` forward."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> Any:
        value = self.value(0)
        self.skip()
        if self.at != len(self.text):
            raise self.unexpected("the end")
        return value

    def skip(self) -> str:
        """Move over white space; return the next character, or "" at the end."""
        found = SPACE.match(self.text, self.at)
        assert found is not None  # it matches nothing too
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def unexpected(self, wanted: str) -> Refused:
        seen = self.text[self.at : self.at + 12]
        return wrong(f"at character {self.at} stands {seen!r}, expected {wanted}" if seen else f"it ends, expected {wanted}")

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise wrong(f"it nests deeper than {DEPTH_MAX}")
        mark = self.skip()
        if mark == "{":
            return self.object(depth)
        if mark == "[":
            return [self.value(depth + 1) for _ in self.items("]")]
        if mark == '"':
            return self.string()
        for word, value in LITERALS:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return value
        return self.number()

    def object(self, depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for _ in self.items("}"):
            key = self.key(depth)
            if self.skip() != ":":
                raise self.unexpected("':'")
            self.at += 1
            made[key] = self.value(depth + 1)
        return made

    def items(self, end: str) -> Iterator[None]:
        """From the opening bracket to the closing one: stops before each item, which is then read."""
        self.at += 1
        mark = self.skip()
        if mark == end:
            self.at += 1
        while mark != end:
            yield
            mark = self.skip()
            if mark not in (end, ","):
                raise self.unexpected(f"',' or '{end}'")
            self.at += 1

    def key(self, depth: int) -> str | ObjectKey:
        mark = self.skip()
        if mark == '"':
            return self.string()
        if mark == "{":
            if depth >= DEPTH_MAX:
                raise wrong(f"it nests deeper than {DEPTH_MAX}")
            start = self.at
            items = self.object(depth + 1)
            for name, value in items.items():
                if not isinstance(name, str) or isinstance(value, (dict, list)):
                    raise wrong(f"the object at character {start} stands as a key and holds more than plain values")
            return ObjectKey.of(items)
        found = INTEGER.match(self.text, self.at)
        if found is None:
            raise self.unexpected("a key")
        self.at = found.end()
        return found[0]

    def string(self) -> str:
        try:
            text: str
            text, self.at = scanstring(self.text, self.at + 1, True)
            text.encode()  # half of a surrogate pair, written as \ud800, could never be sent on
        except ValueError as error:
            raise wrong(str(error)) from None
        return text

    def number(self) -> int | float:
        found = NUMBER.match(self.text, self.at)
        if found is None:
            raise self.unexpected("a value")
        self.at = found.end()
        text = found[0]
        if found[1] is None and found[2] is None and len(text) <= 20:
            whole = int(text)
            if -(1 << 63) <= whole < 1 << 64:
                return whole
        if len(text) > NUMBER_LENGTH_MAX:
            raise wrong(f"a number of {len(text)} characters, limit is {NUMBER_LENGTH_MAX}")
        number = float(text)  # a whole number of more than 64 bits becomes a float, as orjson has it
        if number in (float("inf"), float("-inf")):
            raise wrong(f"the number {text[:40]} is too large")
        return number


# ---- writing ----------------------------------------------------------------------------------------------------------

PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def dumps(value: Any) -> bytes:
    """Compact. None, bool, int, float, str, list, tuple and dict, nested up to DEPTH_MAX; raises TypeError for the rest.

    Keys: str quoted, int bare, ObjectKey and MessageQueue as objects.
    """
    try:
        return orjson.dumps(value, option=PLAIN)
    except TypeError:  # a key that is not text, most often
        text = bytearray()
        write(value, text, 0)
        return bytes(text)


def write(value: Any, text: bytearray, depth: int, *, pretty: bool = False) -> None:
    """Behind what is there. Pieces are not kept: each that orjson makes has a kilobyte, and a large answer a million of them."""
    if depth > DEPTH_MAX:
        raise TypeError(f"value nests deeper than {DEPTH_MAX}")
    if isinstance(value, dict) and value:
        mark, indent = b"{", b"\n" + b"\t" * (depth + 1) if pretty else b""
        for key, inner in value.items():
            text += mark
            text += indent
            text += write_key(key)
            text += b":"
            write(inner, text, depth + 1, pretty=pretty)
            mark = b","
        text += indent[:-1] + b"}"
    elif isinstance(value, (list, tuple)):
        mark = b"["
        for inner in value:
            text += mark
            write(inner, text, depth + 1)
            mark = b","
        text += b"]" if value else b"[]"
    else:
        text += orjson.dumps(value, option=PLAIN)


def write_key(key: Any) -> bytes:
    if isinstance(key, str):
        return orjson.dumps(str(key))
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    if isinstance(key, MessageQueue):
        return orjson.dumps({"brokerName": key.broker_name, "queueId": key.queue_id, "topic": key.topic})
    if isinstance(key, ObjectKey):
        return orjson.dumps(dict(key))
    raise TypeError(f"key {key!r} is a {type(key).__name__}, expected str, int, ObjectKey or MessageQueue")


def dumps_standard(value: Any) -> bytes:
    """Compact, every key quoted and sorted, ASCII only. An object key becomes the text of its JSON."""
    return json.dumps(quoted(value, 0), separators=(",", ":"), sort_keys=True, ensure_ascii=True, allow_nan=False).encode()


def quoted(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise TypeError(f"value nests deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        return {key if isinstance(key, str) else write_key(key).decode(): quoted(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [quoted(inner, depth + 1) for inner in value]
    return value


def dumps_pretty(value: Any) -> bytes:
    """Indented with tabs, int keys bare: for the config files, which people read and Java reads too."""
    text = bytearray()
    write(value, text, 0, pretty=True)
    return bytes(text)
