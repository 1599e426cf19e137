"""Writes docs/api.md from the docstrings of what `roquet` exports: `make docs` runs it, a test holds that the page is fresh.

python docs/api_page.py > docs/api.md
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import roquet

HEAD = """\
# API reference

Written from the docstrings by `make docs`. Do not edit by hand.

`from roquet import ...` gives every name on this page. `roquet.client.sync` has the producers and consumers under the same names, and their
methods block. The [tutorial](tutorial.md) shows them in use.
"""
SECTIONS = {
    "Messages": ("roquet.message",),
    "Producers": ("roquet.client.producer", "roquet.client.transaction_producer"),
    "Consumers": ("roquet.client.push_consumer", "roquet.client.lite_pull_consumer", "roquet.client.pull_consumer"),
    "Middleware and statistics": ("roquet.client.middleware", "roquet.client.core.events", "roquet.client.core.stats"),
    "Programs and tests": ("roquet.client.stopping", "roquet.embed"),
    "Results and options": (
        "roquet.client.core",
        "roquet.client.idempotent",
        "roquet.client.tracing",
        "roquet.client.otel",
        "roquet.client.offset_store",
        "roquet.net",
        "roquet.wire.signing",
    ),
    "Administration": ("roquet.admin",),
    "Errors": ("roquet.errors", "roquet.client", "roquet.routing"),
}
"""By the module that defines a name; the first that fits. Exceptions are always errors."""
ANNOTATION = re.compile(r"(: |-> )'([^']*)'")
"""They are texts, and shown as such by inspect."""
FUNCTION = re.compile(r"<function ([\w.]+) at 0x[0-9a-f]+>")


@dataclasses.dataclass
class Entry:
    """A public name, or a member of one."""

    name: str
    value: Any
    signature: str = ""

    @property
    def text(self) -> str:
        return inspect.cleandoc(docstring(self.value))


def docstring(value: Any) -> str:
    """Its own one: those that Python makes up for dataclasses and enums do not count."""
    text: str | None = value.__doc__
    if text is None or (inspect.isclass(value) and text.startswith(f"{value.__name__}(")):
        return ""
    if isinstance(value, enum.Enum) or not (inspect.isclass(value) or callable(value) or isinstance(value, property)):
        return constant_text(value)
    return text


def constant_text(value: Any) -> str:
    """Of a constant its class tells what it is."""
    return docstring(type(value)) if type(value).__module__.startswith("roquet") else ""


def entries() -> Iterator[Entry]:
    for name in sorted(roquet.__all__, key=str.lower):
        if not name.startswith("__"):
            value = getattr(roquet, name)
            yield Entry(name, value, signature(name, value))


def members(kind: type) -> Iterator[Entry]:
    """What a class offers, its bases of ours included, in the order of the source."""
    names: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("roquet"):
            names |= vars(base)
    for name, value in names.items():
        if name.startswith("_") or inspect.isclass(value):
            continue
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if isinstance(plain, (property, functools.cached_property)):
            yield Entry(name, plain)
        elif inspect.isfunction(plain):
            yield Entry(name, plain, signature(name, plain))


def signature(name: str, value: Any) -> str:
    if not callable(value) or (inspect.isclass(value) and issubclass(value, (enum.Enum, BaseException))):
        return ""
    found = inspect.signature(value)
    kept = [parameter for key, parameter in found.parameters.items() if key != "self"]
    found = found.replace(parameters=kept, return_annotation=inspect.Signature.empty if inspect.isclass(value) else found.return_annotation)
    begin = "await " if inspect.iscoroutinefunction(value) else ""
    return FUNCTION.sub(r"\1", ANNOTATION.sub(r"\1\2", f"{begin}{name}{found}"))


def section_of(entry: Entry) -> str:
    if inspect.isclass(entry.value) and issubclass(entry.value, BaseException):
        return "Errors"
    home = entry.value.__module__ if hasattr(entry.value, "__module__") else type(entry.value).__module__
    return next(title for title, homes in SECTIONS.items() if home.startswith(homes))


# Keyword arguments


def keywords(kind: type) -> list[str]:
    """A table of the settings that a producer or consumer takes by name: the fields of its `Settings`, with the texts below them."""
    settings = getattr(kind, "Settings", None)
    if not isinstance(settings, type) or not dataclasses.is_dataclass(settings):
        return []
    texts = field_texts(settings)
    rows = [
        f"| `{field.name}` | `{shown(field.default)}` | {texts.get(field.name, '')} |"
        for field in dataclasses.fields(settings)
        if field.name != "namespace"
    ]
    return ["Keyword arguments:", "", "| name | default | |", "|---|---|---|", *rows, ""]


def fields(kind: type) -> list[str]:
    """A table of what a value holds: of dataclasses and named tuples."""
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else list(getattr(kind, "_fields", ()))
    texts = field_texts(kind) if names else {}
    rows = [f"| `{name}` | {texts.get(name, '')} |" for name in names]
    return ["| field | |", "|---|---|", *rows, ""] if any(texts.values()) else []


def shown(default: Any) -> str:
    if isinstance(default, (int, str, float, type(None))) and not isinstance(default, enum.Enum):
        return repr(default)
    return str(getattr(default, "name", type(default).__name__))


def field_texts(settings: type) -> dict[str, str]:
    """The text that stands below a field in the source, on one line."""
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if not base.__module__.startswith("roquet"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split()).replace("|", "&#124;")
    return texts


# The page


def described(entry: Entry, level: str) -> Iterator[str]:
    yield from (f"{level} {entry.name}", "")
    if entry.signature:
        yield from ("```text", entry.signature, "```", "")
    if entry.text:
        yield from (entry.text, "")


def page() -> str:
    by_section: dict[str, list[Entry]] = {title: [] for title in SECTIONS}
    for entry in entries():
        by_section[section_of(entry)].append(entry)
    lines = [HEAD]
    for title, listed in by_section.items():
        lines += [f"## {title}", ""]
        for entry in listed:
            lines += described(entry, "###")
            if inspect.isclass(entry.value):
                lines += keywords(entry.value) + fields(entry.value)
                lines += [line for member in members(entry.value) for line in described(member, "####")]
            if isinstance(entry.value, type) and issubclass(entry.value, enum.Enum):
                lines += [*(f"- `{one.name}`" for one in entry.value), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
