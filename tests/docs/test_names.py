"""Every name of ours that a document for users mentions can be imported: from `roquet`, or from a module that documents name."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

import roquet
from tests.docs.snippets import ROOT, snippets

FOR_USERS = [ROOT / "README.md", ROOT / "GLOSSARY.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
"""ARCHITECTURE.md is about what is inside."""
SOURCES = ROOT / "src" / "roquet"
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"(?<![\w.$%\"'/=<-])([A-Za-z_]\w*)\b(?![\w/.-]*\.(?:md|py|json|conf|toml))")
DOTTED = re.compile(r"\b(roquet(?:\.[a-zA-Z_]\w*)+)")
FILES = {"roquet.json", "roquet.fish"}
NOT_PROMISED = {"roquet.testing", "roquet.testing.simulate", "roquet.cli.reference", "roquet.wire.names"}
"""Named in documents, and said to be internal there."""


def mentioned(document: Path) -> set[str]:
    """Names inside of code, that look like a class or a constant, or are called."""
    found: set[str] = set()
    for code in CODE.findall(document.read_text()):
        for name in NAME.findall(code):
            if re.fullmatch(r"[A-Z][a-z]\w*|[A-Z][A-Z_]{2,}", name) or f"{name}(" in code:
                found.add(name)
    return found


@cache
def defined() -> dict[str, list[str]]:
    """Public names of the sources, with the modules that have them. The names of properties and codes are members of classes: not here."""
    found: dict[str, list[str]] = {}
    for path in [
        *SOURCES.glob("*.py"),
        *(SOURCES / "client").rglob("*.py"),
        *(SOURCES / "spark").rglob("*.py"),
        *(SOURCES / "admin").rglob("*.py"),
    ]:
        module = ".".join(["roquet", *path.relative_to(SOURCES).with_suffix("").parts]).removesuffix(".__init__")
        for node in ast.parse(path.read_text()).body:
            names = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
            if isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in names:
                # Constants elsewhere are mostly words of commands and properties, which nobody imports.
                if not name.startswith("_") and (not name.isupper() or module.startswith("roquet.client")):
                    found.setdefault(name, []).append(module)
    return found


@cache
def documented_modules() -> frozenset[str]:
    return frozenset(name for document in FOR_USERS for name in DOTTED.findall(document.read_text()) if is_module(name))


def is_module(name: str) -> bool:
    path = SOURCES.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def is_documented(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in documented_modules())


def is_passed_on(name: str) -> bool:
    """A documented module has it from another one."""
    return any(hasattr(importlib.import_module(module), name) for module in documented_modules())


def of_a_class(name: str) -> bool:
    """A method or a field of a public class, such as `poll()`."""
    return any(hasattr(getattr(roquet, public), name) for public in roquet.__all__ if public != "__version__")


@pytest.mark.parametrize("document", FOR_USERS, ids=lambda path: path.name)
def test_a_name_in_a_document_can_be_imported(document: Path) -> None:
    missing = {}
    for name in sorted(mentioned(document)):
        if name not in defined() or hasattr(builtins, name) or hasattr(roquet, name) or of_a_class(name):
            continue
        of_the_client = any(module.startswith(("roquet.client", "roquet.errors", "roquet.message")) for module in defined()[name])
        if of_the_client or not (any(is_documented(module) for module in defined()[name]) or is_passed_on(name)):
            missing[name] = defined()[name]
    assert not missing


@pytest.mark.parametrize("document", FOR_USERS, ids=lambda path: path.name)
def test_a_dotted_name_in_a_document_is_there(document: Path) -> None:
    for name in set(DOTTED.findall(document.read_text())) - FILES:
        if not is_module(name):
            module, _, attribute = name.rpartition(".")
            if module == "roquet" and f"{name}." in document.read_text() and not hasattr(roquet, attribute):
                continue  # the beginning of a longer name
            assert hasattr(importlib.import_module(module), attribute), name


def test_what_the_snippets_import_is_there() -> None:
    for document in FOR_USERS:
        for snippet in snippets(document.read_text()):
            for node in ast.walk(ast.parse(snippet, mode="exec", type_comments=False) if "await " not in snippet else ast.parse("")):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "roquet":
                    for alias in node.names:
                        there = is_module(f"{node.module}.{alias.name}") or hasattr(importlib.import_module(node.module), alias.name)
                        assert there, f"{document.name}: {node.module}.{alias.name}"


def test_the_promise_of_the_changelog_covers_the_documented_modules() -> None:
    promise = (ROOT / "CHANGELOG.md").read_text().split("## Unreleased")[0]
    assert "`roquet.__all__`" in promise
    for module in sorted(documented_modules() - NOT_PROMISED):
        covered = any(module == name or module.startswith(f"{name}.") for name in CODE.findall(promise))
        assert covered, f"{module} is in a document, but the promise does not name it"


@pytest.mark.parametrize("name", ["RETRY_LATER", "SendReceipt", "Suspend", "InvalidMessage", "SendTimedOut", "NoRoute", "run", "serve"])
def test_names_of_the_first_day_come_from_roquet(name: str) -> None:
    assert name in roquet.__all__
