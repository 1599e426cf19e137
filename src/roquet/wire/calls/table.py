"""Every call by its request code: the rows of all modules that stand beside this one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from roquet.wire import calls
from roquet.wire.calls.call import AnyCall, Call

NOUNS = tuple(import_module(f"{calls.__name__}.{found.name}") for found in iter_modules(calls.__path__) if found.name != "table")

CALLS: dict[int, AnyCall] = {call.code: call for noun in NOUNS for call in vars(noun).values() if isinstance(call, Call)}
