"""Properties of Spring's files, as texts with the place where they stand: YAML in any nesting, flat keys, several documents, profiles,
${PLACEHOLDERS}. What the keys mean is in `keys`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roquet.errors import ClientError
from roquet.properties import entries

TEXT_MAX = 1 << 20
ENTRIES_MAX = 10_000
DEPTH_MAX = 40
PLACEHOLDERS_MAX = 1_000
MERGE = "<<"
ON_PROFILE = (("spring", "config", "activate", "onprofile"), ("spring", "profiles"))
ACTIVE = ("spring", "profiles", "active")
SEGMENT = re.compile(r"\[([^\[\]]*)\]|([^.\[\]]+)")


class BadBindings(ClientError):
    """A file of bindings that cannot be used: the text says where it stands, what it is, and what is expected."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One property."""

    path: tuple[str, ...]
    """As it is written."""
    value: str | list[str]
    file: str
    line: int

    @property
    def key(self) -> str:
        return ".".join(self.path)

    def wrong(self, text: str) -> BadBindings:
        return BadBindings(f"{self.file}, line {self.line}: {self.key} {text}")


def uniform(name: str) -> str:
    """maxAttempts, max-attempts, max_attempts and MAX_ATTEMPTS are one key, as Spring has it."""
    return "".join(character for character in name.lower() if character.isalnum())


def uniform_path(path: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(uniform, path))


def read(paths: Iterable[str | os.PathLike[str]], profiles: Collection[str] | None, environ: Mapping[str, str]) -> list[Entry]:
    """The properties of all files; of one that stands in several documents, the last. Raises BadBindings."""
    documents = [document for path in paths for document in documents_of(Path(path))]
    active = set(profiles if profiles is not None else words(environ.get("SPRING_PROFILES_ACTIVE", "")))
    if profiles is None and not active:
        active = {word for document in documents for entry in document if uniform_path(entry.path) == ACTIVE for word in listed(entry)}
    found: dict[tuple[str, ...], Entry] = {}
    for document in documents:
        if is_active(document, active):
            for entry in document:
                found.pop(uniform_path(entry.path), None)
                found[uniform_path(entry.path)] = entry
    return resolved(list(found.values()), environ)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def listed(entry: Entry) -> list[str]:
    return [word for text in ([entry.value] if isinstance(entry.value, str) else entry.value) for word in words(text)]


def is_active(document: list[Entry], active: Collection[str]) -> bool:
    for entry in document:
        if uniform_path(entry.path) in ON_PROFILE:
            names = listed(entry)
            if any(set("!&|()") & set(name) for name in names):
                raise entry.wrong(f"is {', '.join(names)!r}; only names of profiles are served here, with commas between them")
            return bool(active & set(names)) if isinstance(active, set) else any(name in active for name in names)
    return True


# -- files


def documents_of(path: Path) -> list[list[Entry]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadBindings(f"{path} cannot be read: {error.strerror}; give the path of your application.yml") from None
    if len(raw) > TEXT_MAX:
        raise BadBindings(f"{path} has {len(raw)} bytes; allowed are {TEXT_MAX}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadBindings(f"{path} is no text in UTF-8 (byte {error.start}); save it as UTF-8") from None
    if path.suffix == ".properties":
        return [flat(text, str(path))]
    return [Document(str(path)).entries(root) for root in composed(text, str(path))]


def flat(text: str, file: str) -> list[Entry]:
    found = [Entry(segments(key), value, file, text.count("\n", 0, start) + 1) for key, value, start, _ in entries(text)]
    if len(found) > ENTRIES_MAX:
        raise BadBindings(f"{file} has more than {ENTRIES_MAX} properties")
    return found


def composed(text: str, file: str) -> list[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return [root for root in YAML().compose_all(io.StringIO(text)) if root is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # YAML's own words may quote the file, and a secret with it.
        text = "this is not YAML; look at indentation and colons, and put texts with special characters in quotes"
        raise BadBindings(f"{file}, line {1 if mark is None else mark.line + 1}: {text}") from None
    except (YAMLError, RecursionError, ValueError) as error:
        raise BadBindings(f"{file} is not YAML: {type(error).__name__}") from None


class Document:
    """The nodes of one YAML document. Texts stay as they are written: which are numbers is for the keys to say."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.count = 0

    def entries(self, root: Any) -> list[Entry]:
        if root.id == "scalar" and not root.value:
            return []
        if root.id != "mapping":
            raise self.wrong(root, "expected are names with values, as in 'bindings:'")
        return list(self.walk(root, ()))

    def wrong(self, node: Any, text: str) -> BadBindings:
        return BadBindings(f"{self.file}, line {node.start_mark.line + 1}: {text}")

    def walk(self, node: Any, path: tuple[str, ...]) -> Iterator[Entry]:
        self.count += 1
        if len(path) > DEPTH_MAX or self.count > ENTRIES_MAX:
            raise self.wrong(node, f"it is nested deeper than {DEPTH_MAX}, or there are more than {ENTRIES_MAX} properties")
        if node.id == "mapping":
            for name, (key, value) in self.fields(node).items():
                for entry in self.walk(value, (*path, *segments(name))):
                    yield Entry(entry.path, entry.value, entry.file, key.start_mark.line + 1) if value.id != "mapping" else entry
        elif node.id == "scalar":
            yield Entry(path, text_of(node), self.file, node.start_mark.line + 1)
        elif all(one.id == "scalar" for one in node.value):
            self.count += len(node.value)
            yield Entry(path, [text_of(one) for one in node.value], self.file, node.start_mark.line + 1)
        else:
            for number, one in enumerate(node.value):
                yield from self.walk(one, (*path, str(number)))

    def fields(self, node: Any, depth: int = 0) -> dict[str, tuple[Any, Any]]:
        """Name -> (its node, the value's). What is merged with << stands behind what the mapping says itself."""
        if depth > DEPTH_MAX:
            raise self.wrong(node, f"it is nested deeper than {DEPTH_MAX}")
        found: dict[str, tuple[Any, Any]] = {}
        own: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise self.wrong(key, "expected is a name")
            if key.value == MERGE:
                for merged in [value] if value.id == "mapping" else reversed(value.value) if value.id == "sequence" else ():
                    if merged.id == "mapping":
                        found.update(self.fields(merged, depth + 1))
            elif key.value in own:
                raise self.wrong(key, f"{key.value[:60]!r} stands twice; remove one")
            else:
                own[key.value] = (key, value)
        return {**found, **own}


def text_of(node: Any) -> str:
    return "" if str(node.tag).endswith(":null") else str(node.value)


def segments(name: str) -> tuple[str, ...]:
    """a.b[c.d].e -> a, b, c.d, e."""
    return tuple(inner if inner else plain for inner, plain in SEGMENT.findall(name)) or (name,)


# -- placeholders


def resolved(found: list[Entry], environ: Mapping[str, str]) -> list[Entry]:
    """With ${NAME} and ${NAME:default} filled in: from the environment, else from another property of the files."""
    known = {uniform_path(entry.path): entry.value for entry in found if isinstance(entry.value, str)}
    left = PLACEHOLDERS_MAX

    def look_up(name: str) -> str | None:
        for spelled in (name, re.sub(r"[.-]", "_", name), re.sub(r"[.-]", "_", name).upper()):
            if spelled in environ:
                return environ[spelled]
        return known.get(uniform_path(segments(name)))

    def fill(entry: Entry, text: str, inside: tuple[str, ...] = ()) -> str:
        nonlocal left
        made, at = "", 0
        while (start := text.find("${", at)) >= 0:
            end = closing(text, start + 2)
            left -= 1
            if end < 0:
                raise entry.wrong("has a '${' without its '}'")
            if left < 0:
                raise entry.wrong(f"is one of more than {PLACEHOLDERS_MAX} placeholders")
            name, colon, default = parted(text[start + 2 : end])
            name = fill(entry, name, inside)
            if name in inside:
                raise entry.wrong(f"uses ${{{name}}}, which leads back to itself")
            value = look_up(name)
            if value is None and not colon:
                raise entry.wrong(f"uses ${{{name}}}, and there is no such variable; set it, or give a default: ${{{name}:value}}")
            made += text[at:start] + fill(entry, default if value is None else value, (*inside, name))
            at = end + 1
        return made + text[at:]

    return [
        Entry(entry.path, fill(entry, entry.value) if isinstance(entry.value, str) else [fill(entry, one) for one in entry.value],
              entry.file, entry.line)
        if is_ours(entry) else entry
        for entry in found
    ]  # fmt: skip


def is_ours(entry: Entry) -> bool:
    """Others' properties may name variables that only they have."""
    first = uniform_path(entry.path[:3])
    return first[:1] != ("spring",) or first[:2] == ("spring", "cloud") or first == ("spring", "application", "name")


def closing(text: str, at: int) -> int:
    depth = 1
    while at < len(text):
        if text.startswith("${", at):
            depth += 1
            at += 1
        elif text[at] == "}":
            depth -= 1
            if not depth:
                return at
        at += 1
    return -1


def parted(text: str) -> tuple[str, bool, str]:
    """The name, whether there is a default, and that."""
    depth = 0
    for at, character in enumerate(text):
        if text.startswith("${", at):
            depth += 1
        elif character == "}":
            depth -= 1
        elif character == ":" and not depth:
            return text[:at], True, text[at + 1 :]
    return text, False, ""
