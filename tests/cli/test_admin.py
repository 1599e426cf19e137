"""Every administrative call against an embedded broker, and what happens when brokers disagree or are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import roquet
from roquet.admin import Admin, PartlyDone
from roquet.admin.asking import gather_bounded
from roquet.admin.servers import properties_text
from roquet.client import Message, MessageQueue
from roquet.embed import Embedded
from roquet.errors import ClientError, NoRoute, Rejected
from roquet.wire.calls.groups import GroupConfig

Scenario = Callable[[Embedded, Admin], Awaitable[None]]


def against_a_broker(scenario: Scenario, **settings: str) -> None:
    async def run() -> None:
        async with roquet.embedded(settings=settings) as mq, mq.admin() as admin:
            await scenario(mq, admin)

    asyncio.run(run())


def test_topics_and_their_queues() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        masters = await admin.create_topic("t", read_queues=3, write_queues=2)
        assert [(broker.name, broker.address, broker.is_master) for broker in masters] == [("broker-a", mq.broker, True)]
        (queues,) = (await admin.route("t")).queue_datas
        assert (queues.read_queue_nums, queues.write_queue_nums) == (3, 2)
        assert "t" in await admin.topic_names()
        assert "t" in await admin.topic_names_of_cluster("DefaultCluster")
        assert (await admin.topic_table(mq.broker)).topic_config_table["t"].read_queue_nums == 3
        async with mq.producer() as producer:
            await producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 1))
        status = await admin.topic_status("t")
        assert [(one.queue.queue_id, one.count) for one in status] == [(0, 0), (1, 1), (2, 0)]
        await admin.delete_topic("t")
        with pytest.raises(NoRoute, match="'t'"):
            await admin.route("t")

    against_a_broker(scenario)


def test_groups_offsets_and_progress() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await admin.create_group(GroupConfig("g", retry_max_times=5))
        assert (await admin.groups())["g"].retry_max_times == 5
        await admin.create_topic("t", read_queues=1, write_queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        async with mq.producer() as producer:
            for number in range(10):
                await producer.send(Message("t", b"%d" % number))
        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 10)
        assert await admin.search_offset(queue, 0) == 0
        await admin.set_consumer_offset("g", queue, 4)
        assert await admin.consumer_offset("g", queue) == 4
        (progress,) = [one for one in await admin.progress("g") if one.queue == queue]
        assert (progress.broker_offset, progress.consumer_offset, progress.lag) == (10, 4, 6)
        assert await admin.groups_of_topic("t") == ["g"]
        await admin.delete_group("g", remove_offsets=True)
        assert "g" not in await admin.groups()

    against_a_broker(scenario)


def test_members_and_producers_are_seen_while_they_run() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await admin.create_topic("t")
        assert (await admin.members("g")).client_ids() == []
        assert await admin.producers("p") == {}
        consumer = mq.consumer("g")

        @consumer.on("t", "a || b")
        async def nothing(message: roquet.ReceivedMessage) -> None: ...

        async with consumer, mq.producer("p") as producer:
            await producer.send(Message("t", b"x"))
            members = await admin.members("g")
            assert members.client_ids() == [consumer.client_id]
            assert members.by_broker["broker-a"].subscription_table["t"].sub_string == "a || b"
            assert [one.client_id for one in (await admin.producers("p"))["broker-a"].connection_set] == [producer.client_id]
        assert (await admin.members("g")).client_ids() == []

    against_a_broker(scenario)


def test_settings_at_run_time_are_all_or_nothing() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await admin.update_broker_config(mq.broker, {"maxMessageSize": "1000"})
        assert (await admin.broker_config(mq.broker))["maxMessageSize"] == "1000"
        with pytest.raises(Rejected, match="storePathRootDir") as refused:
            await admin.update_broker_config(mq.broker, {"maxMessageSize": "2000", "storePathRootDir": "/tmp/elsewhere"})
        assert "permissions" not in str(refused.value), "the broker said why; nobody has to look for more"
        with pytest.raises(Rejected, match="listenPort") as refused:
            await admin.update_namesrv_config({"listenPort": "1"})
        assert "permissions" not in str(refused.value)
        assert (await admin.broker_config(mq.broker))["maxMessageSize"] == "1000"
        assert (await admin.namesrv_config(mq.namesrv))["orderMessageEnable"] == "false"
        await admin.update_namesrv_config({"orderMessageEnable": "true"})
        assert (await admin.namesrv_config(mq.namesrv))["orderMessageEnable"] == "true"
        assert "brokerVersionDesc" in await admin.runtime(mq.broker)

    against_a_broker(scenario)


def test_key_values_and_permissions_of_the_name_server() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        assert await admin.kv_get("space", "key") is None
        assert await admin.kv_list("space") == {}
        await admin.kv_put("space", "key", "value")
        assert await admin.kv_get("space", "key") == "value"
        assert await admin.kv_list("space") == {"key": "value"}
        await admin.kv_delete("space", "key")
        assert await admin.kv_get("space", "key") is None
        await admin.create_topic("t")
        assert await admin.wipe_write_permission("broker-a") >= 1
        assert (await admin.route("t")).queue_datas[0].perm == 4
        assert await admin.add_write_permission("broker-a") >= 1
        assert (await admin.route("t")).queue_datas[0].perm == 6

    against_a_broker(scenario)


def test_messages_by_id_key_and_unique_key() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await admin.create_topic("t")
        async with mq.producer() as producer:
            receipt = await producer.send(Message("t", b"one", keys=["k"]))
            await producer.send(Message("t", b"two", keys=["k", "other"]))
        assert (await admin.view_message(receipt.offset_message_id)).body == b"one"
        assert [message.body for message in await admin.query_by_key("t", "k")] == [b"one", b"two"]
        assert [message.body for message in await admin.query_by_key("t", "other")] == [b"two"]
        assert await admin.query_by_key("t", "absent") == []
        assert [message.body for message in await admin.query_by_unique_key("t", receipt.message_id)] == [b"one"]
        with pytest.raises(ClientError, match="hex digits"):
            await admin.view_message("nonsense")

    against_a_broker(scenario)


def test_a_change_that_one_of_two_brokers_refuses_is_partly_done_and_names_it() -> None:
    async def run() -> None:
        from roquet.embed import one_broker, read_settings

        async with roquet.embedded() as mq:
            other = read_settings({"brokerName": "broker-b"}).replace(
                namesrv_addr=mq.namesrv, store_path_root_dir=str(mq.data / "broker-1"), accept_groups_max=1
            )
            async with one_broker(other), mq.admin() as admin:
                assert [broker.name for broker in await admin.masters()] == ["broker-a", "broker-b"]
                with pytest.raises(PartlyDone, match="changed on broker-a, but not on broker-b") as refused:
                    await admin.create_group(GroupConfig("g"))
                assert list(refused.value.failed) == ["broker-b"]
                with pytest.raises(PartlyDone, match=r"^topic 'no/slash' was changed on no broker; broker-a: .*; broker-b: ") as refused:
                    await admin.create_topic("no/slash", read_queues=1, write_queues=1)
                assert list(refused.value.failed) == ["broker-a", "broker-b"]
                await admin.create_topic("both", read_queues=1, write_queues=1)
                assert {queues.broker_name for queues in (await admin.route("both")).queue_datas} == {"broker-a", "broker-b"}

    asyncio.run(run())


def test_a_cluster_nobody_has_is_named_in_the_error() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        with pytest.raises(ClientError, match="'Nowhere'"):
            await admin.create_topic("t", cluster="Nowhere")

    against_a_broker(scenario)


def test_an_admin_that_is_not_open_says_so() -> None:
    with pytest.raises(ClientError, match="async with"):
        asyncio.run(Admin("127.0.0.1:1").topic_names())


def test_a_setting_that_is_not_one_line_is_not_sent() -> None:
    with pytest.raises(ClientError, match="one key=value line"):
        properties_text({"a": "1\nstorePathRootDir=/"})


def test_many_calls_are_bounded_and_keep_their_order() -> None:
    running = most = 0

    async def one(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number * 2

    result = asyncio.run(gather_bounded(range(100), one))
    assert list(result.items()) == [(number, number * 2) for number in range(100)]
    assert most <= 32
