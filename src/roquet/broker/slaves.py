"""The slaves of this master: each has a connection to the HA port, and is sent the log as it grows (`ha/slave_link.py`).

With SYNC_MASTER a send is answered when a slave has acknowledged it. What a slave says counts only as far as some slave was ever sent
something, or as the log reached when this master started: nobody can hold what was never sent (E10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from roquet.broker.part import ColdReads, Part, Shared
from roquet.broker.roles import is_slave
from roquet.ha.slave_link import SlaveLink
from roquet.ha.stream import BadStream
from roquet.ports import Stream
from roquet.store.disk import Cold
from roquet.store.synced_log import SyncedLog

log = logging.getLogger("roquet.broker")

NOTICE = "slave"
LOOK_MS = 5_000
"""Between two looks whether slaves may have the log still."""

NOT_LET_IN = "access control: put its address on the global white list, or give it an admin's key to sign with"


class Slaves(Part):
    """State: a link for each connection; `_sent` is the farthest that any of them was ever sent, or the log's end at the start."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.links: dict[Stream, SlaveLink] = {}
        self.lets_copy: Callable[[str], bool] = lambda address: True
        """(an address) -> whether access control lets it have the log."""
        self._look_ms = 0
        self._sent = 0
        self._acked = 0
        self._reads = ColdReads(shared.fetch)
        self._synced = self.store.log if isinstance(self.store.log, SyncedLog) else None
        if self._synced is not None:
            self._synced.slave_counts = self.one_counts
            self._synced.on_written = self.push

    def open(self) -> None:
        self._sent = self.store.log.written

    # Connections

    def opened(self, stream: Stream) -> None:
        if is_slave(self.settings):
            stream.close("this broker is a slave itself; slaves copy from the master")
            return
        if not self.lets_copy(stream.address):
            stream.close(NOT_LET_IN)
            return
        self.links[stream] = SlaveLink(stream, self.store.log, self.clock.steady_ms())
        log.info("> slave %s is connected", stream.address)

    def received(self, stream: Stream, data: bytes) -> None:
        link = self.links.get(stream)
        if link is None:
            return
        had_begun = link.begun
        try:
            more = link.receive(data, self.clock.steady_ms())
        except BadStream as error:
            self._refuse(stream, str(error))
            return
        if not had_begun and link.begun:
            log.info("> slave %s holds the log up to %d and is sent what follows; %d bytes", stream.address, link.acked, link.behind)
            self.notices.clear(NOTICE)
            link.greet(self.clock.steady_ms())
        if more and self._synced is not None:
            self._synced.note_acked(min(link.acked, self._sent))
        self._fill(link)

    def _refuse(self, stream: Stream, why: str) -> None:
        self.notices.warn(NOTICE, f"slave {stream.address} is sent nothing: {why}")
        stream.close(why)
        self.lost(stream, why)

    def lost(self, stream: Stream | None, why: str) -> None:
        if stream is not None and self.links.pop(stream, None) is not None:
            log.warning("< slave %s is gone: %s", stream.address, why)

    # Sending

    def push(self) -> None:
        """The log has grown."""
        for link in list(self.links.values()):
            self._fill(link)

    def _fill(self, link: SlaveLink) -> None:
        if self._reads.busy(id(link)):
            return
        try:
            link.fill(self.clock.steady_ms(), self.settings.ha_transfer_batch_size, self._note_sent)
        except Cold as cold:
            self._reads.start(cold, id(link))
        except LookupError as error:
            link.stream.close(f"what it needs is not in the log any more: {error}")
        if link.stream.closed:
            self.lost(link.stream, "what it needs is gone, or it does not read")

    def _note_sent(self, offset: int) -> None:
        self._sent = max(self._sent, offset)

    def tick(self, now_ms: int) -> None:
        settings = self.settings
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            for stream in [one for one in self.links if not self.lets_copy(one.address)]:
                stream.close(NOT_LET_IN)
                self.lost(stream, NOT_LET_IN)
        for link in list(self.links.values()):
            if now_ms - link.heard_ms > settings.ha_housekeeping_interval:
                why = f"it said nothing for more than haHousekeepingInterval={settings.ha_housekeeping_interval} ms"
                link.stream.close(why)
                self.lost(link.stream, why)
                continue
            link.heartbeat(now_ms, settings.ha_send_heartbeat_interval)
            self._fill(link)

    # What others ask

    def is_spare(self, stream: Stream) -> bool:
        """It has not said yet what it holds: maybe it is no slave at all."""
        link = self.links.get(stream)
        return link is None or not link.begun

    def one_counts(self) -> bool:
        """Is there a slave, and is it near enough that a send may wait for it? One that has said nothing yet counts as near as the last."""
        if not self.links:
            return False
        begun = [link.acked for link in self.links.values() if link.begun]
        acked = max(begun) if begun else self._synced.acked if self._synced is not None else 0
        return self.store.log.written - acked < self.settings.ha_slave_fallbehind_max

    def became_slave(self) -> None:
        for stream in list(self.links):
            stream.close("this broker became a slave")
        self.links.clear()

    def metrics(self) -> Mapping[str, object]:
        rows: dict[str, object] = {"roquetSlaves": len(self.links)}
        for link in self.links.values():
            rows[f"roquetSlave_{link.stream.address}"] = f"{link.acked},{link.behind}"
        return rows
