"""One broker and one name server, live, for all hostile tests; after each test both must be as well as before it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.process.line import Line, create_topic, pull, records, send_message
from tests.process.programs import Broker, Nursery, Server

SERVED_WITHIN_S = 90.0
"""A proper answer to somebody else, by the clock on the wall: a busy machine may be in the way, and the answer comes at last."""
SERVED_WITHIN_CPU_S = 2.0
"""The same by the server's own processor time, which does not depend on the machine's other work."""
GROWTH_MAX = 96 << 20
"""Bytes of anonymous memory by which a server may grow over all these tests together."""


class Victim:
    """A live server under attack."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.address = server.address
        self.directory = directory
        self.is_broker = isinstance(server, Broker)
        self.probe = Command(RequestCode.GET_BROKER_CONFIG if self.is_broker else RequestCode.GET_NAMESRV_CONFIG)
        if self.is_broker:
            assert self.ask(create_topic("served", 1)).code == 0
        self._serve()
        self._rss = server.rss

    def line(self) -> Line:
        return Line(self.address)

    def ask(self, command: Command) -> Command:
        """On a connection of its own."""
        with self.line() as line:
            return line.ask(command)

    def settings(self) -> str:
        return self.ask(self.probe).body.decode()

    def attack(self, data: bytes) -> list[Command]:
        """Send these bytes and a probe behind them, then no more: every answer until the server closes the connection.

        The probe is answered unless the bytes made the server close the connection, or swallowed it as part of a frame.
        """
        with self.line() as line:
            try:
                self.probe.opaque = PROBE
                line.send(data + self.probe.encode())
                line.socket.shutdown(1)
            except OSError:
                pass  # closed already, in the middle of what we said
            return line.receive_until_closed()

    def check(self) -> None:
        """Alive, serving others, no bigger, and nothing happened that its authors did not foresee."""
        assert self.server.program.is_alive(), self.server.program.text
        begin, used = time.monotonic(), self.server.cpu_s
        self._serve()
        took, used = time.monotonic() - begin, self.server.cpu_s - used
        assert took < SERVED_WITHIN_S, f"others were served after {took:.1f} s"
        assert used < SERVED_WITHIN_CPU_S, f"others were served after {used:.1f} s of the server's work"
        grown = self.server.rss - self._rss
        assert grown < GROWTH_MAX, f"it grew by {grown >> 20} MiB"
        text = self.server.program.text
        assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:3_000]

    def _serve(self) -> None:
        with self.line() as line:
            assert line.ask(self.probe).code == 0
            if self.is_broker:
                deadline = time.monotonic() + SERVED_WITHIN_S
                while True:
                    answer = line.ask(send_message("served", b"well", properties={"TAGS": "t"}))
                    if answer.code != ResponseCode.SYSTEM_BUSY or time.monotonic() > deadline:
                        break  # busy is a proper answer, for a moment
                assert answer.code == 0, answer
                assert [record.body for record in records(line.ask(pull("served", int(answer.fields["queueOffset"]))))] == [b"well"]

    def files(self) -> set[str]:
        """Everything there is on disk around it, by name, but its output and what it writes on its own account and in its own
        time: its documents, and the queue files of topics that it has."""
        root = self.directory.parent
        found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.name.startswith("output-")}
        topics = set(json.loads(self.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]) if self.is_broker else set()
        own = ("inside/store/config/", "inside/store/index/", *(f"inside/store/consumequeue/{topic}/" for topic in topics))
        return {name for name in found if not f"{name}/".startswith(own)}


PROBE = 0x50524F42


@pytest.fixture(scope="package")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="package")
def live_broker(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    directory = tmp_path_factory.mktemp("broker") / "deep" / "inside"
    with nursery.broker(directory) as server:
        yield Victim(server, directory)
    assert "Traceback" not in server.program.text


@pytest.fixture(scope="package")
def live_name_server(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    directory = tmp_path_factory.mktemp("namesrv") / "deep" / "inside"
    with nursery.name_server(directory) as server:
        yield Victim(server, directory)
    assert "Traceback" not in server.program.text


@pytest.fixture
def broker(live_broker: Victim) -> Iterator[Victim]:
    yield live_broker
    live_broker.check()


@pytest.fixture
def name_server(live_name_server: Victim) -> Iterator[Victim]:
    yield live_name_server
    live_name_server.check()


@pytest.fixture(params=["broker", "name server"])
def server(request: pytest.FixtureRequest, live_broker: Victim, live_name_server: Victim) -> Iterator[Victim]:
    """Each of the two."""
    victim = live_broker if request.param == "broker" else live_name_server
    yield victim
    victim.check()


# For tests of the cores in this process


class LastResort(logging.Handler):
    """Collects what was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.caught.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@pytest.fixture
def last_resort() -> Iterator[LastResort]:
    handler = LastResort()
    logger = logging.getLogger("roquet")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)
