"""The two brokers that one suite of tests runs over: the test kit's, and a real one on sockets, files and the machine's clock."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from roquet.admin import Admin
from roquet.embed import FAST_RETRIES, Clients, name_server, one_broker, read_settings
from roquet.settings import BrokerSettings
from roquet.testing import Broker

PATIENCE_S = 60.0
SETTINGS = {
    "messageDelayLevel": FAST_RETRIES,
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": "20",
    "transactionCheckInterval": "100",
}
"""So that what takes hours takes milliseconds of the machine's clock, too."""


class Side(Protocol):
    @property
    def clients(self) -> Clients: ...

    @property
    def namesrv(self) -> str: ...

    async def until(self, condition: Callable[[], object]) -> None: ...

    async def stop(self) -> None: ...

    async def start(self) -> None: ...


class Kit:
    def __init__(self, broker: Broker) -> None:
        self.clients = broker
        self.namesrv = broker.namesrv
        self._broker = broker

    async def until(self, condition: Callable[[], object]) -> None:
        await self._broker.clock.until(condition, hours=1)

    async def stop(self) -> None:
        await self._broker.stop()

    async def start(self) -> None:
        await self._broker.start()


class Real:
    def __init__(self, namesrv: str, settings: BrokerSettings) -> None:
        self.clients = Clients()
        self.clients.namesrv = self.namesrv = namesrv
        self._settings = settings
        self._running = contextlib.AsyncExitStack()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self._running.aclose()

    async def start(self) -> None:
        address = await self._running.enter_async_context(one_broker(self._settings))
        self._settings = self._settings.replace(listen_port=int(address.rpartition(":")[2]))


@contextlib.asynccontextmanager
async def kit(**more: str) -> AsyncIterator[Side]:
    async with Broker(settings=SETTINGS | more) as broker:
        yield Kit(broker)


@contextlib.asynccontextmanager
async def real(**more: str) -> AsyncIterator[Side]:
    with tempfile.TemporaryDirectory(prefix="roquet-") as root:
        async with name_server(Path(root)) as namesrv:
            settings = read_settings(SETTINGS | more).replace(namesrv_addr=namesrv, store_path_root_dir=f"{root}/broker")
            side = Real(namesrv, settings)
            await side.start()
            try:
                yield side
            finally:
                await side.stop()


SIDES = {"kit": kit, "real": real}


async def lag(side: Side, group: str) -> int:
    async with Admin(side.namesrv) as admin:
        return sum(queue.lag for queue in await admin.progress(group))
