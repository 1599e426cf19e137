"""Home: where the clients of a test's broker live (client.place.Place)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random
from typing import TYPE_CHECKING

from roquet.client.offset_file import DiskOffsetFile
from roquet.client.place import LOOPBACK, Alarm, Connections
from roquet.net.connection import ConnectionOptions
from roquet.ports import Clock
from roquet.testing.kit.driver import Driver
from roquet.testing.kit.wires import WireCaller

if TYPE_CHECKING:
    from roquet.client.core.offsets import OffsetFile
    from roquet.client.shared import SharedClient


class Home:
    """State: the files of broadcasting consumers, by client id and group; they outlive the consumers."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.clock: Clock = driver.time
        self._driver = driver
        self._random = Random(f"clients {seed}")
        self._files: dict[tuple[str, str], MemoryOffsetFile] = {}
        driver.owner = self

    def connections(self, how: ConnectionOptions) -> Connections:
        self._driver.enter()
        return WireCaller(self._driver.wires, how, asyncio.get_running_loop())

    def random(self) -> Random:
        return Random(self._random.random())

    async def own_ip(self, name_server: str) -> bytes:
        return LOOPBACK

    def later(self, delay_s: float, ring: Callable[[], None]) -> Alarm:
        loop = self._driver.loop
        return loop.call_later(delay_s, ring) if self._driver.over and loop is not None else NO_ALARM

    def offset_file(self, client_id: str, group: str, directory: str | os.PathLike[str] | None) -> OffsetFile:
        if directory is not None:
            return DiskOffsetFile(client_id, group, directory)
        return self._files.setdefault((client_id, group), MemoryOffsetFile())

    def opened(self, client: SharedClient) -> None:
        self._driver.clients[client] = None

    def closed(self, client: SharedClient) -> None:
        self._driver.clients.pop(client, None)

    def hurrying(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._driver.over else self._driver.hurrying()


class NoAlarm:
    """The driver looks itself at what is due."""

    def cancel(self) -> None: ...


NO_ALARM = NoAlarm()


class MemoryOffsetFile:
    def __init__(self) -> None:
        self._data: list[bytes] = []

    def read(self) -> list[bytes]:
        return list(self._data)

    def replace(self, data: bytes) -> None:
        self._data = [data, *self._data[:1]]
