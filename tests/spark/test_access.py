"""The source, the sink and the pipelines with servers that let nobody in without a key and TLS."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from roquet import Credentials
from roquet.cli.main import main
from roquet.embed import embedded
from roquet.spark.pipelines import dead_letters, lag
from roquet.wire.calls.access import AccountHeader
from tests.spark.conftest import Servers

ADMIN = Credentials("spark-admin", "hidden-admin-secret")
READER = Credentials("spark-reader", "hidden-reader-secret")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Servers]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    manager = embedded(credentials=ADMIN, tls=True)
    servers = Servers(loop, asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result(120))

    async def account() -> None:
        async with servers.embedded.admin() as admin:
            header = AccountHeader(READER.access_key, READER.secret_key, default_topic_perm="SUB", default_group_perm="SUB")
            await admin.change_account(await admin.masters(), header)
            await admin.create_topic("signed", read_queues=1, write_queues=1)

    asyncio.run_coroutine_threadsafe(account(), loop).result(120)
    yield servers
    asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result(120)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def where(servers: Servers, keys: Credentials | None) -> dict[str, str]:
    found = {"namesrvAddr": servers.namesrv, "useTLS": "true", "tlsVerify": "false"}
    return found if keys is None else found | {"accessKey": keys.access_key, "secretKey": keys.secret_key}


def write(spark: Any, options: dict[str, str], body: str) -> None:
    spark.createDataFrame([(body.encode(),)], "body binary").write.format("rocketmq").options(**options).option("topic", "signed").mode(
        "append"
    ).save()


def test_the_sink_and_the_source_sign_and_who_may_not_is_told_so_without_its_secret(guarded: Servers, spark: Any) -> None:
    write(spark, where(guarded, ADMIN), "hello")

    def read(options: dict[str, str]) -> list[bytes]:
        rows = spark.read.format("rocketmq").option("subscribe", "signed").options(**options).load().select("body").collect()
        return [bytes(row.body) for row in rows]

    assert read(where(guarded, READER)) == [b"hello"]
    for options, work in (
        (where(guarded, READER), lambda options: write(spark, options, "not allowed")),
        (where(guarded, None), read),
        (where(guarded, Credentials("spark-reader", "hidden-wrong-one")), read),
    ):
        with pytest.raises(Exception, match="AclException") as caught:
            work(options)
        assert "hidden" not in str(caught.value)


def test_pipelines_ask_brokers_with_keys(
    guarded: Servers, spark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lag.sample(where(guarded, ADMIN)) == []
    assert isinstance(dead_letters.attempts_of(where(guarded, ADMIN)), dict)
    assert dead_letters.attempts_of(where(guarded, READER)) == {}, "admins alone are told"
    assert dead_letters.redrive(where(guarded, ADMIN), {}) == []
    monkeypatch.setenv("ROQUET_ACCESS_KEY", READER.access_key)
    monkeypatch.setenv("ROQUET_SECRET_KEY", READER.secret_key)
    words = ["pipeline", "dlq", "-n", guarded.namesrv, "--tls-insecure", "--json"]
    assert main(words) == 0
    assert '"letters":0' in capsys.readouterr().out
    monkeypatch.delenv("ROQUET_ACCESS_KEY")
    monkeypatch.delenv("ROQUET_SECRET_KEY")
    assert main(words) == 1
    said = capsys.readouterr()
    assert "AclException" in said.err
    assert "hidden" not in said.err + said.out
