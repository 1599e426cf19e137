"""Databases to write to: SQLite in a file, and the servers of tests.services. Every test has tables of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event

from roquet.outbox import Outbox

KINDS = ("sqlite", "postgresql", "mariadb")
PLAIN = {"sqlite": "pysqlite", "postgresql": "psycopg", "mariadb": "pymysql"}
AWAITED = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mariadb": "aiomysql"}
numbers = itertools.count()


def url_of(kind: str, drivers: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite+{drivers[kind]}:///{tmp_path / 'data.db'}"
    url: str = request.getfixturevalue(f"{kind}_server").url(drivers[kind])
    return url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, PLAIN, request, tmp_path)


@pytest.fixture(params=KINDS)
def awaited_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "mariadb":
        from aiomysql import connection

        # aiomysql 0.3.2 calls a function that PyMySQL 1.2.3 took away (its issue 1080): no bytes could be written.
        if not callable(connection.escape_bytes_prefixed):
            monkeypatch.setattr(connection, "escape_bytes_prefixed", lambda value: f"_binary X'{value.hex()}'")
    return url_of(request.param, AWAITED, request, tmp_path)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(engine: Engine) -> Iterator[Outbox]:
    outbox = Outbox(name=f"outbox_{next(numbers)}")
    outbox.create(engine)
    yield outbox
    outbox.metadata.drop_all(engine)
