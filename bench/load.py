"""The load generator: a process of its own, cheap beside the server, the same for every server.

    python bench/load.py send  --port P --topic T --count 200000 --inflight 64
    python bench/load.py batch --port P --topic T --count 640000 --inflight 8 --batch 32
    python bench/load.py pull  --port P --topic T --count 1000000 --queues 8
    python bench/load.py transaction|delay|back --port P --topic T --count 50000
    python bench/load.py mixed --port P --topic T --count 200000        one message in a hundred is rare, for:
    python bench/load.py tag|sql --port P --topic T --count 1000000     messages judged: whole passes over the queues

It lays the round's frames out beforehand, prints `ready`, waits for a line on standard input, drives the server with a
fixed number of requests in flight (an answer makes room for the next request), and prints one line of JSON. Answers are
split by their length words; every code is looked at, and one answer in 64 is read in full. A pull's records are walked.
What goes on a journey (transaction: committed; delay and back: delivered after a second) counts until its end: the round is
over when all of it is in the queues it was meant for.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from frames import FIRST_OPAQUE, PREPARED, RETRY_TOPIC, Admin, Stream, frame, read_frame

CHUNK_BYTES = 128 << 20  # of frames laid out at a time
READ = 1 << 16  # more, and every recv would map and unmap its buffer
OK = b'{"code":0,'
PULL_NOTHING_NEW, PULL_NOTHING_MATCHES = 19, 20
JOURNEYS = ("transaction", "delay", "back")
KINDS: dict[str, dict[str, Any]] = {
    "transaction": {"sys_flag": PREPARED, "properties": (("TRAN_MSG", "true"), ("PGROUP", "bench_producer"))},
    "delay": {"properties": (("DELAY", "1"),)},
    "mixed": {
        "properties": (("TAGS", "open"), ("amount", "17"), ("region", "eu")),
        "rare": (("TAGS", "paid"), ("amount", "99"), ("region", "eu")),
    },
}
FILTERS = {"tag": ("paid", "TAG"), "sql": ("amount > 50 AND region IN ('eu', 'us')", "SQL92")}


@dataclass
class Outcome:
    messages: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process
    errors: int = 0
    first_error: str = ""
    reads: int = 0  # recv calls: how far answers came bundled
    notes: list[str] = field(default_factory=list)

    def refuse(self, header: dict[str, Any]) -> None:
        self.errors += 1
        if not self.first_error:
            self.first_error = f"code {header.get('code')}: {header.get('remark')}"


def parse_header(data: bytes, at: int) -> dict[str, Any]:
    """The header of the frame that begins at `at`."""
    size = int.from_bytes(data[at + 4 : at + 8], "big") & 0xFFFFFF
    header = json.loads(data[at + 8 : at + 8 + size])
    assert isinstance(header, dict)
    return header


class Sender:
    """One connection that has its own run of equally long frames to send."""

    def __init__(self, port: int, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self.socket = connect(port, timeout_s)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.rest = b""
        self.answered = 0

    def load(self, frames: memoryview, size: int, window: int) -> None:
        self.frames, self.size, self.window = frames, size, window
        self.count = len(frames) // size
        self.left = self.count  # answers still to come

    def start(self) -> None:
        self.sent = min(self.window, self.count)
        self.socket.sendall(self.frames[: self.sent * self.size])

    def step(self, outcome: Outcome) -> None:
        """Take what arrived, count the answers, send as many requests more."""
        data = self.socket.recv(READ)
        if not data:
            raise ConnectionError(f"the server closed the connection with {self.left} answers to come")
        outcome.reads += 1
        if self.rest:
            data = self.rest + data
        at, have, answers, number = 0, len(data), 0, int.from_bytes
        while have - at >= 4:
            stop = at + 4 + number(data[at : at + 4], "big")
            if stop > have:
                break
            if not data.startswith(OK, at + 8) or not (self.answered + answers) & 63:
                self.check(data, at, outcome)
            at = stop
            answers += 1
        self.rest = data[at:]
        self.answered += answers
        self.left -= answers
        until = min(self.sent + answers, self.count)
        if until > self.sent:
            self.socket.sendall(self.frames[self.sent * self.size : until * self.size])
            self.sent = until

    def check(self, data: bytes, at: int, outcome: Outcome) -> None:
        header = parse_header(data, at)
        if header["code"] != 0:
            outcome.refuse(header)
        elif not (header["flag"] & 1 and header["opaque"] >= FIRST_OPAQUE and int(header["extFields"]["queueOffset"]) >= 0):
            outcome.refuse({"code": 0, "remark": f"an odd answer: {header}"})


class TransactionSender(Sender):
    """Every answer names a half message that is stored; the word that its transaction is committed goes out with the next ones."""

    stream: Stream
    first_key: int

    def step(self, outcome: Outcome) -> None:
        data = self.socket.recv(READ)
        if not data:
            raise ConnectionError(f"the server closed the connection with {self.left} answers to come")
        outcome.reads += 1
        data = self.rest + data
        at, have, answers, out = 0, len(data), 0, []
        while have - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > have:
                break
            header = parse_header(data, at)
            if header["code"] != 0:
                outcome.refuse(header)
            else:
                fields = header["extFields"]
                key = self.first_key + header["opaque"] - FIRST_OPAQUE
                # the broker's id ends with sixteen digits of the place in its log
                out.append(self.stream.end(key, int(fields["queueOffset"]), int(fields["msgId"][-16:], 16)))
            at = stop
            answers += 1
        self.rest = data[at:]
        self.answered += answers
        self.left -= answers
        until = min(self.sent + answers, self.count)
        out.append(bytes(self.frames[self.sent * self.size : until * self.size]))
        self.sent = until
        self.socket.sendall(b"".join(out))


class BackSender(Sender):
    def check(self, data: bytes, at: int, outcome: Outcome) -> None:
        header = parse_header(data, at)
        if header["code"] != 0 or not (header["flag"] & 1 and header["opaque"] >= FIRST_OPAQUE):
            outcome.refuse(header)


def connect(port: int, timeout_s: float) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def trusting() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def go() -> None:
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("standard input ended before the start signal")


class Meter:
    """Adds wall clock and own CPU time of its `with` blocks to an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def __enter__(self) -> None:
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.outcome.seconds += time.perf_counter() - self.began
        self.outcome.cpu_seconds += time.process_time() - self.cpu


# ---------------------------------------------------------------- send, batch


def chunks(stream: Stream, requests: int, batch: int) -> Iterator[tuple[bytes, int]]:
    """The round's frames, in buffers that fit in memory. `batch` 0: single sends."""
    key = time.time_ns() // 1000 & 0xFFFFFFFFFFFF  # a key counts on from the microsecond it was made in: unique over rounds
    _, size = stream.batches(1, batch, 0) if batch else stream.sends(1, 0)
    opaque, at_once = FIRST_OPAQUE, max(1, CHUNK_BYTES // size)
    for begin in range(0, requests, at_once):
        count = min(at_once, requests - begin)
        yield stream.batches(count, batch, key, opaque) if batch else stream.sends(count, key, opaque)
        key += count * (batch or 1)
        opaque += count


def run_sends(options: argparse.Namespace) -> Outcome:
    stream = stream_of(options)
    batch = options.batch if options.what == "batch" else 0
    outcome = Outcome()
    senders = [Sender(options.port, options.timeout, trusting() if options.tls else None) for _ in range(options.connections)]
    window = max(1, options.inflight // len(senders))
    waiting = True
    for frames, size in chunks(stream, options.count // (batch or 1), batch):
        whole = memoryview(frames)
        count = len(frames) // size
        share = -(-count // len(senders))
        for i, sender in enumerate(senders):
            sender.load(whole[i * share * size : min((i + 1) * share, count) * size], size, window)
        if waiting:
            go()
            waiting = False
        with Meter(outcome):
            drive(senders, outcome, options.timeout)
        outcome.messages += count * (batch or 1)
    return outcome


def drive(senders: list[Sender], outcome: Outcome, timeout_s: float) -> None:
    for sender in senders:
        sender.start()
    if len(senders) == 1:
        while senders[0].left:
            senders[0].step(outcome)
        return
    by_descriptor = {sender.socket.fileno(): sender for sender in senders if sender.left}
    with select.epoll() as poll:
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        while by_descriptor:
            ready = poll.poll(timeout_s)
            if not ready:
                raise TimeoutError("no answer on any connection")
            for descriptor, _ in ready:
                sender = by_descriptor[descriptor]
                sender.step(outcome)
                if not sender.left:
                    poll.unregister(descriptor)
                    del by_descriptor[descriptor]


def stream_of(options: argparse.Namespace) -> Stream:
    keys = (options.access_key, options.secret_key) if options.access_key else None
    return Stream(options.topic, options.queues, options.broker_name, wait=not options.no_wait, keys=keys, **KINDS.get(options.what, {}))


# ---------------------------------------------------------------- journeys


def run_journey(options: argparse.Namespace) -> Outcome:
    """Single requests on one connection, until what they bring about is in the queues of the topic (of the group's retry topic)."""
    stream, outcome = stream_of(options), Outcome()
    sender: Sender
    key = time.time_ns() // 1000 & 0xFFFFFFFFFFFF
    if options.what == "back":
        sender = BackSender(options.port, options.timeout)
        frames, size = stream.backs(physical_offsets(stream, options.port, options.count, options.timeout))
    else:
        if options.what == "transaction":
            sender = TransactionSender(options.port, options.timeout)
            sender.stream, sender.first_key = stream, key
        else:
            sender = Sender(options.port, options.timeout)
        frames, size = stream.sends(options.count, key)
    sender.load(memoryview(frames), size, options.inflight)
    topic, queues = (RETRY_TOPIC, 1) if options.what == "back" else (options.topic, options.queues)
    with Admin(f"127.0.0.1:{options.port}") as admin:
        wanted = admin.stored(topic, queues) + options.count
        go()
        with Meter(outcome):
            drive([sender], outcome, options.timeout)
            arrived, deadline = 0, time.monotonic() + options.timeout
            while not outcome.errors and (stored := admin.stored(topic, queues)) < wanted:
                if stored > arrived:
                    arrived, deadline = stored, time.monotonic() + options.timeout
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"{wanted - stored} of {options.count} messages did not arrive")
                time.sleep(0.01)
    outcome.messages = options.count
    return outcome


def physical_offsets(stream: Stream, port: int, count: int, timeout_s: float) -> list[int]:
    """Where the first `count` messages of the topic are in the log."""
    found: list[int] = []
    template = stream.pull_template(32)
    with connect(port, timeout_s) as connection:
        for queue in range(stream.queues):
            at, wanted = 0, (queue + 1) * count // stream.queues
            while len(found) < wanted:
                connection.sendall(frame(template % (queue, at, FIRST_OPAQUE)))
                header, body = read_frame(connection)
                if header["code"] != 0:
                    raise ValueError(f"queue {queue} has too few messages to send back: {header.get('remark')}")
                begin = 0
                while begin < len(body) and len(found) < wanted:
                    found.append(int.from_bytes(body[begin + 28 : begin + 36], "big"))
                    begin += int.from_bytes(body[begin : begin + 4], "big")
                at = int(header["extFields"]["nextBeginOffset"])
    return found


# ---------------------------------------------------------------- filtered pulls


def run_filtered(options: argparse.Namespace) -> Outcome:
    """One pull in flight per queue, each over its queue again and again. `messages` are those that the broker has judged;
    one in a hundred of them must have come."""
    template = stream_of(options).pull_template(options.most, *FILTERS[options.what])
    outcome, opaque, matched = Outcome(), FIRST_OPAQUE, 0
    with Admin(f"127.0.0.1:{options.port}") as admin:
        ends = admin.ends(options.topic, options.queues)
    if not all(ends):
        raise ValueError(f"{options.topic} has empty queues: {ends}")
    passes = -(-options.count // sum(ends))
    at, left, queue_of = [0] * options.queues, [passes] * options.queues, {}
    connection = connect(options.port, options.timeout)
    go()
    with Meter(outcome):
        for queue in range(options.queues):
            queue_of[opaque] = queue
            connection.sendall(frame(template % (queue, 0, opaque)))
            opaque += 1
        while queue_of:
            header, body = read_frame(connection)
            outcome.reads += 1
            queue = queue_of.pop(header["opaque"])
            if header["code"] not in (0, PULL_NOTHING_MATCHES, PULL_NOTHING_NEW):
                outcome.refuse(header)
                continue
            if header["code"] == 0:
                matched += count_in(body)
            following = int(header["extFields"]["nextBeginOffset"])
            if following <= at[queue]:
                raise ValueError(f"a pull of queue {queue} from {at[queue]} is to go on at {following}")
            outcome.messages += following - at[queue]
            at[queue] = following
            if following >= ends[queue]:
                at[queue] = 0
                left[queue] -= 1
            if left[queue]:
                queue_of[opaque] = queue
                connection.sendall(frame(template % (queue, at[queue], opaque)))
                opaque += 1
    if not outcome.errors and (outcome.messages != passes * sum(ends) or matched * 100 != outcome.messages):
        raise ValueError(f"{matched} messages matched of {outcome.messages} judged in {passes} passes over {sum(ends)}")
    return outcome


def count_in(body: bytes) -> int:
    at, records = 0, 0
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        records += 1
    return records


# ---------------------------------------------------------------- pull


def run_pulls(options: argparse.Namespace) -> Outcome:
    """One pull in flight per queue, each queue from its beginning, until `count` messages came or the queues end."""
    template = Stream(options.topic, options.queues, options.broker_name).pull_template(options.most)
    outcome, opaque, queue_of = Outcome(), FIRST_OPAQUE, {}
    connection = connect(options.port, options.timeout)
    first = []
    for queue in range(options.queues):
        queue_of[opaque] = queue
        first.append(frame(template % (queue, 0, opaque)))
        opaque += 1
    rest, wanted, number = b"", options.count, int.from_bytes
    go()
    with Meter(outcome):
        connection.sendall(b"".join(first))
        while queue_of:
            data = connection.recv(READ)
            if not data:
                raise ConnectionError(f"the server closed the connection with {len(queue_of)} answers to come")
            outcome.reads += 1
            if rest:
                data = rest + data
            at, have, more = 0, len(data), []
            while have - at >= 4:
                stop = at + 4 + number(data[at : at + 4], "big")
                if stop > have:
                    break
                header = parse_header(data, at)
                queue = queue_of.pop(header["opaque"])
                if header["code"] == 0:
                    outcome.messages += count_records(data, at, stop)
                    if outcome.messages < wanted:
                        queue_of[opaque] = queue
                        more.append(frame(template % (queue, int(header["extFields"]["nextBeginOffset"]), opaque)))
                        opaque += 1
                elif header["code"] != PULL_NOTHING_NEW:
                    outcome.refuse(header)
                at = stop
            rest = data[at:]
            if more:
                connection.sendall(b"".join(more))
    if outcome.messages < wanted:
        outcome.notes.append(f"the queues ended after {outcome.messages} messages")
    return outcome


def count_records(data: bytes, at: int, stop: int) -> int:
    """Records in a pull answer's body: each begins with its size, and the last must end where the frame does."""
    at += 8 + (int.from_bytes(data[at + 4 : at + 8], "big") & 0xFFFFFF)
    records, number = 0, int.from_bytes
    while at < stop:
        at += number(data[at : at + 4], "big")
        records += 1
    if at != stop:
        raise ValueError("a pull answer ends inside a record")
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("send", "batch", "pull", "mixed", *JOURNEYS, *FILTERS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--queues", type=int, default=8, help="at most 10: a queue is one digit")
    parser.add_argument("--broker-name", default="broker-a")
    parser.add_argument("--count", type=int, required=True, help="messages")
    parser.add_argument("--inflight", type=int, default=64, help="requests in flight over all connections")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="messages in a batch")
    parser.add_argument("--most", type=int, default=32, help="messages in a pull")
    parser.add_argument("--no-wait", action="store_true", help="WAIT=false: do not ask for the message to be flushed")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds without any answer after which to give up")
    parser.add_argument("--tls", action="store_true", help="encrypt, and trust any server")
    parser.add_argument("--access-key", default="", help="sign single sends with this key")
    parser.add_argument("--secret-key", default="", help="and its secret")
    parser.add_argument("--core", type=int, help="run on this core only")
    options = parser.parse_args()
    if not 1 <= options.queues <= 10:
        parser.error("--queues must be 1 to 10")
    if options.tls and options.connections > 1:
        parser.error("--tls goes with one connection: what OpenSSL has decrypted already, no poll tells")
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    run = {"pull": run_pulls, **dict.fromkeys(JOURNEYS, run_journey), **dict.fromkeys(FILTERS, run_filtered)}.get(options.what, run_sends)
    outcome = run(options)
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
