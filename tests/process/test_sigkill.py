"""SIGKILL during load with SYNC_FLUSH, fifty times at random moments: what was acknowledged is there, byte for byte."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from threading import Timer

import pytest

from roquet.clock import SystemClock
from roquet.settings import BrokerSettings
from roquet.store.disk import Cold, RealDisk
from roquet.store.store import Store
from roquet.testing import ManualBackground
from roquet.wire import command as commands
from roquet.wire.batch import join_batch
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.record import Record, encode_properties
from tests.process.line import Line, create_topic, max_offset, pull, query_key, records, send_message
from tests.process.programs import SMALL_FILES, Broker, Nursery

TOPIC = "killed"
QUEUES = 4
ROUNDS = {"SYNC_FLUSH": 1_000, "ASYNC_FLUSH": 200} if os.environ.get("ROQUET_LONG") else {"SYNC_FLUSH": 50, "ASYNC_FLUSH": 8}
IN_FLIGHT = 64
LINES = 3

Place = tuple[int, int]
"""(queue id, queue offset)."""
Content = tuple[bytes, bytes]
"""(body, properties as stored)."""


class Load:
    """What was sent, and what was acknowledged. Filled by `run` round after round."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.sent: dict[str, Content] = {}
        self.acknowledged: dict[Place, str] = {}
        """Place -> the message's unique key."""
        self.last: dict[int, int] = {}
        """Queue id -> the highest offset acknowledged."""
        self._waiting: list[dict[int, tuple[int, list[str]]]] = []
        self._opaque = 0

    def run(self, address: tuple[str, int], connected: Callable[[], None]) -> None:
        """Keep many sends in flight on several connections until the broker is gone; take in every acknowledgement to the last."""
        with ExitStack() as stack:
            lines = [stack.enter_context(Line(address)) for _ in range(LINES)]
            connected()
            selector = stack.enter_context(selectors.DefaultSelector())
            self._waiting = [{} for _ in lines]
            framers = [Framer() for _ in lines]
            for number, line in enumerate(lines):
                selector.register(line.socket, selectors.EVENT_READ, number)
                self._fill(line, number)
            while selector.get_map():
                ready = selector.select(60)
                assert ready, "a broker that is killed closes its connections"
                for key, _ in ready:
                    number = key.data
                    line = lines[number]
                    try:
                        data = line.socket.recv(1 << 18)
                    except ConnectionError:
                        data = b""
                    if not data:
                        selector.unregister(line.socket)
                        continue
                    for frame in framers[number].feed(data):
                        self._take(number, commands.decode(frame))
                    self._fill(line, number)

    def _fill(self, line: Line, number: int) -> None:
        fresh = []
        while len(self._waiting[number]) < IN_FLIGHT:
            self._opaque += 1
            queue_id = self.random.randrange(QUEUES)
            command, keys = self._command(queue_id)
            command.opaque = self._opaque
            self._waiting[number][self._opaque] = (queue_id, keys)
            fresh.append(command.encode())
        with suppress(ConnectionError):  # it was killed; what it answered before is still to be read
            line.send(b"".join(fresh))

    def _command(self, queue_id: int) -> tuple[Command, list[str]]:
        """A single message, in either header form, or a batch."""
        kind = self.random.random()
        if kind < 0.05:
            made = [self._message() for _ in range(self.random.randrange(2, 20))]
            command = send_message(TOPIC, join_batch((0, body, properties) for _, body, properties in made), queue_id, m="true")
            command.code = 320
        else:
            made = [self._message()]
            command = send_message(TOPIC, made[0][1], queue_id, i=made[0][2].decode())
            command.binary = kind < 0.15
        return command, [key for key, _, _ in made]

    def _message(self) -> tuple[str, bytes, bytes]:
        key = f"U{len(self.sent):08X}"
        size = self.random.choice((0, 1, 37, 300, 300, 300, 2_000, 20_000) if self.random.random() < 0.3 else (64, 120))
        body = self.random.randbytes(size)
        properties = encode_properties({"UNIQ_KEY": key, "KEYS": f"k{key}", "TAGS": "t", "größe": str(size)}).encode()
        self.sent[key] = (body, properties + b"\x02CLUSTER\x01DefaultCluster" if not properties.endswith(b"\x02") else properties)
        return key, body, properties

    def _take(self, number: int, answer: Command) -> None:
        assert answer.opaque in self._waiting[number], (
            f"{answer} came on connection {number}, where it was never asked for or is answered already; "
            f"waiting for it: {[other for other, waiting in enumerate(self._waiting) if answer.opaque in waiting]}"
        )
        queue_id, keys = self._waiting[number].pop(answer.opaque)
        assert answer.code == 0, answer
        assert int(answer.fields["queueId"]) == queue_id
        first = int(answer.fields["queueOffset"])
        for step, key in enumerate(keys):
            self.last[queue_id] = max(self.last.get(queue_id, -1), first + step)
            before = self.acknowledged.setdefault((queue_id, first + step), key)
            assert before == key, f"two messages were acknowledged at queue {queue_id} offset {first + step}"


def check(record: Record, place: Place, load: Load) -> None:
    """A record is at its place, is one of those that were sent, whole, and the one that was acknowledged there, if one was."""
    assert (record.queue_id, record.queue_offset) == place
    assert record.topic == TOPIC
    items = dict(item.split("\x01") for item in record.properties.decode().split("\x02") if item)
    key = items["UNIQ_KEY"]
    body, properties = load.sent[key]
    assert record.body == body
    assert record.properties == properties
    assert load.acknowledged.get(place, key) == key, f"another message stands at {place} than was acknowledged there"


def read_on(line: Line, load: Load, upto: dict[int, int]) -> None:
    """Pull what came since the last look and check each message; nothing acknowledged may be beyond the end."""
    for queue_id in range(QUEUES):
        end = int(line.ask(max_offset(TOPIC, queue_id)).fields["offset"])
        last = load.last.get(queue_id, -1)
        assert end > last, f"queue {queue_id} ends at {end}, offset {last} was acknowledged"
        offset = upto.get(queue_id, 0)
        while offset < end:
            answer = line.ask(pull(TOPIC, offset, queue_id))
            assert answer.code == 0, answer
            for record in records(answer):
                check(record, (queue_id, offset), load)
                offset += 1
        upto[queue_id] = offset


def stored(store: Store) -> Iterator[tuple[Place, Record]]:
    for queue in store.queues_of(TOPIC):
        for offset in range(queue.first, queue.visible):
            while True:
                try:
                    entry = queue.entry(offset)
                    assert entry is not None
                    raw = store.record_at(entry[0])
                except Cold as cold:
                    cold.fetch()
                else:
                    break
            assert len(raw) == entry[1]
            yield (queue.queue_id, offset), Record.decode(raw)


def open_store(broker: Broker, flush: str) -> Store:
    settings, warnings = BrokerSettings.read({"storePathRootDir": str(broker.store), "flushDiskType": flush, **SMALL_FILES})
    assert not warnings
    store = Store(RealDisk(), settings, SystemClock(), ManualBackground())
    store.open()
    return store


@pytest.mark.parametrize("flush", ROUNDS)
def test_nothing_acknowledged_is_lost_by_fifty_kills_under_load(flush: str, nursery: Nursery, tmp_path: Path) -> None:
    """Fifty rounds over one store; ROQUET_LONG=1 makes it a thousand. The seed is printed; ROQUET_SEED sets it.

    In some rounds the broker is also killed while it starts, so that recovery is interrupted and recovered from in turn.
    Without SYNC_FLUSH the same holds for a broker that dies on a machine that lives on: fewer rounds of it.
    """
    rounds, settings = ROUNDS[flush], {**SMALL_FILES, "flushDiskType": flush}
    seed = int(os.environ.get("ROQUET_SEED") or time.time_ns() % 1_000_000)
    print(f"ROQUET_SEED={seed}")
    random = Random(seed)
    load, upto = Load(random), dict[int, int]()
    for round_number in range(rounds):
        if random.random() < 0.2:
            starting = nursery.begin_broker(tmp_path, settings)
            starting.program.end(signal.SIGKILL, after_s=random.uniform(0, 0.15))
            assert "Traceback" not in starting.program.text
        broker = nursery.broker(tmp_path, settings)
        with Line(broker.address) as line:
            if round_number == 0:
                assert line.ask(create_topic(TOPIC, QUEUES)).code == 0
            read_on(line, load, upto)
            for key in random.sample(list(load.acknowledged.values()), min(3, len(load.acknowledged))):
                for asked in (query_key(TOPIC, f"k{key}"), query_key(TOPIC, key, unique=True)):
                    answer = line.ask(asked)
                    assert answer.code == 0, (key, answer)
                    assert load.sent[key] in [(record.body, record.properties) for record in records(answer)]
        # The moment is the clock's, not the load's: it falls anywhere in what the broker does.
        killer = Timer(random.uniform(0, 0.15), broker.program.send_signal, (signal.SIGKILL,))
        load.run(broker.address, killer.start)
        killer.join()
        assert broker.program.end() == -signal.SIGKILL
        assert "Traceback" not in broker.program.text

    with nursery.broker(tmp_path, settings) as broker, Line(broker.address) as line:
        read_on(line, load, upto)
        for key in random.sample(list(load.acknowledged.values()), 50):
            assert load.sent[key] in [(record.body, record.properties) for record in records(line.ask(query_key(TOPIC, f"k{key}")))]
        broker.kill()
    store = open_store(broker, flush)
    found = dict(stored(store))
    store.close()
    for place, record in found.items():
        check(record, place, load)
    missing = load.acknowledged.keys() - found.keys()
    assert not missing, f"{len(missing)} acknowledged messages are not in the store: {sorted(missing)[:5]}"
    assert len(load.acknowledged) > 20 * rounds, "the load was none"
    for queue_id in range(QUEUES):
        offsets = [offset for place, offset in found if place == queue_id]
        assert offsets == list(range(len(offsets)))
    print(f"{rounds} kills, {len(load.sent)} sent, {len(load.acknowledged)} acknowledged, {len(found)} stored")
