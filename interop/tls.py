"""TLS: Apache's Java clients with Roquet's servers, which let nobody in without it, and our client with Apache's servers."""

from __future__ import annotations

import asyncio
import ssl
import sys
from functools import partial
from pathlib import Path

import apache
import java_client
import roquet_cluster
from java_client import JavaClient
from report import Section

from roquet import Message, Producer, PullConsumer, Tls
from roquet.errors import RoquetError

sys.path.append(str(Path(__file__).parents[1]))
from tests.certificates import Authority, client_context

TRUSTING = {"tls.enable": "true"}
"""A Java client in test mode, as it is by default: it trusts anybody."""
COUNT = 20


def with_certificates(directory: Path) -> tuple[dict[str, object], dict[str, str], ssl.SSLContext]:
    """Settings of servers that want a certificate of everybody, properties of a Java client that has one, and how we ask."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    server, client = authority.issue("/CN=server"), authority.issue("/CN=java client")
    settings: dict[str, object] = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert,
        "tls.server.keyPath": server.key,
        "tls.server.trustCertPath": authority.file,
        "tls.server.need.client.auth": "require",
        "tls.client.certPath": server.cert,
        "tls.client.keyPath": server.key,
        "tls.client.trustCertPath": authority.file,
    }
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.file,
        "tls.client.certPath": client.cert,
        "tls.client.keyPath": client.key,
    }
    return settings, properties, client_context(client, trust=authority.file)


def trusting() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def check_java(section: Section, client: JavaClient, directory: Path, settings: dict[str, object], *, certificates: bool) -> None:
    """Everything that a Java client can do, with servers that speak nothing but TLS."""
    ours: dict[str, object] = {"tls.server.mode": "enforcing"}
    properties, context = TRUSTING, trusting()
    if certificates:
        ours, properties, context = with_certificates(directory)
    run = "tls-certificates" if certificates else "tls"
    with (
        roquet_cluster.NameServer(apache.free_port(), directory / "namesrv", **ours) as namesrv,
        roquet_cluster.Broker(apache.free_port(), namesrv.address, directory / "broker", tls=context, **settings, **ours) as broker,
    ):
        java_client.check(section, client, namesrv.address, "json", run=run, properties=properties)
        for server in (namesrv, broker):
            section.judge(f"plaintext to the {server.name} is closed", plaintext(server.address))


def plaintext(address: str) -> str | None:
    """What is wrong: None when nothing is answered."""
    try:
        answer, _ = apache.call(address, 105, {"topic": "TBW102"})
    except OSError:
        return None
    return f"it answered {answer}"


def check_apache(section: Section, directory: Path) -> None:
    """Our client with Apache's servers, which speak TLS with a certificate of their own to whoever begins with it."""
    with apache.cluster(apache.SERVER, directory) as (namesrv, _):
        for name, work in (
            ("trusting any server", partial(exchange, namesrv.address)),
            ("verifying it", partial(refused, namesrv.address)),
        ):
            try:
                problem = asyncio.run(work())
            except (RoquetError, OSError, TimeoutError) as error:
                problem = f"{type(error).__name__}: {error}"
            section.judge(f"our client over TLS, {name}", problem)


async def exchange(namesrv: str) -> str | None:
    tls = Tls(verify=False)
    async with asyncio.timeout(apache.PATIENCE_S), Producer("tls_producer", namesrv, tls=tls) as producer:
        sizes = [number * 20_000 for number in range(COUNT)]
        for size in sizes:
            await producer.send(Message("tls_topic", bytes(size) or b"x"))
        async with PullConsumer("tls_reader", namesrv, tls=tls) as reader:
            queues = await reader.fetch_queues("tls_topic")
            counts = [await reader.max_offset(queue) for queue in queues]
    return None if sum(counts) == COUNT else f"{COUNT} messages were sent, and the queues have {counts}"


async def refused(namesrv: str) -> str | None:
    try:
        async with Producer("tls_producer", namesrv, tls=Tls(), start_timeout_ms=3_000):
            return "a self-signed certificate was trusted"
    except RoquetError as error:
        return None if "certificate" in str(error) else str(error)
