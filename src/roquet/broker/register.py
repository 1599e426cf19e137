"""Registration: telling every name server what this broker has, every 30 s and at once when it changes."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from functools import partial

from roquet.broker.topics import Topics
from roquet.errors import RoquetError
from roquet.ports import Caller, Clock
from roquet.settings import BrokerSettings
from roquet.wire import headers
from roquet.wire.bodies import RegisterBrokerBody
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

log = logging.getLogger("roquet.broker")

RETRY_MS = 1_000
"""After a failure, instead of the full period: a name server that starts after the broker is found quickly."""


class Registration:
    """State: when the next round is due, and which name servers failed last (said once, not every second)."""

    def __init__(self, topics: Topics, settings: BrokerSettings, clock: Clock, caller: Caller) -> None:
        self.topics = topics
        self.settings = settings
        self.clock = clock
        self.caller = caller
        self.address = ""
        """ "ip:port" that clients use; set when the port is known."""
        self.ha_address = ""
        self.stopped = False
        self._due_ms = 0
        self._failing: dict[str, str] = {}

    @property
    def name_servers(self) -> list[str]:
        return [address.strip() for address in self.settings.namesrv_addr.split(";") if address.strip()]

    def tick(self, now_ms: int) -> None:
        if self.address and not self.stopped and now_ms >= self._due_ms:
            self._due_ms = now_ms + self.settings.register_name_server_period
            self.now()

    def now(self, done: Callable[[], None] | None = None) -> None:
        """Register with all of them; `done` when each has answered or failed."""
        servers = self.name_servers
        if not servers or not self.address or self.stopped:
            if done is not None:
                done()
            return
        left = [len(servers)]

        def answered(server: str, result: Command | RoquetError) -> None:
            trouble = str(result) if isinstance(result, RoquetError) else f"code {result.code}: {result.remark}" if result.code else ""
            if trouble:
                if server not in self._failing:
                    log.warning("registering with name server %s failed: %s", server, trouble)
                self._failing[server] = trouble
                self._due_ms = min(self._due_ms, self.clock.steady_ms() + RETRY_MS)
            elif self._failing.pop(server, None) is not None:
                log.info("registered with name server %s", server)
            left[0] -= 1
            if left[0] == 0 and done is not None:
                done()

        body = self._body()
        for server in servers:
            self.caller.call(server, self._request(body), self.settings.register_broker_timeout_mills, partial(answered, server))

    def _body(self) -> bytes:
        body = RegisterBrokerBody(self.topics.table(), [])
        if not self.settings.broker_permission & 2:
            for config in body.topics.topic_config_table.values():
                config.perm &= self.settings.broker_permission
        return body.encode_compressed() if self.settings.compressed_register else body.encode()

    def _request(self, body: bytes) -> Command:
        settings = self.settings
        header = headers.RegisterBrokerHeader(
            broker_name=settings.broker_name,
            broker_addr=self.address,
            cluster_name=settings.broker_cluster_name,
            ha_server_addr=self.ha_address,
            broker_id=settings.broker_id,
            compressed=settings.compressed_register,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return Command(RequestCode.REGISTER_BROKER, headers.encode(header), body)

    def unregister(self, done: Callable[[], None]) -> None:
        """A clean stop: routes vanish at once."""
        self.stopped = True
        servers = self.name_servers if self.address else []
        left = [len(servers)]
        if not servers:
            done()
            return

        def answered(result: Command | RoquetError) -> None:
            left[0] -= 1
            if left[0] == 0:
                done()

        settings = self.settings
        for server in servers:
            header = headers.UnregisterBrokerHeader(settings.broker_name, self.address, settings.broker_cluster_name, settings.broker_id)
            self.caller.call(server, Command(RequestCode.UNREGISTER_BROKER, headers.encode(header)), 1_000, answered)

    @property
    def failing(self) -> dict[str, str]:
        """Name server -> what went wrong at the last try."""
        return dict(self._failing)
