"""Many connections, silent ones, slow ones and greedy ones: memory stays bounded and everybody else is served."""

from __future__ import annotations

import resource
import selectors
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from roquet.wire.command import Command
from roquet.wire.frame import Framer
from tests.hostile.conftest import SERVED_WITHIN_S, Victim
from tests.process.line import Line, create_topic, pull, records, send_message
from tests.process.programs import Broker, Nursery

IDLE = 10_000
PER_CONNECTION_MAX = 16 << 10
"""Bytes of anonymous memory that an idle connection may cost the broker."""


def allowed_connections() -> int:
    """As many as the system lets this process and the broker have, at most IDLE; the reason is printed when it is fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(IDLE, hard - 1_000 if hard != resource.RLIM_INFINITY else IDLE)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    count = min(count, (high - low) * 3 // 4)
    if count < IDLE:
        print(f"only {count} connections instead of {IDLE}: {hard} files per process, ports {low} to {high}")
    return count


def serve(line: Line, topic: str) -> None:
    begin = time.monotonic()
    answer = line.ask(send_message(topic, b"meanwhile", properties={"TAGS": "t"}))
    assert answer.code == 0, answer
    found = records(line.ask(pull(topic, int(answer.fields["queueOffset"]))))
    assert found[0].body == b"meanwhile"
    took = time.monotonic() - begin
    assert took < SERVED_WITHIN_S, f"served after {took:.1f} s"


@pytest.fixture
def quiet_broker(nursery: Nursery, tmp_path: Path) -> Iterator[Broker]:
    """A broker of one's own, with a topic, to measure."""
    with nursery.broker(tmp_path) as broker:
        with Line(broker.address) as line:
            assert line.ask(create_topic("topic", 1)).code == 0
            serve(line, "topic")
        yield broker
    assert "Traceback" not in broker.program.text


def test_ten_thousand_idle_connections_cost_little_and_disturb_nobody(quiet_broker: Broker) -> None:
    count = allowed_connections()
    before = quiet_broker.rss
    with ExitStack() as stack:
        worker = stack.enter_context(Line(quiet_broker.address))
        lines = []
        for number in range(count):
            lines.append(stack.enter_context(Line(quiet_broker.address)))
            if number % 2_500 == 0:
                serve(worker, "topic")
        # Accepted, every one: the last of them gets an answer.
        assert lines[-1].ask(Command(26)).code == 0
        serve(worker, "topic")
        cost = (quiet_broker.rss - before) / count
        print(f"{count} idle connections, {cost:.0f} bytes each")
        assert cost < PER_CONNECTION_MAX
        for line in lines[:: count // 100]:
            assert line.ask(Command(26)).code == 0
    with Line(quiet_broker.address) as line:
        serve(line, "topic")


def test_connections_beyond_the_limit_are_refused_clearly_and_come_in_when_others_leave(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.broker(tmp_path, {"connectionsMax": "20"}) as broker, ExitStack() as stack:
        lines = [stack.enter_context(Line(broker.address)) for _ in range(20)]
        assert all(line.ask(Command(26)).code == 0 for line in lines)
        for _ in range(100):
            with Line(broker.address) as refused:
                assert refused.receive() is None
        assert "20" in broker.program.wait_for("connectionsMax=")
        assert broker.program.text.count("connectionsMax=") < 5, "one line for each of them would fill the disk"
        assert lines[0].ask(Command(26)).code == 0
        lines[1].drop()
        deadline = time.monotonic() + 600
        while True:
            with Line(broker.address) as again:
                again.send(Command(26, opaque=5).encode())
                if again.receive() is not None:
                    break
            assert time.monotonic() < deadline, "a place that became free is not given away"


def test_a_connection_that_stays_silent_is_closed_and_one_that_speaks_is_not(nursery: Nursery, tmp_path: Path) -> None:
    short = {"serverChannelMaxIdleTimeSeconds": "1"}
    with nursery.broker(tmp_path, short) as broker, Line(broker.address) as silent, Line(broker.address) as alive:
        silent.socket.settimeout(0.2)
        deadline = time.monotonic() + 600
        while True:
            assert alive.ask(Command(26)).code == 0
            try:
                assert silent.receive() is None
                break
            except TimeoutError:
                assert time.monotonic() < deadline, "silent, and still open"
        assert alive.ask(Command(26)).code == 0


def test_one_byte_at_a_time_gets_its_answer_and_holds_nobody_up(broker: Victim) -> None:
    request = send_message("served", b"slowly", properties={"TAGS": "t"})
    request.opaque = 77
    data = request.encode()
    with broker.line() as slow, broker.line() as other:
        for number in range(len(data)):
            slow.send(data[number : number + 1])
            if number % 50 == 0:
                serve(other, "served")
        answer = slow.receive()
    assert answer is not None
    assert (answer.code, answer.opaque) == (0, 77)


def test_many_that_announce_the_largest_frame_and_send_it_slowly_cost_what_they_sent(quiet_broker: Broker) -> None:
    """A hundred announce 16 MiB each and send one byte at a time: 1.6 GiB announced, nothing reserved."""
    before = quiet_broker.rss
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(quiet_broker.address)) for _ in range(100)]
        for line in lines:
            line.send((16 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))
        worker = stack.enter_context(Line(quiet_broker.address))
        for _ in range(30):
            for line in lines:
                line.send(b"{")
            worker.ask(Command(26))
        serve(worker, "topic")
        assert quiet_broker.rss - before < 16 << 20


# A reader that never reads

BIG = 1_000_000
REQUESTS = 3_000


def fill(broker: Broker, count: int, size: int) -> None:
    with Line(broker.address) as line:
        for number in range(count):
            assert line.ask(send_message("topic", bytes([number % 256]) * size, properties={"TAGS": "t"})).code == 0


def peak(broker: Broker) -> int:
    """The most memory it ever had, in bytes."""
    for line in Path(f"/proc/{broker.program.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1_024
    raise AssertionError("it is gone")


def push(line: Line, data: bytes, worker: Line) -> bool:
    """Send as much of this as the broker takes while somebody else is served; True when the broker closed the connection."""
    line.socket.setblocking(False)
    at = 0
    with selectors.DefaultSelector() as selector:
        selector.register(line.socket, selectors.EVENT_WRITE)
        while at < len(data):
            if not selector.select(1.0):
                return False  # it takes no more: paused
            try:
                at += line.socket.send(data[at : at + (1 << 18)])
            except OSError:
                return True
            serve(worker, "topic")
    return False


def test_a_reader_that_never_reads_is_bounded_and_others_are_served(quiet_broker: Broker) -> None:
    """Three thousand pulls of a megabyte each: 3 GB of answers asked for in a megabyte of requests, and none is taken."""
    fill(quiet_broker, 4, BIG)
    requests = b"".join(numbered(pull("topic", 1, count=1), number) for number in range(REQUESTS))
    before = peak(quiet_broker)
    with Line(quiet_broker.address, receive_buffer=4_096) as greedy, Line(quiet_broker.address) as worker:
        push(greedy, requests, worker)
        for _ in range(10):
            serve(worker, "topic")
        grown = peak(quiet_broker) - before
        print(f"the peak grew by {grown >> 20} MiB")
        assert grown < 192 << 20
        serve(worker, "topic")


def test_a_reader_that_reads_slowly_gets_everything_it_asked_for(quiet_broker: Broker) -> None:
    """Paused is not lost: within the limit of what may wait, all answers arrive, in order and whole."""
    fill(quiet_broker, 4, BIG)
    count = 40
    with Line(quiet_broker.address, receive_buffer=4_096) as slow:
        for number in range(count):
            slow.send(numbered(pull("topic", 1, count=1), number))
        framer = Framer()
        opaques: list[int] = []
        while len(opaques) < count:
            data = slow.socket.recv(100_000)
            assert data
            for _, header, body in framer.feed(data):
                opaques.append(int(header.split(b'"opaque":')[1].split(b",")[0]))
                assert len(body) > BIG
        assert opaques == list(range(count))


def test_many_parked_pulls_and_one_large_message_do_not_multiply_without_bound(quiet_broker: Broker) -> None:
    """One connection parks 400 long polls and reads nothing; then a message of 2 MB comes: 800 MB of answers at once."""
    with Line(quiet_broker.address, receive_buffer=4_096) as greedy, Line(quiet_broker.address) as worker:
        offset = int(worker.ask(Command(30, {"topic": "topic", "queueId": "0"})).fields["offset"])
        greedy.send(b"".join(numbered(pull("topic", offset, suspend_ms=20_000), number) for number in range(400)))
        greedy.send(numbered(Command(26), 999))
        assert greedy.receive() is not None  # they are parked
        before = peak(quiet_broker)
        assert worker.ask(send_message("topic", bytes(2_000_000), properties={"TAGS": "t"})).code == 0
        serve(worker, "topic")
        grown = peak(quiet_broker) - before
        print(f"the peak grew by {grown >> 20} MiB")
        assert grown < 192 << 20


def test_many_readers_that_never_read_are_bounded_together(quiet_broker: Broker) -> None:
    """Sixteen ask for 48 MB each. Nobody is closed for it: each gets what else it asked for when it takes its answers."""
    fill(quiet_broker, 4, BIG)
    requests = b"".join(numbered(pull("topic", 1, count=1), number) for number in range(48))
    before = quiet_broker.rss
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(quiet_broker.address, receive_buffer=4_096)) for _ in range(16)]
        for greedy in lines:
            greedy.send(requests)
        worker = stack.enter_context(Line(quiet_broker.address))
        serve(worker, "topic")
        grown = quiet_broker.rss - before
        print(f"grew by {grown >> 20} MiB")
        assert grown < 128 << 20
        for greedy in lines[:2]:
            framer = Framer()
            left = 48
            while left:
                data = greedy.socket.recv(1 << 20)
                assert data
                left -= len(framer.feed(data))


def numbered(command: Command, opaque: int) -> bytes:
    command.opaque = opaque
    return command.encode()


def test_connections_that_are_reset_while_answers_are_under_way_are_forgotten(quiet_broker: Broker) -> None:
    fill(quiet_broker, 2, BIG)
    before = quiet_broker.rss
    requests = b"".join(numbered(pull("topic", 1, count=1), number) for number in range(20))
    for _ in range(200):
        with Line(quiet_broker.address) as line:
            line.send(requests)
    with Line(quiet_broker.address) as line:
        serve(line, "topic")
    assert quiet_broker.rss - before < 64 << 20
