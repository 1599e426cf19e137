"""Equality and repr for many dataclasses at once. What `dataclass` writes for each of them is compiled anew with every start of a program:
for the hundred headers and bodies that takes as long as reading them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Value:
    """Base of dataclasses that are made with eq=False and repr=False: the same as theirs would be."""

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names_of(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names_of(self, shown=True))})"


def names_of(value: Any, *, shown: bool = False) -> list[str]:
    """`shown`: without the secret ones."""
    return [field.name for field in fields(value) if field.repr or not shown]
