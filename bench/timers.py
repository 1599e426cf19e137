"""Timed messages: memory with millions pending, and how late they come.

    python bench/timers.py [--pending 2000000] [--rate 5000] [--seconds 10] [--queues 8]

Starts a broker, loads it with messages due over 40 days (none of them during the run), reads its anonymous memory; then
sends messages due at a steady rate and pulls them with long polling as a consumer does. Lateness is from a message's due
time (TIMER_OUT_MS, which it carries) to the moment its record arrived here, on one clock.
"""

from __future__ import annotations

import argparse
import re
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frames import BODY, FIRST_OPAQUE, KEY_HEAD, SEND_MESSAGE_V2, Stream, frame
from load import Outcome, Sender, connect, drive, parse_header
from servers import ROQUET, Launcher, Running, anonymous_mib

TOPIC, DUE_TOPIC = "BenchPending", "BenchDue"
DAYS = 40
DAY_MS = 86_400_000
QUIET_MS = 2 * 3_600_000  # none of the pending is due before
LEAD_MS = 3_000  # the first of the due messages comes so long after all are sent
CHUNK = 50_000
SETTLE_S = 15.0  # files and checkpoint are written
STRIDE = 7_919_000_003  # spreads the pending over the span in no order
DUE = re.compile(rb"TIMER_OUT_MS\x01(\d{13})")
PULL_NOTHING_NEW = 19
SETTINGS = {"waitTimeMillsInSendQueue": "60000"}  # a busy machine must not make it refuse what is being loaded
MEMORY_MAX_MIB = 100.0
LATE_MAX_MS = 100.0


@dataclass(frozen=True)
class Result:
    pending: int
    memory_mib: float
    load_rate: float
    load_cpu_us: float
    due: int
    lateness_ms: list[float]
    """Sorted."""
    store_lateness_ms: list[float]
    """The same up to the broker's store time of the delivery."""
    due_cpu_us: float

    def late(self, share: float) -> float:
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(share * len(self.lateness_ms)))]


class TimedStream(Stream):
    """Sends that are due at a given time. All frames are equally long."""

    def timed(self, dues: list[int], first_key: int) -> tuple[bytes, int]:
        properties = b"UNIQ_KEY\\u0001" + KEY_HEAD + b"%012X\\u0002WAIT\\u0001true\\u0002TIMER_DELIVER_MS\\u0001%013d"
        template = self._send(SEND_MESSAGE_V2, properties, b"false")
        size = len(template % (0, first_key, 0, FIRST_OPAQUE))
        head = struct.pack(">ii", 4 + size + len(BODY), size)
        whole = head.replace(b"%", b"%%") + template + BODY.replace(b"%", b"%%")
        queues = self.queues
        frames = [whole % (n % queues, first_key + n, due, FIRST_OPAQUE + n) for n, due in enumerate(dues)]
        return b"".join(frames), 8 + size + len(BODY)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(running: Running, stream: TimedStream, dues: Iterator[int], count: int, inflight: int = 256) -> float:
    """Send so many, each due at the next time; seconds it took."""
    outcome, sender = Outcome(), Sender(running.port, 60.0)
    key = time.time_ns() // 1000 & 0xFFFFFFFFFFFF
    seconds = 0.0
    for begin in range(0, count, CHUNK):
        some = [next(dues) for _ in range(min(CHUNK, count - begin))]
        frames, size = stream.timed(some, key + begin)
        sender.load(memoryview(frames), size, inflight)
        began = time.perf_counter()
        drive([sender], outcome, 60.0)
        seconds += time.perf_counter() - began
    sender.socket.close()
    if outcome.errors:
        raise RuntimeError(f"{outcome.errors} timed sends were refused, the first with {outcome.first_error}")
    return seconds


class Consumer:
    """Pulls every queue with long polling and notes when each message came."""

    def __init__(self, running: Running, stream: Stream) -> None:
        self.template = stream.pull_template(32).replace(b'"sysFlag":"4"', b'"sysFlag":"6"')
        self.connections: list[socket.socket] = [connect(running.port, 60.0) for _ in range(stream.queues)]
        self.rest = [b""] * stream.queues
        self.late: list[float] = []
        self.stored: list[float] = []
        for queue in range(stream.queues):
            self._pull(queue, 0)

    def _pull(self, queue: int, offset: int) -> None:
        self.connections[queue].sendall(frame(self.template % (queue, offset, FIRST_OPAQUE)))

    def run(self, count: int, deadline_s: float) -> None:
        by_descriptor = {connection.fileno(): queue for queue, connection in enumerate(self.connections)}
        with select.epoll() as poll:
            for descriptor in by_descriptor:
                poll.register(descriptor, select.EPOLLIN)
            while len(self.late) < count and time.monotonic() < deadline_s:
                for descriptor, _ in poll.poll(0.5):
                    self._take(by_descriptor[descriptor])

    def _take(self, queue: int) -> None:
        data = self.connections[queue].recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed a consumer's connection")
        came = time.time_ns() / 1e6
        data = self.rest[queue] + data
        at = 0
        while len(data) - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            header = parse_header(data, at)
            if header["code"] == 0:
                self._note(data, at, stop, came)
            elif header["code"] != PULL_NOTHING_NEW:
                raise RuntimeError(f"a pull was answered {header['code']}: {header.get('remark')}")
            self._pull(queue, int(header["extFields"]["nextBeginOffset"]))
            at = stop
        self.rest[queue] = data[at:]

    def _note(self, data: bytes, at: int, stop: int, came: float) -> None:
        at += 8 + (int.from_bytes(data[at + 4 : at + 8], "big") & 0xFFFFFF)
        while at < stop:
            size = int.from_bytes(data[at : at + 4], "big")
            found = DUE.search(data, at, at + size)
            if found is None:
                raise RuntimeError("a message came that was not timed")
            due = int(found[1])
            self.late.append(came - due)
            self.stored.append(int.from_bytes(data[at + 56 : at + 64], "big") - due)
            at += size

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def measure(
    running: Running, say: Callable[[str], None], *, pending: int = 2_000_000, rate: int = 5_000, seconds: int = 10, queues: int = 8
) -> Result:
    for topic in (TOPIC, DUE_TOPIC):
        running.create_topic(topic, queues)
    start, span = now_ms() + QUIET_MS, DAYS * DAY_MS - QUIET_MS - 3_600_000
    say(f"sending {pending:,} messages due over {DAYS} days")
    cpu = running.cpu()
    took = send(running, TimedStream(TOPIC, queues), (start + n * STRIDE % span for n in range(pending)), pending) if pending else 0.0
    time.sleep(SETTLE_S)
    load_cpu = (running.cpu() - cpu) / max(1, pending) * 1e6
    memory = anonymous_mib(running.pid)
    say(f"{memory:.0f} MiB anonymous memory with {pending:,} pending; {pending / took if took else 0:,.0f} sends/s")

    count = rate * seconds
    stream = TimedStream(DUE_TOPIC, queues)
    # Due from a moment at which all of them are sent, judged by a few and with room to spare.
    trial = 2_000
    far = iter([now_ms() + QUIET_MS] * trial)
    took_trial = send(running, TimedStream(TOPIC, queues), far, trial)
    first = now_ms() + int(took_trial / trial * count * 1_500) + LEAD_MS
    say(f"sending {count:,} messages due at {rate:,}/s")
    send(running, stream, (first + n * 1_000 // rate for n in range(count)), count)
    if now_ms() > first:
        say(f"sending took {now_ms() - first} ms longer than expected: the first ones are late by that")
    consumer = Consumer(running, stream)
    time.sleep(max(0.0, (first - now_ms()) / 1_000 - 0.2))
    cpu = running.cpu()
    consumer.run(count, time.monotonic() + seconds + 30)
    due_cpu = (running.cpu() - cpu) / count * 1e6
    consumer.close()
    if len(consumer.late) != count:
        raise RuntimeError(f"{len(consumer.late):,} of {count:,} due messages came")
    if min(consumer.late) < 0:
        raise RuntimeError(f"a message came {-min(consumer.late):.1f} ms early")
    return Result(
        pending, memory, pending / took if took else 0.0, load_cpu, count, sorted(consumer.late), sorted(consumer.stored), due_cpu
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=2_000_000)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--queues", type=int, default=8)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="roquet-bench-") as directory,
        Launcher().pair(ROQUET, Path(directory), kill=True, **SETTINGS) as running,
    ):
        result = measure(
            running,
            lambda text: print(text, file=sys.stderr, flush=True),
            pending=options.pending,
            rate=options.rate,
            seconds=options.seconds,
            queues=options.queues,
        )
    late, stored = result.late(0.99), result.store_lateness_ms
    rows = [
        ("timers-memory", f"{result.memory_mib:.0f} MiB with {result.pending:,} pending", f"< {MEMORY_MAX_MIB:.0f} MiB",
         result.memory_mib < MEMORY_MAX_MIB),
        ("timers-lateness", f"p50 {result.late(0.5):.0f}, p99 {late:.0f}, max {result.lateness_ms[-1]:.0f} ms at {options.rate:,}/s",
         f"p99 <= {LATE_MAX_MS:.0f} ms", late <= LATE_MAX_MS),
    ]  # fmt: skip
    for key, value, target, met in rows:
        print(f"{key:<16} {value:<48} {target:<16} {'met' if met else 'MISSED'}")
    print(
        f"broker CPU: {result.load_cpu_us:.1f} us a timed send ({result.load_rate:,.0f}/s), {result.due_cpu_us:.1f} us a delivery with its "
        f"pull; up to its store time a delivery is {stored[int(0.99 * len(stored))]:.0f} ms late (p99)"
    )
    return 0 if all(met for *_, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
