"""The few expressions of Spring that bindings use, read by a parser of our own: headers['orderId'], payload.customer.id,
headers['key'] == 'tag' and payload.total > 10. Nothing else is understood, and nothing is ever run as code.

or      = and { ("or" | "||") and }            and   = not { ("and" | "&&") not }
not     = ("not" | "!") not | compared         compared = value [ ("==" | "!=" | "<" | "<=" | ">" | ">=") value ]
value   = "(" or ")" | literal | ("headers" | "payload") { "." name | "?." name | "[" (text | number) "]" }
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from roquet.errors import ClientError

LENGTH_MAX = 1_000
DEPTH_MAX = 20
TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*'|\"[^\"]*\")|(?P<number>-?\d+(?:\.\d+)?)|(?P<name>[A-Za-z_][\w-]*)|(?P<sign>==|!=|<=|>=|&&|\|\||\?\.|[<>!()\[\].]))"
)
WORDS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or", "not": "not"}
SIGNS = {"&&": "and", "||": "or", "!": "not"}
LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: bool(left == right),
    "!=": lambda left, right: bool(left != right),
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}
EXAMPLES = "headers['key'] == 'tag', payload.orderId"

Headers = Callable[[str], Any]
"""The value of a header; None: there is none."""
Evaluate = Callable[[Headers, Callable[[], Any]], Any]
"""(headers, a function that gives the payload) -> the value."""


class BadExpression(ClientError):
    """An expression that is not one of those that are served."""


class NoValue(ClientError):
    """The payload has no such field."""


def compiled(text: str) -> Evaluate:
    """Raises BadExpression."""
    return Parser(text).parsed()


class Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        if len(text) > LENGTH_MAX:
            raise BadExpression(f"the expression has {len(text)} characters; allowed are {LENGTH_MAX}")
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            found = TOKEN.match(text, at)
            if found is None:
                raise self.wrong(f"{text[at:].strip()[:20]!r} is not served")
            kind = str(found.lastgroup)
            word = found[kind]
            if kind == "name" and word.lower() in WORDS and (not self.tokens or self.tokens[-1][1] not in (".", "?.")):
                kind, word = "sign", WORDS[word.lower()]
            self.tokens.append((kind, SIGNS.get(word, word) if kind == "sign" else word))
            at = found.end()
        self.at = 0

    def wrong(self, what: str) -> BadExpression:
        return BadExpression(f"the expression {self.text!r} cannot be used: {what}; expected is something as {EXAMPLES}")

    def parsed(self) -> Evaluate:
        found = self.either()
        if self.at < len(self.tokens):
            raise self.wrong(f"{self.tokens[self.at][1]!r} is too much")
        return found

    def next_is(self, *signs: str) -> str:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "sign" and self.tokens[self.at][1] in signs:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return ""

    def either(self) -> Evaluate:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.wrong(f"it is nested deeper than {DEPTH_MAX}")
        parts = [self.both()]
        while self.next_is("or"):
            parts.append(self.both())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else lambda headers, payload: any(part(headers, payload) for part in parts)

    def both(self) -> Evaluate:
        parts = [self.negated()]
        while self.next_is("and"):
            parts.append(self.negated())
        return parts[0] if len(parts) == 1 else lambda headers, payload: all(part(headers, payload) for part in parts)

    def negated(self) -> Evaluate:
        turns = 0
        while self.next_is("not"):
            turns += 1
        part = self.compared()
        return (lambda headers, payload: not part(headers, payload)) if turns % 2 else part

    def compared(self) -> Evaluate:
        left = self.value()
        sign = self.next_is(*COMPARED)
        if not sign:
            return left
        right = self.value()
        return lambda headers, payload: compare(sign, left(headers, payload), right(headers, payload))

    def value(self) -> Evaluate:
        if self.next_is("("):
            inner = self.either()
            if not self.next_is(")"):
                raise self.wrong("a ')' is missing")
            return inner
        kind, word = self.taken()
        if kind == "text":
            return constant(word[1:-1].replace("''", "'") if word[0] == "'" else word[1:-1])
        if kind == "number":
            return constant(number_of(word))
        if kind == "name" and word in LITERALS:
            return constant(LITERALS[word])
        if kind == "name" and word in ("headers", "payload"):
            return self.path(word)
        raise self.wrong(f"{word!r} is not served")

    def taken(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise self.wrong("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def path(self, root: str) -> Evaluate:
        steps: list[tuple[str | int, bool]] = []
        while sign := self.next_is(".", "?.", "["):
            kind, word = self.taken()
            if sign == "[":
                if kind not in ("text", "number") or not self.next_is("]"):
                    raise self.wrong("expected is ['name'] or [0]")
                steps.append((word[1:-1] if kind == "text" else int(float(word)), False))
            elif kind != "name":
                raise self.wrong("expected is a name after '.'")
            else:
                steps.append((word, sign == "?."))
        if self.next_is("("):
            raise self.wrong("methods are not called; use the field itself")
        if root == "payload":
            return lambda headers, payload: along(payload(), steps)
        if len(steps) != 1:
            raise self.wrong("expected is one name, as in headers['key']")
        name = str(steps[0][0])
        return lambda headers, payload: headers(name)


def constant(value: Any) -> Evaluate:
    return lambda headers, payload: value


def number_of(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def along(value: Any, steps: list[tuple[str | int, bool]]) -> Any:
    for step, may_be_none in steps:
        if value is None and may_be_none:
            return None
        value = inner(value, step)
    return value


def inner(value: Any, step: str | int) -> Any:
    """A field of what JSON has, or of a model. `orderId` also finds a field `order_id`."""
    if isinstance(step, int):
        if isinstance(value, (list, tuple)) and 0 <= step < len(value):
            return value[step]
        raise NoValue(f"a {type(value).__name__} has no item {step}")
    for name in (step, re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), step)):
        if isinstance(value, Mapping):
            if name in value:
                return value[name]
        elif not name.startswith("_") and not callable(found := getattr(value, name, len)):
            return found
    raise NoValue(f"a {type(value).__name__} has no field {step!r}")


def compare(sign: str, left: Any, right: Any) -> bool:
    """Headers are texts: beside a number or a truth they are read as one. What cannot be compared is not smaller nor greater."""
    left, right = alike(left, right), alike(right, left)
    try:
        return COMPARED[sign](left, right)
    except TypeError:
        return False


def alike(value: Any, other: Any) -> Any:
    if isinstance(value, str) and isinstance(other, bool):
        return {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, str) and isinstance(other, (int, float)) and re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", value):
        return number_of(value)
    return value
