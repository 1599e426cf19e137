"""What each store promises when a consumer is killed, or the store is away."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from roquet import ClientError, RetryLater
from roquet.idempotence import AsyncRedisStore, AsyncSqlStore, Claim, Mark, MemoryStore, Once, RedisStore, SqlStore, StoreFailed
from roquet.idempotence.keys import digest
from tests.idempotence.shops import PATIENCE_S, REDIS_KINDS, SQL_KINDS, Gate, Shop, message, opened, until
from tests.services import free_port


@pytest.mark.parametrize("shop", ["sqlite", "postgresql", "mariadb", "redis"], indirect=True)
def test_what_a_killed_consumer_had_begun_is_handled_again_after_its_lease_and_what_it_had_done_is_not(shop: Shop) -> None:
    command = [sys.executable, "-m", "tests.idempotence.worker", shop.kind, shop.url, str(shop.number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "in the handler\n"
        finally:
            worker.send_signal(signal.SIGKILL)
        assert worker.wait(PATIENCE_S) == -signal.SIGKILL
    guard: Any = shop.guard()
    assert isinstance(shop.call(guard, message("killed")), RetryLater), "its lease is not over"
    assert shop.call(guard, message("done")) is None
    assert (shop.began, guard.once.dropped) == ([], 1)
    shop.end_leases()
    until(lambda: shop.call(guard, message("killed")) is None)  # a database needs a moment to see that the connection is gone
    assert shop.began == ["killed"]
    if shop.is_sql:
        assert shop.effects() == ["done", "killed"], "what the killed handler wrote was rolled back"


@pytest.mark.parametrize("shop", SQL_KINDS, indirect=True)
def test_a_claim_that_was_taken_over_before_its_handler_began_is_not_handled(shop: Shop) -> None:
    """A consumer that was stopped for longer than its lease, between claim and handler."""
    late = shop.open()
    begin = late.begin

    def stopped(claim: Any) -> Any:
        shop.clock.now += 61
        assert shop.call(shop.guard(), message()) is None
        return begin(claim)

    async def stopped_async(claim: Any) -> Any:
        shop.clock.now += 61
        assert await shop.guard()(message()) is None
        return await begin(claim)

    late.begin = stopped_async if shop.is_async else stopped
    guard: Any = shop.guard(store=late)
    assert isinstance(shop.call(guard, message()), RetryLater)
    assert (guard.once.handled, guard.once.postponed) == (0, 1)
    assert shop.effects() == ["order-17"]


@pytest.mark.parametrize("shop", ["postgresql", "postgresql-async", "mariadb", "mariadb-async"], indirect=True)
def test_a_connection_that_is_lost_before_the_commit_takes_the_work_along_and_the_message_comes_again(shop: Shop) -> None:
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message())
    assert gate.reached.wait(PATIENCE_S)
    with shop.plain.connect() as connection:
        ends = "SELECT pg_terminate_backend({})" if "postgresql" in shop.kind else "KILL {}"
        connection.execute(text(ends.format(shop.connection)))
    gate.opened.set()
    with pytest.raises(StoreFailed, match="what the handler did was rolled back"):
        first.result(PATIENCE_S)
    assert shop.effects() == []
    assert shop.states() == ["failed"]
    assert shop.call(shop.guard(), message()) is None
    assert shop.effects() == ["order-17"]


@pytest.mark.parametrize("shop", REDIS_KINDS, indirect=True)
def test_a_lease_that_was_lost_while_the_handler_ran_is_told(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message())
    assert gate.reached.wait(PATIENCE_S)
    with redis.Redis.from_url(shop.url) as client:  # as a failover that loses the last moments does
        client.delete(*client.keys(f"{shop.marks}:*"))
        second_gate = Gate()
        second = shop.start(shop.guard(gate=second_gate), message())
        assert second_gate.reached.wait(PATIENCE_S)
        gate.opened.set()
        assert first.result(PATIENCE_S) is None
        assert "the lease of 1 messages was lost while their handler ran" in caplog.text
        [key] = client.keys(f"{shop.marks}:*")
        assert client.get(key).startswith(b"running:"), "the mark of the second is left to it"
        second_gate.opened.set()
        assert second.result(PATIENCE_S) is None
        assert client.get(key) == b"done"


@pytest.mark.parametrize("shop", REDIS_KINDS, indirect=True)
def test_a_lease_that_ran_out_unnoticed_is_still_its_owners_while_nobody_took_it(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message())
    assert gate.reached.wait(PATIENCE_S)
    with redis.Redis.from_url(shop.url) as client:
        client.delete(*client.keys(f"{shop.marks}:*"))
    gate.opened.set()
    assert first.result(PATIENCE_S) is None
    assert caplog.text == ""
    assert shop.call(shop.guard(), message()) is None
    assert shop.began == ["order-17"]


# -- the store is away


def away(kind: str) -> Any:
    """A store whose server is not there."""
    port = free_port()
    if kind == "redis":
        return RedisStore(redis.Redis(port=port, retry=Retry(NoBackoff(), 0)))
    if kind == "redis-async":
        return AsyncRedisStore(redis.asyncio.Redis(port=port, retry=AsyncRetry(NoBackoff(), 0)))
    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}.get(kind.removesuffix("-async"))
    if kind == "mariadb-async":
        driver = "mysql+aiomysql"
    url = f"{driver}://roquet@127.0.0.1:{port}/test"
    return AsyncSqlStore(create_async_engine(url)) if kind.endswith("-async") else SqlStore(create_engine(url))


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-async", "mariadb", "mariadb-async", *REDIS_KINDS])
def test_while_the_store_is_away_nothing_is_handled_and_the_message_comes_again(kind: str) -> None:
    store = away(kind)
    handled: list[Any] = []

    async def handle_async(one: Any, session: Any = None) -> None:
        handled.append(one)

    def handle(one: Any, session: Any = None) -> None:
        handled.append(one)

    with opened("memory", "") as shop:
        shop.is_async = kind.endswith("-async")
        guard: Any = Once(store, group="billing")(handle_async if shop.is_async else handle)
        with pytest.raises(StoreFailed, match=r"the store of marks of group billing, \w+Store, failed: .*nothing was handled"):
            shop.call(guard, message())
        assert handled == []
        if kind in REDIS_KINDS:
            guard = Once(store, group="billing", store_away="run")(handle_async if shop.is_async else handle)
            assert shop.call(guard, message()) is None
            assert len(handled) == 1


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_table_that_is_missing_is_named_with_what_to_do(shop: Shop) -> None:
    store = SqlStore(shop.plain, name="nowhere")
    with pytest.raises(StoreFailed, match=r"the table nowhere is not in the database; make it once: store.create\(\)"):
        shop.call(shop.guard(store=store), message())
    assert shop.began == []


def test_a_mark_that_cannot_be_set_after_the_handler_does_not_bring_the_message_again(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryStore):
        def finish(self, *_: Any) -> None:
            raise OSError("full")

    assert Once(Full(), group="billing")(lambda one: None)(message()) is None
    assert "1 handled messages could not be remembered" in caplog.text


def test_a_failure_that_cannot_be_marked_is_told_and_the_handlers_own_error_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(MemoryStore):
        def fail(self, *_: Any) -> None:
            raise OSError("deaf")

    def handle(one: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Once(Deaf(), group="billing")(handle)(message())
    assert "1 messages that failed are tried again after their lease" in caplog.text


@pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
def test_a_database_in_autocommit_does_not_mark_a_message_as_done_before_its_handler_is(shop: Shop) -> None:
    """Without transactions there is no exact effect, but no message is lost."""
    for seen in (shop.plain.execution_options(isolation_level="AUTOCOMMIT"), create_engine(shop.url, isolation_level="AUTOCOMMIT")):
        with pytest.raises(ClientError, match="this engine is in AUTOCOMMIT"):
            SqlStore(seen)
    engine = create_engine(shop.url, connect_args={"autocommit": True})  # which cannot be seen
    store = SqlStore(engine, name=shop.marks, clock=shop.clock)
    with pytest.raises(ValueError, match="no"):
        shop.call(shop.guard(store=store, answer=ValueError("no")), message())
    assert shop.states() == ["failed"]
    assert shop.call(shop.guard(), message()) is None
    assert shop.began == ["order-17", "order-17"]
    engine.dispose()


def test_a_database_that_fails_for_another_reason_is_not_asked_five_times() -> None:
    store = away("postgresql")
    asked: list[int] = []
    begin = store._engine.begin

    def watched() -> Any:
        asked.append(1)
        return begin()

    store._engine.begin = watched
    with pytest.raises(DBAPIError):
        store.claim(claim_of("a"))
    assert len(asked) == 1


def claim_of(key: str) -> Any:
    return Claim([Mark(digest("g", key), "g", key)], "token", 1_000)
