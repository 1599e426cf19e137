"""One Spark session for all of these tests, and real servers in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from roquet import Admin, Message, Producer
from roquet.embed import Embedded, embedded
from tests import small_jvm

T = TypeVar("T")

small_jvm.use()

SMALL_SQL = {
    "spark.sql.adaptive.enabled": "false",  # planning so few rows twice takes longer than any query; see conf/spark-defaults.conf too
    "spark.sql.shuffle.partitions": "1",  # a stream has a state store for each
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from roquet.spark.java import NoJava, find_java
    from roquet.spark.session import SETTINGS, session

    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        for key, value in SMALL_SQL.items():
            patch.setitem(SETTINGS, key, value)  # commands that run in this process set them again
        made = session("roquet tests", "local[2]")
        yield made
        made.stop()


@dataclass
class Servers:
    """A name server and a broker of this process, and the loop they run on."""

    loop: asyncio.AbstractEventLoop
    embedded: Embedded

    @property
    def namesrv(self) -> str:
        return self.embedded.namesrv

    @property
    def store(self) -> Path:
        """The broker's store directory."""
        return self.embedded.data / "broker-0"

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        """From the test's thread, on the servers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def topic(self, name: str, queues: int = 4) -> str:
        async def work() -> None:
            async with Admin(self.namesrv) as admin:
                await admin.create_topic(name, read_queues=queues, write_queues=queues)

        self.run(work())
        return name

    def send(self, messages: Iterable[Message]) -> None:
        """All of them, in batches, acknowledged."""

        async def work() -> None:
            async with Producer("spark_tests", self.namesrv) as producer:
                await producer.send_batch(list(messages))

        self.run(work())


@pytest.fixture(scope="session")
def start_servers() -> Iterator[Callable[..., Servers]]:
    """start_servers(settings=..., data=...) -> Servers, stopped at the end of the session."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stops: list[tuple[asyncio.Event, asyncio.Future[None]]] = []

    def start(**options: Any) -> Servers:
        ready: asyncio.Future[Embedded]

        async def begin() -> tuple[Embedded, asyncio.Event, asyncio.Future[None]]:
            nonlocal ready
            ready = loop.create_future()
            stop = asyncio.Event()

            async def live() -> None:
                async with embedded(**options) as made:
                    ready.set_result(made)
                    await stop.wait()

            task = asyncio.ensure_future(live())
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await task
            return ready.result(), stop, task

        made, stop, task = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        stops.append((stop, task))
        return Servers(loop, made)

    yield start

    async def end() -> None:
        for stop, task in stops:
            stop.set()
            await task

    asyncio.run_coroutine_threadsafe(end(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def servers(start_servers: Callable[..., Servers]) -> Servers:
    """Shared by all tests: take a topic of your own."""
    return start_servers()
