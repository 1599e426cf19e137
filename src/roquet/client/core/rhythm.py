"""What a client does again and again. Its members share it, so the shortest pause that one of them asks for holds for all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roquet.client.core.checks import check_ranges
from roquet.client.core.tasks import Task

if TYPE_CHECKING:
    from roquet.client.core.instance import ClientCore

log = logging.getLogger(__name__)

ROUTE_POLL_MS = HEARTBEAT_MS = 30_000
REBALANCE_MS = 20_000
PERSIST_MS = 5_000
PAUSE_MIN_MS, PAUSE_MAX_MS = 100, 3_600_000
HEARTBEAT_MAX_MS = 60_000
"""Brokers forget a client that was silent for two minutes."""


@dataclass(kw_only=True)
class ClientPauses:
    """Of every member. Members of one program share a client, and the shortest pause among them holds."""

    route_poll_ms: int = ROUTE_POLL_MS
    """Between two questions to the name server where the topics in use are."""
    heartbeat_ms: int = HEARTBEAT_MS
    """Between two heartbeats to every broker."""

    def check_pauses(self, **others: tuple[int, int]) -> None:
        check_ranges(self, route_poll_ms=(PAUSE_MIN_MS, PAUSE_MAX_MS), heartbeat_ms=(PAUSE_MIN_MS, HEARTBEAT_MAX_MS), **others)


class Rhythm:
    """One thing that a client does again and again. State: the pause, and when it was done last."""

    def __init__(self, client: ClientCore, pause_ms: Callable[[], int], work: Callable[[], None]) -> None:
        """`pause_ms`: what the members want now."""
        self._client = client
        self._wanted = pause_ms
        self._work = work
        self._pause_ms = pause_ms()
        self._done_ms = client.clock.steady_ms()
        self._task: Task[None] = client.tasks.start(self._run())

    def members_changed(self) -> None:
        """Look whether the pause is another one now."""
        wanted = self._wanted()
        if wanted != self._pause_ms and not self._client.closed:
            self._pause_ms = wanted
            self._task.cancel()
            self._task = self._client.tasks.start(self._run())

    async def _run(self) -> None:
        while True:
            await self._client.sleep(max(self._done_ms + self._pause_ms - self._client.clock.steady_ms(), 0))
            self._done_ms = self._client.clock.steady_ms()
            try:
                self._work()
            except Exception:
                log.exception("! periodic work of client %s failed", self._client.client_id)
