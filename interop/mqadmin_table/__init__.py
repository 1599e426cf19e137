"""Every command of Apache's mqadmin 4.9.8 against two broker groups of Apache and two of Roquet, and what it prints compared.

`commands.py` is the list; `playing.py` runs it against one cluster; `normal.py` takes out what cannot agree and compares;
`explained.py` is the table of differences that are meant to be; `page.py` writes docs/mqadmin.md, which says what Roquet prints in each.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache
from java_client import JavaClient
from report import Section, errors_in
from store_exchange import ApachePeer, Peer

from mqadmin_table import page
from mqadmin_table.commands import COMMANDS
from mqadmin_table.explained import EXPLAINED, WITH_KEYS, Explained
from mqadmin_table.normal import differences
from mqadmin_table.page import Difference, Row
from mqadmin_table.playing import Played, play

ONE_AT_A_TIME = threading.Lock()
"""Two clusters and their clients are enough for one machine: with and without access control do not run beside each other."""


def check(section: Section, peer: Peer, client: JavaClient, directory: Path, *, keys: bool = False, accept: bool = False) -> None:
    """Play to Apache and to `peer` at the same time; one check a command. Apache against itself must agree in everything.

    `keys`: with access control. `accept`: what Roquet prints now, where a difference is explained, is what it is to print from now on.
    """
    roquet = not isinstance(peer, ApachePeer)
    with ONE_AT_A_TIME, ThreadPoolExecutor(2) as pool:
        their_run = pool.submit(play, ApachePeer(apache.SERVER), client, directory / "theirs", keys=keys)
        our_run = pool.submit(play, peer, client, directory / "ours", keys=keys)
        theirs, ours = their_run.result(), our_run.result()
    for played, name in ((theirs, "Apache"), (ours, peer.name)):
        section.judge(f"all commands ran, {name}", played.problem)
    if theirs.problem or ours.problem:
        return
    explained = (WITH_KEYS if keys else EXPLAINED) if roquet else ()
    rows = compare(section, theirs, ours, explained)
    if not roquet:
        return
    for name, log in ours.logs.items():
        section.judge(f"no error in the log of the {name}", errors_in(log))
    written = page.second_half(rows, {command.title for command in COMMANDS}) if keys else page.first_half(rows)
    if accept:
        page.write(**{"second" if keys else "first": written})
    section.judge("docs/mqadmin.md is what was found", changed(page.read()[keys], written))


def compare(section: Section, theirs: Played, ours: Played, explained: tuple[Explained, ...]) -> list[Row]:
    needed: set[Explained] = set()
    rows = []
    for (command, their_lines), (_, our_lines) in zip(theirs.lines, ours.lines, strict=False):
        only_theirs, only_ours = differences(their_lines, our_lines, ordered=command.ordered)
        found: dict[str, Difference] = {}
        unexplained = []
        for line, of_theirs in [*((line, True) for line in only_theirs), *((line, False) for line in only_ours)]:
            reason = next((each for each in explained if each.covers(line, command.line, theirs=of_theirs)), None)
            if reason is None:
                unexplained.append(f"{'Apache' if of_theirs else 'Roquet'} alone: {line}")
                continue
            needed.add(reason)
            difference = found.setdefault(reason.why, Difference(reason.why, [], []))
            if not reason.brief:
                (difference.theirs if of_theirs else difference.ours).append(line)
        section.judge(command.title, " || ".join(unexplained[:4]) + f" ({len(unexplained)} lines)" if unexplained else None)
        rows.append(Row(command.title, len(our_lines) - len(only_ours), list(found.values())))
    for each in explained:
        if each not in needed:
            section.fail(each.commands[0], f"no longer differs: delete the explanation ({each.why})")
    return rows


def changed(known: str, written: str) -> str | None:
    """The first line of the page that is not as it was found now."""
    if known == written:
        return None
    line = next((line for line in written.splitlines() if line not in known.splitlines()), "a line less")
    return f"read the difference and write it with --accept; found: {line[:600]}"
