"""The compiled filter against a second evaluator: slow, dynamic, and written from Apache's rules without a look at the first.

It walks a tree of tuples with Java's values (a letter for the class, and the value), asks for nothing before it is needed, and
reads numbers from tables. Trees are drawn at random and written out with as few parentheses as the grammar allows, so parsing is
tested with it. (40,000 such trees were also given to Apache's filter 5.5.0 once, with 12 sets of properties: no difference.)
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.routing.sql92 import BadSql, Filter, NotComparable

Tree = tuple[Any, ...]
Value = tuple[str, Any] | None

# What a property may hold, and what Java reads it as; None: not at all.
INTS = {"0": 0, "1": 1, "-1": -1, "7": 7, "+7": 7, "007": 7, "2147483647": 2147483647, "-2147483648": -2147483648}
LONGS = INTS | {"2147483648": 2147483648, "-2147483649": -2147483649, "9007199254740993": 9007199254740993}
DOUBLES = {text: float(number) for text, number in LONGS.items()} | {
    "1.5": 1.5, "7.0": 7.0, "-0.0": -0.0, "NaN": math.nan, "-Infinity": -math.inf, " 7 ": 7.0, "1e1": 10.0, "7f": 7.0,
    "9223372036854775808": 9223372036854775808.0,
}  # fmt: skip
TEXTS = ["x", "xy", "true", "FALSE", "it's", "ü"]
VALUES = [*DOUBLES, *TEXTS]
NAMES = ["a", "b", "c"]
TABLES: dict[str, dict[str, Any]] = {"I": INTS, "L": LONGS, "D": DOUBLES}
WHOLES = [0, 1, 7, 10, 2147483647, 2147483648, 9007199254740993]
DECIMALS = ["1.5", "7.0", ".5", "1e1", "9007199254740992.0"]


class Stumbled(Exception):
    """Java would throw."""


# ---- Apache's rules -----------------------------------------------------------------------------------------------------------


def is_boolean(tree: Tree) -> bool:
    return tree[0] in ("bool", "null", "not", "and", "or", "=", "<>", ">", ">=", "<", "<=", "between", "in", "search", "is")


def is_constant(tree: Tree) -> bool:
    return tree[0] in ("text", "whole", "decimal", "bool", "null")


def fits(tree: Tree) -> bool:
    """Would Apache compile it?"""
    kind = tree[0]
    if kind == "plus":
        return fits(tree[1])
    if kind in ("prop", "text", "whole", "decimal", "bool", "null"):
        return True
    if kind == "minus":
        return fits(tree[1])
    if kind in ("not", "and", "or"):
        return all(fits(part) and can_be_condition(bare(part)) for part in tree[1:])
    if kind in ("=", "<>"):
        left, right = bare(tree[1]), bare(tree[2])
        if left[0] == "null" or right[0] == "null" or (left[0] == "bool" and is_constant(right) and right[0] != "bool"):
            return False
        return fits(left) and fits(right)
    if kind in (">", ">=", "<", "<="):
        return all(fits(part) and can_be_ordered(bare(part)) for part in tree[1:])
    if kind == "between":
        value, low, high = (bare(part) for part in tree[1:4])
        numbers = (constant(low), constant(high))
        if not tree[4] and is_constant(low) and is_constant(high):
            if numbers[0] is None or numbers[1] is None:
                return False
            if compare(numbers[1], numbers[0]) < 0:
                return False
        return all(fits(part) and can_be_ordered(part) for part in (value, low, high))
    if kind == "in":
        return bool(bare(tree[1])[0] == "prop")
    return fits(tree[2] if kind == "search" else tree[1])


def bare(tree: Tree) -> Tree:
    while tree[0] == "plus":
        tree = tree[1]
    return tree


def can_be_condition(tree: Tree) -> bool:
    return is_boolean(tree) or tree[0] == "prop"


def can_be_ordered(tree: Tree) -> bool:
    return tree[0] in ("prop", "minus", "whole", "decimal")


def constant(tree: Tree) -> Value:
    return number(tree) if tree[0] in ("whole", "decimal") else None


def number(tree: Tree) -> Value:
    if tree[0] == "decimal":
        return "D", float(tree[1])
    return ("I" if tree[1] < 1 << 31 else "L"), tree[1]


def compare(left: Any, right: Any) -> int:
    """Java's comparison of two values that are not null."""
    (one, x), (other, y) = left, right
    if one != other:
        if one == "B":
            if other == "S":
                raise Stumbled
            return -1
        if one == "S" and other == "B":
            x = x.lower() == "true"
        elif one == "S":
            x = read(x, other)
        elif other == "B":
            return -1
        elif other == "S":
            y = read(y, one)
        elif "D" in (one, other):
            x, y = float(x), float(y)
    if isinstance(x, float):
        key = [(math.isnan(v), 0.0 if math.isnan(v) else v, math.copysign(1, v) if v == 0 else 0) for v in (x, y)]
        return (key[0] > key[1]) - (key[0] < key[1])
    return int(x > y) - int(x < y)


def read(text: str, kind: str) -> Any:
    if text not in TABLES[kind]:
        raise Stumbled
    return TABLES[kind][text]


def evaluate(tree: Tree, properties: dict[str, str]) -> Value:
    kind = tree[0]
    if kind == "prop":
        return ("S", properties[tree[1]]) if tree[1] in properties else None
    if kind == "text":
        return "S", tree[1]
    if kind in ("whole", "decimal"):
        return number(tree)
    if kind == "bool":
        return "B", tree[1]
    if kind == "null":
        return None
    if kind == "plus":
        return evaluate(tree[1], properties)
    if kind == "minus":
        value = evaluate(tree[1], properties)
        return (value[0], -value[1]) if value is not None and value[0] in "ILD" else None
    if kind == "not":
        holds = truth(tree[1], properties)
        return None if holds is None else ("B", not holds)
    if kind in ("and", "or"):
        decides = kind == "or"
        left = truth(tree[1], properties)
        if left is decides:
            return "B", decides
        right = truth(tree[2], properties)
        if right is decides:
            return "B", decides
        return None if left is None or right is None else ("B", not decides)
    if kind == "<>":
        equal = evaluate(("=", tree[1], tree[2]), properties)
        return None if equal is None else ("B", not equal[1])
    if kind == "=":
        one, other = evaluate(tree[1], properties), evaluate(tree[2], properties)
        if one is None or other is None:
            return ("B", one is other) if one is other or one is not None else None
        return "B", compare(one, other) == 0
    if kind in (">", ">=", "<", "<="):
        one = evaluate(tree[1], properties)
        other = None if one is None else evaluate(tree[2], properties)
        if one is None or other is None:
            return None
        if one[0] == other[0] == "S":
            one, other = ("D", read(one[1], "D")), ("D", read(other[1], "D"))
        sign = compare(one, other)
        return "B", {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[kind]
    if kind == "between":
        _, value, low, high, negated = tree
        both = ("or", ("<", value, low), (">", value, high)) if negated else ("and", (">=", value, low), ("<=", value, high))
        return evaluate(both, properties)
    if kind == "in":
        found = evaluate(tree[1], properties)
        return None if found is None else ("B", (found[1] in tree[2]) != tree[3])
    if kind == "is":
        return "B", (evaluate(tree[1], properties) is None) != tree[2]
    if kind == "search":
        _, how, of, text, negated = tree
        found = evaluate(of, properties) if text else None
        if found is None or found[0] != "S":
            return "B", False
        has = {"CONTAINS": text in found[1], "STARTSWITH": found[1].startswith(text), "ENDSWITH": found[1].endswith(text)}[how]
        return "B", has != negated
    raise AssertionError(kind)


def truth(tree: Tree, properties: dict[str, str]) -> bool | None:
    value = evaluate(tree, properties)
    if value is None:
        return None
    return bool(value[1]) if value[0] == "B" else False  # a property where a condition is wanted


# ---- trees, drawn and written ---------------------------------------------------------------------------------------------------

LEVELS = {"or": 1, "and": 2, "=": 3, "<>": 3, "is": 3, ">": 4, ">=": 4, "<": 4, "<=": 4, "between": 4, "in": 4, "search": 4,
          "not": 5, "minus": 5, "plus": 5}  # fmt: skip


def written(tree: Tree, level: int = 0) -> str:
    kind = tree[0]
    mine = LEVELS.get(kind, 6)
    text = _written(tree, kind, mine)
    return f"({text})" if mine < level else text


def _written(tree: Tree, kind: str, mine: int) -> str:
    if kind == "prop":
        return str(tree[1])
    if kind == "text":
        return quoted(tree[1])
    if kind in ("whole", "decimal"):
        return str(tree[1])
    if kind == "bool":
        return str(tree[1]).upper()
    if kind == "null":
        return "NULL"
    if kind in ("not", "minus", "plus"):
        return {"not": "NOT ", "minus": "- ", "plus": "+ "}[kind] + written(tree[1], 5)
    if kind in ("and", "or", "=", "<>", ">", ">=", "<", "<="):
        return f"{written(tree[1], mine)} {kind.upper()} {written(tree[2], mine + 1)}"
    negation = "NOT " if tree[-1] else ""
    if kind == "between":
        return f"{written(tree[1], 4)} {negation}BETWEEN {written(tree[2], 5)} AND {written(tree[3], 5)}"
    if kind == "in":
        return f"{written(tree[1], 4)} {negation}IN ({', '.join(map(quoted, tree[2]))})"
    if kind == "is":
        return f"{written(tree[1], 3)} IS {negation}NULL"
    return f"{written(tree[2], 4)} {negation}{tree[1]} {quoted(tree[3])}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def draw(dice: random.Random, depth: int, condition: bool = True) -> Tree:
    """Mostly what makes sense, sometimes not."""
    if dice.random() < 0.04:
        condition = not condition
    if condition:
        kinds = ["=", "<>", ">", ">=", "<", "<=", "between", "in", "is", "search"]
        if depth > 0:
            kinds += ["and", "or", "not"] * 3
        else:
            kinds += ["bool", "prop"]
        kind = dice.choice(kinds)
    else:
        kind = dice.choice(["prop"] * 6 + ["text", "whole", "whole", "decimal", "minus", "plus", "null", "bool"])
    deeper = depth - 1
    if kind == "prop":
        return "prop", dice.choice(NAMES)
    if kind == "text":
        return "text", dice.choice(VALUES)
    if kind == "whole":
        return "whole", dice.choice(WHOLES)
    if kind == "decimal":
        return "decimal", dice.choice(DECIMALS)
    if kind == "bool":
        return "bool", dice.random() < 0.5
    if kind == "null":
        return ("null",)
    if kind in ("minus", "plus"):
        return kind, draw(dice, deeper, False) if deeper > -3 else ("whole", 7)
    if kind == "not":
        return "not", draw(dice, deeper)
    if kind in ("and", "or"):
        return kind, draw(dice, deeper), draw(dice, deeper)
    if kind in ("=", "<>"):
        same = depth > 0 and dice.random() < 0.1
        return kind, draw(dice, deeper, same), draw(dice, deeper, same)
    if kind in (">", ">=", "<", "<="):
        return kind, draw(dice, deeper, False), draw(dice, deeper, False)
    if kind == "between":
        return kind, draw(dice, deeper, False), draw(dice, deeper, False), draw(dice, deeper, False), dice.random() < 0.5
    if kind == "in":
        return kind, draw(dice, deeper, False), dice.sample(VALUES, dice.randint(1, 6)), dice.random() < 0.5
    if kind == "is":
        return kind, draw(dice, deeper, dice.random() < 0.2), dice.random() < 0.5
    how = dice.choice(["CONTAINS", "STARTSWITH", "ENDSWITH"])
    return "search", how, draw(dice, deeper, False), dice.choice(["", "x", "7", "e", "ü"]), dice.random() < 0.5


def draw_properties(dice: random.Random) -> dict[str, str]:
    return {name: dice.choice(VALUES) for name in NAMES if dice.random() < 0.8}


@settings(max_examples=1_000, deadline=None)
@given(st.randoms(use_true_random=False))
def test_compiled_and_naive_agree(dice: random.Random) -> None:
    tree = draw(dice, dice.randint(0, 3))
    expression = written(tree)
    if not (fits(tree) and can_be_condition(bare(tree))):
        with pytest.raises(BadSql):
            Filter(expression)
        return
    made = Filter(expression)
    for _ in range(5):
        properties = draw_properties(dice)
        try:
            expected: Any = truth(tree, properties)
        except Stumbled:
            expected = "stumbled"
        try:
            found: Any = made.evaluate(properties)
        except NotComparable:
            found = "stumbled"
        assert found == expected, (expression, properties)
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
        assert made.takes(text, 0, len(text)) is (expected is True)
