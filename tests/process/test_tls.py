"""Whole clusters in which nobody speaks without TLS and a certificate: name server, master and slave, a DLedger group, operators."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet import Message, Producer, PullConsumer, Tls
from roquet.cli.main import main
from roquet.cli.shards import free_ports
from roquet.errors import ConnectFailed
from tests.certificates import authority, issued
from tests.process.programs import SMALL_FILES, Broker, Nursery, Server


def mutual() -> dict[str, str]:
    """Everybody shows a certificate, and everybody verifies it."""
    member, trusted = issued("/CN=member"), authority().file
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": member.cert,
        "tls.server.keyPath": member.key,
        "tls.server.trustCertPath": trusted,
        "tls.server.need.client.auth": "require",
        "tls.client.certPath": member.cert,
        "tls.client.keyPath": member.key,
        "tls.client.trustCertPath": trusted,
    }


def operator() -> Tls:
    who = issued("/CN=operator")
    return Tls(authority().file, who.cert, who.key)


@pytest.fixture
def names(nursery: Nursery, tmp_path: Path) -> Iterator[Server]:
    with nursery.name_server(tmp_path / "names", mutual()) as made:
        yield made


def address_of(server: Server) -> str:
    return "{}:{}".format(*server.address)


def start(nursery: Nursery, path: Path, names: Server, **more: str) -> Broker:
    common = {"namesrvAddr": address_of(names), "registerBrokerTimeoutMills": "6000", "brokerName": "broker-a"}
    return nursery.begin_broker(path, {**SMALL_FILES, **mutual(), **common, **more})


async def sent_and_read(namesrv: str, count: int = 20) -> None:
    async with asyncio.timeout(600), Producer("p", namesrv, tls=operator()) as producer:
        receipts = [await producer.send(Message("orders", b"%d" % number)) for number in range(count)]
        assert {receipt.status.name for receipt in receipts} == {"SEND_OK"}
        async with PullConsumer("g", namesrv, tls=operator()) as consumer:
            queues = await consumer.fetch_queues("orders")
            assert sum([await consumer.max_offset(queue) for queue in queues]) == count


def test_a_master_and_its_slave_copy_over_tls_and_operators_see_them(
    nursery: Nursery, tmp_path: Path, names: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start(nursery, tmp_path / "a", names, brokerRole="SYNC_MASTER", slaveTimeout="600000")
    master.program.wait_for("boot success")
    ha = f"127.0.0.1:{master.address[1] + 1}"
    slave = start(nursery, tmp_path / "b", names, brokerRole="SLAVE", brokerId="1", haMasterAddress=ha)
    with master, slave:
        slave.program.wait_for("boot success")
        master.program.wait_for("is sent what follows")
        asyncio.run(sent_and_read(address_of(names)))
        slave.program.wait_for("topics, groups and progress are the master's")

        who = issued("/CN=operator")
        options = ["-n", address_of(names), "--tls-ca", authority().file, "--tls-cert", who.cert, "--tls-key", who.key]
        assert main(["status", *options, "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert {one["address"] for one in status["brokers"]} == {"{}:{}".format(*one.address) for one in (master, slave)}
        assert all(one["answers"] for one in status["brokers"])
        assert not status["warnings"]  # it listens on this machine alone
        assert main(["status", *options[:4], "--timeout", "5"]) == 1  # without a certificate
        assert main(["status", "-n", address_of(names)]) == 1  # without TLS


def test_a_group_elects_and_copies_over_tls(nursery: Nursery, tmp_path: Path, names: Server) -> None:
    ids = ("n0", "n1", "n2")
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(ids, free_ports(3, "127.0.0.1"), strict=True))
    group = {"enableDLegerCommitLog": "true", "dLegerPeers": peers}
    members = [start(nursery, tmp_path / name, names, **group, dLegerSelfId=name) for name in ids]
    try:
        asyncio.run(reached(address_of(names)))
        asyncio.run(sent_and_read(address_of(names)))
    finally:
        for member in members:
            member.kill()


async def reached(namesrv: str) -> None:
    """A message was taken: a leader is there."""
    async with asyncio.timeout(600), Producer("p", namesrv, tls=operator()) as producer:
        while True:
            try:
                await producer.send(Message("first", b"x"))
                return
            except Exception:
                await asyncio.sleep(0.1)


def test_whoever_has_no_certificate_is_told_nothing(names: Server) -> None:
    stranger = issued("/CN=member", "somebody else")
    for tls in (None, Tls(authority().file), Tls(authority().file, stranger.cert, stranger.key)):

        async def come(tls: Tls | None = tls) -> None:
            async with Producer("p", address_of(names), tls=tls, start_timeout_ms=3_000):
                pass

        with pytest.raises(ConnectFailed):
            asyncio.run(come())


def test_a_running_broker_takes_a_new_certificate(nursery: Nursery, tmp_path: Path) -> None:
    place = {"tls.server.certPath": str(tmp_path / "cert.pem"), "tls.server.keyPath": str(tmp_path / "key.pem")}

    def put(name: str) -> None:
        shutil.copy(issued(name).cert, tmp_path / "cert.pem")
        shutil.copy(issued(name).key, tmp_path / "key.pem")

    def shown(address: tuple[str, int]) -> str:
        return ssl.get_server_certificate(address, ca_certs=authority().file, timeout=60)

    put("/CN=first")
    with nursery.broker(tmp_path / "broker", {**SMALL_FILES, **place}) as broker:
        before = shown(broker.address)
        put("/CN=second")
        broker.program.wait_for("a new certificate is in force")
        assert shown(broker.address) != before
