"""Frames that begin and do not end: memory stays bounded over all connections, honest peers are served, and memory comes back."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from roquet.net.unfinished import LARGE, STALL_S, Unfinished
from roquet.wire.command import Command
from tests.process.line import Line, create_topic, pull, records, send_message
from tests.process.programs import PATIENCE_S, Nursery, Server

MIB = 1 << 20
LIMIT = 128 * MIB
BEGUN = 15 * MIB
OF = 16 * MIB - 4
COUNT = 200


def begin_frames(address: tuple[str, int], stack: ExitStack, watch: Server) -> int:
    """Send 15 MiB of a frame of 16 on many connections, as far as they are taken; returns the most memory that the server had."""
    data = memoryview(OF.to_bytes(4, "big") + (10).to_bytes(4, "big") + b'{"code":1}' + bytes(BEGUN))
    sent: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(COUNT):
            line = stack.enter_context(Line(address))
            line.socket.setblocking(False)
            selector.register(line.socket, selectors.EVENT_WRITE)
            sent[line.socket] = 0
        most, moved = watch.rss, time.monotonic()
        deadline = moved + 5 * STALL_S
        # Until all is taken or refused, or long enough for all of it to be taken by a server without a limit.
        while sent and time.monotonic() - moved < 2 * STALL_S and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    sent[one] += one.send(data[sent[one] : sent[one] + MIB])
                    moved = time.monotonic()
                except BlockingIOError:
                    continue
                except OSError:
                    sent[one] = len(data)
                if sent[one] == len(data):
                    selector.unregister(one)
                    del sent[one]
            most = max(most, watch.rss)
    return most


def wait_until_rss_below(server: Server, limit: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while server.rss > limit:
        assert time.monotonic() < deadline, f"{server.rss / MIB:.0f} MiB are still held, expected below {limit / MIB:.0f}"
        threading.Event().wait(0.05)


def test_200_frames_that_never_end_are_bounded_in_the_broker_and_honest_peers_are_served(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.broker(tmp_path) as broker:
        stop, slowest, failures = threading.Event(), [0.0], []

        def serve() -> None:
            try:
                with Line(broker.address) as honest:
                    number = 0
                    while not stop.wait(0.005):  # often enough to notice, and no load of its own
                        began = time.monotonic()
                        answer = honest.ask(send_message("topic", b"%d" % number, properties={"TAGS": "t"}))
                        assert answer.code == 0, answer
                        (found,) = records(honest.ask(pull("topic", int(answer.fields["queueOffset"]))))
                        assert found.body == b"%d" % number
                        slowest[0] = max(slowest[0], time.monotonic() - began)
                        number += 1
            except BaseException as error:
                failures.append(error)

        with Line(broker.address) as line:
            assert line.ask(create_topic("topic", 1)).code == 0
            assert line.ask(send_message("topic", bytes(4 * MIB), properties={"TAGS": "t"})).code == 0  # as large as an honest one may be
        before = broker.rss
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with ExitStack() as stack:
                most = begin_frames(broker.address, stack, broker)
                with Line(broker.address) as late:
                    answer = late.ask(send_message("topic", bytes(3 * MIB), properties={"TAGS": "t"}))
                    assert answer.code == 0, "a large frame waits its turn, and is taken"
        finally:
            stop.set()
            thread.join()
        print(f"before {before / MIB:.0f} MiB, at most {most / MIB:.0f}; the slowest send and pull took {slowest[0] * 1000:.0f} ms")
        assert not failures, failures
        assert most - before < LIMIT + 96 * MIB, "the limit, and a few frames on their way through"
        assert "unfinished frames is short" in broker.program.text
        wait_until_rss_below(broker, before + 24 * MIB)
        assert "Traceback" not in broker.program.text


def test_200_frames_that_never_end_are_bounded_in_the_name_server(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.name_server(tmp_path) as server:
        before = server.rss
        with ExitStack() as stack:
            most = begin_frames(server.address, stack, server)
            with Line(server.address) as honest:
                assert honest.ask(Command(206)).code == 0
        print(f"before {before / MIB:.0f} MiB, at most {most / MIB:.0f}")
        assert most - before < LIMIT + 96 * MIB
        wait_until_rss_below(server, before + 24 * MIB)


class Peer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.held = False
        self.closed = ""

    def hold_reading(self) -> None:
        self.held = True

    def go_on_reading(self) -> None:
        self.held = False

    def close(self, reason: str) -> None:
        self.closed = reason


def test_large_honest_frames_wait_for_each_other_and_all_are_taken() -> None:
    """Sixty-four tasks of a sink send 4 MiB at the same time: nobody is closed, whatever the order in which their bytes come."""
    unfinished = Unfinished(64 * MIB)
    peers = [Peer(str(number)) for number in range(64)]
    have = dict.fromkeys(peers, 0)
    now, most = 0.0, 0
    while have:
        now += 0.01
        for peer in list(have):
            if peer.held:
                continue
            have[peer] += 256 * 1024
            if have[peer] >= 4 * MIB:
                del have[peer]
                unfinished.note(peer, 0, 8, now, fresh=True)
            else:
                unfinished.note(peer, have[peer], 4 * MIB, now, fresh=have[peer] == 256 * 1024)
            most = max(most, unfinished.held)
        unfinished.tick(now)
        assert now < 60, "nobody goes on"
    assert not any(peer.closed for peer in peers)
    assert most <= 64 * MIB
    assert unfinished.held == 0


def test_who_stops_in_a_large_frame_is_closed_only_when_others_wait() -> None:
    unfinished = Unfinished(64 * MIB)
    lazy = [Peer(f"lazy {number}") for number in range(3)]
    for peer in lazy:
        unfinished.note(peer, MIB, 16 * MIB, 0.0, fresh=True)
    unfinished.tick(1_000.0)
    assert not any(peer.closed for peer in lazy)
    honest = Peer("honest")
    unfinished.note(honest, 256 * 1024, 4 * MIB, 1_000.0, fresh=True)
    assert honest.held
    unfinished.tick(1_000.05)
    assert not honest.held
    assert all("16777216" in peer.closed for peer in lazy)


def test_who_begins_many_large_frames_that_must_wait_is_closed_before_honest_ones() -> None:
    unfinished = Unfinished(64 * MIB)
    attackers = [Peer(str(number)) for number in range(100)]
    honest = Peer("honest")
    for peer in attackers[:50]:
        unfinished.note(peer, 256 * 1024, 16 * MIB, 0.0, fresh=True)
    unfinished.note(honest, 256 * 1024, 4 * MIB, 0.1, fresh=True)
    for peer in attackers[50:]:
        unfinished.note(peer, 256 * 1024, 16 * MIB, 0.2, fresh=True)
    assert unfinished.held <= 64 * MIB
    assert not honest.closed
    assert sum(bool(peer.closed) for peer in attackers) >= 30


def test_who_began_a_small_frame_first_goes_first() -> None:
    unfinished = Unfinished(64 * MIB)
    old = [Peer(str(number)) for number in range(1_000)]
    for peer in old:
        unfinished.note(peer, LARGE, LARGE + 8, 0.0, fresh=True)
    honest = Peer("honest")
    unfinished.note(honest, 1_000, 2_000, 1.0, fresh=True)
    assert not honest.closed
    assert unfinished.held <= 16 * MIB
    assert old[0].closed
    assert not old[-1].closed


@pytest.mark.parametrize("have", [100, LARGE + 1])
def test_a_connection_that_goes_takes_what_it_held_along(have: int) -> None:
    unfinished = Unfinished(64 * MIB)
    peers = [Peer(str(number)) for number in range(10)]
    for peer in peers:
        unfinished.note(peer, have, 16 * MIB, 0.0, fresh=True)
    for peer in peers:
        unfinished.forget(peer)
        unfinished.forget(peer)
    assert unfinished.held == 0
    late = Peer("late")
    unfinished.note(late, LARGE + 1, 16 * MIB, 1.0, fresh=True)
    assert not late.held
