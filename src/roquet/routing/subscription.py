"""Tag expressions: "a || b" takes messages tagged a or b, "*" and "" take all.

The broker sees only the hash of a message's tag in the queue entry, so it judges by hash and may let a stranger with the
same hash through; the client judges again by the tag itself.
"""

from __future__ import annotations

from collections.abc import Collection

from roquet.errors import RoquetError
from roquet.wire.calls.members import SubscriptionData
from roquet.wire.hashing import java_hash

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
EXPRESSION_LENGTH_MAX = 64 * 1024

BLANKS = "".join(map(chr, range(0x21)))
"""What Java's trim takes off: every character up to the space."""


class BadExpression(RoquetError, ValueError):
    """A tag expression that names no tag. Correct the expression; a broker answers it with code 23."""


def subscribe(topic: str, expression: str | None, now_ms: int = 0) -> SubscriptionData:
    """The subscription that a tag expression means; `now_ms` becomes its version. Raises BadExpression.

    Only "*" alone takes everything: in "* || a" the star is a tag like another, as upstream has it.
    """
    if not expression or expression == ALL:
        return SubscriptionData(topic, ALL, set(), set(), now_ms)
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise BadExpression(f"tag expression of {len(expression)} characters, limit is {EXPRESSION_LENGTH_MAX}")
    pieces = expression.split("||")
    if not any(pieces):
        raise BadExpression(f"tag expression {expression!r} names no tag; write '*' for all messages or 'a || b' for some")
    tags = {tag for tag in (piece.strip(BLANKS) for piece in pieces) if tag}
    return SubscriptionData(topic, expression, tags, {java_hash(tag) for tag in tags}, now_ms)


def next_version(known: SubscriptionData | None, now_ms: int) -> int:
    """The version of a subscription that replaces another: brokers take a larger one only, so a clock that was set back may not make it
    smaller."""
    return now_ms if known is None else max(now_ms, known.sub_version + 1)


def sql_subscription(topic: str, expression: str, now_ms: int = 0) -> SubscriptionData:
    """An SQL92 filter over message properties. The broker parses it; here it is only carried."""
    if not expression.strip():
        raise BadExpression("the SQL92 expression is empty; use subscribe(topic, '*') for all messages")
    return SubscriptionData(topic, expression, set(), set(), now_ms, SQL92)


def is_tag_type(expression_type: str | None) -> bool:
    """C++ leaves the type out and means tags."""
    return not expression_type or expression_type == TAG


class TagFilter:
    """Judges one message by its tag. What is no tag expression (SQL92, class filters) passes here and is judged elsewhere."""

    __slots__ = ("codes", "hashes", "tags", "takes_all")

    def __init__(self, takes_all: bool, codes: Collection[int] = (), tags: Collection[str] = ()) -> None:
        self.takes_all = takes_all
        self.codes = frozenset(codes)
        """Signed 32-bit hashes."""
        self.hashes = b"".join(code.to_bytes(4, "big", signed=True) for code in sorted(self.codes) if -0x80000000 <= code <= 0x7FFFFFFF)
        """The same as queue entries end with them."""
        self.tags = frozenset(tags)

    @classmethod
    def of(cls, subscription: SubscriptionData) -> TagFilter:
        """The codes are those of the subscription, not computed anew: the broker must do what the client asked for."""
        takes_all = subscription.class_filter_mode or subscription.sub_string == ALL or not is_tag_type(subscription.expression_type)
        return cls(takes_all, subscription.code_set, subscription.tags_set)

    def takes_hash(self, tag_hash: int) -> bool:
        """The broker's judgement, by the 64-bit tag hash of a queue entry; Java narrows it to 32 bits first."""
        return self.takes_all or ((tag_hash + 0x80000000) & 0xFFFFFFFF) - 0x80000000 in self.codes

    @property
    def judges(self) -> bool:
        """Whether a client looks at tags at all."""
        # Upstream's client does not look again when the expression named no tag (" || "): the broker let nothing through.
        return not self.takes_all and bool(self.tags)

    def takes_tag(self, tag: str | None) -> bool:
        """The client's judgement. A message without a tag is taken only by those who take all."""
        return not self.judges or (tag is not None and tag in self.tags)

    def __repr__(self) -> str:
        return "<TagFilter *>" if self.takes_all else f"<TagFilter {' || '.join(sorted(self.tags))}>"
