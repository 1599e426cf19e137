"""Name servers that are looked up: an HTTP server tells their addresses, as upstream's clients ask http://DOMAIN/rocketmq/nsaddr.

    Producer("orders-service", "http://config.example/rocketmq/nsaddr")

The answer is a line such as 10.0.0.1:9876;10.0.0.2:9876. It is asked for at the start, and every two minutes. When that fails, or the
answer makes no sense, the addresses that are known stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable

from roquet.errors import ClientError, ConnectFailed
from roquet.net.http_get import http_get
from roquet.routing.name_servers import NameServers, parse_name_servers

log = logging.getLogger(__name__)

EVERY_S = 120.0
AGAIN_S = 1.0
"""As long as no name server is known."""
SIZE_MAX = 64 * 1024
TIMEOUT_S = 3.0
ADDRESS = r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}"
LINE = re.compile(rf"{ADDRESS}(\s*;\s*{ADDRESS})*[\s;]*", re.ASCII)


async def look_up(url: str) -> tuple[str, ...]:
    """The addresses that this place tells. Raises ConnectFailed."""
    try:
        body = await http_get(url, size_max=SIZE_MAX, timeout_s=TIMEOUT_S)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        reason = str(error) or f"no answer within {TIMEOUT_S:g} s"
        raise ConnectFailed(f"the name servers could not be looked up at {url}: {reason}") from None
    text = body.decode("utf-8", "replace").strip()
    with contextlib.suppress(ClientError):  # a port that there cannot be
        if LINE.fullmatch(text) is not None:
            return parse_name_servers(text)
    raise ConnectFailed(f"{url} tells no name servers but {text[:80]!r}; expected is a line such as 10.0.0.1:9876;10.0.0.2:9876")


class Lookup:
    """Keeps a client's list of name servers as the place tells it, from start() to close(). Belongs to the running loop."""

    def __init__(self, url: str, name_servers: NameServers, hang_up: Callable[[str], None]) -> None:
        """`hang_up` is told each address that is no name server any more."""
        self.url = url
        self._name_servers = name_servers
        self._hang_up = hang_up
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while True:
            await self._look_once()
            await asyncio.sleep(EVERY_S if self._name_servers.addresses else AGAIN_S)

    async def _look_once(self) -> None:
        known = self._name_servers.addresses
        try:
            found = await look_up(self.url)
        except ConnectFailed as failure:
            self._name_servers.trouble = str(failure)
            log.warning("! %s%s", failure, f"; {', '.join(known)} stay" if known else "")
            return
        if found != known:
            log.info("= %s tells the name servers %s", self.url, ", ".join(found))
            self._name_servers.change(found)
            for gone in set(known).difference(found):
                self._hang_up(gone)
