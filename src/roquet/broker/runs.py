"""Requests of one kind that follow each other in a read, and are served together: what each costs is then little more than its bytes.

A part offers to take such a run (`Take`). It takes the first of them that are as clients send them all day, as many as there are, with
the outcome that its handler would have for one after another. What it leaves, the handler gets; a test holds both to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import itemgetter

import orjson

from roquet.errors import Broken
from roquet.wire.binary import read_header
from roquet.wire.command import ONEWAY, Command
from roquet.wire.frame import BINARY, JSON, Frame

RUN_MAX = 64
"""Requests served together: others get their turn between two runs."""
DIGITS_MAX = 18
HEAD = itemgetter("code", "opaque", "flag", "version", "extFields")


Take = Callable[[list[Command]], int]
"""Stage what the first of these ask for, and remember their answers: how many. Raises Cold, Refused and StoreUnavailable; then the caller
undoes what was staged, and the first goes to its handler."""


def requests_of(code: int, frames: list[Frame], at: int) -> list[Command]:
    """The requests with this code that stand from here on, as far as their headers are ordinary. Without their bodies, and values of
    their fields may be anything that JSON has: who wants a text asks for it (`number`)."""
    found: list[Command] = []
    for form, header, _ in islice(frames, at, at + RUN_MAX):
        try:
            if form == JSON:
                coded, opaque, flag, version, fields = HEAD(orjson.loads(header))
            else:
                coded, opaque, flag, fields, _, version, _ = read_header(header)
        except (Broken, ValueError, KeyError, TypeError):
            break
        if coded != code or not (type(coded) is type(opaque) is type(flag) is type(version) is int and type(fields) is dict):
            break
        if not (-0x80000000 <= opaque <= 0x7FFFFFFF and 0 <= version <= 0x7FFFFFFF and flag in (0, ONEWAY)):
            break
        found.append(Command(code, fields, opaque=opaque, flag=flag, version=version, binary=form == BINARY))
    return found


def number(value: object) -> int:
    """A number that is not negative, as all clients spell it. -1: it is another one, or none."""
    return int(value) if type(value) is str and value.isdigit() and value.isascii() and len(value) <= DIGITS_MAX else -1
