"""Properties put in their places: settings of the app, and of each binding. A file may begin at any level, as people show them:
at spring:, stream:, rocketmq:, bindings:, or at the name of a binding."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from roquet.app.bindings.files import BadBindings, Entry, uniform, uniform_path
from roquet.app.bindings.keys import ROWS, Fate, Key, Scope, find

STREAM = ("spring", "cloud", "stream")
ROCKETMQ = (*STREAM, "rocketmq")
FRAGMENTS = {
    "cloud": ("spring",),
    "stream": ("spring", "cloud"),
    "function": ("spring", "cloud"),
    "rocketmq": STREAM,
    "bindings": STREAM,
    "binder": ROCKETMQ,
}
"""What a file may begin with, and what stands before it."""
SIDES = ("consumer", "producer")
SECTIONS = ("bindings", "rocketmq", "default")
CLOSE = 0.85
"""So alike is a word that was meant to be the other. `springdoc`, say, is not `spring`."""
ALL = ""
"""The name under which defaults for all bindings are kept."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it stands."""

    value: Any
    entry: Entry


@dataclass(slots=True)
class Layout:
    """What a file says."""

    app: dict[tuple[Scope, str], Setting] = field(default_factory=dict)
    """Scope and name of the key -> value."""
    bindings: dict[str, dict[tuple[Scope, str], Setting]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    """Of functions' bindings: uppercase-in-0 -> input."""
    notices: list[str] = field(default_factory=list)
    """What is in the file and has no effect, each with its reason."""
    others: int = 0
    """Properties that belong to others: server.port and the like."""
    name: str = ""
    """spring.application.name."""


def layout_of(entries: list[Entry]) -> Layout:
    """Raises BadBindings: it names the file, the line, the key, and the nearest known one."""
    made = Layout()
    whole_files = {entry.file for entry in entries if uniform(entry.path[0]) == "spring"}
    for entry in entries:
        path = entry.path if entry.file in whole_files else whole(entry)
        place(made, entry, path)
    if not made.bindings and not made.app:
        where = ", ".join(dict.fromkeys(entry.file for entry in entries)) or "the file"
        raise BadBindings(f"{where} has no bindings; expected is spring.cloud.stream.bindings.NAME with a destination")
    return made


def whole(entry: Entry) -> tuple[str, ...]:
    """The path of a property of a file that does not begin with spring:."""
    first = uniform(entry.path[0])
    if first in FRAGMENTS:
        return (*FRAGMENTS[first], *entry.path)
    if len(entry.path) > 1 and (uniform(entry.path[1]) in SIDES or find(Scope.BINDING, entry.path[1:]) is not None):
        # The name of a binding: the key says of which part.
        rest = entry.path[1:]
        core = find(Scope.BINDING, rest) if uniform(rest[0]) not in SIDES else find(scope_of(rest[0], False), rest[1:])
        return (*STREAM, "bindings", *entry.path) if core is not None else (*ROCKETMQ, "bindings", *entry.path)
    near = nearest(first, FRAGMENTS)
    raise entry.wrong(
        f"is no place of bindings; the nearest known is {near}: (a file begins with spring:, stream:, rocketmq:, bindings: or a binding)"
    )


def scope_of(side: str, of_rocketmq: bool) -> Scope:
    if uniform(side) == "consumer":
        return Scope.ROCKETMQ_CONSUMER if of_rocketmq else Scope.CONSUMER
    return Scope.ROCKETMQ_PRODUCER if of_rocketmq else Scope.PRODUCER


def place(made: Layout, entry: Entry, path: tuple[str, ...]) -> None:
    known = uniform_path(path)
    if known == ("spring", "application", "name"):
        made.name = text_of(entry)
    elif known[:3] == STREAM:
        of_stream(made, entry, path[3:])
    elif known[:3] == ("spring", "cloud", "function"):
        put(made, entry, None, Scope.FUNCTION, path[3:])
    elif known[:3] == ("spring", "cloud", "rocketmq"):
        told(made, entry, "stands beside stream:, where Spring does not look; here it counts as if it stood below")
        of_rocketmq(made, entry, path[3:])
    else:
        for level, word in enumerate(STREAM[: len(known)]):
            if known[level] != word:
                if difflib.SequenceMatcher(None, known[level], word).ratio() >= CLOSE:
                    meant = ".".join((*STREAM[: level + 1], *path[level + 1 :]))
                    raise entry.wrong(f"is unknown; the nearest known key is {meant}")
                break
        made.others += 1


def of_stream(made: Layout, entry: Entry, path: tuple[str, ...]) -> None:
    match uniform_path(path):
        case ("bindings", _, side, _, *_) if side in SIDES:
            put(made, entry, path[1], scope_of(side, False), path[3:])
        case ("bindings", _, _, *_):
            put(made, entry, path[1], Scope.BINDING, path[2:])
        case ("default", side, _, *_) if side in SIDES:
            put(made, entry, ALL, scope_of(side, False), path[2:])
        case ("default", _, *_):
            put(made, entry, ALL, Scope.BINDING, path[1:])
        case ("rocketmq", _, *_):
            of_rocketmq(made, entry, path[1:])
        case ("bindings", *_) | ("rocketmq", *_) | ("default", *_) if not entry.value:
            pass  # an empty section
        case ("function", "bindings", _):
            made.aliases[path[2]] = text_of(entry)
        case _:
            put(made, entry, None, Scope.STREAM, path)


def of_rocketmq(made: Layout, entry: Entry, path: tuple[str, ...]) -> None:
    match uniform_path(path):
        case ("bindings", _, side, _, *_) if side in SIDES:
            put(made, entry, path[1], scope_of(side, True), path[3:])
        case ("default", side, _, *_) if side in SIDES:
            put(made, entry, ALL, scope_of(side, True), path[2:])
        case ("binder", _, side, _, *_) if side in SIDES:
            told(
                made,
                entry,
                "stands below rocketmq.binder, where Spring does not look; here it counts as if it stood below rocketmq.bindings",
            )
            put(made, entry, path[1], scope_of(side, True), path[3:])
        case ("binder", _, *_):
            put(made, entry, None, Scope.BINDER, path[1:])
        case ("bindings", _, *_) if not entry.value:
            made.bindings.setdefault(path[1], {})
        case (_,) if not entry.value:
            pass
        case ("bindings", _, *_):
            raise entry.wrong(
                f"is unknown; expected is {'.'.join((*ROCKETMQ, 'bindings', path[1]))}.consumer or .producer, with keys below"
            )
        case _:
            near = nearest(uniform(path[0]), ("bindings", "binder", "default"))
            raise entry.wrong(f"is unknown; the nearest known key is {'.'.join((*ROCKETMQ, near, *path[1:]))}")


def put(made: Layout, entry: Entry, binding: str | None, scope: Scope, path: tuple[str, ...]) -> None:
    key = find(scope, path)
    if key is None:
        if len(path) == 1 and uniform(path[0]) in SIDES and not entry.value:
            return  # an empty section
        raise unknown(entry, binding, scope, path)
    settings = made.app if binding is None else made.bindings.setdefault(binding, {})
    texts = entry.value if isinstance(entry.value, list) else [entry.value]
    if key.fate is Fate.NO_EFFECT:
        told(made, entry, f"has no effect: {key.about}")
        return
    if key.fate is Fate.REFUSED:
        if texts == [""] or all(text.strip().lower() in map(str.lower, key.allowed) for text in texts):
            return
        given = "" if key.is_map or key.name.endswith("-key") else f" ({entry.value!r})"
        raise entry.wrong(f"is not served{given}: {key.about}")
    if texts == [""]:
        return  # nothing was given
    setting = Setting(read(entry, key), entry)
    before = settings.get((scope, key.name))
    if before is not None and before.value != setting.value:
        raise entry.wrong(f"is {setting.value!r}, but line {before.entry.line} says {before.value!r} with {before.entry.key}; remove one")
    settings[scope, key.name] = setting


def read(entry: Entry, key: Key) -> Any:
    if key.is_list:
        return entry.value if isinstance(entry.value, list) else [entry.value]
    text = text_of(entry)
    if text.startswith("#{"):
        raise entry.wrong(f"is {text!r}; expressions are not served in values: write the value, or a ${{PLACEHOLDER}}")
    try:
        return key.read(text.strip())
    except ValueError as error:
        raise entry.wrong(f"is {text!r}; expected is {error}") from None


def text_of(entry: Entry) -> str:
    if isinstance(entry.value, list):
        raise entry.wrong("is a list; expected is one value")
    return entry.value


def told(made: Layout, entry: Entry, what: str) -> None:
    made.notices.append(f"{entry.file}, line {entry.line}: {entry.key} {what}")


# -- what is unknown


def unknown(entry: Entry, binding: str | None, scope: Scope, path: tuple[str, ...]) -> BadBindings:
    name = ".".join(path)
    here = place_of(scope, binding)
    for other in Scope:
        found = find(other, path)
        if found is not None and other is not scope and (binding is None) == ("*" not in other.value):
            return entry.wrong(f"is unknown there; it belongs to {place_of(other, binding)}: {place_of(other, binding)}.{found.name}")
    if scope is Scope.STREAM and (sections := difflib.get_close_matches(uniform(path[0]), SECTIONS, 1, CLOSE)):
        return entry.wrong(f"is unknown; the nearest known key is {'.'.join((here, sections[0], *path[1:]))}")
    near = nearest(kebab(name), names_in(scope))
    return entry.wrong(f"is unknown; the nearest known key is {here}.{near}")


def place_of(scope: Scope, binding: str | None) -> str:
    if binding == ALL:
        return scope.value.replace("bindings.*", "default")
    return scope.value.replace("*", binding or "*")


def names_in(scope: Scope) -> list[str]:
    found = [name for key in ROWS if key.scope is scope for name in key.names()]
    if scope is Scope.STREAM:
        found += SECTIONS
    if scope is Scope.BINDING:
        found += SIDES
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(word, list(known), 1, 0.0)[0]


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", name).replace("_", "-").lower()
