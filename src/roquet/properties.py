"""Java's properties text, which RocketMQ's settings files are: read as java.util.Properties reads it, and changed in place.

# a comment, or ! one         blank lines and comments are passed over
key=value   key : value       the first '=', ':' or blank that is not escaped ends the key
a=first \\                     an odd number of backslashes at the end of a line: it goes on in the next
b=\\u00e9 \\t \\n \\\\            escapes; a backslash before anything else is dropped
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
BLANKS = " \t\f"
LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "": ""}


def parse_properties(text: str) -> dict[str, str]:
    """Key -> value; of a key that stands twice the last. Blanks at the end of a value are dropped: no setting means them."""
    return {key: value for key, value, _, _ in entries(text)}


def edited(text: str, pairs: Mapping[str, str]) -> str:
    """The text with these values: each in its key's place, or at the end. Everything else stays: comments, order, other keys."""
    places = {key: (start, end) for key, _, start, end in entries(text) if key in pairs}
    for key, (start, end) in sorted(places.items(), key=lambda place: -place[1][0]):
        text = text[:start] + property_line(key, pairs[key]) + text[end:]
    if text and text[-1] not in "\r\n":
        text += "\n"
    if goes_on(text.rstrip("\r\n")):
        text += "\n"  # else what follows would be a part of its last line
    return text + "".join(property_line(key, value) for key, value in pairs.items() if key not in places)


def property_line(key: str, value: str) -> str:
    return f"{escaped(key, also='=: #!')}={escaped(value)}\n"


def escaped(text: str, also: str = "") -> str:
    """As a value stands in the text; plain ASCII, since Java reads files as Latin-1."""
    made = []
    for number, character in enumerate(text):
        if character == "\\" or character in also or (character == " " and number == 0):
            made.append("\\" + character)
        elif " " <= character <= "~":
            made.append(character)
        else:
            raw = character.encode("utf-16-be", "surrogatepass")
            made += [f"\\u{raw[at : at + 2].hex()}" for at in range(0, len(raw), 2)]
    return "".join(made)


def entries(text: str) -> Iterator[tuple[str, str, int, int]]:
    """(key, value, where it begins in the text, where it ends)."""
    at = 0
    while at < len(text):
        start, line = at, ""
        while at < len(text):
            found = LINES.match(text, at)
            assert found is not None
            at = found.end()
            line += found[0].rstrip("\r\n").lstrip(BLANKS)
            if line[:1] in ("#", "!", "") or not goes_on(line):
                break
            line = line[:-1]
        if line and line[0] not in "#!":
            found = ENTRY.fullmatch(line)
            assert found is not None
            yield unescaped(found[1]), unescaped(found[2]).rstrip(), start, at


def goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    whole = ESCAPE.sub(lambda found: chr(int(found[1][1:], 16)) if len(found[1]) == 5 else LETTERS.get(found[1], found[1]), text)
    return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # two escapes may be one character
