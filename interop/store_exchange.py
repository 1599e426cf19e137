"""A store directory written by one broker and opened by another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Protocol

import apache
import java_client
import roquet_cluster
from java_client import JavaClient
from report import Section, run_program

# Small files, so that a few thousand messages fill several of each.
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "flushConsumerOffsetInterval": 1_000,
}


class Peer(Protocol):
    """Whose servers: Apache's of some version, or ours."""

    name: str

    def name_server(self, port: int, directory: Path) -> apache.Server: ...

    def broker(self, port: int, namesrv: str, directory: Path, settings: dict[str, object]) -> apache.Server: ...


class ApachePeer:
    def __init__(self, version: str) -> None:
        self.name = f"apache-{version}"
        self._version = version

    def name_server(self, port: int, directory: Path) -> apache.Server:
        return apache.NameServer(self._version, port, directory)

    def broker(self, port: int, namesrv: str, directory: Path, settings: dict[str, object]) -> apache.Server:
        return apache.Broker(self._version, port, namesrv, directory, heap="512m", **settings)


class RoquetPeer:
    name = "roquet"

    def name_server(self, port: int, directory: Path) -> apache.Server:
        return roquet_cluster.NameServer(port, directory)

    def broker(self, port: int, namesrv: str, directory: Path, settings: dict[str, object]) -> apache.Server:
        return roquet_cluster.Broker(port, namesrv, directory, **settings)  # type: ignore[arg-type] # none of them is named tls


def check(section: Section, client: JavaClient, writer: Peer, reader: Peer, *, kill: bool, directory: Path) -> None:
    """Fill a store through `writer`, end it, open it with `reader` at the same address, and look for everything.

    The same address, since a message's offset id names the broker it was stored by.
    """
    port = apache.free_port()
    manifest = directory / "manifest.tsv"
    run = re.sub(r"\W+", "-", section.title)
    with writer.name_server(apache.free_port(), directory / "writer-namesrv") as namesrv:
        broker = writer.broker(port, namesrv.address, directory / "broker", SETTINGS)
        with broker:
            command, log = client.command(f"write-{run}", "Interop", "write", namesrv.address, str(manifest))
            output, finished = run_program(command)
            phases = section.take(output, finished=finished, what="write: ")
            section.judge("write: no warning or error in the client's log", java_client.log_problem(log, phases, provoked=False))
            if not manifest.exists():
                return
            if kill:
                _await_offsets(directory / "broker" / "store" / "config" / "consumerOffset.json", manifest)
                broker.kill()
    with (
        reader.name_server(apache.free_port(), directory / "reader-namesrv") as namesrv,
        reader.broker(port, namesrv.address, directory / "broker", SETTINGS),
    ):
        command, log = client.command(f"read-{run}", "Interop", "read", namesrv.address, str(manifest), "reader")
        output, finished = run_program(command)
        phases = section.take(output, finished=finished, what="read: ")
        section.judge("read: no warning or error in the client's log", java_client.log_problem(log, phases, provoked=False))


def _await_offsets(file: Path, manifest: Path) -> None:
    """Consumer offsets are written by a timer; a kill before it may lose them, which is allowed and not what is checked."""
    consumed = [line.split("\t")[1:] for line in manifest.read_text().splitlines() if line.startswith("consumed\t")]

    def written() -> bool:
        try:
            text = re.sub(r"([{,]\s*)(\d+)(\s*:)", r'\1"\2"\3', file.read_text())  # Java writes {0:12}
            table = json.loads(text).get("offsetTable", {})
        except (OSError, ValueError):
            return False
        return all(str(table.get(f"{topic}@{group}", {}).get(queue)) == offset for group, topic, queue, offset in consumed)

    apache.wait_until(written, f"the consumer offsets in {file.name}")
