"""A whole broker core with everything around it under the test's control: frames in, frames out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roquet.broker.core import Broker
from roquet.broker.part import Part
from roquet.ports import Answered
from roquet.settings import BrokerSettings
from roquet.store.disk import Disk, RealDisk
from roquet.testing.clock import ManualClock
from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import Framer

from ..store.conftest import ManualBackground as HeldBackground
from .conftest import FakePeer

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


class RecordingCaller:
    """Keeps calls; answers them with success at once unless told to wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Command, Answered]] = []
        self.answering = True

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        self.calls.append((address, command, done))
        if self.answering:
            done(command.reply())

    def oneway(self, address: str, command: Command) -> None:
        self.calls.append((address, command, lambda result: None))

    def hang_up(self, address: str) -> None:
        pass


class Whole:
    def __init__(
        self,
        root: Path,
        disk: Disk | None = None,
        clock: ManualClock | None = None,
        more: Sequence[Callable[[Broker], Part]] = (),
        **settings: Any,
    ) -> None:
        self.root = root
        self.clock = clock or ManualClock()
        self.background = HeldBackground()
        self.caller = RecordingCaller()
        values: dict[str, Any] = {
            "store_path_root_dir": str(root),
            "mapped_file_size_commit_log": 1 << 20,
            "mapped_file_size_consume_queue": 6_000,
            "max_hash_slot_num": 100,
            "max_index_num": 4_000,
        }
        self.settings = BrokerSettings(**(values | settings))
        self.broker = Broker(
            self.settings, disk or RealDisk(), self.clock, self.background, self.caller, random.Random(1), 1 << 30, more=more
        )
        self.broker.open()
        self.broker.listening("127.0.0.1:10911", HOST)
        self.peer = FakePeer()
        self._opaque = 0

    def frames(self, *requests: Command) -> None:
        """Several requests in one read."""
        data = b"".join(request.encode() for request in requests)
        self.broker.receive(self.peer, Framer().feed(data))

    def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **rest: Any) -> Command:
        """One request, and the one answer that must have come."""
        self._opaque += 1
        self.frames(Command(code, fields, body, opaque=self._opaque, **rest))
        (answer,) = [command for command in self.peer.take() if command.is_response]
        assert answer.opaque == self._opaque
        assert answer.is_response
        return answer

    def tick(self, ms: int) -> None:
        self.clock.ms += ms
        self.broker.tick(self.clock.ms)

    def close(self) -> None:
        self.broker.close()


def send_fields(topic: str = "T", queue_id: int = 0, properties: str = "UNIQ_KEY\x01U1\x02WAIT\x01true", **more: str) -> dict[str, str]:
    """As a Java 4.9 client spells 310."""
    return {
        "a": "g", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1794732520853", "h": "0", "i": properties,
        "j": "0", "k": "false", "m": "false", "n": "broker-a",
    } | more  # fmt: skip


def long_names(fields: dict[str, str]) -> dict[str, str]:
    """The same as 10 spells it."""
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
        "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "m": "batch", "n": "bname",
    }  # fmt: skip
    return {names[key]: value for key, value in fields.items()}


def pull_fields(topic: str = "T", queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": "*",
        "expressionType": "TAG",
    } | more  # fmt: skip


__all__ = ["HOST", "FakePeer", "HeldBackground", "RecordingCaller", "Whole", "commands", "long_names", "pull_fields", "send_fields"]
