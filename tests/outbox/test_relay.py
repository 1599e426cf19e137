"""What an outbox promises, on every database: published if and only if committed, in order for each key, and no key waits for another."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, update
from sqlalchemy.orm import Session

from roquet import ClientError, InvalidMessage, Message, SendFailed, SendStatus, serve
from roquet.message import Property
from roquet.outbox import Outbox, Relay, Row, rows
from roquet.outbox.rows import Choice, Settled
from roquet.outbox.tables import now_ms
from tests.outbox.fakes import PATIENCE_S, FakeProducer, until

EVERYTHING = Choice()
HOUR_MS = 3_600_000
ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""What is the same whatever the database."""


def quick(outbox: Outbox, engine: Engine, producer: FakeProducer, **settings: Any) -> Relay:
    return Relay(outbox, engine, producer, **{"poll_ms": 10, "backoff_s": 0.01, "backoff_max_s": 0.05, **settings})


def add(engine: Engine, outbox: Outbox, *bodies: str, key: str | None = None, topic: str = "orders") -> list[str]:
    with engine.begin() as connection:
        return [outbox.add(connection, Message(topic, body.encode()), key=key) for body in bodies]


def listed(engine: Engine, outbox: Outbox, choice: Choice = EVERYTHING) -> list[Row]:
    with engine.begin() as connection:
        return rows.listed(connection, outbox.table, choice, 10_000)


async def publish_all(outbox: Outbox, engine: Engine, producer: FakeProducer, **settings: Any) -> None:
    async with quick(outbox, engine, producer, **settings) as relay, asyncio.timeout(PATIENCE_S):
        await relay.drained()


def test_what_is_committed_is_published_and_what_is_rolled_back_is_not(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    with Session(engine) as session:
        outbox.add(session, Message("orders", b"rolled back"), key="a")
        session.rollback()
    with Session(engine) as session, session.begin():
        message_id = outbox.add(session, Message("orders", b"committed"), key="a")
    asyncio.run(publish_all(outbox, engine, producer))
    assert producer.sent == [("a", "committed", message_id)]


def test_of_two_transactions_that_overlap_the_one_that_added_first_is_published_first(engine: Engine, outbox: Outbox) -> None:
    """Ids alone would not do: the second could commit, be seen and be published before the first, whose id is lower."""
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writing transaction at a time")
    producer = FakeProducer()
    went_on = threading.Event()

    def second() -> None:
        with engine.begin() as connection:
            outbox.add(connection, Message("orders", b"second"), key="a")
        went_on.set()

    async def scenario() -> None:
        async with quick(outbox, engine, producer) as relay, asyncio.timeout(PATIENCE_S):
            with engine.begin() as connection:
                outbox.add(connection, Message("orders", b"first"), key="a")
                other = threading.Thread(target=second)
                other.start()
                add(engine, outbox, "of another key", key="b")  # which nobody holds up
                # Either it waits for us, or it is committed, and then published, before us.
                await until(lambda: waits_for_a_lock(engine) or "second" in producer.bodies())
            await asyncio.to_thread(other.join)
            await relay.drained()

    asyncio.run(scenario())
    assert went_on.is_set()
    assert producer.bodies("a") == ["first", "second"]


def waits_for_a_lock(engine: Engine) -> bool:
    asked = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        # innodb_trx would be a copy that is not made anew while somebody asks more often than every 100 ms.
        "mysql": "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_row_lock_current_waits'",
    }
    with engine.connect() as connection:
        return int(connection.exec_driver_sql(asked[engine.dialect.name]).scalar_one()) > 0


def test_several_relays_publish_each_message_once_and_each_key_in_order(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    keys = [f"key-{number}" for number in range(8)]

    def write(first: int) -> None:
        for number in range(first, 30, 2):
            for key in keys[first::2]:
                add(engine, outbox, f"{number}", key=key)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            relays = [quick(outbox, engine, producer, poll_ms=1, batch=7) for _ in range(3)]
            for relay in relays:
                await relay.start()
            await asyncio.gather(*(asyncio.to_thread(write, first) for first in (0, 1)))
            await relays[0].drained()
            for relay in relays:
                await relay.close()
        assert sum(relay.published for relay in relays) == 8 * 15

    asyncio.run(scenario())
    assert set(Counter((key, body) for key, body, _ in producer.sent).values()) == {1}
    for place, key in enumerate(keys):
        assert producer.bodies(key) == [str(number) for number in range(place % 2, 30, 2)], key


def test_a_message_that_cannot_be_sent_holds_back_its_key_and_no_other(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    refused = {"poison", "of no key"}
    producer.fails = lambda message: SendFailed("no", []) if message.body.decode() in refused else None

    async def scenario() -> None:
        async with quick(outbox, engine, producer) as relay, asyncio.timeout(PATIENCE_S):
            add(engine, outbox, "poison", "behind", "last", key="a")
            add(engine, outbox, "of no key", "fine")
            add(engine, outbox, "1", "2", key="b")
            await until(lambda: producer.tried["poison"] > 3 and producer.tried["of no key"] > 3)
            assert sorted(producer.bodies()) == ["1", "2", "fine"]
            assert producer.tried["behind"] == 0
            refused.clear()
            await relay.drained()
            assert relay.failures >= 6

    asyncio.run(scenario())
    assert producer.bodies("a") == ["poison", "behind", "last"]
    assert all(row.tries >= 3 and not row.error for row in listed(engine, outbox, Choice(sent=True, failing=True)))


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_a_transaction_that_has_added_to_a_key_and_hangs_holds_up_no_other_key(engine: Engine, outbox: Outbox) -> None:
    """MariaDB locks what it reads, and waits 50 s for a lock. In a small table it may read every row."""
    producer = FakeProducer()
    refused = {"1"}
    producer.fails = lambda message: SendFailed("no", []) if message.body.decode() in refused else None

    async def scenario() -> None:
        add(engine, outbox, "1", "2", "3", key="a")
        with engine.connect() as hanging:
            outbox.add(hanging, Message("orders", b"4"), key="a")
            outbox.add(hanging, Message("orders", b"free"))
            async with quick(outbox, engine, producer, keep_s=0), asyncio.timeout(PATIENCE_S / 2):
                await until(lambda: producer.tried["1"] > 1)  # and holds back those behind it
                add(engine, outbox, "other", key="b")
                await until(lambda: "other" in producer.bodies())
                refused.clear()
                await until(lambda: producer.bodies("a") == ["1", "2", "3"])  # which lets the others go
                add(engine, outbox, "last")
                await until(lambda: "last" in producer.bodies())

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_no_statement_on_rows_waits_for_a_row_that_somebody_else_has_locked(engine: Engine, outbox: Outbox) -> None:
    table = outbox.table
    add(engine, outbox, *"12345678", key="a")
    one, two, three, four, *others = claim(engine, outbox, "me", 60_000)
    with engine.connect() as hanging:
        for key in ("a", None):
            outbox.add(hanging, Message("orders", b"9"), key=key)
        with engine.connect() as connection:
            connection.exec_driver_sql("SET innodb_lock_wait_timeout = 1")
            failed = [rows.Failure(three, "no", 600_000)]
            for keep in (True, False):
                settled = Settled("me", sent=[one] if keep else [two], failed=[] if keep else failed, given_back=[four, *others])
                rows.settle(connection, table, settled, keep)
            assert [row.id for row in rows.retry(connection, table, Choice(failing=True))] == [three.id]
            assert [row.id for row in rows.claim(connection, table, rows.due(connection, table, 1), "you", 60_000)] == [three.id]
            rows.settle(connection, table, Settled("you", sent=[replace(three, tries=1)]), True)
            assert [row.id for row in rows.drop(connection, table, Choice(ids=(four.id,)))] == [four.id]
            assert rows.due(connection, table, 9) == [row.id for row in others]
            connection.execute(update(table).where(table.c.id == one.id).values(sent_ms=1))
            assert rows.forget(connection, table, 1_000) == 1
            rows.mend(connection, table)
            connection.rollback()


@ON_SQLITE
def test_a_broker_that_does_not_answer_holds_up_no_other_topic(engine: Engine, outbox: Outbox) -> None:
    """Neither with few of its rows, which take more than half of the places, nor with many, which would always have all of them."""
    producer = FakeProducer()

    async def scenario(dead: int, *, worked: bool) -> None:
        ends, topics = asyncio.Event(), ("dead", "deader", "gone")
        producer.waits = lambda message: ends if message.topic in topics and message.body != b"works" else None
        producer.fails = lambda message: SendFailed("no", []) if message.topic in topics and message.body != b"works" else None
        async with quick(outbox, engine, producer, batch=20, keep_s=0), asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            stack.callback(ends.set)  # or the relay would not end
            if worked:
                add(engine, outbox, "works", topic="dead")
                await until(lambda: "works" in producer.bodies())
            for topic in topics[: 1 if worked else None]:
                add(engine, outbox, *(f"{topic} {number}" for number in range(dead)), topic=topic)
            await until(lambda: any(producer.tried[f"dead {number}"] for number in range(dead)))
            sent = [f"{dead} {number}" for number in range(50)]
            for body in sent:
                add(engine, outbox, body, key=body)
            await until(lambda: set(sent) <= set(producer.bodies()))
            ends.set()
            more = [f"more {body}" for body in sent]  # while sends fail all the time
            add(engine, outbox, *more)
            await until(lambda: set(more) <= set(producer.bodies()))
        with engine.begin() as connection:
            connection.execute(outbox.table.delete())

    asyncio.run(scenario(11, worked=True))
    asyncio.run(scenario(200, worked=False))


@ON_SQLITE
def test_a_topic_whose_broker_came_back_has_all_places_again(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    away = True
    most = 0
    going: set[bytes] = set()

    async def send(message: Message, **options: Any) -> Any:
        nonlocal most
        going.add(message.body)
        most = max(most, len(going))
        try:
            await asyncio.sleep(0.001)
            return await FakeProducer.send(producer, message, **options)
        finally:
            going.discard(message.body)

    producer.send = send  # type: ignore[method-assign]
    producer.fails = lambda message: SendFailed("no", []) if away else None

    async def scenario() -> None:
        nonlocal away, most
        async with quick(outbox, engine, producer, batch=20) as relay, asyncio.timeout(PATIENCE_S):
            add(engine, outbox, *map(str, range(100)))
            await until(lambda: relay.failures > 30)
            assert most <= 10, "it leaves places to others"
            away = False
            await until(lambda: most == 20)
            await relay.drained()

    asyncio.run(scenario())


@ON_SQLITE
def test_after_so_many_failures_somebody_is_told_what_and_what_to_do(
    engine: Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    producer = FakeProducer()
    producer.fails = lambda message: SendFailed("the broker is away", []) if not told or message.body == b"never" else None
    told: list[Row] = []

    async def alarm(late: Sequence[Row]) -> None:
        told.extend(late)
        raise RuntimeError("what an alarm does wrong stops nobody")

    async def scenario() -> None:
        async with quick(outbox, engine, producer, on_alarm=alarm, alarm_after=3), asyncio.timeout(PATIENCE_S):
            add(engine, outbox, "late", key="a")
            await until(lambda: producer.bodies() == ["late"])

    asyncio.run(scenario())
    assert [(row.key, row.tries, row.error) for row in told] == [("a", 3, "the broker is away")]
    assert producer.tried["late"] == 4
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "1 messages cannot be sent" in errors[0]
    assert "roquet outbox list --failing" in errors[0]
    assert "on_alarm failed" in errors[1]


@ON_SQLITE
def test_while_no_broker_is_there_new_rows_do_not_fill_the_log(engine: Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    producer = FakeProducer()
    producer.fails = lambda message: SendFailed("the broker is away", [])

    async def scenario() -> None:
        async with quick(outbox, engine, producer), asyncio.timeout(PATIENCE_S):
            for number in range(20):
                add(engine, outbox, f"{number}", key=f"{number}")
                await until(partial(producer.tried.__getitem__, f"{number}"))

    asyncio.run(scenario())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "tried again after a pause" in warnings[0]


@ON_SQLITE
def test_a_signal_ends_a_relay_that_is_run(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()

    async def scenario() -> None:
        relay = quick(outbox, engine, producer)
        add(engine, outbox, "1")
        serving = asyncio.ensure_future(serve(relay))
        await until(producer.bodies)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await serving
            await relay.closed()

    asyncio.run(scenario())
    assert len(listed(engine, outbox, Choice(sent=True))) == 1


@ON_SQLITE
def test_of_what_no_broker_would_take_somebody_is_told_at_once(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    producer.fails = lambda message: InvalidMessage("too large") if message.body == b"poison" else None
    told: list[Row] = []
    threads: list[int] = []

    def alarm(late: Sequence[Row]) -> None:
        told.extend(late)
        threads.append(threading.get_ident())

    async def scenario() -> None:
        async with quick(outbox, engine, producer, on_alarm=alarm, backoff_max_s=3_600), asyncio.timeout(PATIENCE_S):
            add(engine, outbox, "poison", "behind", key="a")
            await until(lambda: told)
            add(engine, outbox, "other", key="b")
            await until(lambda: producer.bodies("b"))

    asyncio.run(scenario())
    assert [row.error for row in told] == ["too large"]
    assert threads != [threading.get_ident()], "a plain function does not block the loop"
    assert producer.tried == {"poison": 1, "other": 1}
    with engine.begin() as connection:
        dropped = rows.drop(connection, outbox.table, Choice(key="a", failing=True))
    assert [row.tries for row in dropped] == [1]
    asyncio.run(publish_all(outbox, engine, producer))
    assert producer.bodies("a") == ["behind"], "what waited behind it goes at once"


def claim(engine: Engine, outbox: Outbox, owner: str = "me", lease_ms: int = 1_000) -> list[Row]:
    with engine.begin() as connection:
        ids = rows.due(connection, outbox.table, 10)
    with engine.begin() as connection:
        return rows.claim(connection, outbox.table, ids, owner, lease_ms)


def settle(engine: Engine, outbox: Outbox, settled: Settled) -> None:
    with engine.begin() as connection:
        rows.settle(connection, outbox.table, settled, True)


def test_what_waits_behind_a_failure_is_not_looked_at_until_that_is_over(engine: Engine, outbox: Outbox) -> None:
    add(engine, outbox, "first", "second", "third", key="a")
    first, second, third = claim(engine, outbox)
    settle(engine, outbox, Settled("me", failed=[rows.Failure(first, "no", 600_000)], given_back=[second, third]))
    add(engine, outbox, "fourth", key="a")
    add(engine, outbox, "other", key="b")
    held = [row.next_try_ms - row.created_ms > 1_000_000 for row in listed(engine, outbox, Choice(key="a"))]
    assert held == [False, True, True, False]
    with engine.begin() as connection:
        other = third.id + 2
        assert rows.due(connection, outbox.table, 1) == [other], "the fourth takes nobody's place"
        connection.execute(update(outbox.table).where(outbox.table.c.id == first.id).values(next_try_ms=0))
    again, _ = claim(engine, outbox)
    assert (again.id, again.tries) == (first.id, 1)
    settle(engine, outbox, Settled("me", sent=[again]))
    assert [row.id for row in claim(engine, outbox)] == [second.id, third.id, third.id + 1]


def test_a_failure_that_is_told_after_the_lease_holds_nobody_back(engine: Engine, outbox: Outbox) -> None:
    add(engine, outbox, "first", "second", key="a")
    first, second = claim(engine, outbox, "slow", 0)
    (_, _) = claim(engine, outbox, "quick", 60_000)
    settle(engine, outbox, Settled("quick", sent=[first], given_back=[second]))
    settle(engine, outbox, Settled("slow", failed=[rows.Failure(first, "no", 600_000)], given_back=[second]))
    assert [row.id for row in claim(engine, outbox)] == [second.id]


@pytest.mark.parametrize("keep", [True, False])
def test_a_relay_that_was_slow_and_succeeded_ends_the_wait_that_another_ones_failure_began(
    engine: Engine, outbox: Outbox, keep: bool
) -> None:
    add(engine, outbox, "1", "2", key="a")
    table = outbox.table
    with engine.begin() as connection:
        [first, second] = rows.due(connection, table, 10)
        [slow] = rows.claim(connection, table, [first], "slow", 1_000)
        connection.execute(update(table).values(lease_ms=0))  # its lease is over
        [taken, behind] = rows.claim(connection, table, [first, second], "quick", 1_000)
        failure = rows.Failure(taken, "the broker is away", HOUR_MS // 2)
        rows.settle(connection, table, Settled("quick", failed=[failure], given_back=[behind]), True)
        assert rows.due(connection, table, 10) == []
        rows.settle(connection, table, Settled("slow", sent=[slow]), keep)
        assert rows.due(connection, table, 10) == [second], "it waits for nobody"


def test_a_row_is_never_claimed_while_one_before_it_in_its_lane_is_not_sent(engine: Engine, outbox: Outbox) -> None:
    add(engine, outbox, "first", "second", key="a")
    add(engine, outbox, "free")
    first, second, free = (row.id for row in listed(engine, outbox))
    with engine.begin() as connection:
        # As if the first had become visible between looking and claiming.
        assert [row.id for row in rows.claim(connection, outbox.table, [second, free], "me", 60_000)] == [free]
    with engine.begin() as connection:
        assert [row.id for row in rows.claim(connection, outbox.table, [first, second], "you", 60_000)] == [first, second], (
            "nobody holds it"
        )
        assert rows.due(connection, outbox.table, 10) == []


def test_a_lease_that_is_over_or_was_made_before_the_clock_was_set_back_holds_nobody(engine: Engine, outbox: Outbox) -> None:
    add(engine, outbox, "first", key="a")
    with engine.begin() as connection:
        rows.claim(connection, outbox.table, rows.due(connection, outbox.table, 1), "dead", 600_000)
        assert rows.due(connection, outbox.table, 1) == []
        ten_years = update(outbox.table).values(lease_ms=outbox.table.c.lease_ms + 315_360_000_000)
        connection.execute(ten_years)
        assert len(rows.due(connection, outbox.table, 1)) == 1
        connection.execute(update(outbox.table).values(lease_ms=1))
        assert len(rows.due(connection, outbox.table, 1)) == 1


def test_a_pause_that_was_made_before_the_clock_was_set_back_is_over(engine: Engine, outbox: Outbox) -> None:
    add(engine, outbox, "first", key="a")
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(next_try_ms=outbox.table.c.next_try_ms + 315_360_000_000))
        assert rows.due(connection, outbox.table, 1) == []
        rows.mend(connection, outbox.table)
        assert len(rows.due(connection, outbox.table, 1)) == 1


@ON_SQLITE
def test_a_look_costs_what_it_finds_and_not_what_waits(engine: Engine, outbox: Outbox) -> None:
    def steps(count: int) -> int:
        """Of SQLite's machine, in hundreds, to find 20 rows among so many of one key."""
        add(engine, outbox, *map(str, range(count)), key="a")
        counted = itertools.count()
        with engine.begin() as connection:
            sqlite = connection.connection.driver_connection
            assert isinstance(sqlite, sqlite3.Connection)
            sqlite.set_progress_handler(lambda: next(counted) and 0, 100)
            assert len(rows.due(connection, outbox.table, 20)) == 20
            sqlite.set_progress_handler(None, 0)
        return next(counted)

    few, many = steps(100), steps(2_000)
    assert many < few * 3


def test_a_row_that_became_due_later_than_those_behind_it_is_found_first(engine: Engine, outbox: Outbox) -> None:
    """As after a failure: else it would wait until nothing else is due."""
    add(engine, outbox, "first", "second", "third", key="a")
    first, second, third = (row.id for row in listed(engine, outbox))
    with engine.begin() as connection:
        table = outbox.table
        connection.execute(update(table).where(table.c.id != first).values(next_try_ms=1))
        assert rows.due(connection, table, 1) == [first]
        found = rows.due(connection, table, 10)
        assert found[0] == first
        assert {row.id for row in rows.claim(connection, table, found, "me", 60_000)} <= {first, second, third}
        assert rows.due(connection, table, 1) == []


def test_thousands_of_rows_that_must_wait_do_not_hide_one_that_may_go(
    engine: Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PAGES_MAX", 3)
    add(engine, outbox, "first", key="a")
    assert claim(engine, outbox, "another", 60_000)
    with engine.begin() as connection:
        for number in range(40):
            outbox.add(connection, Message("orders", b"behind"), key="a")
            outbox.add(connection, Message("orders", b"behind"), key=f"b{number}")
    add(engine, outbox, "free")
    with engine.begin() as connection:
        table = outbox.table
        connection.execute(update(table).where(table.c.order_key.like("b%")).values(lease_ms=table.c.created_ms + 600_000, owner="another"))
        last = connection.scalar(select(func.max(table.c.id)))
        assert rows.due(connection, table, 2) == [last]


@ON_SQLITE
def test_a_relay_that_is_slower_than_its_lease_sends_nothing_any_more(engine: Engine, outbox: Outbox) -> None:
    """Else it would send rows that another one has taken over, and sent, meanwhile."""
    producer = FakeProducer()
    add(engine, outbox, "first", "second", key="a")

    async def scenario() -> None:
        gate = asyncio.Event()
        producer.waits = lambda message: gate if producer.tried["first"] == 1 else None
        slow = Relay(outbox, engine, producer, lease_s=1, send_timeout_ms=100, poll_ms=10)
        async with slow, asyncio.timeout(PATIENCE_S):
            await until(lambda: producer.tried["first"] == 1)
            async with quick(outbox, engine, producer) as other:
                await other.drained()
            gate.set()
            await until(lambda: not slow._runs)
        assert producer.bodies() == ["first", "second", "first"]
        assert producer.tried["second"] == 1
        assert len({message_id for _, body, message_id in producer.sent if body == "first"}) == 1, "a repeated one is known by its id"

    asyncio.run(scenario())


@ON_SQLITE
def test_a_relay_that_is_closed_gives_back_what_it_did_not_send(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    add(engine, outbox, "first", "second", key="a")

    async def scenario() -> None:
        gate = asyncio.Event()
        producer.waits = lambda message: gate
        async with asyncio.timeout(PATIENCE_S):
            relay = await quick(outbox, engine, producer, poll_ms=HOUR_MS).start()
            await until(lambda: producer.tried["first"])
            closing = asyncio.create_task(relay.close())
            await asyncio.sleep(0)
            gate.set()
            await closing
            await relay.close()
        assert producer.bodies() == ["first"]
        (left,) = listed(engine, outbox)
        assert not left.is_leased
        with pytest.raises(ClientError, match="not started or was closed"):
            await relay.drained()

    asyncio.run(scenario())
    asyncio.run(publish_all(outbox, engine, producer, poll_ms=HOUR_MS))
    assert producer.bodies() == ["first", "second"]


@ON_SQLITE
def test_a_transaction_of_the_same_engine_wakes_the_relay_and_nobody_waits_for_a_poll(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()

    async def scenario() -> None:
        async with quick(outbox, engine, producer, poll_ms=HOUR_MS), asyncio.timeout(PATIENCE_S):
            for number in range(3):
                await asyncio.to_thread(add, engine, outbox, f"{number}")
                await until(lambda number=number: producer.bodies() == [str(each) for each in range(number + 1)])  # type: ignore[misc]

    asyncio.run(scenario())


def test_the_relay_goes_on_when_the_database_failed(engine: Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    producer = FakeProducer()
    outbox.table.drop(engine)

    async def scenario() -> None:
        relay = quick(outbox, engine, producer)
        with pytest.raises(ClientError, match=r"is not in .*; make it once: outbox.create\(engine\)"):
            await relay.start()
        outbox.create(engine)
        async with relay, asyncio.timeout(PATIENCE_S):
            outbox.table.drop(engine)
            await until(lambda: "the relay tries again in 1 s" in caplog.text)
            outbox.create(engine)
            add(engine, outbox, "after")
            await until(lambda: producer.bodies() == ["after"])

    asyncio.run(scenario())


def test_rows_that_were_sent_are_deleted_later_and_in_portions(engine: Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PORTION", 2)
    add(engine, outbox, *"abcde")
    asyncio.run(publish_all(outbox, engine, FakeProducer()))
    assert len(listed(engine, outbox, Choice(sent=True))) == 5
    with engine.begin() as connection:
        assert rows.forget(connection, outbox.table, 60_000) == 0
        connection.execute(update(outbox.table).values(sent_ms=outbox.table.c.sent_ms - 60_000))
        assert [rows.forget(connection, outbox.table, 60_000) for _ in range(3)] == [2, 2, 1]
    add(engine, outbox, "f")
    asyncio.run(publish_all(outbox, engine, FakeProducer(), keep_s=0))
    assert listed(engine, outbox, Choice(sent=True)) == []


@ON_SQLITE
def test_what_a_broker_stored_less_safely_is_sent_again_only_when_asked(engine: Engine, outbox: Outbox) -> None:
    producer = FakeProducer()
    producer.status = SendStatus.SLAVE_NOT_AVAILABLE
    add(engine, outbox, "first")
    asyncio.run(publish_all(outbox, engine, producer))
    assert producer.bodies() == ["first"]

    async def scenario() -> None:
        async with quick(outbox, engine, producer, retry_when_not_ok=True) as relay, asyncio.timeout(PATIENCE_S):
            add(engine, outbox, "second")
            await until(lambda: producer.tried["second"] >= 2)
            producer.status = SendStatus.SEND_OK
            await relay.drained()

    asyncio.run(scenario())


def test_a_message_comes_out_as_it_went_in(engine: Engine, outbox: Outbox) -> None:
    odd = {"name": "Grüße \U0001f600 'quoted' \\ \x03 \x7f", "blank": " "}
    large = Message("orders", bytes(range(256)) * 16_384, tags="paid", keys=["a", "b"], properties=odd, flag=-7, deliver_after=90)
    own_id = Message("orders", b"x", properties={Property.UNIQUE_KEY: "C0000202000A2A139F1E6D2BAE4F0000"})
    with engine.begin() as connection:
        made = outbox.add(connection, large, key="Grüße \U0001f600")
        assert outbox.add(connection, own_id) == "C0000202000A2A139F1E6D2BAE4F0000"
    with engine.begin() as connection:
        first, second = rows.claim(connection, outbox.table, rows.due(connection, outbox.table, 9), "me", 1)
    assert len(made) == 32
    assert int(made, 16)
    large.properties[Property.UNIQUE_KEY] = made
    assert (first.message(), first.key, first.size) == (large, "Grüße \U0001f600", 1 << 22)
    assert second.message() == own_id


@pytest.mark.parametrize(
    ("message", "key", "why"),
    [
        (Message("orders", b"x" * ((4 << 20) + 1)), None, "4194305 bytes; allowed are 1 to 4194304"),
        (Message("orders", b""), None, "is 0 bytes; allowed"),
        (Message("or ders", b"x"), None, "or ders"),
        (Message("orders", b"x", properties={"a": "x" * 32_800}), None, "limit is 32767"),
        (Message("orders", b"x", properties={"UNIQ_KEY": "no/id"}), None, "letters and digits"),
        (Message("orders", b"x"), "", "key=''"),
        (Message("orders", b"x"), "k" * 256, "1 to 255 characters"),
        (Message("orders", b"x"), 17, "key=17; expected is a text"),
        ("orders", None, "is a str; expected is a Message"),
    ],
)
def test_what_could_never_be_sent_is_refused_before_it_is_written(message: Any, key: Any, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        Outbox().add(object(), message, key=key)  # type: ignore[call-overload] # it does not come as far as the database


def test_an_engine_that_was_made_in_autocommit_is_refused(engine: Engine, outbox: Outbox) -> None:
    made = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with made.begin() as connection, pytest.raises(ClientError, match="AUTOCOMMIT"):
        outbox.add(connection, Message("orders", b"x"))
    with Session(made) as session, pytest.raises(ClientError, match="AUTOCOMMIT"):
        outbox.add(session, Message("orders", b"x"))
    made.dispose()
    assert listed(engine, outbox) == []


def test_a_choice_means_a_key_and_a_topic_as_they_are_written(engine: Engine, outbox: Outbox) -> None:
    """MariaDB compares texts without case and accents, and without spaces at the end."""
    keys = ["a", "A", "á", "a ", "ß", "ss"]
    for key in keys:
        add(engine, outbox, key, key=key)
    topics = ["visits", "Visits"]
    for topic in topics:
        add(engine, outbox, topic, topic=topic)
    for key in keys:
        assert [row.key for row in listed(engine, outbox, Choice(key=key))] == [key]
    for topic in topics:
        assert [row.topic for row in listed(engine, outbox, Choice(topic=topic))] == [topic]
    with engine.begin() as connection:
        assert [row.key for row in rows.drop(connection, outbox.table, Choice(key="a"))] == ["a"]
    assert [row.key for row in listed(engine, outbox)] == [*keys[1:], None, None]


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_the_time_does_not_jump_when_summer_time_ends(engine: Engine) -> None:
    """Local time comes twice then, whatever number is made of it."""
    zone = 4_711
    ends_s = 1_792_890_000  # in Central Europe, 2026-10-25
    with engine.connect() as connection:
        run = connection.exec_driver_sql
        run(f"INSERT INTO mysql.time_zone VALUES ({zone}, 'N')")
        run(f"INSERT INTO mysql.time_zone_name VALUES ('Central/{zone}', {zone})")
        run(f"INSERT INTO mysql.time_zone_transition_type VALUES ({zone}, 0, 7200, 1, 'CEST'), ({zone}, 1, 3600, 0, 'CET')")
        run(f"INSERT INTO mysql.time_zone_transition VALUES ({zone}, 0, 0), ({zone}, {ends_s}, 1)")
        for name in ("SYSTEM", f"Central/{zone}", "-11:00"):
            run(f"SET time_zone = '{name}'")
            for moment in (ends_s - 1_800.0, ends_s - 0.125, ends_s, ends_s + 1_800.0):
                run(f"SET timestamp = {moment}")
                assert connection.scalar(select(now_ms())) == round(moment * 1000), (name, moment)
        for table in ("time_zone", "time_zone_name", "time_zone_transition_type", "time_zone_transition"):
            run(f"DELETE FROM mysql.{table} WHERE Time_zone_id = {zone}")
        connection.invalidate()


def test_where_there_is_no_transaction_nothing_is_written(engine: Engine, outbox: Outbox) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, pytest.raises(ClientError, match="AUTOCOMMIT"):
        outbox.add(connection, Message("orders", b"x"))
    with pytest.raises(ClientError, match="expected is the Session or the Connection"):
        outbox.add(engine, Message("orders", b"x"))  # type: ignore[call-overload]
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            connection.execute(outbox.slots.delete())
            with pytest.raises(ClientError, match="is empty"):
                outbox.add(connection, Message("orders", b"x"), key="a")
    assert listed(engine, outbox) == []
    outbox.create(engine)
    add(engine, outbox, "x", key="a")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"batch": 0}, "batch=0; allowed are 1 to 5000"),
        ({"lease_s": 1, "send_timeout_ms": 751}, "allowed are 750 ms"),
        ({"backoff_max_s": 3_601}, "backoff_max_s=3601"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Any, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        Relay(Outbox(), None, FakeProducer(), **settings)  # type: ignore[arg-type]
