"""The broker's parts around a real store in a temporary directory, without the core: a request is a call of its handler."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roquet.broker.admin import Admin
from roquet.broker.groups import Groups
from roquet.broker.handler import Handler, Portions
from roquet.broker.locks import QueueLocks
from roquet.broker.members import Members
from roquet.broker.newcomers import Newcomers
from roquet.broker.notices import Notices
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.part import Shared
from roquet.broker.queries import Queries
from roquet.broker.stats import Stats
from roquet.broker.topics import Topic, Topics
from roquet.errors import Refused
from roquet.settings import BrokerSettings, Value
from roquet.store.disk import Cold, RealDisk
from roquet.store.store import Store
from roquet.testing import FakePeer, ManualBackground, ManualClock
from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import Framer

VECTORS = Path(__file__).parent.parent / "vectors"
MEMORY = 1 << 30


class BrokerKit:
    """All parts over one directory."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.clock = ManualClock()
        self.background = ManualBackground()
        self.disk = RealDisk()
        values: dict[str, Any] = {
            "store_path_root_dir": str(root),
            "mapped_file_size_commit_log": 65_536,
            "mapped_file_size_consume_queue": 600,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
        }
        self.settings = made = BrokerSettings(**(values | settings))
        self.notices = Notices(self.clock)
        self.store = Store(self.disk, made, self.clock, self.background)
        self.store.open()
        newcomers = Newcomers(made, self.clock)
        shared = Shared(made, self.store, self.clock, self.disk, self.background, self.notices, newcomers, Random(1), self.fetch, MEMORY)
        self.topics = Topics(shared)
        self.offsets = ConsumerOffsets(shared)
        self.groups = Groups(shared, self.offsets)
        self.stats = Stats(self.clock, made.broker_cluster_name)
        self.locks = QueueLocks(made, self.clock)
        self.members = Members(shared, self.groups, self.topics)
        self.queries = Queries(shared)
        self.changes: list[dict[str, Value]] = []
        self.admin = Admin(
            shared, self.topics, self.groups, self.offsets, self.members, self.stats, lambda values: self.changes.append(dict(values))
        )
        self.admin.listening("127.0.0.1:10911", "")
        for document in (self.topics, self.offsets, self.groups):
            document.load()
            document.open()
        self.handlers: dict[int, Handler] = {}
        for part in (self.offsets, self.groups, self.stats, self.locks, self.members, self.queries, self.admin):
            fresh = part.handlers()
            assert not fresh.keys() & self.handlers.keys()
            self.handlers |= fresh
        self.peer = FakePeer()

    def fetch(self, cold: Cold, then: Callable[[], None]) -> None:
        cold.fetch()
        then()

    def ask(self, command: Command, peer: FakePeer | None = None) -> Command:
        """The answer, over the wire and back. One that comes later must have come by now."""
        asker = peer or self.peer
        before = len(asker.sent)
        answer = self.handle(command, asker)
        if answer is None:
            assert len(asker.sent) == before + 1
            return asker.sent.pop()
        return over_the_wire(answer)

    def handle(self, command: Command, peer: FakePeer) -> Command | None:
        for _ in range(1_000):
            try:
                answer = self.handlers[command.code](peer, command)
                return answer if answer is None or isinstance(answer, Command) else finish(answer)
            except Refused as refused:
                return command.reply(refused.code, refused.remark)
            except Cold as cold:
                cold.fetch()
        raise AssertionError("read again and again, and still not in memory")

    def request(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", peer: FakePeer | None = None) -> Command:
        return self.ask(Command(code, fields or {}, body, opaque=7), peer)

    def topic(self, name: str, queues: int = 4, **more: Any) -> Topic:
        return self.topics.put(Topic(name, queues, queues, **more))

    def put(self, topic: str, queue_id: int = 0, body: bytes = b"hello", properties: str = "TAGS\x01a") -> tuple[int, int]:
        """Store one message now."""
        self.store.begin(self.clock.ms)
        placed = self.store.put(self.store.queue(topic, queue_id), body, properties, sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
        self.store.commit()
        return placed

    def close(self) -> None:
        self.groups.save_now()
        self.offsets.save_now()
        self.store.close()


def finish(portions: Portions) -> Command | None:
    """All of it in one go."""
    while True:
        try:
            cold = next(portions)
        except StopIteration as stop:
            answer: Command | None = stop.value
            return answer
        if cold is not None:
            cold.fetch()


def over_the_wire(command: Command) -> Command:
    (frame,) = Framer().feed(command.encode())
    return commands.decode(frame)


@pytest.fixture
def kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., BrokerKit]]:
    """Opens directories of the test; all are closed at its end. Nothing is synced: these tests survive no power failure."""
    monkeypatch.setattr("roquet.system.sync_data", lambda fd: None)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    made: list[BrokerKit] = []

    def open_kit(name: str = "store", **settings: Any) -> BrokerKit:
        made.append(BrokerKit(tmp_path / name, **settings))
        return made[-1]

    yield open_kit
    for kit in made:
        kit.close()


@pytest.fixture
def kit(kits: Callable[..., BrokerKit]) -> BrokerKit:
    return kits()


@pytest.fixture
def apache(tmp_path: Path, kits: Callable[..., BrokerKit]) -> BrokerKit:
    """A broker over the directory that Apache RocketMQ 4.9.7 left after a clean stop."""
    with tarfile.open(VECTORS / "store-4.9.7-stopped.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return kits("store")


# ---- golden frames ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Golden:
    """A request as Apache's client sent it, and what Apache's broker answered."""

    request: Command
    response: Command

    def __str__(self) -> str:
        return f"{self.request.code}-{'binary' if self.request.binary else 'json'}-{self.request.opaque}-{self.response.code}"


def recorded(code: int, way: str) -> list[Command]:
    found = []
    for line in (VECTORS / "frames.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["request_code"] == code and row["way"] == way and row["server"] == "broker":
            (frame,) = Framer().feed(bytes.fromhex(row["hex"]))
            found.append(commands.decode(frame))
    return found


def golden(*codes: int) -> list[Golden]:
    """Pairs of these codes, matched by opaque and header form, in the order of the recording."""
    found: list[Golden] = []
    for code in codes:
        requests = recorded(code, "c->s")
        for response in recorded(code, "s->c"):
            if not response.is_response:
                continue
            for request in requests:
                if not request.is_response and (request.opaque, request.binary) == (response.opaque, response.binary):
                    found.append(Golden(request, response))
                    requests.remove(request)
                    break
    return found


def same_answer(ours: Command, theirs: Command) -> None:
    """Everything but the body, which the test compares itself, and the version number."""
    assert (ours.code, ours.remark, ours.fields, ours.flag, ours.opaque, ours.binary) == (
        theirs.code, theirs.remark, theirs.fields, theirs.flag, theirs.opaque, theirs.binary,
    )  # fmt: skip
