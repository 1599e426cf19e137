"""docs/middleware.md: its snippets run as printed, one after the other, in one program."""

from __future__ import annotations

import asyncio
import json

import pytest

import roquet
from roquet import Message
from tests.docs.snippets import ROOT, snippets
from tests.docs.test_documents import PATIENCE_S, Outside

PAGE = ROOT / "docs" / "middleware.md"


def test_the_snippets_of_middleware_md_run_as_printed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq, mq.producer() as producer:
            outside = Outside(producer)
            for fragment in snippets(PAGE.read_text()):
                await outside.run(fragment, mq.namesrv)
            assert outside.printed == [("sends", 1), ("stored", True), ("sent", 2, 0)]
            assert json.dumps(outside.names["as_json"])
            assert "Refuses.before_send failed, 1 times" in caplog.text
            async with outside.names["consumer"], outside.names["prices"]:
                await outside.until_printed("request", "r-17")
                await producer.send(Message("prices", b"3 EUR"))
                await outside.until_printed("price", b"3 EUR", 0)
            assert outside.names["consumer"].stats.consumed == 1

    asyncio.run(scenario())


def test_the_page_names_every_hook_and_every_number() -> None:
    text = PAGE.read_text()
    for name in [*vars(roquet.Middleware), *roquet.PushConsumer("g").stats.as_dict(), *roquet.Producer("g").stats.as_dict()]:
        if not name.startswith("_") and name != "group":
            assert f"`{name}" in text, name
