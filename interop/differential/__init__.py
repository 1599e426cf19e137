"""One sequence of requests, played to Apache RocketMQ and to Roquet in one run, and the answers compared.

`script.py` is the sequence; `side.py` plays it over raw connections and keeps what it saw; `normal.py` takes out what
cannot agree (times, ids, addresses) and compares; `explained.py` is the table of differences that are meant to be, and
`answers.json` says exactly what Roquet answers in each of them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache
from report import Section, errors_in
from store_exchange import ApachePeer, Peer

from differential.answers import Answers
from differential.explained import EXPLAINED, Explained
from differential.normal import differences
from differential.script import play
from differential.side import Side

SETTINGS: dict[str, object] = {
    "enablePropertyFilter": True,
    "maxMessageSize": 65_536,  # so that too large is soon reached
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 1_000 * 20,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 2_000,
    # Both clusters share few processors: nobody is turned away for having waited.
    "waitTimeMillsInSendQueue": 20_000,
    "waitTimeMillsInPullQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}


def play_to(peer: Peer, directory: Path) -> Side:
    with (
        peer.name_server(apache.free_port(), directory / "namesrv") as namesrv,
        peer.broker(apache.free_port(), namesrv.address, directory / "broker", SETTINGS) as broker,
    ):
        side = Side(namesrv.address, broker.address)
        side.names.add(str(directory / "broker" / "store"), "<store>")
        try:
            play(side)
        finally:
            side.close()
    side.logs = {server.name: server.log() for server in (namesrv, broker)}
    return side


def check(section: Section, peer: Peer, directory: Path, *, accept: bool = False) -> None:
    """Play to Apache and to `peer` at the same time; one check a group. Apache against itself must agree in everything.

    `accept`: what Roquet answers now, where a difference is explained, is what it is to answer from now on.
    """
    reference = ApachePeer(apache.SERVER)
    ours_here = peer.name == "roquet"
    with ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(play_to, one, directory / name) for one, name in ((reference, "theirs"), (peer, "ours"))]
        theirs, ours = (side.result() for side in sides)
    answers = Answers(None) if accept or not ours_here else Answers.load()
    compare(section, theirs, ours, EXPLAINED if ours_here else (), answers)
    if accept and ours_here:
        answers.save()
    for side, name in ((theirs, "Apache"), (ours, peer.name)):
        section.notes += [f"{name}: {line}" for line in side.slow()]
    for name, log in ours.logs.items() if ours_here else ():
        section.judge(f"no error in the log of the {name}", errors_in(log))


def compare(section: Section, theirs: Side, ours: Side, explained: tuple[Explained, ...], answers: Answers) -> None:
    used: dict[tuple[Explained, str], list[str]] = {}
    for group, seen in theirs.seen.items():
        other = {one.step: one.value for one in ours.seen.get(group, [])}
        mine = {one.step: one.value for one in seen}
        problems = 0
        covered = 0
        for step in [*mine, *(step for step in other if step not in mine)]:
            if step not in mine or step not in other:
                section.fail(f"{group}: {step}", f"played to one of the two only: {mine.get(step, other.get(step))}")
                problems += 1
                continue
            for path, one, two in differences(mine[step], other[step]):
                reason = next((each for each in explained if each.group == group and each.covers(step, path)), None)
                what = f"{path}: Apache {short(one)}, Roquet {short(two)}"
                if reason is None:
                    problems += 1
                    section.fail(f"{group}: {step}", what)
                    continue
                covered += 1
                used.setdefault((reason, step), []).append(what)
                if wrong := answers.wrong(group, step, path, two):
                    problems += 1
                    section.fail(f"{group}: {step}", f"{what}; {wrong}")
        if not problems:
            section.ok(f"{group}: {len(mine)} steps" + (f", {covered} differences explained" if covered else ""))
    for each in explained:
        named = [one.step for one in theirs.seen.get(each.group, []) if each.names(one.step)]
        for step in named or each.steps:
            if (each, step) not in used:
                section.fail(f"{each.group}: {step}", f"{each.what} no longer differs: delete the explanation ({each.why})")
    for group, step, path in answers.unseen():
        section.fail(f"{group}: {step}", f"{path} no longer differs: delete it from answers.json (--accept does)")
    section.notes += table(explained, used)


LIMIT = int(os.environ.get("ROQUET_DIFFERENCE_LENGTH", "160"))


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}... ({len(text)} characters)"


def table(explained: tuple[Explained, ...], used: dict[tuple[Explained, str], list[str]]) -> list[str]:
    """The explained differences: why, and under it each step with the two answers."""
    lines = [f"explained differences: {len(used)} steps"] if used else []
    for why in dict.fromkeys(each.why for each in explained):
        lines.append(f"  {why}")
        for (each, step), found in used.items():
            if each.why == why:
                lines += [f"    {each.group}: {step}: {one}" for one in found]
    return lines
