"""Which fault comes when, to whom and for how long: chosen by a seed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

LEADER, FOLLOWER, NAME_SERVER = "leader", "follower", "name server"
"""Who is hit. Which node that is shows when the time has come."""

KILL, REPLACE, STOP, CUT, CUT_PEERS, CUT_OUTWARD, CUT_INWARD, LOSS, DELAY, FULL_DISK = (
    "kill", "replace", "stop", "cut", "cut-peers", "cut-outward", "cut-inward", "loss", "delay", "full-disk",
)  # fmt: skip
KINDS = {
    KILL: "SIGKILL, and started again",
    REPLACE: "SIGKILL, and started again with an empty disk, as a new machine of its name and address",
    STOP: "SIGSTOP, and SIGCONT",
    CUT: "no packet to or from any machine",
    CUT_PEERS: "no packet to or from the other servers of the group; clients and name servers reach it",
    CUT_OUTWARD: "no packet from it arrives; all others do",
    CUT_INWARD: "no packet to it arrives; all others do",
    LOSS: "10 % of its packets are lost, each way",
    DELAY: "its packets take 200 ms more, each way",
    FULL_DISK: "its file system is full to the last byte",
}
NAME_SERVER_KINDS = (KILL, STOP, CUT)
LEADERS_SHARE = 0.6
NAME_SERVERS_SHARE = 0.1


class Fault(NamedTuple):
    kind: str
    role: str
    choice: float
    """Of those who have the role: 0 is the first, just below 1 the last."""
    lasts_s: float
    pause_s: float
    """From its end, when all is well again, to the next."""


def faults(
    random: Random,
    kinds: Sequence[str],
    *,
    followers: bool,
    never_leaders: Sequence[str] = (),
    lasts_s: tuple[float, float],
    pause_s: tuple[float, float],
) -> Iterator[Fault]:
    """Without end, one after the other; every kind comes about equally often. `never_leaders`: kinds that only followers survive."""
    turn: list[str] = []
    while True:
        turn = turn or random.sample(kinds, len(kinds))
        kind = turn.pop()
        role = LEADER if not followers or random.random() < LEADERS_SHARE else FOLLOWER
        if kind in never_leaders:
            role = FOLLOWER
        if kind in NAME_SERVER_KINDS and random.random() < NAME_SERVERS_SHARE:
            role = NAME_SERVER
        yield Fault(kind, role, random.random(), random.uniform(*lasts_s), random.uniform(*pause_s))
