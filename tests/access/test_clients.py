"""Real servers with access control, and the Python client and the command line that sign."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet.cli.main import build_parser
from roquet.client import Credentials, Message
from roquet.embed import SMALL, Embedded, name_server, one_broker, read_settings
from roquet.errors import ClientError, RoquetError
from roquet.wire.calls.access import AccountHeader

from ..docs.snippets import ROOT, snippets
from .people import TEXT, key_of

ADMIN = key_of("admin")
ACCOUNTS = TEXT.replace("globalWhiteRemoteAddresses:\n- 10.9.9.*\n", "")


@asynccontextmanager
async def guarded(tmp_path: Path, *, name_server_apart: bool = False) -> AsyncIterator[Embedded]:
    """`name_server_apart`: it has a file of its own, as on another machine."""
    own = tmp_path / "names"
    own.mkdir(exist_ok=True)
    for file in (tmp_path / "plain_acl.yml", own / "plain_acl.yml"):
        file.write_text(ACCOUNTS)
        file.chmod(0o600)
    settings = {"aclEnable": "true", "aclFile": str(tmp_path / "plain_acl.yml"), "vipChannelEnable": "false"}
    async with AsyncExitStack() as stack:
        if name_server_apart:
            names = await stack.enter_async_context(name_server(own, {"aclEnable": "true", "aclFile": str(own / "plain_acl.yml")}))
            values = read_settings(settings | SMALL).replace(namesrv_addr=names, store_path_root_dir=str(tmp_path / "store"))
            mq = Embedded(names, await stack.enter_async_context(one_broker(values)), tmp_path)
        else:
            mq = await stack.enter_async_context(roquet.embedded(settings=settings, fast_retries=True))
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
            assert f"name server {mq.namesrv}: account billing-app, new: topics T=PUB" in planned
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
            found = [one for one in facts["accounts"] if one["accessKey"] == "billing-app"]
            assert [one["broker"] for one in found] == ["broker-a", f"name server {mq.namesrv}"]
            for account in found:
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


def test_each_server_has_its_own_file_and_an_account_is_made_and_removed_on_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with guarded(tmp_path, name_server_apart=True) as mq:
            files = [tmp_path / "plain_acl.yml", tmp_path / "names" / "plain_acl.yml"]
            made = json.loads(await command(mq, capsys, "acl", "add", "billing-app", "--topic", "T=PUB", "--yes", "--json"))
            assert len(made["plan"]) == 2
            for file in files:
                assert "billing-app" in file.read_text()
            await command(mq, capsys, "acl", "deny", "billing-app", "--topic", "T", "--yes")
            await command(mq, capsys, "acl", "remove", "billing-app", "--yes")
            for file in files:
                assert "billing-app" not in file.read_text()
            with pytest.raises(RoquetError, match="Need admin permission"):
                await command(mq, capsys, "acl", "list", who=key_of("named"))

    asyncio.run(work())


def test_a_secret_that_was_made_is_no_part_of_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as mq:
            words = ["acl", "add", "billing-app", "--yes", "--json", "-n", mq.namesrv, "--access-key", ADMIN.access_key]
            arguments = build_parser("acl").parse_args([*words, "--secret-key", ADMIN.secret_key])
            capsys.readouterr()
            assert await arguments.run(arguments) == 0
            said = capsys.readouterr()
            assert json.loads(said.out)["done"]
            (secret,) = re.findall(r"shown this once: (\S{32})", said.err)
            assert secret not in said.out
            assert secret in (tmp_path / "plain_acl.yml").read_text()

    asyncio.run(work())


def test_what_a_name_server_warns_of_is_in_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with guarded(tmp_path, name_server_apart=True) as mq:
            assert "WARNINGS" not in await command(mq, capsys, "status")
            (tmp_path / "names" / "plain_acl.yml").write_text("accounts: [")
            async with asyncio.timeout(30):
                while "this is not YAML" not in (text := await command(mq, capsys, "status")):
                    await asyncio.sleep(0.1)
            assert f"name server {mq.namesrv}: {tmp_path}/names/plain_acl.yml, line 1: " in text
            assert "The rules from before stay in force" in text

    asyncio.run(work())


def test_the_status_says_that_a_broker_refuses_whoever_is_no_admin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as mq:
            who = key_of("named")
            words = ["status", "-n", mq.namesrv, "--access-key", who.access_key, "--secret-key", who.secret_key]
            arguments = build_parser("status").parse_args(words)
            assert await arguments.run(arguments) == 1
            text = capsys.readouterr().out
            assert f"broker-a at {mq.broker} refuses: " in text
            assert "does not answer" not in text

    asyncio.run(work())


def test_a_name_server_that_is_open_to_everybody_says_so_in_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with open_name_server() as address:
            arguments = build_parser("status").parse_args(["status", "-n", address])
            capsys.readouterr()
            await arguments.run(arguments)
            text = capsys.readouterr().out
            assert f"name server {address}: listening on every address of this machine, without access control" in text

    asyncio.run(work())


@asynccontextmanager
async def open_name_server() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory() as root:
        async with name_server(Path(root), {"bindAddress": "0.0.0.0"}) as address:
            yield f"127.0.0.1:{address.rpartition(':')[2]}"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "over TLS"])
def test_embedded_servers_with_keys_let_in_the_clients_made_there_and_nobody_else(tmp_path: Path, tls: bool) -> None:
    """All of its faces: producer, push and pull consumer, admin."""
    keys = Credentials("test-key", "test-secret")

    async def work() -> None:
        async with roquet.embedded(tmp_path / "data", credentials=keys, tls=tls) as mq, mq.producer() as producer:
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def listener(message: roquet.ReceivedMessage) -> None:
                received.put_nowait(message.body)

            consumer = mq.consumer("g", consume_from="first", listener=listener)
            consumer.subscribe("orders")
            async with consumer:
                await producer.send(Message("orders", b"hello"))
                assert await asyncio.wait_for(received.get(), 60) == b"hello"
            async with mq.pull_consumer("r") as reader:
                queues = await reader.fetch_queues("orders")
                assert sum([await reader.max_offset(queue) for queue in queues]) == 1
            async with mq.admin() as admin:
                await admin.change_account(await admin.masters(), AccountHeader("another-key", "another-secret", default_topic_perm="PUB"))
            with pytest.raises(ClientError, match="No accessKey is configured"):
                async with mq.admin(credentials=None) as admin:
                    await admin.cluster()
        assert (tmp_path / "data" / "plain_acl.yml").stat().st_mode & 0o777 == 0o600
        another = Credentials("another-key", "another-secret")
        async with (
            roquet.embedded(tmp_path / "data", credentials=keys, tls=tls) as mq,  # the accounts are kept with the data
            mq.producer(credentials=another) as producer,
        ):
            await producer.send(Message("orders", b"hello"))

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
