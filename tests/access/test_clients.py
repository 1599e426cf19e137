"""Real servers with access control, and the Python client and the command line that sign."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet.cli.main import build_parser
from roquet.client import Credentials, Message
from roquet.embed import Embedded
from roquet.errors import ClientError, RoquetError

from ..docs.snippets import ROOT, snippets
from .people import TEXT, key_of

ADMIN = key_of("admin")
ACCOUNTS = TEXT.replace("globalWhiteRemoteAddresses:\n- 10.9.9.*\n", "")


@asynccontextmanager
async def guarded(tmp_path: Path) -> AsyncIterator[Embedded]:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    settings = {"aclEnable": "true", "aclFile": str(file), "vipChannelEnable": "false"}
    async with roquet.embedded(settings=settings, fast_retries=True) as mq:
        async with mq.admin(credentials=ADMIN) as admin:
            await admin.create_topic("T", read_queues=1, write_queues=1)
        yield mq


async def command(mq: Embedded, capsys: pytest.CaptureFixture[str], *words: str, who: Credentials | None = ADMIN) -> str:
    keys = [] if who is None else ["--access-key", who.access_key, "--secret-key", who.secret_key]
    arguments = build_parser(words[0]).parse_args([*words, "-n", mq.namesrv, *keys])
    capsys.readouterr()
    assert await arguments.run(arguments) == 0
    return capsys.readouterr().out


async def until_known(mq: Embedded, who: Credentials) -> None:
    """The name server looks at the file every second."""
    async with asyncio.timeout(30), mq.admin(credentials=who) as admin:
        while True:
            with contextlib.suppress(ClientError):
                await admin.cluster()
                return
            await asyncio.sleep(0.1)


def test_a_producer_and_a_consumer_that_sign_are_served_and_others_are_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as mq:
            received: asyncio.Queue[bytes] = asyncio.Queue()
            failed = False

            async def listener(message: roquet.ReceivedMessage) -> None:
                nonlocal failed
                if not failed:
                    failed = True
                    raise RuntimeError("once more, please")
                received.put_nowait(message.body)

            consumer = mq.consumer("g", credentials=key_of("consumer"), consume_from="first", listener=listener)
            consumer.subscribe("T")
            async with mq.producer(credentials=key_of("producer")) as producer, consumer:
                await producer.send(Message("T", b"hello"))
                assert await asyncio.wait_for(received.get(), 20) == b"hello"
            async with mq.producer(credentials=key_of("consumer"), retries=0, delivery_timeout_ms=2_000) as producer:
                with pytest.raises(ClientError, match="No default permission for topic:T"):
                    await producer.send(Message("T", b"not allowed"))
            with pytest.raises(ClientError, match="AclException"):
                async with mq.admin() as admin:
                    await admin.cluster()
            with pytest.raises(ClientError, match="Check signature failed"):
                async with mq.admin(credentials=Credentials("admin-key", "not the secret")) as admin:
                    await admin.cluster()

    asyncio.run(work())


def test_the_command_line_signs_and_manages_accounts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as mq:
            listed = await command(mq, capsys, "acl", "list")
            assert "consumer-key" in listed
            assert "-secret" not in listed
            planned = await command(mq, capsys, "acl", "add", "billing-app", "--topic", "T=PUB", "--dry-run")
            assert "broker-a: account billing-app, new: topics T=PUB" in planned
            assert "billing-app" not in (tmp_path / "plain_acl.yml").read_text()
            await command(mq, capsys, "acl", "add", "billing-app", "--topic", "T=PUB", "--new-secret", "billing-secret", "--yes")
            billing = Credentials("billing-app", "billing-secret")
            await until_known(mq, billing)
            async with mq.producer(credentials=billing) as producer:
                await producer.send(Message("T", b"hello"))
            await command(mq, capsys, "acl", "allow", "billing-app", "--topic", "U=SUB", "--group", "g", "--yes")
            await command(mq, capsys, "acl", "deny", "billing-app", "--topic", "T", "--yes")
            checked = await command(mq, capsys, "acl", "check", "billing-app", "T", "--group", "g")
            assert "may not PUB topic T: topic T has DENY (" in checked
            assert "plain_acl.yml, line " in checked
            assert "may SUB group g" in checked
            facts = json.loads(await command(mq, capsys, "acl", "list", "--json"))
            (account,) = [one for one in facts["accounts"] if one["accessKey"] == "billing-app"]
            assert (account["topicPerms"], account["groupPerms"]) == (["T=DENY", "U=SUB"], ["g=SUB"])
            with pytest.raises(RoquetError, match="Need admin permission"):
                await command(mq, capsys, "acl", "list", who=billing)
            audit = await command(mq, capsys, "audit")
            assert "billing-app" in audit
            assert "Need admin permission" in audit
            await command(mq, capsys, "acl", "remove", "billing-app", "--yes")
            assert "billing-app" not in await command(mq, capsys, "acl", "list")

            # keys from the environment, and from tools.yml
            with pytest.raises(RoquetError, match="AclException"):
                await command(mq, capsys, "topic", "list", who=None)
            tools = tmp_path / "conf" / "tools.yml"
            tools.parent.mkdir()
            tools.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
            assert "T" in await command(mq, capsys, "topic", "list", "--tools", str(tools), who=None)
            monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
            assert "T" in await command(mq, capsys, "topic", "list", who=None)
            monkeypatch.delenv("ROCKETMQ_HOME")
            monkeypatch.setenv("ROQUET_ACCESS_KEY", "admin-key")
            monkeypatch.setenv("ROQUET_SECRET_KEY", "admin-secret")
            assert "T" in await command(mq, capsys, "topic", "list", who=None)
            assert "broker-a" in await command(mq, capsys, "status", who=None)

    asyncio.run(work())


def test_a_fake_broker_is_not_registered(tmp_path: Path) -> None:
    from roquet.wire.calls.registration import REGISTER_BROKER, RegisterBrokerHeader

    async def work() -> None:
        async with guarded(tmp_path) as mq:
            header = RegisterBrokerHeader(
                broker_name="broker-a",
                broker_addr="10.66.6.6:10911",
                cluster_name="DefaultCluster",
                ha_server_addr="10.66.6.6:10912",
                broker_id=0,
            )
            for who in (None, key_of("named")):
                async with mq.admin(credentials=who) as admin:
                    with pytest.raises(ClientError, match="AclException"):
                        await admin.call(mq.namesrv, REGISTER_BROKER, header)
            async with mq.admin(credentials=ADMIN) as admin:
                assert [one.address for one in await admin.brokers()] == [mq.broker]

    asyncio.run(work())


def test_an_access_key_without_its_secret_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from roquet.cli.main import main

    assert main(["topic", "list", "--access-key", "some-key"]) == 2
    assert "--access-key is given without --secret-key" in capsys.readouterr().err


def test_the_snippets_of_the_page_run() -> None:
    """access.md"""
    for snippet in snippets((ROOT / "docs" / "access.md").read_text()):
        made: dict[str, Any] = {}
        exec(snippet, made)
        assert made["producer"]._options.connection.credentials.access_key == "billing-app"
