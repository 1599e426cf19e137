"""An outbox from the command line: looked at, tried again, given up, and published by a relay that is a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

import roquet
from roquet import Message
from roquet.cli.main import main
from roquet.outbox import Outbox, rows
from roquet.outbox.rows import Choice, Failure, Settled
from tests.outbox.fakes import PATIENCE_S, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    """Row 1 fails and holds back 2 of its key; 3 is another's; 4 is being sent."""
    outbox = Outbox()
    outbox.create(engine)
    with engine.begin() as connection:
        for body, key in ((b"first", "a"), (b"second", "a"), (b"third", "b"), (b"fourth", None)):
            outbox.add(connection, Message("orders" if key else "free", body), key=key)
        one, two, three, _ = rows.claim(connection, outbox.table, [1, 2, 3, 4], "me", 600_000)
        failed = Failure(one, "the broker is away", 600_000)
        rows.settle(connection, outbox.table, Settled("me", failed=[failed], given_back=[two, three]), True)
    return outbox


def run(url: str, *words: str) -> int:
    return main(["outbox", *words, "--database", url])


def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def due(engine: Engine, outbox: Outbox) -> list[int]:
    with engine.begin() as connection:
        return rows.due(connection, outbox.table, 10)


def test_a_list_says_what_waits_and_why(url: str, outbox: Outbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(url, "list") == 0
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines()]
    assert lines[0][:3] == ["ID", "STATE", "TOPIC"]
    assert [line[0] for line in lines[1:5]] == ["1", "2", "3", "4"]
    assert "the broker is away" in said
    assert "4 messages wait, the oldest for 0s; 1 failed before" in said
    assert run(url, "list", "--json") == 0
    facts = shown(capsys)
    assert [(row["id"], row["state"], row["key"], row["tries"]) for row in facts["rows"]] == [
        (1, "failing", "a", 1), (2, "held back", "a", 0), (3, "waiting", "b", 0), (4, "being sent", None, 0),
    ]  # fmt: skip
    assert (facts["waiting"], facts["failing"]) == (4, 1)
    for words, expected in (
        (["--failing"], [1]),
        (["--key", "a"], [1, 2]),
        (["--topic", "free"], [4]),
        (["--count", "1"], [1]),
        (["--sent"], []),
    ):
        assert run(url, "list", "--json", *words) == 0
        assert [row["id"] for row in shown(capsys)["rows"]] == expected


def test_a_retry_lets_relays_go_on_at_once(url: str, engine: Engine, outbox: Outbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert due(engine, outbox) == [3]
    assert run(url, "retry", "--failing", "--dry-run") == 0
    assert "would try 1 message again now" in capsys.readouterr().out
    assert due(engine, outbox) == [3]
    assert run(url, "retry", "--failing", "--json") == 0
    assert shown(capsys)["done"] == 1
    assert due(engine, outbox) == [1, 2, 3]


def test_what_is_dropped_is_gone_and_what_waited_behind_it_goes_on(
    url: str, engine: Engine, outbox: Outbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(url, "drop", "1", "--dry-run", "--json") == 0
    facts = shown(capsys)
    assert (facts["dryRun"], facts["chosen"], facts["done"], [row["id"] for row in facts["rows"]]) == (True, 1, 0, [1])
    assert run(url, "drop", "1") == 1, "nobody said yes"
    assert "Drop 1 message? They will never be published. Not done: say --yes" in capsys.readouterr().err
    assert run(url, "drop", "1", "--yes") == 0
    assert due(engine, outbox) == [2, 3]
    assert run(url, "drop", "17", "--yes") == 1
    assert "no such row waits: 17" in capsys.readouterr().err
    monkeypatch.setattr(rows, "PORTION", 1)
    assert run(url, "drop", "--all", "--yes") == 1
    said = capsys.readouterr()
    assert "dropped 2 messages" in said.out
    assert "a relay works on 1 message now; left alone" in said.err
    with engine.begin() as connection:
        assert [row.id for row in rows.listed(connection, outbox.table, Choice(), 10)] == [4]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["retry"], 2, "give --all, or choose rows"),
        (["drop", "--all", "--key", "a"], 2, "give --all, or choose rows"),
        (["list", "--database", "no url"], 2, "--database: "),
        (["list", "--database", ""], 2, "Give --database URL, or set ROQUET_DATABASE"),
        (["list", "--table", "elsewhere"], 1, "the table elsewhere is not in sqlite:"),
        (["list", "--database", "sqlite:////nowhere/at/all.db"], 1, "unable to open database file"),
        (["list", "--database", "postgresql+nonsense://u:secret@h/d"], 2, "nonsense"),
        (["list", "--database", "mysql+mysqldb://u:secret@h/d"], 1, "is not installed"),
        (["list", "--database", "postgresql+psycopg://u:secret@h:secret/d"], 2, "this is no URL of a database; expected is"),
        (["list", "--database", "postgresql+psycopg://u:a@secret@h/d"], 2, "a password's @ is written %40"),
        (["list", "--database", "postgresql+psycopg://u:a@b/secret@h/d"], 2, "a password's @ is written %40"),
        (["list", "--database", "mysql+pymysql://h?password=secret@more"], 2, "this is no URL of a database"),
        (["list", "--database", "sqlite:///a.db?timeout=secret"], 2, "the driver does not take what is behind the ?"),
        (["list", "--database", "mysql+pymysql://u:secret@127.0.0.1:1/d?nonsense=secret"], 2, "the driver does not take what is behind"),
        (["list", "--database", "postgresql+psycopg://u@127.0.0.1:1/d?password=secret"], 1, "postgresql+psycopg://u@127.0.0.1:1/d: "),
        (["list", "--database", "mysql+aiomysql://u@127.0.0.1:1/d?password=secret"], 1, "mysql+aiomysql://u@127.0.0.1:1/d: "),
    ],
)
def test_what_is_wrong_is_one_sentence_and_tells_no_password(
    url: str, outbox: Outbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, why: str
) -> None:
    monkeypatch.delenv("ROQUET_DATABASE", raising=False)
    assert main(["outbox", *words, *([] if "--database" in words else ["--database", url])]) == code
    said = capsys.readouterr().err
    assert why in said
    assert "secret" not in said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1


def test_a_table_that_is_missing_is_told_without_what_is_behind_the_question_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"sqlite:///file:{tmp_path}/a.db?uri=true&secret=1&mode=rwc", "list") == 1
    said = capsys.readouterr().err
    assert "the table roquet_outbox is not in sqlite:///file" in said
    assert "secret" not in said


@pytest.mark.parametrize("words", [["--all"], ["--topic", "orders"], ["--failing"], ["--key", "a"]])
def test_what_is_committed_after_the_operator_was_asked_is_not_dropped(
    url: str, engine: Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    added: list[str] = []

    def answered(*_: object) -> bool:
        with engine.begin() as connection:
            added.append(outbox.add(connection, Message("orders", b"new"), key="a"))
            connection.execute(outbox.table.update().where(outbox.table.c.id > 1).values(tries=1))
        return True

    monkeypatch.setattr("roquet.cli.outbox.confirmed", answered)
    assert run(url, "drop", *words) == (1 if words == ["--all"] else 0), "a relay works on the fourth"
    with engine.begin() as connection:
        left = rows.listed(connection, outbox.table, Choice(), 10)
    assert left[-1].message_id == added[0]
    assert [row.id for row in left[:-1]] == {"--all": [4], "--topic": [4], "--failing": [2, 3, 4], "--key": [3, 4]}[words[0]]


def test_of_many_ids_those_that_are_missing_are_told(url: str, outbox: Outbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(url, "drop", *map(str, range(1, 31)), "--yes", "--dry-run") == 1
    said = capsys.readouterr()
    assert "no such row waits: 5, 6, 7, 8" in said.err
    assert "and 6 more" in said.err
    assert "would drop 4 messages" in said.out


def test_a_relay_as_a_process_publishes_until_it_is_told_to_stop(url: str, engine: Engine) -> None:
    async def scenario() -> None:
        async with roquet.embedded() as mq, asyncio.timeout(PATIENCE_S):
            relay = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "roquet", "outbox", "relay", "--create", "--database", url.replace("sqlite", "sqlite+aiosqlite")),
                *("-n", mq.namesrv, "--table", "shop"),
                stdout=asyncio.subprocess.PIPE,
            )
            assert relay.stdout is not None
            assert b"Ctrl-C stops it." in await relay.stdout.readline()
            seen: list[bytes] = []
            consumer = mq.consumer("billing", consume_from="first")
            consumer.subscribe("orders", function=lambda message: seen.append(message.body))
            outbox = Outbox(name="shop")
            with engine.begin() as connection:
                outbox.add(connection, Message("orders", b"first"), key="a")
            async with consumer:
                await until(lambda: seen == [b"first"])
            relay.send_signal(signal.SIGTERM)
            assert await relay.stdout.readline() == b"relay: stopped; 1 message published, 0 attempts failed\n"
            assert await relay.wait() == 0

    asyncio.run(scenario())
