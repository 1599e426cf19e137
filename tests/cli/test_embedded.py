"""`async with roquet.embedded() as mq:`"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import roquet
from roquet import Message, ReceivedMessage
from roquet.errors import RoquetError
from tests.certificates import authority, issued


def test_what_is_sent_is_consumed() -> None:
    async def scenario() -> None:
        async with roquet.embedded() as mq:
            got: asyncio.Queue[bytes] = asyncio.Queue()
            consumer = mq.consumer(consume_from="first")

            @consumer.on("t")
            async def take(message: ReceivedMessage) -> None:
                await got.put(message.body)

            async with mq.producer() as producer, asyncio.timeout(600):
                await producer.send(Message("t", b"hello"))
                async with consumer:
                    assert await got.get() == b"hello"

    asyncio.run(scenario())


def test_the_temporary_store_is_gone_afterwards_and_nothing_is_left_running() -> None:
    async def scenario() -> Path:
        before = asyncio.all_tasks()
        async with roquet.embedded() as mq:
            assert (mq.data / "broker-0" / "commitlog").is_dir()
            assert mq.namesrv in repr(mq)
        assert asyncio.all_tasks() == before
        return mq.data

    assert not asyncio.run(scenario()).exists()


def test_data_that_is_kept_is_there_at_the_next_start(tmp_path: Path) -> None:
    async def first() -> str:
        async with roquet.embedded(tmp_path) as mq, mq.producer() as producer:
            return (await producer.send(Message("t", b"kept", keys=["k"]))).message_id

    async def second(unique_key: str) -> list[bytes]:
        async with roquet.embedded(tmp_path) as mq, mq.admin() as admin:
            return [message.body for message in await admin.query_by_unique_key("t", unique_key)]

    assert asyncio.run(second(asyncio.run(first()))) == [b"kept"]


def test_two_of_them_run_side_by_side() -> None:
    async def scenario() -> None:
        async with roquet.embedded() as one, roquet.embedded() as two:
            assert one.namesrv != two.namesrv
            assert one.broker != two.broker

    asyncio.run(scenario())


def test_settings_reach_the_broker_and_a_wrong_one_raises() -> None:
    async def scenario() -> None:
        async with roquet.embedded(settings={"flushDiskType": "SYNC_FLUSH"}) as mq, mq.admin() as admin:
            assert (await admin.broker_config(mq.broker))["flushDiskType"] == "SYNC_FLUSH"
        with pytest.raises(RoquetError, match="did you mean 'flushDiskType'"):
            async with roquet.embedded(settings={"flushDiskTyp": "SYNC_FLUSH"}):
                pass

    asyncio.run(scenario())


def test_an_error_inside_the_block_comes_out_as_it_is() -> None:
    async def scenario() -> None:
        async with roquet.embedded():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario())


def test_a_store_that_cannot_be_opened_raises_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "broker-0").write_text("a file where the store should be")

    async def scenario() -> None:
        async with roquet.embedded(tmp_path):
            pass

    with pytest.raises((RoquetError, OSError), match="broker-0"):
        asyncio.run(scenario())


def test_with_tls_nobody_gets_in_without_it_and_the_clients_made_here_use_it() -> None:
    async def scenario() -> None:
        async with roquet.embedded(tls=True) as mq, asyncio.timeout(600):
            async with mq.producer() as producer, mq.admin() as admin, mq.pull_consumer() as reader:
                await producer.send(Message("t", b"hello"))
                assert [one.name for one in await admin.brokers()] == ["broker-a"]
                assert sum([await reader.max_offset(queue) for queue in await reader.fetch_queues("t")]) == 1
            with pytest.raises(roquet.ConnectFailed, match="not started"):
                await roquet.Producer("plain", mq.namesrv, start_timeout_ms=500).start()

    asyncio.run(scenario())


def test_with_a_certificate_of_one_s_own_clients_verify_it() -> None:
    shown = issued()
    settings = {"tls.server.certPath": shown.cert, "tls.server.keyPath": shown.key, "tls.client.trustCertPath": authority().file}

    async def scenario() -> None:
        async with roquet.embedded(tls=roquet.Tls(authority().file), settings=settings) as mq, asyncio.timeout(600):
            async with mq.producer() as producer:
                await producer.send(Message("t", b"hello"))
            with pytest.raises(roquet.ConnectFailed, match="certificate"):
                await roquet.Producer("other", mq.namesrv, tls=roquet.Tls(), start_timeout_ms=500).start()

    asyncio.run(scenario())
