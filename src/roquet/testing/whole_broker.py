"""WholeBroker: a broker core with everything around it under the test's control. Frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from roquet.access.source import AclSource
from roquet.broker.core import Broker
from roquet.broker.part import Part
from roquet.settings import BrokerSettings
from roquet.store.disk import Disk, RealDisk
from roquet.testing.background import ManualBackground
from roquet.testing.caller import RecordingCaller
from roquet.testing.clock import ManualClock
from roquet.testing.network import stored_host
from roquet.testing.peer import FakePeer
from roquet.wire.command import Command
from roquet.wire.frame import Framer

ADDRESS = "127.0.0.1:10911"
HOST = stored_host(ADDRESS)
SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 6_000,
    "max_hash_slot_num": 100,
    "max_index_num": 4_000,
}


class WholeBroker:
    """Real files under `root`, a clock that stands still, background work done when the test says so, and `peer` who asks."""

    def __init__(
        self,
        root: Path,
        disk: Disk | None = None,
        clock: ManualClock | None = None,
        more: Sequence[Callable[[Broker], Part]] = (),
        accounts: AclSource | None = None,
        **settings: Any,
    ) -> None:
        """`more`: makes parts beyond the usual ones. `accounts`: access control is on, with these."""
        self.root = root
        self.clock = clock or ManualClock()
        self.background = ManualBackground()
        self.caller = RecordingCaller()
        values = {"store_path_root_dir": str(root), "acl_enable": accounts is not None, **SMALL_FILES, **settings}
        self.settings = BrokerSettings(**values)
        self.broker = Broker(
            self.settings, disk or RealDisk(), self.clock, self.background, self.caller, Random(1), 1 << 30, more=more, accounts=accounts
        )
        self.broker.open()
        self.broker.listening(ADDRESS, HOST)
        self.peer = FakePeer()
        self._opaque = 0

    def give(self, peer: FakePeer, *requests: Command) -> None:
        self.broker.receive(peer, Framer().feed(b"".join(request.encode() for request in requests)))

    def frames(self, *requests: Command) -> None:
        """Several requests of `peer` in one read."""
        self.give(self.peer, *requests)

    def ask(self, code: int | Command, fields: dict[str, str] | None = None, body: bytes = b"", **rest: Any) -> Command:
        """One request of `peer`, and the one answer that must have come."""
        request = code if isinstance(code, Command) else Command(code, fields or {}, body, **rest)
        self._opaque += 1
        request.opaque = self._opaque
        self.frames(request)
        (answer,) = [command for command in self.peer.take() if command.is_response]
        assert answer.opaque == self._opaque
        return answer

    def tick(self, ms: int = 100) -> None:
        self.clock.ms += ms
        self.broker.tick(self.clock.ms)

    def close(self) -> None:
        self.broker.close()
