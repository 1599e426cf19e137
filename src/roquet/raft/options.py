"""Who is in a group, and how long things take. Java's figures where a Java member would notice, ours where only Roquet members do.

The defaults: a heartbeat every 300 ms, a leader counts as lost after three of them (and up to one more, by chance, so that two followers
rarely ask at once), a vote takes some milliseconds, a next try comes after 100 to 300 ms, of one who voted for another a heartbeat later:
that one may be slow to say that it leads. All this counts from when term and vote are on disk. A dead machine's leader is replaced after
about 1.2 s; where the connection to it breaks (a killed process), after 0.1 to 0.2 s. Shorter heartbeats would cost more than they give:
pauses of some hundred milliseconds are usual on busy machines. Java's members wait for 6 s: they take more heartbeats without harm, and a
Roquet follower of a Java leader waits for 6 s too, since only a Roquet leader tells how often it sends them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roquet.errors import RoquetError
from roquet.raft.messages import NAME_MAX

JAVA_HEARTBEAT_MS = 2_000


TERM_STEP_MAX = 1 << 32
"""Nobody is so many terms ahead of another: a term like that is refused, or terms would be used up (they have 63 bits)."""


class BadGroup(RoquetError):
    """The settings name no group that could work. The text says what was given and what is expected."""


def peers_of(text: str) -> dict[str, str]:
    """ "n0-host:port;n1-host:port" -> addresses by id. Raises BadGroup."""
    found: dict[str, str] = {}
    for each in filter(None, (part.strip() for part in text.split(";"))):
        name, dash, address = each.partition("-")
        host, colon, port = address.rpartition(":")
        if not (dash and name and host and colon and port.isdecimal() and 0 < int(port) < 65_536):
            raise BadGroup(f"dLegerPeers has {each!r}, expected id-host:port, for example n0-192.168.0.10:40911")
        if not (len(name) > 1 and name[1:].isdecimal() and len(name) <= NAME_MAX):
            raise BadGroup(f"dLegerPeers has the id {name!r}, expected a letter and a number, for example n0: the broker id is made of it")
        if name in found:
            raise BadGroup(f"dLegerPeers names {name!r} twice, expected each id once")
        found[name] = address
    return found


@dataclass(frozen=True, slots=True)
class Options:
    group: str
    me: str
    peers: dict[str, str] = field(default_factory=dict)
    """Addresses by id, this member's own among them."""
    preferred: tuple[str, ...] = ()
    """Who should lead when it can."""
    sync_flush: bool = False
    """An entry counts here when it is on this disk, and not already when it is written."""

    heartbeat_ms: int = 300
    leak: int = 3
    """So many heartbeats missing: the leader is lost."""
    late_ms: int = 250
    """A tick that comes so much after the one before: this process stood still, and cannot tell who else was silent."""
    pause_ms: int = 100
    """Before the next vote, at least."""
    pause_random_ms: int = 200
    takeover_pause_ms: int = 30
    takeover_random_ms: int = 70
    cannot_write_ms: int = 2_000
    """A member whose disk is full waits so much longer: others go first. And so long its leader sends it nothing then."""
    vote_wait_ms: int = 1_000
    """For the answers to a vote: a member that is gone without a word must not hold up the next try."""
    rpc_ms: int = 3_000
    java_retry_ms: int = 500
    retry_ms: int = 100
    hold_ms: int = 1_000
    """A push that came too early is kept for so long."""
    commit_ms: int = 1_000
    """A follower hears of the commit index at least so often."""
    commit_soon_ms: int = 50
    """... and so soon after it has risen, when nothing else carries it there."""
    pending_max: int = 10_000
    """Entries that wait for a majority, of a leader."""
    quorum_ms: int = 2_500
    """A send waits for a majority for so long."""
    lag_max: int = 1_000
    """Entries that a member may be behind to be handed the leadership."""
    window_entries: int = 1_000
    window_bytes: int = 8 << 20
    """Under way to one follower."""
    frames_max: int = 32
    """Dense pushes under way to one follower."""
    push_bytes: int = 1 << 20
    push_entries: int = 4_096
    java_push_bytes: int = 64 << 10
    java_push_entries: int = 128
    throttle_behind: int = 300 << 20
    throttle_bytes: int = 20 << 20
    """A second, to a follower that is so far behind."""
    waiting_bytes: int = 32 << 20
    """Pushes that came too early, of all leaders together."""

    def __post_init__(self) -> None:
        if self.me not in self.peers:
            raise BadGroup(f"dLegerSelfId is {self.me!r}, expected one of the ids in dLegerPeers: {', '.join(self.peers) or 'none'}")
        unknown = [name for name in self.preferred if name not in self.peers]
        if unknown:
            raise BadGroup(f"preferredLeaderId names {unknown[0]!r}, expected ids of dLegerPeers: {', '.join(self.peers)}")

    @property
    def others(self) -> list[str]:
        return [name for name in self.peers if name != self.me]

    @property
    def quorum(self) -> int:
        return len(self.peers) // 2 + 1
