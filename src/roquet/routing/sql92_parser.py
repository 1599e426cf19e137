"""Reading SQL92 filter expressions: text -> words -> tree. What the tree means is routing.sql92's to say.

    or          := and (OR and)*
    and         := equality (AND equality)*
    equality    := comparison (("=" | "<>") comparison | IS [NOT] NULL)*
    comparison  := unary ((">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary | [NOT] IN ("'x'", ...)
                          | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'x')*
    unary       := ("+" | "-" | NOT) unary | literal | property | "(" or ")"

Different from Apache on purpose: what follows a complete expression is refused, where Apache ignores it (`a LIKE 'x'` is there
read as `a`, and matches nothing); the names of the text searches, keywords since 5.x, are property names wherever a property
may stand, as in 4.9; lengths are bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import dataclass_transform

from roquet.routing.java_numbers import INT_MAX, LONG_MAX, order
from roquet.routing.subscription import EXPRESSION_LENGTH_MAX, BadExpression

DEPTH_MAX = 64
COST_MAX = 1_000
"""Properties, literals and operators of one expression; the strings of an IN count together as one, since a set holds them."""
NAME_LENGTH_MAX = 255


class BadSql(BadExpression):
    """An SQL92 expression that cannot be used. `position` counts characters from 0; the text says line and column."""

    def __init__(self, expression: str, position: int, what: str) -> None:
        before = expression[:position]
        line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
        near = expression[position : position + 20]
        where = f"near {near!r}" if near else "at the end"
        super().__init__(f"SQL92 expression, line {line} column {column}, {where}: {what}")
        self.expression = expression
        self.position = position


# ---- the tree --------------------------------------------------------------------------------------------------------


class Kind(Enum):
    """What a node gives, as far as it is not unknown."""

    TEXT = "text"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    NOTHING = "nothing"  # always unknown


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Node:
    """Each is a frozen dataclass of what it is made of; `at` is where it begins in the text."""

    at: int

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Property(Node):
    name: str


class Literal(Node):
    kind: Kind
    value: bytes | int | float | bool | None


class Negative(Node):
    of: Node


class Not(Node):
    of: Node


class Truth(Node):
    """A property where a condition is wanted: false, or unknown when it is missing."""

    of: Property


class Logic(Node):
    is_and: bool
    parts: tuple[Node, ...]


class Compare(Node):
    operator: str  # = > >= < <=
    left: Node
    right: Node


class IsNull(Node):
    of: Node


class In(Node):
    of: Property
    values: frozenset[bytes]
    negated: bool


class Search(Node):
    how: str  # CONTAINS STARTSWITH ENDSWITH
    of: Node
    text: bytes
    negated: bool


CONDITIONS = (Not, Truth, Logic, Compare, IsNull, In, Search)
NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)


def is_condition(node: Node) -> bool:
    return isinstance(node, CONDITIONS) or (isinstance(node, Literal) and node.kind in (Kind.BOOLEAN, Kind.NOTHING))


# ---- words -----------------------------------------------------------------------------------------------------------

SKIPPED = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)+")
WORD = re.compile(
    r"""(?P<decimal>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<whole>0|[1-9][0-9]*[lL]?)
      | (?P<text>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<mark><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE,
)
KEYWORDS = frozenset("NOT AND OR BETWEEN IN TRUE FALSE NULL IS".split())
SEARCHES = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
END = "end"
ADVICE = {"LIKE": "; there is no LIKE, use CONTAINS, STARTSWITH or ENDSWITH"} | dict.fromkeys("+-", "; there is no arithmetic")


@dataclass(frozen=True, slots=True)
class Word:
    kind: str
    """decimal, whole, text, name, mark, end; a keyword is its own kind."""
    text: str
    at: int
    stop: int


class Parser:
    """Recursive descent, one word ahead. State: the text, the next word, and what was spent of the bounds."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.cost = 0
        self.depth = 0
        self.depths: dict[int, int] = {}  # of the nodes made so far, by id; the tree keeps them alive
        self.word = self._read(0)

    def bad(self, at: int, what: str) -> BadSql:
        return BadSql(self.expression, at, what)

    # Reading words

    def _read(self, at: int) -> Word:
        skipped = SKIPPED.match(self.expression, at)
        if skipped is not None:
            at = skipped.end()
        if at >= len(self.expression):
            return Word(END, "", at, at)
        found = WORD.match(self.expression, at)
        if found is None:
            raise self.bad(at, self._strange(at))
        text = found[0]
        kind = found.lastgroup or ""
        if kind == "name":
            if text.upper() in KEYWORDS:
                kind = text.upper()
            elif len(text) > NAME_LENGTH_MAX:
                raise self.bad(at, f"a property name of {len(text)} characters, limit is {NAME_LENGTH_MAX}")
        elif kind == "mark":
            kind = text
        return Word(kind, text, at, found.end())

    def _strange(self, at: int) -> str:
        character = self.expression[at]
        if character == "'":
            return "this string has no closing quote; a quote inside a string is written twice"
        if self.expression.startswith("/*", at):
            return "this comment has no end"
        hints = {'"': "strings stand in single quotes", "!": "unequal is <>", "&": "write AND", "|": "write OR"}
        return f"{character!r} means nothing here" + (f"; {hints[character]}" if character in hints else "")

    def next(self) -> Word:
        word = self.word
        self.word = self._read(word.stop)
        return word

    def take(self, kind: str) -> bool:
        if self.word.kind != kind:
            return False
        self.next()
        return True

    def expect(self, kind: str, what: str) -> Word:
        if self.word.kind != kind:
            raise self.bad(self.word.at, f"expected {what}")
        return self.next()

    # Bounds

    def made(self, node: Node, *parts: Node) -> Node:
        self.cost += 1
        if self.cost > COST_MAX:
            raise self.bad(node.at, f"more than {COST_MAX} properties, literals and operators; use IN for long lists of values")
        depth = 1 + max((self.depths[id(part)] for part in parts), default=0)
        if depth > DEPTH_MAX:
            raise self.bad(node.at, f"nested more than {DEPTH_MAX} deep")
        self.depths[id(node)] = depth
        return node

    def condition(self, node: Node) -> Node:
        if is_condition(node):
            return node
        if isinstance(node, Property):
            return self.made(Truth(node.at, node), node)
        raise self.bad(node.at, "a condition is needed here, and this is a value; compare it with something")

    # The grammar

    def parse(self) -> Node:
        if self.word.kind == END:
            raise self.bad(self.word.at, "the expression is empty")
        tree = self.condition(self.any_of())
        # "--" up to the end of the text is a comment too; it must not be one elsewhere, where it is two signs.
        if self.word.kind != END and not self.expression.startswith("--", self.word.at):
            raise self.bad(self.word.at, "expected AND, OR or the end of the expression" + ADVICE.get(self.word.text.upper(), ""))
        return tree

    def any_of(self) -> Node:
        return self._logic("OR", lambda: self._logic("AND", self.equality))

    def _logic(self, keyword: str, part: Callable[[], Node]) -> Node:
        first = part()
        if self.word.kind != keyword:
            return first
        parts = [self.condition(first)]
        while self.take(keyword):
            parts.append(self.condition(part()))
        self.cost += len(parts) - 2  # made() counts one more
        return self.made(Logic(first.at, keyword == "AND", tuple(parts)), *parts)

    def equality(self) -> Node:
        left = self.comparison()
        while True:
            if self.word.kind in ("=", "<>"):
                operator = self.next().kind
                right = self.comparison()
                for side in (left, right):
                    if isinstance(side, Literal) and side.kind is Kind.NOTHING:
                        raise self.bad(side.at, "nothing equals NULL; write IS NULL or IS NOT NULL")
                if isinstance(left, Literal) and left.kind is Kind.BOOLEAN and isinstance(right, Literal) and right.kind is not left.kind:
                    raise self.bad(right.at, "TRUE and FALSE cannot be compared with this")
                left = self.made(Compare(left.at, "=", left, right), left, right)
                if operator == "<>":
                    left = self.made(Not(left.at, left), left)
            elif self.take("IS"):
                negated = self.take("NOT")
                self.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = self.made(IsNull(left.at, left), left)
                if negated:
                    left = self.made(Not(left.at, left), left)
            else:
                return left

    def comparison(self) -> Node:
        left = self.unary()
        while True:
            word = self.word
            if word.kind in (">", ">=", "<", "<="):
                self.next()
                left = self.ordered(word.kind, left, self.unary())
                continue
            negated = word.kind == "NOT"
            if negated:
                self.next()
                word = self.word
            if word.kind == "BETWEEN":
                self.next()
                left = self.between(left, negated)
            elif word.kind == "IN":
                self.next()
                left = self.one_of(left, negated)
            elif word.kind == "name" and word.text.upper() in SEARCHES:
                self.next()
                text = string(self.expect("text", "a string in single quotes"))
                left = self.made(Search(left.at, word.text.upper(), left, text, negated), left)
            elif negated:
                raise self.bad(word.at, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def ordered(self, operator: str, left: Node, right: Node) -> Node:
        for side in (left, right):
            if is_condition(side) or (isinstance(side, Literal) and side.kind not in NUMBERS):
                raise self.bad(side.at, "only numbers and properties have an order; strings can be compared with = and <>")
        return self.made(Compare(left.at, operator, left, right), left, right)

    def between(self, value: Node, negated: bool) -> Node:
        low = self.unary()
        self.expect("AND", "AND and the upper end")
        high = self.unary()
        if negated:
            parts = (self.ordered("<", value, low), self.ordered(">", value, high))
        else:
            parts = (self.ordered(">=", value, low), self.ordered("<=", value, high))
            if isinstance(low, Literal) and isinstance(high, Literal) and sign(low, high) > 0:
                raise self.bad(low.at, "the lower end of BETWEEN is above the upper end")
        return self.made(Logic(value.at, not negated, parts), *parts)

    def one_of(self, left: Node, negated: bool) -> Node:
        if not isinstance(left, Property):
            raise self.bad(left.at, "only a property can stand before IN")
        self.expect("(", "( and a list of strings")
        values = {string(self.expect("text", "a string in single quotes"))}
        while self.take(","):
            values.add(string(self.expect("text", "a string in single quotes")))
        self.expect(")", ", or ) after a string")
        return self.made(In(left.at, left, frozenset(values), negated), left)

    def unary(self) -> Node:
        word = self.word
        if word.kind in ("+", "-", "NOT", "("):
            self.depth += 1
            if self.depth > DEPTH_MAX:
                raise self.bad(word.at, f"nested more than {DEPTH_MAX} deep")
            self.next()
            node = self._inside(word)
            self.depth -= 1
            return node
        return self.primary()

    def _inside(self, word: Word) -> Node:
        if word.kind == "(":
            node = self.any_of()
            self.expect(")", ")")
            return node
        of = self.unary()
        if word.kind == "-":
            return self.made(Negative(word.at, of), of)
        if word.kind == "NOT":
            of = self.condition(of)
            return self.made(Not(word.at, of), of)
        return of

    def primary(self) -> Node:
        word = self.word
        node: Node
        if word.kind == "name":
            node = Property(word.at, word.text)
        elif word.kind == "text":
            node = Literal(word.at, Kind.TEXT, string(word))
        elif word.kind == "whole":
            node = self.whole(word)
        elif word.kind == "decimal":
            node = self.decimal(word)
        elif word.kind in ("TRUE", "FALSE"):
            node = Literal(word.at, Kind.BOOLEAN, word.kind == "TRUE")
        elif word.kind == "NULL":
            node = Literal(word.at, Kind.NOTHING, None)
        else:
            raise self.bad(word.at, "expected a property, a literal, NOT or (")
        self.next()
        return self.made(node)

    def whole(self, word: Word) -> Literal:
        digits = word.text.rstrip("lL")
        if len(digits) > 19 or int(digits) > LONG_MAX:
            raise self.bad(word.at, f"whole numbers go up to {LONG_MAX}")
        number = int(digits)
        return Literal(word.at, Kind.INT if number <= INT_MAX else Kind.LONG, number)

    def decimal(self, word: Word) -> Literal:
        number = float(word.text)
        if number == 0:
            raise self.bad(word.at, "a decimal zero, or too small for a decimal number; write 0")
        if math.isinf(number):
            raise self.bad(word.at, "too large for a decimal number")
        return Literal(word.at, Kind.DOUBLE, number)


def string(word: Word) -> bytes:
    return word.text[1:-1].replace("''", "'").encode("utf-8", "replace")


def sign(left: Literal, right: Literal) -> int:
    """How two number literals stand: with a decimal one beside it, a whole one is read as decimal first."""
    one, other = left.value, right.value
    if Kind.DOUBLE in (left.kind, right.kind):
        return order(float(one or 0), float(other or 0))
    assert isinstance(one, int)
    assert isinstance(other, int)
    return (one > other) - (one < other)


def parse(expression: str) -> tuple[Node, int]:
    """The tree of an expression and its cost. Raises BadSql."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise BadSql(expression, EXPRESSION_LENGTH_MAX, f"{len(expression)} characters, limit is {EXPRESSION_LENGTH_MAX}")
    parser = Parser(expression)
    return parser.parse(), parser.cost
