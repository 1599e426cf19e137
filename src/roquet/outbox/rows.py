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

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Delete, FromClause, Select, Table, Update, and_, delete, func, or_, select, update
from sqlalchemy import Row as Record

from roquet.message import Message, Property
from roquet.outbox.tables import MYSQL_NAMES, exact, lane_of, now_ms

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


class Room:
    """How many rows of each topic a relay may hold. A topic whose sends work has no limit. The others share three quarters of the places,
    and none of them takes more than half of what is left there: a broker that is away holds up nobody else's messages."""

    def __init__(self, batch: int, works: Iterable[str], holds: Iterable[Row]) -> None:
        """`works`: topics whose last send worked. `holds`: what the relay has already."""
        self.works = frozenset(works)
        self.held = Counter(row.topic for row in holds if row.topic not in self.works)
        self.left = max(1, batch * 3 // 4) - self.held.total()

    def is_full(self, topic: str) -> bool:
        return self.left <= 0 or self.held[topic] >= max(1, (self.left + self.held[topic]) // 2)

    def take(self, topic: str) -> bool:
        """Whether there is room for one more."""
        if topic in self.works:
            return True
        if self.is_full(topic):
            return False
        self.held[topic] += 1
        self.left -= 1
        return True

    def has_room(self, table: FromClause) -> list[Any]:
        """Conditions: rows whose topics have some."""
        if self.left <= 0:
            return [exact(table.c.topic).in_(sorted(self.works))]
        full = sorted(filter(self.is_full, self.held))
        return [exact(table.c.topic).not_in(full)] if full else []


def is_free(table: FromClause) -> Any:
    """Nobody's lease holds it."""
    return or_(table.c.lease_ms <= now_ms(), table.c.lease_ms > now_ms() + FAR_MS)


def is_claimable(table: Table) -> Any:
    return and_(table.c.sent_ms == 0, table.c.next_try_ms <= now_ms(), is_free(table))


def due(connection: Connection, table: Table, limit: int, room: Room | None = None) -> list[int]:
    """Ids of rows that may be sent now, the longest due first: of each lane the first ones, since a row waits for all before it. `room`:
    that there is for topics."""
    found: dict[int, None] = {}
    going: set[int] = set()  # lanes whose first row is among them
    blocked: set[int] = set()
    after: tuple[int, int] | None = None
    size = 2 * limit
    for _ in range(PAGES_MAX):
        page = connection.execute(look(table, size, blocked, after, room)).all()
        heads = {row.head for row in page if row.lane is not None} - {row.id for row in page}
        asked = select(table.c.id, table.c.topic).where(table.c.id.in_(heads), is_claimable(table))
        free = {head.id: head.topic for head in connection.execute(asked)} if heads else {}
        for row in page:
            if row.lane is None or row.lane in going or row.head == row.id:
                first, topic = row.id, row.topic
            elif row.head in free:  # it became due later than this one, which goes after it, in another look
                first, topic = row.head, free[row.head]
            else:
                blocked.add(row.lane)
                continue
            if first in found:
                continue
            if room is None or room.take(topic):
                found[first] = None
                if row.lane is not None and first == row.id:
                    going.add(row.lane)
            elif row.lane is not None:
                going.discard(row.lane)
                blocked.add(row.lane)
        if len(found) >= limit or len(page) < size:
            break
        after = (page[-1].next_try_ms, page[-1].id)
    return list(found)[:limit]


def look(table: Table, size: int, blocked: set[int], after: tuple[int, int] | None, room: Room | None = None) -> Select[Any]:
    """A page of rows that are free and due, with the first row of each one's lane."""
    wanted = [is_claimable(table), *(room.has_room(table) if room is not None else ())]
    if blocked:
        wanted.append(or_(table.c.lane.is_(None), table.c.lane.not_in(blocked)))
    if after is not None:
        wanted.append(or_(table.c.next_try_ms > after[0], and_(table.c.next_try_ms == after[0], table.c.id > after[1])))
    order = (table.c.next_try_ms, table.c.id)
    columns = (table.c.id, table.c.lane, table.c.topic, table.c.next_try_ms)
    page = select(*columns).where(*wanted).order_by(*order).limit(size).subquery("page")
    other = table.alias("other")
    head = select(other.c.id).where(other.c.sent_ms == 0, other.c.lane == page.c.lane).order_by(other.c.id).limit(1).scalar_subquery()
    return select(page, head.label("head")).order_by(page.c.next_try_ms, page.c.id)


def claim(connection: Connection, table: Table, ids: Sequence[int], owner: str, lease_ms: int) -> list[Row]:
    """Of these ids the rows that are the owner's now, and that may be sent, in their order."""
    mine = and_(table.c.id.in_(ids), table.c.owner == owner)
    change(connection, update(table).values(owner=owner, lease_ms=now_ms() + lease_ms), ids, is_claimable(table))
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
        count = change(connection, done, sent, table.c.owner == settled.owner)
        if count < len(sent):  # another relay took some of them over, and may have failed; they are sent all the same
            change(connection, done, sent)
        let_go(connection, table, [row.lane for row in settled.sent if row.tries or count < len(sent)])
    give_back(connection, table, [row.id for row in settled.given_back], settled.owner)
    for failure in settled.failed:
        row = failure.row
        ours = and_(table.c.owner == settled.owner, table.c.sent_ms == 0)  # else another relay took it over
        values = {
            "tries": table.c.tries + 1,
            "error": failure.error,
            "next_try_ms": now_ms() + failure.pause_ms,
            "lease_ms": 0,
            "owner": "",
        }
        if change(connection, update(table).values(values), [row.id], ours) and row.lane is not None:
            behind = and_(table.c.lane == row.lane, table.c.id > row.id, is_claimable(table))
            change_all(connection, update(table).values(next_try_ms=now_ms() + HELD_MS), behind)


def give_back(connection: Connection, table: Table, ids: Sequence[int], owner: str) -> None:
    change(connection, update(table).values(lease_ms=0, owner=""), ids, table.c.owner == owner)


def let_go(connection: Connection, table: Table, lanes: Iterable[int | None]) -> None:
    """What was held behind a failure is due."""
    named = sorted({lane for lane in lanes if lane is not None})
    if named:
        held = and_(table.c.sent_ms == 0, table.c.lane.in_(named), table.c.tries == 0, table.c.next_try_ms > now_ms())
        change_all(connection, update(table).values(next_try_ms=table.c.created_ms), held)


def mend(connection: Connection, table: Table) -> None:
    """After the database's clock was set back: nothing waits for a time that is far away."""
    far = and_(table.c.sent_ms == 0, table.c.next_try_ms > now_ms() + FAR_MS)
    change_all(connection, update(table).values(next_try_ms=now_ms()), far)


def forget(connection: Connection, table: Table, keep_ms: int) -> int:
    """Delete a portion of what was sent so long ago. How many there were."""
    old = select(table.c.id).where(table.c.sent_ms > 0, table.c.sent_ms <= now_ms() - keep_ms).order_by(table.c.sent_ms).limit(PORTION)
    ids = list(connection.scalars(old))
    change(connection, delete(table), ids)
    return len(ids)


# -- without locks on other rows


def change(connection: Connection, statement: Update | Delete, keys: Sequence[Any], *further: Any) -> int:
    """Change or delete the rows with these primary keys, and wait for no other row. How many it were.

    MariaDB and MySQL lock what they read, and of a small table they may read all of it: so they are told to go by the key. Else a
    transaction of the application that has added a message and hangs would hold up the relay.
    """
    (key,) = statement.table.primary_key
    statement, keys = statement.where(*further), sorted(keys)
    if connection.dialect.name in MYSQL_NAMES:
        if isinstance(statement, Delete):  # it takes no hint
            return sum(connection.execute(statement.where(key == one)).rowcount for one in keys)
        statement = statement.with_hint("FORCE INDEX (PRIMARY)")
    portions = (keys[first : first + PORTION] for first in range(0, len(keys), PORTION))
    return sum(connection.execute(statement.where(key.in_(portion))).rowcount for portion in portions)


def change_all(connection: Connection, statement: Update, wanted: Any) -> None:
    """Change the rows that are so. MariaDB and MySQL look for them first, which locks nothing: see change()."""
    if connection.dialect.name in MYSQL_NAMES:
        (key,) = statement.table.primary_key
        change(connection, statement, list(connection.scalars(select(key).where(wanted))), wanted)
    else:
        connection.execute(statement.where(wanted))


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


def chosen(table: Table, choice: Choice) -> Any:
    wanted = [table.c.sent_ms > 0 if choice.sent else table.c.sent_ms == 0]
    wanted += [table.c.id.in_(choice.ids)] if choice.ids else []
    wanted += [table.c.lane == lane_of(choice.key), exact(table.c.order_key) == choice.key] if choice.key is not None else []
    wanted += [exact(table.c.topic) == choice.topic] if choice.topic is not None else []
    wanted += [table.c.tries > 0] if choice.failing else []
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


def ids_of(connection: Connection, table: Table, choice: Choice) -> list[int]:
    """All of the chosen, oldest first: what somebody is asked about is then what is done, whatever is added meanwhile."""
    return list(connection.scalars(select(table.c.id).where(chosen(table, choice)).order_by(table.c.id)))


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
        change(connection, update(table).values(next_try_ms=0), [row.id for row in free])
        let_go(connection, table, [row.lane for row in free])
    return rows


def drop(connection: Connection, table: Table, choice: Choice) -> list[Row]:
    """Delete these; what waited behind them may go. The first portion of the chosen; those that a relay works on now (`is_leased`) are
    left alone."""
    rows = listed(connection, table, choice, PORTION)
    ids = [row.id for row in rows]
    change(connection, delete(table), ids, table.c.sent_ms == 0, is_free(table))
    left = set(connection.scalars(select(table.c.id).where(table.c.id.in_(ids))))
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
