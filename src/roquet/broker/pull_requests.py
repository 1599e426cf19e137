"""Pulls as they come all day: of a shape (`wire/pull_shapes.py`) that was read before. Such a request costs no JSON and no typed header.

Whether a pull is allowed is asked each time, since topics, groups, subscriptions and settings change. What is remembered is who allowed the
last one, and asking them again is short (`Puller.take`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roquet.broker.gather import Gathered
from roquet.broker.topics import Topic
from roquet.errors import Broken
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.members import SubscriptionData
from roquet.wire.calls.pulls import PULL_MESSAGE, PullHeader
from roquet.wire.codes import PullFlag
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame
from roquet.wire.pull_shapes import shape_of

SHAPES_MAX = 4_096
SCAN_MAX = 800
"""Queue entries that one pull judges at most, as upstream's 16,000 bytes; with a tag filter only the first of a shape."""
TAGGED_MAX = 8 * SCAN_MAX
"""Queue entries that one with a tag filter judges at most: some 30 us."""
SHAPE_SIZE_MAX = 1_024
"""Bytes of the longest shape that is remembered: all of them together have some megabytes at most."""
SIZE_MAX = 1 << 31
"""Bytes of an answer to a client that names no limit; the settings have one, too."""


@dataclass(slots=True, frozen=True, eq=False)
class Grant:
    """Who allowed pulls of a shape. As long as these are the same objects, and the settings say so too, the next is allowed as well."""

    group: GroupConfig
    topic: Topic
    subscription: SubscriptionData | None
    """That of the group's members; None: the request brings its own."""
    codes: bytes | None
    """Tag hashes that are wanted (`TagFilter.hashes`), None for all."""
    key: str
    """Of the group's progress and statistics in the topic."""
    gather: Callable[..., Gathered | None]
    """Finds the messages that are wanted: `gather.gather`, compiled where it is."""

    def is_like(self, other: Grant) -> bool:
        """Whoever allows one of them allows the other, if they are asked at the same time."""
        return (
            self.topic is other.topic
            and self.group is other.group
            and self.subscription is other.subscription
            and self.codes == other.codes
            and self.key == other.key
        )


@dataclass(slots=True, eq=False)
class KnownPull:
    """What pulls of one shape have in common."""

    header: PullHeader
    """Of the first of them; its numbers are nobody else's."""
    shape: bytes
    first: Command
    place: tuple[str, int]
    """Topic and queue id."""
    count_max: int
    size_max: int
    commits: bool
    """They bring the group's progress."""
    binary: bool
    grant: Grant | None = None
    """None: nobody has looked yet, or it must be looked at each time."""
    entries_max: int = SCAN_MAX
    """Queue entries that the next of them judges, if it has a tag filter."""

    @property
    def usual(self) -> Grant | None:
        """The grant, if it is for all messages."""
        return None if self.grant is None or self.grant.codes is not None else self.grant

    def note_judged(self, count: int) -> None:
        """A pull with a tag filter judged so many entries, all that it might or until its answer was full. The next may judge a quarter
        more: where few match, answers become full, and there are fewer of them; where many do, not much is read for nothing."""
        self.entries_max = min(max(SCAN_MAX, count + count // 4), TAGGED_MAX)


Asked = tuple[KnownPull, int, int, int]
"""(what it has in common with others, opaque, queue offset, offset to commit)."""


@dataclass(slots=True, eq=False, repr=False)
class PullRequest(Command):
    """Without its fields, which `known` has; of these the numbers count that stand here."""

    known: KnownPull | None = None
    queue_offset: int = 0
    commit_offset: int = 0


class PullRequests:
    """State: what was read of the shapes that came; None: one whose requests must be read one by one."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownPull | None] = {}

    def find(self, frame: Frame) -> Asked | None:
        """None: look properly."""
        shaped = shape_of(frame[0], frame[1])
        if shaped is None:
            return None
        shape, opaque, queue_offset, commit_offset = shaped
        known = self._known.get(shape)
        if known is None:
            known = None if shape in self._known else self._learn(frame, shape, queue_offset, commit_offset)
            if known is None:
                return None
        return known, opaque, queue_offset, commit_offset

    def read(self, frame: Frame) -> PullRequest | None:
        """The same as a request."""
        asked = self.find(frame)
        if asked is None:
            return None
        known, opaque, queue_offset, commit_offset = asked
        first = known.first
        return PullRequest(
            first.code, {}, frame[2], opaque=opaque, flag=first.flag, language=first.language, version=first.version, binary=first.binary,
            known=known, queue_offset=queue_offset, commit_offset=commit_offset,
        )  # fmt: skip

    def _learn(self, frame: Frame, shape: bytes, queue_offset: int, commit_offset: int) -> KnownPull | None:
        if len(shape) > SHAPE_SIZE_MAX:
            return None
        if len(self._known) >= SHAPES_MAX:
            self._known.clear()
        self._known[shape] = known = understood(frame, shape, queue_offset, commit_offset)
        return known


def understood(frame: Frame, shape: bytes, queue_offset: int, commit_offset: int) -> KnownPull | None:
    """None: these numbers are not what they seem to be, or there is more to it."""
    if b"\\" in frame[1]:
        return None  # a name may be spelled in another way
    try:
        request = decode(frame)
    except (Broken, ValueError, KeyError, TypeError, AttributeError):
        return None
    header = None if request.is_response or request.code != PULL_MESSAGE.code else quick_header(request.fields)
    if header is None or (header.queue_offset, header.commit_offset) != (queue_offset, commit_offset):
        return None
    commits = header.sys_flag & PullFlag.COMMIT_OFFSET != 0
    return KnownPull(header, shape, request, (header.topic, header.queue_id), *most_of(header), commits, request.binary)


def most_of(header: PullHeader) -> tuple[int, int]:
    """How many messages and bytes the answer may have, as far as the client is concerned. As upstream, which looks after the first."""
    size = header.max_msg_bytes
    return max(1, header.max_msg_nums), size if size is not None and size > 0 else SIZE_MAX


def quick_header(fields: dict[str, str]) -> PullHeader | None:
    """The header of a pull as clients send it, read by hand: a third of what the typed decoding costs. None: not sure."""
    if "scanBytes" in fields:
        return None
    try:
        get = fields.get
        queue_offset, commit_offset = int(fields["queueOffset"]), int(fields["commitOffset"])
        suspend_ms, sub_version = int(fields["suspendTimeoutMillis"]), int(fields["subVersion"])
        queue_id, count, sys_flag = int(fields["queueId"]), int(fields["maxMsgNums"]), int(fields["sysFlag"])
        size = int(get("maxMsgBytes") or 0)
        group, topic = fields["consumerGroup"], fields["topic"]
    except (KeyError, ValueError):
        return None
    if max(queue_offset, commit_offset, suspend_ms, sub_version) >> 63 or max(queue_id, count, sys_flag, size) >> 31:
        return None
    return PullHeader(
        group, topic, queue_id, queue_offset, count, sys_flag, commit_offset, suspend_ms, sub_version,
        get("subscription"), get("expressionType"), None, size or None,
    )  # fmt: skip
