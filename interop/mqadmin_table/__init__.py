"""Every command of Apache's mqadmin 4.9.8 against two broker groups of Apache and two of Roquet, and what it prints compared.

`commands.py` is the list; `playing.py` runs it against one cluster; `normal.py` takes out what cannot agree and compares;
`explained.py` is the table of differences that are meant to be; `page.py` writes docs/mqadmin.md, which says what Roquet prints in each.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache
from java_client import JavaClient
from report import Section, errors_in
from store_exchange import ApachePeer, Peer

from mqadmin_table import page
from mqadmin_table.explained import EXPLAINED, Explained
from mqadmin_table.normal import differences
from mqadmin_table.page import Difference, Row
from mqadmin_table.playing import Played, play


def check(section: Section, peer: Peer, client: JavaClient, directory: Path, *, accept: bool = False) -> None:
    """Play to Apache and to `peer` at the same time; one check a command. Apache against itself must agree in everything.

    `accept`: what Roquet prints now, where a difference is explained, is what it is to print from now on.
    """
    roquet = not isinstance(peer, ApachePeer)
    with ThreadPoolExecutor(2) as pool:
        theirs, ours = (
            each.result()
            for each in [
                pool.submit(play, ApachePeer(apache.SERVER), client, directory / "theirs"),
                pool.submit(play, peer, client, directory / "ours"),
            ]
        )
    for played, name in ((theirs, "Apache"), (ours, peer.name)):
        section.judge(f"all commands ran, {name}", played.problem)
    if theirs.problem or ours.problem:
        return
    rows = compare(section, theirs, ours, EXPLAINED if roquet else ())
    if not roquet:
        return
    for name, log in ours.logs.items():
        section.judge(f"no error in the log of the {name}", errors_in(log))
    written = page.page(rows)
    if accept:
        page.FILE.write_text(written)
    section.judge("docs/mqadmin.md is what was found", _changed(written))


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
            (difference.theirs if of_theirs else difference.ours).append(line)
        section.judge(command.line, " || ".join(unexplained[:4]) + f" ({len(unexplained)} lines)" if unexplained else None)
        rows.append(Row(command.line, len(our_lines) - len(only_ours), list(found.values())))
    for each in explained:
        if each not in needed:
            section.fail(each.commands[0], f"no longer differs: delete the explanation ({each.why})")
    return rows


def _changed(written: str) -> str | None:
    """The first line of the page that is not as it was found now."""
    known = page.FILE.read_text().splitlines() if page.FILE.exists() else []
    if known == written.splitlines():
        return None
    line = next((line for line in written.splitlines() if line not in known), "a line less")
    return f"read the difference and write it with --accept; found: {line[:600]}"
