"""How long one turn of the loop is, at most: every request code and every tick of a large broker and a large name server.

    python bench/turns.py [--scale 1.0] [--all]        or `make bench ARGS="--rows turns"`

The cores run in this process with real files and a connection's side of the server: a read hands over up to 256 KiB of requests,
and what the core leaves for later comes back in the next turn. What goes to background threads is done between the turns and not
counted; its way back to the loop is a turn. Nothing is synced to the disk: that never happens on the loop.

"CPU" is the thread's own time, which other programs do not change. "clock" is what a client would wait. "collector" is the part of the
CPU time that Python's garbage collector took in the turn where it took most; it is set as in a broker's own process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roquet.broker.core import Broker, Job
from roquet.broker.topics import Topic
from roquet.collector import quiet_collector
from roquet.nameserver.core import HANDLERS, NameServer
from roquet.ports import TURN_MS, Answered, Peer
from roquet.settings import BrokerSettings, NameServerSettings
from roquet.store.disk import RealDisk
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.frame import Frame, Framer

READ = 256 * 1024
COPIES_MAX = 600
TURNS_MAX = 100
"""Of one request in a read, and of a read's turns: more of them are more turns, not longer ones."""
LIMIT_MS = 50.0
WORST = 10
TICK_MS = 50
SQL = "a IS NOT NULL AND b BETWEEN 10 AND 20 AND c IN ('x', 'y', 'z') OR d > 5 AND e = 'never'"


@dataclass(frozen=True)
class Size:
    topics: int = 10_000
    groups: int = 1_000
    queues: int = 100_000
    connections: int = 5_000
    active: int = 8_000
    pending: int = 20_000
    largest: int = 65_535

    def by(self, scale: float) -> Size:
        return Size(*[max(8, int(getattr(self, name) * scale)) for name in self.__dataclass_fields__])


@dataclass
class Longest:
    cpu_ms: float = 0.0
    clock_ms: float = 0.0
    collector_ms: float = 0.0
    turns: int = 0


class Meter:
    """The longest turn of each name."""

    def __init__(self) -> None:
        self.rows: dict[str, Longest] = {}
        self._collecting_since = self._collector_s = 0.0
        gc.callbacks.append(self._collector)

    def _collector(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._collector_s += time.thread_time() - self._collecting_since

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        collector, clock, cpu = self._collector_s, time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            row = self.rows.setdefault(name, Longest())
            row.cpu_ms = max(row.cpu_ms, (time.thread_time() - cpu) * 1_000)
            row.clock_ms = max(row.clock_ms, (time.perf_counter() - clock) * 1_000)
            row.collector_ms = max(row.collector_ms, (self._collector_s - collector) * 1_000)
            row.turns += 1

    def worst(self) -> list[tuple[str, Longest]]:
        return sorted(self.rows.items(), key=lambda row: -row[1].cpu_ms)


class BenchClock:
    """The machine's, and as much ahead of it as the ticks have gone."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.ahead_ms


class Between:
    """A background whose work is done between the turns."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))

    def settle(self) -> None:
        while self.jobs:
            work, done = self.jobs.pop(0)
            try:
                result = work()
            except Exception as error:
                result = error
            name = getattr(done, "func", done).__qualname__.replace(".<locals>", "")  # of a partial: whose it is
            with self.meter.turn(f"back on the loop: {name}"):
                done(result)


class Content:
    """A name server that takes everything."""

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        command.encode()
        done(command.reply())

    def oneway(self, address: str, command: Command) -> None: ...

    def hang_up(self, address: str) -> None: ...


class BenchPeer:
    def __init__(self, number: int) -> None:
        self.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:40000"
        self.host = bytes((10, number >> 16, number >> 8 & 255, number & 255)) + (40_000).to_bytes(4, "big")
        self.closed = self.unread = False
        self.principal = ""
        self.certificate_subject = ""
        self.answers = 0

    def send(self, data: bytes | memoryview) -> None:
        self.answers += 1

    def send_all(self, frames: list[bytes]) -> None:
        self.answers += len(frames)

    def close(self, reason: str) -> None:
        self.closed = True


def topic_name(n: int) -> str:
    return f"topic-of-the-bench-{n:05d}"


def group_name(n: int) -> str:
    return f"group-of-the-bench-{n:04d}"


def topic_config(name: str, queues: int) -> dict[str, Any]:
    return {
        "order": False, "perm": 6, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
        "writeQueueNums": queues,
    }  # fmt: skip


VERSION = {"counter": 1, "timestamp": 1_700_000_000_000}
LARGEST = "largest-topic"


class World:
    """A broker of that size, with members, progress and messages."""

    def __init__(self, root: Path, size: Size, meter: Meter) -> None:
        self.size, self.meter = size, meter
        self.clock = BenchClock()
        self.background = Between(meter)
        each = max(1, size.queues // size.topics)
        config = root / "config"
        config.mkdir(parents=True)
        topics = {topic_name(n): topic_config(topic_name(n), each) for n in range(size.topics)}
        topics |= {f"%RETRY%{group_name(n)}": topic_config(f"%RETRY%{group_name(n)}", 1) for n in range(size.groups)}
        topics[LARGEST] = topic_config(LARGEST, size.largest)
        (config / "topics.json").write_text(json.dumps({"dataVersion": VERSION, "topicConfigTable": topics}))
        groups = {group_name(n): {"groupName": group_name(n)} for n in range(size.groups)}
        (config / "subscriptionGroup.json").write_text(json.dumps({"dataVersion": VERSION, "subscriptionGroupTable": groups}))
        offsets = {
            f"{topic_name((n * 10 + k) % size.topics)}@{group_name(n)}": {str(queue): 1 for queue in range(each)}
            for n in range(size.groups) for k in range(20)
        }  # fmt: skip
        offsets[f"{LARGEST}@{group_name(0)}"] = {str(queue): 0 for queue in range(size.largest)}
        (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
        settings = BrokerSettings(
            store_path_root_dir=str(root), mapped_file_size_consume_queue=4_000, enable_property_filter=True, accept_topics_max=50_000,
            mapped_file_size_commit_log=64 << 20, new_names_per_second=1_000_000, namesrv_addr="127.0.0.1:9876",
        )  # fmt: skip
        self.broker = Broker(settings, RealDisk(), self.clock, self.background, Content(), random.Random(1))
        self.broker.open()
        self.broker.listening("127.0.0.1:10911", bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big"))
        go_on = self.broker._go_on

        def timed_go_on(job: Job) -> bool:
            with meter.turn(f"{job.command.code} in portions, also after the background"):
                return go_on(job)

        self.broker._go_on = timed_go_on  # type: ignore[method-assign]
        self.broker._ticking = deque(Timed(part, meter) for part in self.broker._ticking)
        self.each = each
        self.peers = [BenchPeer(n) for n in range(size.connections)]

    def fill(self) -> None:
        """A message in every queue, and everybody's heartbeat."""
        store = self.broker.store
        store.begin(self.clock.now_ms())
        for n in range(self.size.topics):
            for queue_id in range(self.each):
                self.put(topic_name(n), queue_id)
            if n % 100 == 0:
                store.commit()
        for queue_id in range(0, self.size.largest, 7):
            self.put(LARGEST, queue_id)
        store.commit()
        for n, peer in enumerate(self.peers):
            self.hand_over("heartbeat, first", peer, [heartbeat(n, self.size)])

    def put(self, topic: str, queue_id: int) -> None:
        store = self.broker.store
        properties = "KEYS\x01k\x02a\x011\x02b\x0130\x02c\x01w\x02d\x012\x02e\x01f"
        store.put(store.queue(topic, queue_id), b"body", properties, sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))

    def hand_over(self, name: str, peer: Peer, commands: list[Command]) -> None:
        frames = [frame for command in commands for frame in Framer().feed(command.encode())]
        serve(self.broker, name, peer, frames, self.meter, self.clock)
        self.background.settle()

    def tick(self, ms: int = TICK_MS) -> None:
        self.clock.ahead_ms += ms
        with self.meter.turn("tick, all of it"):
            self.broker.tick(self.clock.steady_ms())
        self.background.settle()


class Timed:
    def __init__(self, part: Any, meter: Meter) -> None:
        self.part, self.meter, self.name = part, meter, f"tick of {type(part).__name__}"

    def tick(self, now_ms: int) -> None:
        with self.meter.turn(self.name):
            self.part.tick(now_ms)


def serve(core: Broker | NameServer, name: str, peer: Peer, frames: list[Frame], meter: Meter, clock: BenchClock) -> None:
    """As the server does: turn after turn until nothing is left."""
    rest: list[Frame] | None = frames
    while rest is not None:
        with meter.turn(name):
            rest = core.receive(peer, rest, clock.steady_ms() + TURN_MS)


def subscription(topic: str, expression: str = "*", kind: str = "TAG") -> dict[str, Any]:
    return {
        "classFilterMode": False, "codeSet": [], "expressionType": kind, "subString": expression, "subVersion": 1, "tagsSet": [],
        "topic": topic,
    }  # fmt: skip


def heartbeat(n: int, size: Size, topics: int = 10) -> Command:
    """A third of all connections are in group 0, the others spread."""
    number = 0 if n % 3 == 0 else n % size.groups
    first = number * 10
    data = {
        "clientID": f"10.0.0.{n}@{n}",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": group_name(number),
                "messageModel": "CLUSTERING", "unitMode": False,
                "subscriptionDataSet": [subscription(topic_name((first + k) % size.topics)) for k in range(topics)],
            }
        ],
        "producerDataSet": [{"groupName": f"producers-{n % size.groups}"}],
    }  # fmt: skip
    return Command(RequestCode.HEART_BEAT, {}, json.dumps(data).encode())


def pull_fields(topic: str, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": group_name(1), "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": "*", "expressionType": "TAG",
    } | more  # fmt: skip


def locks(size: Size, count: int) -> bytes:
    queues = [{"brokerName": "broker-a", "queueId": n % 65_535, "topic": topic_name(n // 65_535)} for n in range(count)]
    return json.dumps({"clientId": "c", "consumerGroup": group_name(0), "mqSet": queues}).encode()


def requests(world: World) -> list[tuple[str, Command]]:
    """Every code that the broker answers, at its most expensive. What is not named here is sent with these fields."""
    size = world.size
    topic, group = topic_name(0), group_name(0)
    usual = {
        "topic": topic, "queueId": "0", "group": group, "groupName": group, "consumerGroup": group, "producerGroup": "producers-1",
        "timestamp": "1", "offset": "0", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 62), "clientId": "c",
        "commitOffset": "1", "msgId": "0" * 32, "index": "0", "count": "10000", "isOrder": "false", "statsName": "TOPIC_PUT_NUMS",
        "statsKey": topic, "srcGroup": group, "destGroup": group_name(2), "compareGroup": group, "clientAddr": "",
    }  # fmt: skip
    sql = pull_fields("filtered", subscription=SQL, expressionType="SQL92")
    many = {name: heartbeat(1, size, topics=min(10_000, size.topics)) for name in ("heartbeat, 10,000 subscriptions",)}
    special: list[tuple[str, Command]] = [
        ("11 pull", Command(11, pull_fields(topic))),
        ("11 pull by SQL", Command(11, sql)),
        ("11 pull by tag", Command(11, pull_fields("filtered", subscription="nothing"))),
        ("202 topic stats, largest", Command(202, {"topic": LARGEST})),
        ("303 time spans, largest", Command(303, {"topic": LARGEST, "group": group})),
        ("208 consume stats, largest", Command(208, {"consumerGroup": group, "topic": LARGEST})),
        ("208 consume stats, all", Command(208, {"consumerGroup": group})),
        ("222 reset to a time, largest", Command(222, {"topic": LARGEST, "group": group, "timestamp": "1", "isForce": "true"})),
        ("308 correction, largest", Command(308, {"topic": LARGEST, "compareGroup": group, "filterGroups": ""})),
        ("314 clone, largest", Command(314, {"srcGroup": group, "destGroup": group_name(3), "topic": LARGEST, "offline": "true"})),
        ("34 heartbeat", heartbeat(1, size)),
        *[(f"34 {name}", command) for name, command in many.items()],
        ("41 lock, 100,000 queues", Command(41, {}, locks(size, size.queues))),
        ("42 unlock, 100,000 queues", Command(42, {}, locks(size, size.queues))),
        ("41 lock, 10 queues", Command(41, {}, locks(size, 10))),
        ("46 check of a filter", Command(46, {}, json.dumps(
            {"clientId": "c", "group": group, "subscriptionData": subscription(topic, SQL, "SQL92")}).encode())),
        ("17 topic", Command(17, {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})),
        ("200 group", Command(200, {}, json.dumps({"groupName": group_name(4)}).encode())),
        ("207 group deleted with offsets", Command(207, {"groupName": group_name(5), "removeOffset": "true"})),
        ("215 topic deleted", Command(215, {"topic": topic_name(7)})),
        ("215 topic deleted, largest", Command(215, {"topic": LARGEST})),
    ]  # fmt: skip
    named = {int(name.split()[0]) for name, _ in special}
    found = [(f"{code} {RequestCode(code).name}", Command(code, usual)) for code in sorted(world.broker.table) if code not in named]
    return found + special


ONCE = ("deleted", "100,000", "10,000", "17 ", "18 ", "largest", "317")
"""Requests that are not asked a hundred times over in one read: they change things, or fill a read alone, or one takes many turns."""


def measure_broker(root: Path, size: Size, meter: Meter, say: Callable[[str], None]) -> None:
    say(f"making a broker with {size.topics:,} topics, {size.groups:,} groups, {size.queues:,} queues")
    world = World(root, size, meter)
    world.fill()
    say("waiting for its files")
    while world.broker.store.tails.waiting:
        world.tick()
    for name in [name for name in meter.rows if name.startswith(("tick", "back on the loop"))]:
        meter.rows[f"{name} (100,000 new queues)"] = meter.rows.pop(name)

    world.broker.topics.put(Topic("filtered", 1, 1))
    for _ in range(2_000):
        world.put("filtered", 0)
    world.broker.store.commit()
    peer = BenchPeer(60_000)
    for name, command in requests(world):
        say(name)
        world.hand_over(name, peer, [command])
        if not any(word in name for word in ONCE):
            copies = min(COPIES_MAX, max(2, TURNS_MAX // meter.rows[name].turns), max(1, READ // len(command.encode())))
            full = [Command(command.code, command.fields, command.body, opaque=n) for n in range(copies)]
            world.hand_over(f"{name}, a read full", peer, full)
        peer.closed = False
        for _ in range(40):
            if not world.broker._warm:
                break
            world.tick()  # what waited for the disk goes on
    say("ticks with active queues, members that fall silent, pulls that are due")
    for n in range(min(20_000, 4 * size.connections)):
        fields = pull_fields(topic_name(n % size.topics), queueOffset="1", sysFlag="6")
        world.hand_over("11 pull, parked", world.peers[n % len(world.peers)], [Command(11, fields)])
    for second in range(40):
        for n in range(size.active):
            world.put(topic_name((n + second * 100) % size.topics), n % world.each)
            if n % 200 == 199:
                with meter.turn("commit of 200 sends"):
                    world.broker.store.commit()
        for _ in range(1_000 // TICK_MS):
            world.tick()
    say("sends that no fsync confirms")
    not_confirmed(world)
    say("messages that become due together: delayed, timed, prepared")
    pending(world)
    for _ in range(400):
        world.tick()
    for _ in range(400):  # an hour on: samples of the day, members that are silent
        world.tick(10_000)
    for connection in world.peers[: size.connections // 2]:
        with meter.turn("a connection lost"):
            world.broker.disconnected(connection)
    world.broker.close()


def not_confirmed(world: World) -> None:
    """As many sends as may wait for a disk that hangs, JSON and binary, and all hear in one tick that it was too long."""
    log_: Any = world.broker.store.log
    flow = world.broker.flow
    fields = {
        "a": "producers-1", "b": topic_name(1), "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
        "k": "false",
    }  # fmt: skip
    log_._sync_flush = True
    for peer in world.peers:
        sends = [Command(310, fields, b"x" * 100, opaque=n, binary=n % 2 == 1) for n in range(250)]
        frames = [frame for command in sends for frame in Framer().feed(command.encode())]
        serve(world.broker, "310 send, a read full that waits for its fsync", peer, frames, world.meter, world.clock)
        if flow.waiting >= world.broker.settings.send_thread_pool_queue_capacity:
            break
    world.clock.ahead_ms += world.broker.settings.sync_flush_timeout + 1
    with world.meter.turn("tick that tells 10,000 sends that their fsync is late"):
        world.broker.tick(world.clock.steady_ms())
    assert not flow.waiting, f"{flow.waiting} sends wait still"
    world.background.settle()
    log_._sync_flush = False


def pending(world: World) -> None:
    """As many delayed messages, timers and prepared messages, and a filter for each group."""
    size, sender = world.size, BenchPeer(60_001)
    plain = {
        "a": "producers-1", "b": topic_name(1), "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0", "k": "false",
    }  # fmt: skip
    kinds = {
        "delayed": {"i": "DELAY\x013"}, "timed": {"i": "TIMER_DELAY_SEC\x0110"},
        "prepared": {"i": "TRAN_MSG\x01true\x02PGROUP\x01producers-1", "f": "4"},
    }  # fmt: skip
    for kind, more in kinds.items():
        for first in range(0, size.pending, 200):
            sends = [
                Command(310, plain | more | {"i": f"{more['i']}\x02UNIQ_KEY\x01{kind}-{n}"}, b"x" * 100, opaque=n)
                for n in range(first, first + 200)
            ]
            world.hand_over(f"310 send, {kind}", sender, sends)
    for n in range(size.groups):
        beat = {
            "clientID": f"filter@{n}", "producerDataSet": [],
            "consumerDataSet": [{
                "groupName": f"filtering-{n}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [subscription(topic_name(n + k), f"{SQL} OR f = {n}", "SQL92") for k in range(10)]}],
        }  # fmt: skip
        world.hand_over("34 heartbeat with ten filters", sender, [Command(34, {}, json.dumps(beat).encode())])


def measure_name_server(root: Path, size: Size, meter: Meter, say: Callable[[str], None]) -> None:
    say("a name server with ten such brokers")
    clock = BenchClock()
    core = NameServer(NameServerSettings(), clock, RealDisk(), str(root))
    peers = [BenchPeer(n) for n in range(10)]
    table = {topic_name(n): topic_config(topic_name(n), 8) for n in range(size.topics)}
    for n, peer in enumerate(peers):
        for round in range(2):
            body = json.dumps({
                "filterServerList": [],
                "topicConfigSerializeWrapper": {"dataVersion": VERSION | {"counter": round}, "topicConfigTable": table},
            }).encode()  # fmt: skip
            fields = {
                "brokerName": f"broker-{n}", "brokerAddr": f"10.0.0.{n}:10911", "clusterName": "c", "haServerAddr": "", "brokerId": "0",
                "compressed": "false", "bodyCrc32": "0",
            }  # fmt: skip
            frames = Framer().feed(Command(103, fields, body).encode())
            serve(core, "name server: 103 registration of all topics", peer, frames, meter, clock)
    usual = {
        "topic": topic_name(0), "brokerName": "broker-0", "brokerAddr": "10.0.0.0:10911", "clusterName": "c", "cluster": "c",
        "namespace": "n", "key": "k", "value": "v", "brokerId": "0",
    }  # fmt: skip
    asker = BenchPeer(70_000)
    for code in sorted(HANDLERS):
        if code in (103, 104):
            continue
        command = Command(code, usual)
        copies = max(1, READ // len(command.encode()))
        name = f"name server: {code} {RequestCode(code).name}"
        serve(core, name, asker, Framer().feed(command.encode()), meter, clock)
        frames = [frame for n in range(copies) for frame in Framer().feed(Command(code, usual, opaque=n).encode())]
        serve(core, f"{name}, a read full", asker, frames[: 40 if code in (205, 206, 224, 311, 312, 313, 327) else None], meter, clock)
    with meter.turn("name server: a connection lost"):
        core.disconnected(peers[0])
    serve(core, "name server: 104 UNREGISTER_BROKER", asker, Framer().feed(Command(104, usual | {
        "brokerName": "broker-1", "brokerAddr": "10.0.0.1:10911"}).encode()), meter, clock)  # fmt: skip
    clock.ahead_ms += 300_000
    for _ in range(30):
        clock.ahead_ms += 5_000
        with meter.turn("name server: tick"):
            core.tick(clock.steady_ms())


def measure(size: Size, say: Callable[[str], None]) -> Meter:
    meter = Meter()
    logging.disable(logging.CRITICAL)
    quiet_collector()  # as a server does when it begins: all that follows is new to it
    os.fsync = os.fdatasync = lambda fd: None
    with tempfile.TemporaryDirectory(prefix="roquet-turns-") as directory:
        measure_name_server(Path(directory) / "namesrv", size, meter, say)
        measure_broker(Path(directory) / "store", size, meter, say)
    return meter


def table(meter: Meter, count: int = WORST) -> str:
    lines = [f"{'the longest turns':60} {'CPU ms':>9} {'clock ms':>9} {'collector':>9} {'turns':>8}"]
    for name, row in meter.worst()[:count]:
        lines.append(f"{name:60} {row.cpu_ms:9.1f} {row.clock_ms:9.1f} {row.collector_ms:9.1f} {row.turns:8,}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of topics, groups, queues and connections")
    parser.add_argument("--json", action="store_true", help="the worst ten, for run.py")
    parser.add_argument("--all", action="store_true", help="every row, not the worst ten")
    options = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # where is it now?
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    meter = measure(Size().by(options.scale), say)
    if options.json:
        print(json.dumps([{"name": name, "cpu_ms": row.cpu_ms, "clock_ms": row.clock_ms} for name, row in meter.worst()[:WORST]]))
        return 0
    print(table(meter, 1_000 if options.all else WORST))
    return 0 if meter.worst()[0][1].cpu_ms <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
