"""Real processes that are killed, a real broker that goes away: nothing that was committed is lost, nothing else is published."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

import roquet
from roquet import Message, Producer, ReceivedMessage
from roquet.cli.shards import free_ports
from roquet.embed import name_server, one_broker, read_settings
from roquet.outbox import Outbox, Relay
from tests.outbox.fakes import PATIENCE_S, until

WRITER = """
import os, signal, sys
from sqlalchemy import create_engine
from roquet import Message
from roquet.outbox import Outbox

_, url, name = sys.argv
engine, outbox = create_engine(url), Outbox(name=name)
with engine.begin() as connection:
    for number in range(3):
        outbox.add(connection, Message("orders", b"committed %d" % number), key="a")
with engine.begin() as connection:
    outbox.add(connection, Message("orders", b"not committed"), key="a")
    os.kill(os.getpid(), signal.SIGKILL)
"""
RELAY = """
import asyncio, sys
from sqlalchemy import create_engine
from roquet import Producer
from roquet.outbox import Outbox, Relay

_, url, name, namesrv = sys.argv

class Killed(Relay):
    async def _settle(self):
        if self._over:
            while self._runs:
                await asyncio.sleep(0.01)
            print("published, not marked", flush=True)
            await asyncio.Event().wait()

async def main():
    async with Producer("relay", namesrv) as producer:
        async with Killed(Outbox(name=name), create_engine(url), producer, lease_s=1, send_timeout_ms=750):
            await asyncio.Event().wait()

asyncio.run(main())
"""


async def read(namesrv: str, count: int) -> list[ReceivedMessage]:
    """So many messages of the topic, in the order of their queues."""
    found: list[ReceivedMessage] = []
    consumer = roquet.PushConsumer("reader", namesrv, consume_from="first", orderly=True)
    consumer.subscribe("orders", function=lambda message: found.append(message))
    async with consumer:
        await until(lambda: len(found) >= count)
    return found


def test_a_writer_that_is_killed_after_its_commit_is_published_and_one_before_it_is_not(engine: Engine, outbox: Outbox, url: str) -> None:
    async def scenario() -> None:
        async with roquet.embedded() as mq, mq.producer() as producer, asyncio.timeout(PATIENCE_S):
            writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, url, outbox.table.name)
            assert await writer.wait() == -signal.SIGKILL
            async with Relay(outbox, engine, producer) as relay:
                await relay.drained()
            bodies = [message.body for message in await read(mq.namesrv, 3)]
            assert bodies == [b"committed 0", b"committed 1", b"committed 2"]

    asyncio.run(scenario())


def test_a_relay_that_is_killed_between_publishing_and_marking_loses_nothing_and_repeats_with_the_same_ids(
    engine: Engine, outbox: Outbox, url: str
) -> None:
    async def scenario() -> None:
        async with roquet.embedded() as mq, mq.producer() as producer, asyncio.timeout(PATIENCE_S):
            with engine.begin() as connection:
                ids = {
                    outbox.add(connection, Message("orders", f"{key} {number}".encode()), key=key) for number in range(3) for key in "ab"
                }
            killed = await asyncio.create_subprocess_exec(
                sys.executable, "-c", RELAY, url, outbox.table.name, mq.namesrv, stdout=asyncio.subprocess.PIPE
            )
            assert killed.stdout is not None
            assert await killed.stdout.readline() == b"published, not marked\n"
            killed.kill()
            await killed.wait()
            with engine.begin() as connection:
                last = outbox.add(connection, Message("orders", b"a 3"), key="a")
            async with Relay(outbox, engine, producer, poll_ms=20) as relay:
                await relay.drained()  # after its lease: nobody is held up for longer
            assert relay.published == 7
            messages = await read(mq.namesrv, 13)
            assert Counter(message.message_id for message in messages) == Counter({**dict.fromkeys(ids, 2), last: 1})
            for key, count in (("a", 4), ("b", 3)):
                bodies = [message.body.decode() for message in messages if message.body.decode().startswith(key)]
                assert bodies == [f"{key} {number}" for number in range(3)] + [f"{key} {number}" for number in range(count)]

    asyncio.run(scenario())


def test_a_broker_that_is_away_for_a_while_delays_messages_and_keeps_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'data.db'}")
        outbox = Outbox()
        outbox.create(engine)
        (port,) = free_ports(1, "127.0.0.1")
        async with name_server(tmp_path) as namesrv, asyncio.timeout(PATIENCE_S):
            settings = read_settings({"listenPort": str(port), "mappedFileSizeCommitLog": str(1 << 20)})
            settings = settings.replace(namesrv_addr=namesrv, store_path_root_dir=str(tmp_path / "store"))
            async with Producer("relay", namesrv) as producer:
                quick = Relay(outbox, engine, producer, backoff_s=0.05, backoff_max_s=0.2, send_timeout_ms=500, lease_s=1, poll_ms=20)
                async with quick as relay:
                    async with one_broker(settings):
                        await asyncio.to_thread(write, engine, outbox, 0)
                        await relay.drained()
                    await asyncio.to_thread(write, engine, outbox, 1)
                    await until(lambda: relay.failures >= 3)
                    await asyncio.to_thread(write, engine, outbox, 2)
                    async with one_broker(settings):
                        await relay.drained()
                        messages = await read(namesrv, 6)
        engine.dispose()
        for key in "ab":
            # A send that timed out may have been stored: the same message again, and not another.
            bodies = [message.body.decode() for message in messages if message.body.decode().startswith(key)]
            assert list(dict.fromkeys(bodies)) == [f"{key} {number}" for number in range(3)]

    asyncio.run(scenario())


def write(engine: Engine, outbox: Outbox, number: int) -> None:
    with engine.begin() as connection:
        for key in "ab":
            outbox.add(connection, Message("orders", f"{key} {number}".encode()), key=key)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_makes_other_message_ids_than_its_parent() -> None:
    from roquet.outbox.outbox import new_message_id

    reading, writing = os.pipe()
    new_message_id()
    child = os.fork()
    if not child:
        os.write(writing, "".join(new_message_id() for _ in range(3)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 1_000).decode()
    os.close(reading)
    os.close(writing)
    ours = {new_message_id()[:20] for _ in range(3)}
    assert len(theirs) == 96
    assert not {theirs[:20], theirs[32:52]} & ours
