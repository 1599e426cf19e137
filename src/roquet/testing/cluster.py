"""A simulated cluster: one name server, one broker, three clients, and everything that goes wrong.

    name server   10.0.0.1:9876      client A  10.0.0.11   producer
    broker        10.0.0.2:10911     client B  10.0.0.12   producer, push consumer of group sim-group
                                     client C  10.0.0.13   push consumer of the same group, and a reader of all queues

The cores are the real ones. First comes a time of faults: connections cut, hosts parted, slow links, full and failing
disks, killed processes, power losses in the middle of a write, restarts, wall clocks that somebody sets (each host has its
own). Then the faults end, and everything must come to rest: all that was acknowledged is consumed, and every group stands at
the end of its queues. Clocks stay as wrong as they are then.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from random import Random
from typing import Any

from roquet.broker.core import Broker
from roquet.client.core import ClientCore, ProducerCore, ProducerSettings, PullConsumerCore, PushConsumerCore, PushConsumerSettings
from roquet.client.core.consuming import Judged, Outcome
from roquet.client.core.pulling import PullResult, PullStatus
from roquet.client.core.push_consumer import FROM_FIRST
from roquet.client.core.receipt import SendReceipt
from roquet.errors import Damaged, RoquetError
from roquet.message import Message, MessageQueue, ReceivedMessage
from roquet.nameserver.core import NameServer
from roquet.settings import BrokerSettings, NameServerSettings
from roquet.testing.background import SimBackground
from roquet.testing.checker import Checker, Violation, body_of, listed, name_of
from roquet.testing.disk import PowerLost, SimDisk
from roquet.testing.network import SimCaller, SimNetwork
from roquet.testing.simulation import SimClock, Simulation

NAME_SERVER = "10.0.0.1:9876"
BROKER = "10.0.0.2:10911"
BROKER_HOST = bytes((10, 0, 0, 2)) + (10911).to_bytes(4, "big")
GROUP = "sim-group"
READERS = "sim-readers"
TOPICS = ("sim-orders", "sim-audit")
ROOT = "/data/broker"
TICK_US = 100_000
SECOND = 1_000_000
CLOCK_STEPS_MS = (2_000, 60_000, 3_600_000, 86_400_000, 315_360_000_000)
"""Up to ten years."""
MOODS = (
    ("open", errno.EMFILE), ("open", errno.EIO), ("open", errno.ENOSPC), ("truncate", errno.EIO), ("write", errno.EIO),
    ("write", errno.ENOSPC), ("rename", errno.EIO),
)  # fmt: skip
REST_US = 240 * SECOND
"""Within this time after the last fault everything must have come to rest."""

MakeBroker = Callable[..., Broker]


class Cluster:
    """One run. `make_broker` lets a test plant a bug."""

    def __init__(self, seed: int, *, make_broker: MakeBroker = Broker, show: Callable[[str], None] | None = None) -> None:
        self.simulation = Simulation(seed, show=show)
        self.random = random = Random(f"cluster {seed}")
        self.sync_flush = random.random() < 0.75
        self.checker = Checker(sync_flush=self.sync_flush)
        self.network = SimNetwork(self.simulation)
        self.network.slowest_us = random.choice((1_000, 5_000, 40_000))
        self.calm = False
        """The time of faults is over."""
        self.name_server = NameServerHost(self)
        self.broker = BrokerHost(self, make_broker)
        self.clients = [
            ClientHost(self, "A", "10.0.0.11", produces=True, consumes=False, reads=False),
            ClientHost(self, "B", "10.0.0.12", produces=True, consumes=True, reads=False),
            ClientHost(self, "C", "10.0.0.13", produces=False, consumes=True, reads=True),
        ]
        self.simulation.interrupted = self._interrupted

    def run(self) -> None:
        """The whole life of it. Raises Violation, or whatever else goes wrong."""
        with watched_log(self.simulation):
            simulation = self.simulation
            simulation.note(f"= seed {simulation.seed}, {'SYNC_FLUSH' if self.sync_flush else 'ASYNC_FLUSH'}")
            self.name_server.start()
            self._guarded(self.broker.start)
            for client in self.clients:
                simulation.after(simulation.between(0, SECOND), client.start)
            troubled_us = self.random.randint(6, 16) * SECOND
            self._plan_faults(troubled_us)
            simulation.run(troubled_us)
            self._end_faults()
            if not simulation.run(simulation.now_us + REST_US, self._at_rest):
                raise Violation(f"not at rest {REST_US // SECOND} s after the last fault: {self._unrest()}")
            simulation.note("= at rest")
            broker = self.broker.core
            assert broker is not None
            self.checker.look(broker)
            self.broker.stop_cleanly(lambda: None)
            if not simulation.run(simulation.now_us + 10 * SECOND, lambda: self.broker.core is None):
                raise Violation("the broker does not stop")
            self.broker.power_loss()
            self.broker.start()
            simulation.note(f"= end, {len(self.checker.acked)} acknowledged, {self.checker.checks} checks")

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PowerLost as error:
            self._interrupted(error)

    def _interrupted(self, error: BaseException) -> bool:
        if not isinstance(error, PowerLost):
            return False
        if self.random.random() < 0.7:
            self.broker.power_loss()
        else:
            self.broker.kill()
        self.broker.start_later()
        return True

    # Faults

    def _plan_faults(self, until_us: int) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (5, self._power_loss),
            (4, self._power_loss_at_a_write),
            (3, self._kill),
            (2, self._restart_broker),
            (3, self._restart_client),
            (4, self._cut),
            (2, self._part),
            (1, self._restart_name_server),
            (2, self._slow),
            (1, self._full_disk),
            (1, self._failing_sync),
            (4, self._set_a_clock),
            (3, self._moody_disk),
        ]
        faults = [fault for weight, fault in kinds for _ in range(weight)]
        for _ in range(self.random.randint(3, 9)):
            self.simulation.at(self.random.randint(SECOND, until_us), self.random.choice(faults))

    def _power_loss(self) -> None:
        if self.broker.core is not None:
            self.broker.power_loss()
            self.broker.start_later()

    def _power_loss_at_a_write(self) -> None:
        self.simulation.note("! the power will fail in the middle of a write")
        self.broker.disk.power_off_after(self.random.randint(1, 40))

    def _kill(self) -> None:
        if self.broker.core is not None:
            self.broker.kill()
            self.broker.start_later()

    def _restart_broker(self) -> None:
        if self.broker.serving:
            self.broker.stop_cleanly(self._stopped)

    def _stopped(self) -> None:
        if self.random.random() < 0.5:
            self.broker.power_loss()  # after a clean stop there is nothing to lose
        self.broker.start_later()

    def _restart_client(self) -> None:
        client = self.random.choice(self.clients)
        if client.alive:
            client.kill()
            self.simulation.after(self.random.randint(0, 4) * SECOND, client.start)

    def _cut(self) -> None:
        hosts = ["10.0.0.1", "10.0.0.2", *(client.host for client in self.clients)]
        host = self.random.choice(hosts)
        self.simulation.note(f"! connections of {host} are cut")
        for wire in self.network.wires(host):
            wire.cut()

    def _part(self) -> None:
        hosts = ["10.0.0.1", "10.0.0.2", *(client.host for client in self.clients)]
        one, other = self.random.sample(hosts, 2)
        self.simulation.note(f"! {one} and {other} cannot reach each other")
        self.network.part(one, other)
        self.simulation.after(self.random.randint(1, 8) * SECOND, self.network.heal)

    def _restart_name_server(self) -> None:
        self.name_server.kill()
        self.simulation.after(self.random.randint(0, 5) * SECOND, self.name_server.start)

    def _slow(self) -> None:
        usual = self.network.slowest_us
        self.simulation.note("! the network is slow")
        self.network.slowest_us = 800_000

        def over() -> None:
            self.network.slowest_us = usual

        self.simulation.after(self.random.randint(1, 5) * SECOND, over)

    def _full_disk(self) -> None:
        self.simulation.note("! the disk is full")
        self.broker.disk.full = True

        def over() -> None:
            self.broker.disk.full = False

        self.simulation.after(self.random.randint(1, 6) * SECOND, over)

    def _failing_sync(self) -> None:
        """The broker must stop taking writes; somebody changes the disk and starts the machine again."""
        self.simulation.note("! the next fsync fails")
        self.broker.disk.fail_syncs = self.random.randint(1, 2)
        self.simulation.after(self.random.randint(1, 4) * SECOND, self._repair)

    def _repair(self) -> None:
        self.broker.disk.fail_syncs = 0
        if self.broker.core is not None and self.broker.core.store.failed:
            self._power_loss()

    def _moody_disk(self) -> None:
        """Some operation fails, once or a few times: no descriptor is left, a file cannot be made, a write or a rename meets an error."""
        operation, number = self.random.choice(MOODS)
        times = self.random.randint(1, 3)
        self.simulation.note(f"! {operation} fails with {errno.errorcode[number]}, {times} times")
        self.broker.disk.fail(operation, number, times=times, after=self.random.randint(0, 5), part=self.random.random())
        self.simulation.after(self.random.randint(1, 4) * SECOND, self._mood_over)

    def _mood_over(self) -> None:
        self.broker.disk.faults.clear()
        self._repair()

    def _set_a_clock(self) -> None:
        """Of any host, the broker's most of all; by hand, or by NTP after a boot. Seconds to years, and often back to what it was."""
        hosts: list[tuple[str, SimClock]] = [("the broker", self.broker.clock)] * 4
        hosts += [("the name server", self.name_server.clock), *((f"client {client.name}", client.clock) for client in self.clients)]
        name, clock = self.random.choice(hosts)
        by_ms = self.random.choice((1, -1)) * int(self.random.choice(CLOCK_STEPS_MS) * self.random.uniform(0.5, 1.0))
        if clock.skew_ms and self.random.random() < 0.6:
            by_ms = -clock.skew_ms
        self.simulation.note(f"! the clock of {name} is set by {by_ms} ms")
        clock.skew_ms += by_ms
        if self.random.random() < 0.4:
            self.simulation.after(self.random.randint(1, 3 * SECOND), lambda: self._put_clock_right(name, clock))

    def _put_clock_right(self, name: str, clock: SimClock) -> None:
        if clock.skew_ms and not self.calm:
            self.simulation.note(f"! the clock of {name} is set by {-clock.skew_ms} ms")
            clock.skew_ms = 0

    def _end_faults(self) -> None:
        self.simulation.note("= faults end")
        self.calm = True
        self.network.heal()
        self.network.slowest_us = 5_000
        disk = self.broker.disk
        disk.full = False
        disk.fail_syncs = 0
        disk.cold_ratio = min(disk.cold_ratio, 0.2)
        disk.stay_on()
        if self.broker.core is None:
            self.broker.start_later(soon=True)
        elif self.broker.core.store.failed:
            self._power_loss()

    # Rest

    def _at_rest(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        broker = self.broker.core
        if broker is None or not self.broker.serving:
            return "the broker is down"
        for client in self.clients:
            if not client.alive:
                return f"client {client.name} is down"
            if client.produces and not client.finished:
                return f"client {client.name} has messages to send"
        for group in (GROUP, READERS):
            missing = self.checker.missing(group)
            if missing:
                return f"group {group} never got {listed(missing)}"
        for topic in TOPICS:
            for queue in broker.store.queues_of(topic):
                offset = broker.offsets.find(GROUP, topic, queue.queue_id)
                if queue.visible and offset != queue.visible:
                    return f"group {GROUP} is at {offset} of {topic}/{queue.queue_id}, which ends at {queue.visible}"
        return ""


class NameServerHost:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clock = SimClock(cluster.simulation)
        self.disk = SimDisk(self.clock, f"{cluster.simulation.seed} name server")
        self.core: NameServer | None = None

    def start(self) -> None:
        if self.core is not None:
            return
        cluster = self.cluster
        cluster.simulation.note("= name server starts")
        core = self.core = NameServer(NameServerSettings(), self.clock, self.disk, "/data")
        cluster.network.listen(NAME_SERVER, core)

        def tick() -> None:
            if self.core is core:
                core.tick(self.clock.steady_ms())
                cluster.simulation.after(10 * TICK_US, tick)

        tick()

    def kill(self) -> None:
        if self.core is not None:
            self.cluster.simulation.note("! name server is killed")
            self.core = None
            self.disk.kill()
            self.cluster.network.stop(NAME_SERVER)


class BrokerHost:
    """The broker's machine: its disk stays, its processes come and go."""

    def __init__(self, cluster: Cluster, make_broker: MakeBroker) -> None:
        self.cluster = cluster
        self.make_broker = make_broker
        random = cluster.random
        self.clock = SimClock(cluster.simulation)
        self.disk = SimDisk(self.clock, f"{cluster.simulation.seed} broker")
        self.disk.make_dir("/data")
        self.disk.sync_dir("/")
        self.disk.cold_ratio = random.choice((0.0, 0.0, 0.05, 0.5))
        self.sync_slowest_us = random.choice((3_000, 30_000, 400_000))
        self.settings: dict[str, Any] = {
            "broker_name": "sim-broker",
            "namesrv_addr": NAME_SERVER,
            "store_path_root_dir": ROOT,
            "flush_disk_type": "SYNC_FLUSH" if cluster.sync_flush else "ASYNC_FLUSH",
            "mapped_file_size_commit_log": random.choice((16_384, 65_536)),
            "mapped_file_size_consume_queue": random.choice((20 * 7, 20 * 50)),
            "max_hash_slot_num": 40,
            "max_index_num": random.choice((30, 200)),
            "flush_interval_consume_queue": random.choice((100, 1_000)),
            "flush_consumer_offset_interval": random.choice((500, 5_000)),
            "default_topic_queue_nums": 4,
            "clean_file_forcibly_enable": False,
            "sync_flush_timeout": random.choice((200, 5_000)),
        }
        self.core: Broker | None = None
        self.serving = False
        self.runs = 0
        self._background: SimBackground | None = None
        self._caller: SimCaller | None = None
        self._power_lost = False
        self._flushed = 0
        self._ends: dict[tuple[str, int], int] = {}
        self._starting = 0

    def start_later(self, *, soon: bool = False) -> None:
        simulation = self.cluster.simulation
        self._starting += 1
        number = self._starting
        delay = self.cluster.random.randint(SECOND // 2, SECOND if soon else 3 * SECOND)
        simulation.after(delay, lambda: self.start() if number == self._starting else None)

    def start(self) -> None:
        if self.core is not None:
            return
        cluster = self.cluster
        simulation = cluster.simulation
        self.runs += 1
        failing = self.disk.fail_syncs + len(self.disk.faults)
        self._background = SimBackground(simulation, slowest_us=self.sync_slowest_us)
        self._caller = SimCaller(cluster.network, "10.0.0.2")
        if cluster.random.random() < 0.1 and not cluster.calm:
            self.disk.power_off_after(cluster.random.randint(1, 60))  # also while it recovers
        core = self.make_broker(
            BrokerSettings(**self.settings), self.disk, self.clock, self._background, self._caller,
            Random(f"broker {simulation.seed} {self.runs}"), 1 << 24,
        )  # fmt: skip
        try:
            core.open()
        except (OSError, Damaged) as error:
            if not self.disk.full and not failing:
                raise
            simulation.note(f"! the broker cannot start: {error}")
            self.disk.kill()
            self.start_later()
            return
        simulation.note(f"= broker starts, {core.store.recovered_records} records read, log to {core.store.log.end}")
        self.core = core
        core.listening(BROKER, BROKER_HOST)
        cluster.checker.started(core, power_lost=self._power_lost, flushed=self._flushed, ends=self._ends)
        self._power_lost = False
        cluster.network.listen(BROKER, core)
        self.serving = True

        def tick() -> None:
            if self.core is core and self.serving:
                simulation.after(TICK_US, tick)
                core.tick(self.clock.steady_ms())

        tick()

    def power_loss(self) -> None:
        self.cluster.simulation.note("! power loss")
        # Under ASYNC_FLUSH a receipt that comes after the restart may speak of what is gone: that would tell us nothing.
        self._down(slowest_us=3 * SECOND if self.cluster.sync_flush else SECOND // 3)
        self._power_lost = True
        self.disk.crash()

    def kill(self) -> None:
        self.cluster.simulation.note("! broker is killed")
        self._down(slowest_us=50_000)
        self.disk.kill()

    def stop_cleanly(self, then: Callable[[], None]) -> None:
        """As the program stops: nothing more is served, what runs in the background is waited for, everything is saved."""
        core = self.core
        assert core is not None
        simulation = self.cluster.simulation
        simulation.note("= broker stops")
        self.serving = False
        self.cluster.network.stop(BROKER)

        def wait() -> None:
            if self.core is not core:
                return  # it was killed meanwhile
            if core.saving:
                simulation.after(5_000, wait)
                return
            core.close()
            self._down(slowest_us=50_000)
            self.disk.kill()
            then()

        wait()

    def _down(self, slowest_us: int) -> None:
        self.serving = False
        if self._background is not None:
            self._background.kill()
        if self._caller is not None:
            self._caller.kill()
        if self.core is not None:
            self._flushed = self.core.store.log.flushed
            self._ends = {key: queue.visible for key, queue in self.core.store.queues.items()}
            if self.cluster.network.core_at(BROKER) is self.core:
                self.cluster.network.stop(BROKER, slowest_us=slowest_us)
            self.core = None


class ClientHost:
    """A client process. What it sent and consumed before it died is remembered by the checker, not by it."""

    def __init__(self, cluster: Cluster, name: str, host: str, *, produces: bool, consumes: bool, reads: bool) -> None:
        self.cluster = cluster
        self.name = name
        self.host = host
        self.produces = produces
        self.consumes = consumes
        self.reads = reads
        self.random = Random(f"client {name} {cluster.simulation.seed}")
        self.clock = SimClock(cluster.simulation)
        self.run = 0
        self.alive = False
        self.count = 0
        self.finished = False
        """After the faults ended, it has sent one message more, and that was acknowledged."""
        self.pause_us = self.random.choice((250_000, 600_000, 1_500_000))
        self.under_way = 0
        self._core: ClientCore | None = None
        self._caller: SimCaller | None = None
        self._producer: ProducerCore | None = None
        self._alarm_ms = 0

    def start(self) -> None:
        cluster, simulation = self.cluster, self.cluster.simulation
        self.run += 1
        self.alive = True
        self.under_way = 0
        run = self.run
        simulation.note(f"= client {self.name} starts")
        caller = self._caller = SimCaller(cluster.network, self.host)
        core = self._core = ClientCore(
            name_servers=[NAME_SERVER],
            client_id=f"{self.host}@{self.name}" + (f"#{run}" if self.random.random() < 0.5 else ""),
            caller=caller,
            clock=self.clock,
            random=Random(f"client core {self.name} {run} {simulation.seed}"),
            ip=bytes(int(part) for part in self.host.split(".")),
            pid=run,
        )
        caller.handler = core.receive
        self._alarm_ms = 1 << 62
        core.timers.on_sooner = self._arm
        self._arm(core.next_due_ms())
        if self.produces:
            self._producer = ProducerCore(core, f"sim-producers-{self.name}", ProducerSettings(compress_over=600))
            self._producer.start()
            self._send_later()
        if self.consumes:
            settings = PushConsumerSettings(consume_from=FROM_FIRST, pull_batch_size=self.random.choice((2, 32)), suspend_ms=5_000)
            consumer = PushConsumerCore(core, GROUP, self._consume, settings)
            for topic in TOPICS:
                consumer.subscribe(topic)
            consumer.start()
        if self.reads:
            Reader(self, core).start()

    def kill(self) -> None:
        self.cluster.simulation.note(f"! client {self.name} is killed")
        self.alive = False
        if self._caller is not None:
            self._caller.kill()
        if self._core is not None:
            self._core.timers.on_sooner = None
            self._core.close()
        self._core = self._producer = None

    def if_alive(self, action: Callable[[], None]) -> Callable[[], None]:
        """For things to do later: nothing when this process is gone by then."""
        run = self.run
        return lambda: action() if self.alive and self.run == run else None

    # Time

    def _arm(self, due_ms: int) -> None:
        if due_ms < self._alarm_ms:
            self._alarm_ms = due_ms
            delay_us = max(1_000, (due_ms - self.clock.steady_ms()) * 1_000)
            self.cluster.simulation.after(delay_us, self.if_alive(lambda: self._ring(due_ms)))

    def _ring(self, alarm_ms: int) -> None:
        core = self._core
        if core is None or alarm_ms != self._alarm_ms:
            return
        self._alarm_ms = 1 << 62
        core.tick(self.clock.steady_ms())
        self._arm(core.next_due_ms())

    # Sending

    def _send_later(self) -> None:
        cluster = self.cluster
        if not (cluster.calm and self.finished):
            pause = cluster.simulation.between(1_000, self.pause_us * (10 if cluster.calm else 1))
            cluster.simulation.after(pause, self.if_alive(self._send))

    def _send(self) -> None:
        producer, random = self._producer, self.random
        assert producer is not None
        self._send_later()
        if self.under_way >= 16:
            return
        if random.random() < 0.1:
            self._send_batch(producer)
            return
        message = self._message(random.choice(TOPICS))
        last = self.cluster.calm
        self.under_way += 1

        def done(result: SendReceipt | RoquetError) -> None:
            self.under_way -= 1
            if isinstance(result, SendReceipt):
                self._acked(message, result)
                self.finished = self.finished or (last and result.ok)
            else:
                self.cluster.simulation.note(f"{self.name} send {name_of(message.body).decode()} failed: {type(result).__name__}")

        queue = MessageQueue(message.topic, "sim-broker", 0) if random.random() < 0.1 and self.count > 20 else None
        producer.send(message, done, queue=queue)

    def _send_batch(self, producer: ProducerCore) -> None:
        topic = self.random.choice(TOPICS)
        messages = [self._message(topic, batch=True) for _ in range(self.random.randint(1, 12))]
        self.under_way += 1

        def done(result: list[SendReceipt] | RoquetError) -> None:
            self.under_way -= 1
            if isinstance(result, list):
                for message, receipt in zip(messages, result, strict=True):
                    self._acked(message, receipt)

        producer.send_batch(messages, done)

    def _message(self, topic: str, *, batch: bool = False) -> Message:
        random = self.random
        self.count += 1
        name = f"{self.name}{self.run}.{self.count}"
        size = random.choice((0, 5, 40, 200, 700, 1_500 if random.random() < 0.5 else 3))
        message = Message(
            topic,
            body_of(name, random.randbytes(size) if random.random() < 0.5 else b"roquet" * (size // 6)),
            tags=random.choice(("", "red", "blue")),
            keys=random.choice(([], [name], [name, "all"])),
            properties={"count": str(self.count)} if random.random() < 0.3 else None,
            flag=random.choice((0, 7)),
            wait_store_ok=batch or random.random() < 0.95,
        )
        self.cluster.checker.sending(message)
        return message

    def _acked(self, message: Message, receipt: SendReceipt) -> None:
        queue = receipt.queue
        place = f"{queue.topic}/{queue.queue_id}@{receipt.queue_offset}"
        self.cluster.simulation.note(f"{self.name} sent {name_of(message.body).decode()} to {place}: {receipt.status.name}")
        self.cluster.checker.acknowledged(message, receipt)

    # Consuming

    def _consume(self, messages: list[ReceivedMessage], judge: Judged) -> None:
        for message in messages:
            self.cluster.simulation.note(f"{self.name} got {name_of(message.body).decode()}")
            self.cluster.checker.showed(message)
        # A few fail, twice at most: the broker brings them again ten seconds later, then thirty.
        fails = self.random.random() < 0.02 and messages[0].reconsume_times < 2
        if fails:
            self.cluster.checker.failed.update(name_of(message.body) for message in messages)

        def judged() -> None:
            if not fails:
                for message in messages:
                    self.cluster.checker.consume(GROUP, message)
            judge(Outcome.RETRY_LATER if fails else Outcome.SUCCESS)

        self.cluster.simulation.after(self.cluster.simulation.between(0, 50_000), self.if_alive(judged))


class Reader:
    """Reads every queue from the start and commits nothing: it sees what any consumer could see."""

    def __init__(self, host: ClientHost, core: ClientCore) -> None:
        self.host = host
        self.checker = host.cluster.checker
        self.simulation = host.cluster.simulation
        self.consumer = PullConsumerCore(core, READERS)
        self._reading: set[MessageQueue] = set()

    def start(self) -> None:
        self.consumer.start()
        self._look()

    def _look(self) -> None:
        for topic in TOPICS:
            self.consumer.fetch_queues(topic, self._found)
        self.simulation.after(2 * SECOND, self.host.if_alive(self._look))

    def _found(self, queues: list[MessageQueue] | RoquetError) -> None:
        if isinstance(queues, list):
            for queue in queues:
                if queue not in self._reading:
                    self._reading.add(queue)
                    self._read(queue, 0)

    def _read(self, queue: MessageQueue, offset: int) -> None:
        def done(result: PullResult | RoquetError) -> None:
            if isinstance(result, RoquetError):
                self._again(queue, offset, 500_000)
                return
            if result.status is PullStatus.OFFSET_ILLEGAL:
                self.checker.sent_back(queue.topic, queue.queue_id, offset, result.next_offset)
                self._again(queue, result.next_offset, 200_000)
                return
            self.checker.told_end(queue.topic, queue.queue_id, result.max_offset)
            for message in result.messages:
                self.checker.showed(message)
                self.checker.consume(READERS, message)
            self._again(queue, result.next_offset, 10_000 if result.next_offset > offset else 100_000)

        self.consumer.pull(queue, offset, done, block_ms=4_000)

    def _again(self, queue: MessageQueue, offset: int, delay_us: int) -> None:
        self.simulation.after(delay_us, self.host.if_alive(lambda: self._read(queue, offset)))


class watched_log(logging.Handler):
    """The cores log what they survive. Here a logged exception is a failure, and warnings are part of the trace."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self.simulation = simulation
        self._logger = logging.getLogger("roquet")

    def __enter__(self) -> watched_log:
        self._before = self._logger.propagate, self._logger.level
        self._logger.propagate = False
        self._logger.setLevel(logging.WARNING)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate, self._logger.level = self._before

    def handle(self, record: logging.LogRecord) -> bool:
        self.simulation.note(f"  {record.levelname} {record.getMessage()}")
        if record.exc_info and record.exc_info[1] is not None:
            raise Violation(f"{record.getMessage()}: {record.exc_info[1]!r}") from record.exc_info[1]
        return True
