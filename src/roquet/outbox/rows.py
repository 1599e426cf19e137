"""What a relay and an operator do with rows. Every function is one transaction; none waits for more than another one's short one.

Order of a key. `Outbox.add` lets one transaction at a time add to a key, so ids of a lane rise in the order of commits: who sees a row can
see all rows of its lane that come before it. A relay sends a row after it has claimed it and has then seen that no row before it in its
lane is left, except those that it has claimed too. Leases are therefore no part of that promise; they only keep two relays from doing
the same work.

A look costs what it finds, however many rows wait: rows are read in the order in which they became due, and a lane whose first row is not
free or not due is left out of the rest of the look. Rows behind one that failed are not due (`HELD_MS`); the transaction that ends the wait
(the first is sent, or dropped) makes them due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from sqlalchemy import Connection, FromClause, Select, Table, and_, bindparam, delete, func, or_, select, update
from sqlalchemy import Row as Record

from roquet.message import Message, Property
from roquet.outbox.tables import now_ms

FAR_MS = 3_600_000
"""No lease and no pause is longer. One that ends later was made before the database's clock was set back, and counts as over (`mend`)."""
HELD_MS = FAR_MS
PAGES_MAX = 20
"""Of a look. Each leaves out the lanes that those before it found blocked."""
PORTION = 1_000
"""Rows that one transaction deletes or changes at most, where there may be many."""


@dataclass(frozen=True)
class Row:
    """A message in the outbox, and what became of it."""

    id: int
    topic: str
    key: str | None
    """Messages with one key are sent in their order; None: in any."""
    message_id: str
    """UNIQ_KEY: the same for every attempt to publish it."""
    size: int
    """Of the body, in bytes."""
    created_ms: int
    sent_ms: int
    """0: not yet."""
    next_try_ms: int
    tries: int
    """Attempts that failed."""
    error: str
    """Why the last of them did."""
    lane: int | None = field(default=None, repr=False)
    is_leased: bool = field(default=False, repr=False)
    """A relay works on it now."""
    _body: bytes = field(default=b"", repr=False)
    _properties: str = field(default="{}", repr=False)
    _flag: int = field(default=0, repr=False)

    def message(self) -> Message:
        """What is published. Of a row that a relay claimed; a listing has no bodies."""
        properties = {**orjson.loads(self._properties), Property.UNIQUE_KEY: self.message_id}
        return Message(self.topic, self._body, properties=properties, flag=self._flag)


@dataclass(frozen=True)
class Failure:
    """A row that was not sent."""

    row: Row
    """As it was claimed."""
    error: str
    pause_ms: int
    hopeless: bool = False
    """No broker would take it."""

    def as_row(self) -> Row:
        """As it is now."""
        return replace(self.row, tries=self.row.tries + 1, error=self.error)


@dataclass
class Settled:
    """What came of rows of one claim."""

    owner: str
    sent: list[Row] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    given_back: list[Row] = field(default_factory=list)


def is_free(table: FromClause) -> Any:
    """Nobody's lease holds it."""
    return or_(table.c.lease_ms <= now_ms(), table.c.lease_ms > now_ms() + FAR_MS)


def is_claimable(table: Table) -> Any:
    return and_(table.c.sent_ms == 0, table.c.next_try_ms <= now_ms(), is_free(table))


def due(connection: Connection, table: Table, limit: int) -> list[int]:
    """Ids of rows that may be sent now, the longest due first: of each lane the first ones, since a row waits for all before it."""
    found: dict[int, None] = {}
    going: set[int] = set()  # lanes whose first row is among them
    blocked: set[int] = set()
    after: tuple[int, int] | None = None
    size = 2 * limit
    for _ in range(PAGES_MAX):
        page = connection.execute(look(table, size, blocked, after)).all()
        heads = {row.head for row in page if row.lane is not None} - {row.id for row in page}
        free = set(connection.scalars(select(table.c.id).where(table.c.id.in_(heads), is_claimable(table)))) if heads else set()
        for row in page:
            if row.lane is None or row.lane in going:
                found[row.id] = None
            elif row.head == row.id:
                found[row.id] = None
                going.add(row.lane)
            elif row.head in free:  # it became due later than this one, which goes after it, in another look
                found[row.head] = None
            else:
                blocked.add(row.lane)
        if len(found) >= limit or len(page) < size:
            break
        after = (page[-1].next_try_ms, page[-1].id)
    return list(found)[:limit]


def look(table: Table, size: int, blocked: set[int], after: tuple[int, int] | None) -> Select[Any]:
    """A page of rows that are free and due, with the first row of each one's lane."""
    wanted = [is_claimable(table)]
    if blocked:
        wanted.append(or_(table.c.lane.is_(None), table.c.lane.not_in(blocked)))
    if after is not None:
        wanted.append(or_(table.c.next_try_ms > after[0], and_(table.c.next_try_ms == after[0], table.c.id > after[1])))
    order = (table.c.next_try_ms, table.c.id)
    page = select(table.c.id, table.c.lane, table.c.next_try_ms).where(*wanted).order_by(*order).limit(size).subquery("page")
    other = table.alias("other")
    head = select(other.c.id).where(other.c.sent_ms == 0, other.c.lane == page.c.lane).order_by(other.c.id).limit(1).scalar_subquery()
    return select(page, head.label("head")).order_by(page.c.next_try_ms, page.c.id)


def claim(connection: Connection, table: Table, ids: Sequence[int], owner: str, lease_ms: int) -> list[Row]:
    """Of these ids the rows that are the owner's now, and that may be sent, in their order."""
    mine = and_(table.c.id.in_(ids), table.c.owner == owner)
    take = update(table).where(table.c.id.in_(ids), is_claimable(table)).values(owner=owner, lease_ms=now_ms() + lease_ms)
    connection.execute(take)
    rows = [as_row(record) for record in connection.execute(select(table).where(mine).order_by(table.c.id))]
    lanes = sorted({row.lane for row in rows if row.lane is not None})
    before = and_(table.c.sent_ms == 0, table.c.lane.in_(lanes), table.c.id <= max(ids), ~mine)
    others = select(table.c.lane, func.min(table.c.id)).where(before).group_by(table.c.lane)
    first = {record[0]: record[1] for record in connection.execute(others)} if lanes else {}
    early = {row.id for row in rows if row.lane is not None and first.get(row.lane, row.id) < row.id}
    if early:
        give_back(connection, table, sorted(early), owner)
    return [row for row in rows if row.id not in early]


def settle(connection: Connection, table: Table, settled: Settled, keep: bool) -> None:
    """Write down what came of a claim. `keep`: what was sent stays, and is deleted later."""
    sent = [row.id for row in settled.sent]
    if sent:
        done: Any = update(table).values(sent_ms=now_ms(), lease_ms=0, owner="", error="") if keep else delete(table)
        count = connection.execute(done.where(table.c.id.in_(sent), table.c.owner == settled.owner)).rowcount
        if count < len(sent):  # another relay took some of them over, and may have failed; they are sent all the same
            connection.execute(done.where(table.c.id.in_(sent)))
        let_go(connection, table, [row.lane for row in settled.sent if row.tries or count < len(sent)])
    give_back(connection, table, [row.id for row in settled.given_back], settled.owner)
    held = []
    for failure in settled.failed:
        row = failure.row
        ours = and_(table.c.id == row.id, table.c.owner == settled.owner, table.c.sent_ms == 0)  # else another relay took it over
        again = (
            update(table)
            .where(ours)
            .values(tries=table.c.tries + 1, error=failure.error, next_try_ms=now_ms() + failure.pause_ms, lease_ms=0, owner="")
        )
        if connection.execute(again).rowcount and row.lane is not None:
            held.append({"one": row.lane, "failed": row.id})
    if held:
        behind = and_(table.c.lane == bindparam("one"), table.c.id > bindparam("failed"), is_claimable(table))
        connection.execute(update(table).where(behind).values(next_try_ms=now_ms() + HELD_MS), held)


def give_back(connection: Connection, table: Table, ids: Sequence[int], owner: str) -> None:
    if ids:
        connection.execute(update(table).where(table.c.id.in_(ids), table.c.owner == owner).values(lease_ms=0, owner=""))


def let_go(connection: Connection, table: Table, lanes: Iterable[int | None]) -> None:
    """What was held behind a failure is due."""
    named = sorted({lane for lane in lanes if lane is not None})
    if named:
        held = and_(table.c.sent_ms == 0, table.c.lane.in_(named), table.c.tries == 0, table.c.next_try_ms > now_ms())
        connection.execute(update(table).where(held).values(next_try_ms=table.c.created_ms))


def mend(connection: Connection, table: Table) -> None:
    """After the database's clock was set back: nothing waits for a time that is far away."""
    connection.execute(update(table).where(table.c.sent_ms == 0, table.c.next_try_ms > now_ms() + FAR_MS).values(next_try_ms=now_ms()))


def forget(connection: Connection, table: Table, keep_ms: int) -> int:
    """Delete a portion of what was sent so long ago. How many there were."""
    old = select(table.c.id).where(table.c.sent_ms > 0, table.c.sent_ms <= now_ms() - keep_ms).order_by(table.c.sent_ms).limit(PORTION)
    ids = list(connection.scalars(old))
    if ids:
        connection.execute(delete(table).where(table.c.id.in_(ids)))
    return len(ids)


# -- for operators


@dataclass(frozen=True)
class Choice:
    """Which rows an operator means."""

    ids: tuple[int, ...] = ()
    key: str | None = None
    topic: str | None = None
    failing: bool = False
    """Only those that failed at least once."""
    sent: bool = False
    """Those that were sent and are kept; else those that were not."""
    after: int = 0
    """Only those with a higher id."""


def chosen(table: Table, choice: Choice) -> Any:
    wanted = [table.c.sent_ms > 0 if choice.sent else table.c.sent_ms == 0]
    wanted += [table.c.id.in_(choice.ids)] if choice.ids else []
    wanted += [table.c.order_key == choice.key] if choice.key is not None else []
    wanted += [table.c.topic == choice.topic] if choice.topic is not None else []
    wanted += [table.c.tries > 0] if choice.failing else []
    wanted += [table.c.id > choice.after] if choice.after else []
    return and_(*wanted)


def without_body(table: Table) -> Select[Any]:
    columns = [column for column in table.c if column.name not in ("body", "properties")]
    return select(*columns, func.length(table.c.body).label("size"), (~is_free(table)).label("is_leased"))


def listed(connection: Connection, table: Table, choice: Choice, limit: int) -> list[Row]:
    """Oldest first, without their bodies."""
    found = connection.execute(without_body(table).where(chosen(table, choice)).order_by(table.c.id).limit(limit))
    return [as_row(record) for record in found]


def counted(connection: Connection, table: Table, choice: Choice) -> int:
    return connection.scalar(select(func.count()).select_from(table).where(chosen(table, choice))) or 0


def oldest_age_ms(connection: Connection, table: Table) -> int | None:
    """How long the oldest row that was not sent has waited; None: there is none."""
    age: int | None = connection.scalar(select(now_ms() - func.min(table.c.created_ms)).where(table.c.sent_ms == 0))
    return None if age is None else max(age, 0)


def retry(connection: Connection, table: Table, choice: Choice) -> list[Row]:
    """Let relays try these at once, and what waits behind them. The first portion of the chosen; those that a relay works on now
    (`is_leased`) are left alone."""
    rows = listed(connection, table, choice, PORTION)
    free = [row for row in rows if not row.is_leased]
    if free:
        connection.execute(update(table).where(table.c.id.in_([row.id for row in free])).values(next_try_ms=0))
        let_go(connection, table, [row.lane for row in free])
    return rows


def drop(connection: Connection, table: Table, choice: Choice) -> list[Row]:
    """Delete these; what waited behind them may go. The first portion of the chosen; those that a relay works on now (`is_leased`) are
    left alone."""
    rows = listed(connection, table, choice, PORTION)
    ids = table.c.id.in_([row.id for row in rows])
    connection.execute(delete(table).where(ids, table.c.sent_ms == 0, is_free(table)))
    left = set(connection.scalars(select(table.c.id).where(ids)))
    let_go(connection, table, [row.lane for row in rows if row.id not in left])
    return [replace(row, is_leased=row.id in left) for row in rows]


def as_row(record: Record[Any]) -> Row:
    columns = record._mapping
    body = columns.get("body", b"")
    return Row(
        columns["id"], columns["topic"], columns["order_key"], columns["message_id"], columns.get("size", len(body)), columns["created_ms"],
        columns["sent_ms"], columns["next_try_ms"], columns["tries"], columns["error"], columns["lane"], bool(columns.get("is_leased")),
        bytes(body), columns.get("properties", "{}"), columns["flag"],
    )  # fmt: skip
