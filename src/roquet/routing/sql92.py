"""SQL92 filters over message properties: an expression becomes a plain function, once per subscription. Its grammar: routing.sql92_parser.

What an expression means is what Apache's own filter makes of it, oddities included; tests/routing/test_sql92.py holds both to
one table. The oddities that surprise people:

- A property is text. Next to a number it is read as a number of that literal's type: `a > 1` reads a whole number, `a > 1.0`
  a decimal one. Text that is no such number ends the judgement: the message is not delivered, whatever stands behind it.
- NOT binds tighter than "=": `NOT a = 1` is `(NOT a) = 1`, which never holds. A bare property is never true.
- A missing property is unknown, and so is what is made of it, except: `a = b` holds when both are missing, `1 <> a` holds
  when a is missing, and the three text searches are false.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from roquet.routing import sql92_parser as tree
from roquet.routing.java_numbers import NotComparable, order, to_double, to_int, to_long
from roquet.routing.sql92_parser import COST_MAX, NUMBERS, BadSql, Kind, parse, sign

__all__ = ["COST_MAX", "BadSql", "Filter", "NotComparable", "compiled"]

FEW_NAMES = 8
SHORT_PROPERTIES = 2_048
"""Up to these, properties are looked for one by one; beyond, all of them are split once, so that the work stays bounded."""

READERS: dict[Kind, Callable[[bytes], Any]] = {Kind.INT: to_int, Kind.LONG: to_long, Kind.DOUBLE: to_double}

Row = tuple[bytes | None, ...]
Values = list[bytes | None] | Row
"""What a message has, by the places of `Filter.names`."""
Function = Callable[[Values], Any]
"""Gives True, False, None for unknown; of an operand its value. Raises NotComparable."""


class Compiler:
    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, node: tree.Property) -> int:
        return self.places.setdefault(node.name, len(self.places))

    def function(self, node: tree.Node) -> Function:
        match node:
            case tree.Property():
                place = self.place(node)
                return lambda values: values[place]
            case tree.Literal(value=value):
                return lambda values: value
            case tree.Negative(of=of):
                return self.negative(node, of)
            case tree.Not(of=of):
                condition = self.function(of)
                return lambda values: None if (found := condition(values)) is None else not found
            case tree.Truth(of=of):
                place = self.place(of)
                return lambda values: None if values[place] is None else False
            case tree.Logic(is_and=is_and, parts=parts):
                return combined(tuple(map(self.function, parts)), not is_and)
            case tree.Compare():
                return self.equal(node) if node.operator == "=" else self.ordered(node)
            case tree.IsNull(of=of):
                function = self.function(of)
                return lambda values: function(values) is None
            case tree.In(of=of, values=wanted, negated=negated):
                place = self.place(of)
                return lambda values: None if (value := values[place]) is None else (value in wanted) is not negated
            case tree.Search():
                return self.search(node)
        raise AssertionError(node)

    def negative(self, node: tree.Node, of: tree.Node) -> Function:
        number = number_of(node)
        if number is not None:
            value = number.value
            return lambda values: value
        function = self.function(of)

        def unknown(values: Values) -> None:
            function(values)  # it may have something against it

        return unknown

    def search(self, node: tree.Search) -> Function:
        function, text, negated = self.function(node.of), node.text, node.negated
        if not text:
            return lambda values: False
        if kind_of(node.of) is not Kind.TEXT:

            def never(values: Values) -> bool:
                function(values)
                return False

            return never
        if node.how == "CONTAINS":
            return lambda values: (value := function(values)) is not None and (text in value) is not negated
        test = bytes.startswith if node.how == "STARTSWITH" else bytes.endswith
        return lambda values: (value := function(values)) is not None and test(value, text) is not negated

    def equal(self, node: tree.Compare) -> Function:
        left, right = kind_of(node.left), kind_of(node.right)
        one, other = self.function(node.left), self.function(node.right)
        number = number_of(node.right)
        if isinstance(node.left, tree.Property) and isinstance(node.right, tree.Literal) and right is Kind.TEXT:
            place, text = self.place(node.left), node.right.value
            return lambda values: None if (value := values[place]) is None else value == text
        if isinstance(node.left, tree.Property) and number is not None:
            place, read, wanted = self.place(node.left), READERS[right], number.value
            return lambda values: None if (value := values[place]) is None else read(value) == wanted
        same = equality_of(left, right, number_of(node.left), number)

        def equal(values: Values) -> bool | None:
            mine, theirs = one(values), other(values)
            if mine is None:
                return True if theirs is None else None
            if theirs is None:
                return False
            return same(mine, theirs)

        return equal

    def ordered(self, node: tree.Compare) -> Function:
        left, right = number_of(node.left), number_of(node.right)
        holds = ORDERS[node.operator]
        if left is not None and right is not None:
            constant = holds(sign(left, right), 0)
            return lambda values: constant
        if isinstance(node.left, tree.Property) and right is not None:
            return ordered_number(self.place(node.left), node.operator, right)
        if left is not None and isinstance(node.right, tree.Property):
            return ordered_number(self.place(node.right), FLIPPED[node.operator], left)
        one, other = self.function(node.left), self.function(node.right)
        if isinstance(node.left, tree.Property) and isinstance(node.right, tree.Property):

            def as_doubles(values: Values) -> bool | None:
                mine, theirs = one(values), other(values)
                if mine is None or theirs is None:
                    return None
                return holds(order(to_double(mine), to_double(theirs)), 0)

            return as_doubles

        def unknown(values: Values) -> None:
            if one(values) is not None:
                other(values)

        return unknown


def number_of(node: tree.Node) -> tree.Literal | None:
    """A number with its signs taken in; None for what is no number. Keeps the kind: minus a long is a long."""
    if isinstance(node, tree.Literal):
        return node if node.kind in NUMBERS else None
    if isinstance(node, tree.Negative):
        number = number_of(node.of)
        if number is not None:
            assert isinstance(number.value, int | float)
            return tree.Literal(node.at, number.kind, -number.value)
    return None


def kind_of(node: tree.Node) -> Kind:
    number = number_of(node)
    if number is not None:
        return number.kind
    if isinstance(node, tree.Property):
        return Kind.TEXT
    if isinstance(node, tree.Literal):
        return node.kind
    return Kind.NOTHING if isinstance(node, tree.Negative) else Kind.BOOLEAN


def combined(parts: tuple[Function, ...], decisive: bool) -> Function:
    """AND, which one false decides, or OR, which one true does: it stops there, and goes on behind an unknown."""

    def combined(values: Values) -> bool | None:
        answer: bool | None = not decisive
        for part in parts:
            found = part(values)
            if found is decisive:
                return found is True
            if found is None:
                answer = None
        return answer

    return combined


def equality_of(left: Kind, right: Kind, one: tree.Literal | None, other: tree.Literal | None) -> Callable[[Any, Any], bool]:
    """How two known values of these kinds are equal or not."""
    if one is not None and other is not None:
        constant = sign(one, other) == 0
        return lambda mine, theirs: constant
    if left is right:
        return lambda mine, theirs: bool(mine == theirs)
    if left is Kind.TEXT and right is Kind.BOOLEAN:
        return lambda mine, theirs: (mine.lower() == b"true") is theirs
    if left is Kind.BOOLEAN and right is Kind.TEXT:
        return refuse
    if left is Kind.TEXT and right in NUMBERS:
        read = READERS[right]
        return lambda mine, theirs: bool(read(mine) == theirs)
    if left in NUMBERS and right is Kind.TEXT:
        read = READERS[left]
        return lambda mine, theirs: bool(mine == read(theirs))
    return lambda mine, theirs: False


def refuse(mine: Any, theirs: Any) -> bool:
    """As Apache, which stumbles over it: only the other way round is text read as true or false."""
    raise NotComparable(f"a condition stands left of the text {theirs[:40]!r}; write the property first")


ORDERS: dict[str, Callable[[Any, Any], bool]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def ordered_number(place: int, sign: str, literal: tree.Literal) -> Function:
    """Spelled out for each sign: this is where most of the time goes. NaN stands behind every number, hence the `not`."""
    read, number = READERS[literal.kind], literal.value
    assert isinstance(number, int | float)
    functions: dict[str, Function] = {
        ">": lambda values: None if (value := values[place]) is None else not read(value) <= number,
        ">=": lambda values: None if (value := values[place]) is None else not read(value) < number,
        "<": lambda values: None if (value := values[place]) is None else read(value) < number,
        "<=": lambda values: None if (value := values[place]) is None else read(value) <= number,
    }
    return functions[sign]


# ---- judging ---------------------------------------------------------------------------------------------------------


class Filter:
    """One expression, ready to judge messages. Holds no state of them."""

    __slots__ = ("_few", "_function", "_marks", "cost", "expression", "names")

    def __init__(self, expression: str) -> None:
        """Raises BadSql."""
        parsed, self.cost = parse(expression)
        compiler = Compiler()
        self._function = compiler.function(parsed)
        self.expression = expression
        self.names = tuple(compiler.places)
        marks = [b"\x02" + name.encode() + b"\x01" for name in self.names]
        self._marks = tuple((mark, mark[1:], len(mark)) for mark in marks)
        self._few = len(marks) <= FEW_NAMES

    def takes(self, data: bytes, start: int, stop: int) -> bool:
        """Should the message be delivered whose properties stand in data[start:stop], as a record holds them?"""
        if not self._few or stop - start > SHORT_PROPERTIES:
            values = self._split(data, start, stop)
        else:
            found: list[bytes | None] = []
            values = found
            for mark, bare, size in self._marks:
                at = data.rfind(mark, start, stop)  # the last: of two with one name it counts
                if at >= 0:
                    at += size
                elif data.startswith(bare, start, stop):
                    at = start + size - 1
                else:
                    found.append(None)
                    continue
                end = data.find(b"\x02", at, stop)
                value = data[at : end if end >= 0 else stop]
                if not value:  # does not count, and an earlier one might
                    values = self._split(data, start, stop)
                    break
                found.append(value)
        return self.decides(values)

    def decides(self, values: Values) -> bool:
        """The same by the values of `names` that a message has; an empty one is none."""
        try:
            return self._function(values) is True
        except NotComparable:
            return False

    def _split(self, data: bytes, start: int, stop: int) -> Values:
        found: dict[bytes, bytes] = {}
        for entry in data[start:stop].split(b"\x02"):
            name, _, value = entry.partition(b"\x01")
            if value:
                found[name] = value
        return [found.get(name.encode()) for name in self.names]

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """The judgement before it is narrowed to yes and no; None is unknown. Raises NotComparable."""
        values = [properties[name].encode() if name in properties else None for name in self.names]
        found: bool | None = self._function(values)
        return found

    def __repr__(self) -> str:
        return f"<Filter {self.expression!r}>"


@lru_cache(maxsize=256)
def compiled(expression: str) -> Filter:
    """The filter of an expression; the same one for all that ask with it. Raises BadSql."""
    return Filter(expression)
