"""docs/idempotence.md: its snippets run as printed, and it says of each store what the store says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import roquet
from roquet import Message, ReceivedMessage
from roquet.idempotence import AsyncRedisStore, MemoryStore, RedisStore, SqlStore
from tests.docs.snippets import PRINTED_ADDRESS, ROOT, snippets
from tests.services import Server

PAGE = (ROOT / "docs" / "idempotence.md").read_text()


def run_printed(
    with_text: str, directory: Path, *, is_over: Callable[[], bool] | None = None, redis_url: str = ""
) -> list[tuple[object, ...]]:
    """What the snippet printed of two payments, one of which was sent three times."""
    [snippet] = [snippet for snippet in snippets(PAGE) if with_text in snippet]
    printed: list[tuple[object, ...]] = []

    async def count(session: Any, message: ReceivedMessage) -> list[str]:
        return message.keys

    async def work() -> None:
        async with asyncio.timeout(600), roquet.embedded(fast_retries=True) as mq, mq.producer() as producer:
            code = snippet.replace(PRINTED_ADDRESS, mq.namesrv).replace("shop.db", f"{directory}/shop.db")
            code = code.replace("redis://127.0.0.1:6379/0", redis_url)
            names: dict[str, Any] = {"print": lambda *words: printed.append(words), "count": count}
            exec(compile(code, "docs/idempotence.md", "exec"), names)  # as it is printed is the test
            for key in ("order-17", "order-17", "last", "order-17"):
                await producer.send(Message("payments", b"x", keys=[key]))
            async with names["consumer"]:
                while not (is_over() if is_over else len(printed) >= 2):
                    await asyncio.sleep(0.005)
            if "sessions" in names:
                await names["sessions"].kw["bind"].dispose()
            if "engine" in names:
                names["engine"].dispose()
            if hasattr(names.get("store"), "_client"):
                await names["store"]._client.aclose()

    asyncio.run(work())
    return sorted(printed, key=str)


def test_the_snippet_of_the_memory_store_runs_as_printed(tmp_path: Path) -> None:
    assert run_printed("async def bill(", tmp_path) == [("billed", ["last"]), ("billed", ["order-17"])]


def test_the_snippets_of_databases_run_as_printed(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")

    def booked() -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.execute(text("SELECT key FROM bookings")).scalars())

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bookings (key TEXT)"))
    run_printed("def book(", tmp_path, is_over=lambda: len(booked()) >= 2)
    assert booked() == ["last", "order-17"]
    engine.dispose()
    printed = run_printed("async def take(", tmp_path)
    assert printed == [("taken", ["last"]), ("taken", ["order-17"])]


def test_the_snippet_of_redis_runs_as_printed(tmp_path: Path, redis_server: Server) -> None:
    printed = run_printed("async def write(", tmp_path, redis_url=redis_server.url())
    assert printed == [("wrote about", ["last"]), ("wrote about", ["order-17"])]


def test_the_snippet_of_a_key_function_runs_as_printed() -> None:
    [snippet] = [snippet for snippet in snippets(PAGE) if "key=payment" in snippet]
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/idempotence.md", "exec"), names)
    assert names["once"].key is names["payment"]


@pytest.mark.parametrize("kind", [MemoryStore, SqlStore, RedisStore])
def test_the_page_gives_each_guarantee_in_the_words_of_the_store(kind: type) -> None:
    promised = re.search(r"Guarantee: (.*?)\n\n", kind.__doc__ or "", re.DOTALL)
    assert promised is not None
    sentence = " ".join(promised[1].split())
    assert sentence[0].upper() + sentence[1:] in PAGE
    assert AsyncRedisStore.__doc__ == "Guarantee: that of RedisStore."
