"""The snippets of docs/client-settings.md run as printed, one after the other, against a real broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet import Message, ReceivedMessage, SendReceipt, TransactionState
from roquet.client.core.push_consumer import PushConsumerSettings
from tests.docs.snippets import PRINTED_ADDRESS, ROOT, snippets

PAGE = ROOT / "docs" / "client-settings.md"
PATIENCE_S = 600.0


class Around:
    """What the snippets find around them, and what they print."""

    def __init__(self) -> None:
        self.printed: list[tuple[Any, ...]] = []
        self.results: list[object] = []
        self.worked: list[bytes] = []
        self.names: dict[str, Any] = {name: getattr(roquet, name) for name in roquet.__all__}
        self.names |= {"sqlite3": sqlite3, "time": time, "Mapping": Mapping, "print": lambda *words: self.printed.append(words)}
        self.names |= {"count": self.results.append, "work": self._work, "transfer": self._transfer, "was_transferred": self._check}

    async def _work(self, message: ReceivedMessage) -> None:
        self.worked.append(message.body)

    async def _transfer(self, message: Message, argument: object) -> TransactionState:
        return TransactionState.COMMIT

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK

    async def run(self, snippet: str, namesrv: str) -> None:
        code = compile(snippet.replace(PRINTED_ADDRESS, namesrv), PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)  # as it is printed is the test
        if inspect.isawaitable(result):
            await result


def test_the_snippets_of_client_settings_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one keeps a file

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq:
            around = Around()
            for snippet in snippets(PAGE.read_text()):
                await around.run(snippet, mq.namesrv)
            assert len(around.results) == 5_000
            assert all(isinstance(one, SendReceipt) for one in around.results)
            assert around.names["workers"].concurrency == 40
            since = [words[2] for words in around.printed if words[0] == "since then"]
            assert sorted(since) == [0, 0, 0, 1], "one order, in one of four queues"
            around.worked.clear()
            async with around.names["reports"], around.names["ledger"]:
                while not around.worked or sum(around.names["totals"].values()) < 1:
                    await asyncio.sleep(0.01)
            totals = [words[2] for words in around.printed if words[:2] == ("total", "orders")]
            assert sorted(totals) == [0, 0, 0, 1]
            database = around.names["ledger"]._offset_store.database
            assert database.execute("select sum(next) from progress where queue like '%orders%'").fetchone() == (1,)
            database.close()

    asyncio.run(scenario())


def test_the_table_of_pauses_has_the_defaults() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == 5
    settings = PushConsumerSettings()
    for name, default in rows:
        assert getattr(settings, name.strip(" `")) == int(default.replace(",", ""))
