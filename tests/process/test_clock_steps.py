"""A running broker whose wall clock is set: back an hour, ahead ten years, and right again. libfaketime sets it for that process."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.process.beside import beside
from tests.process.line import Line, create_topic, pull, records, send_message
from tests.process.programs import PATIENCE_S, SMALL_FILES, Broker, Nursery

HOUR_S, YEAR_S = 3_600, 365 * 86_400
STEPS_S = (-HOUR_S, HOUR_S, -10 * YEAR_S, 10 * YEAR_S)
TOPIC = "stepped"

LIBRARIES = [path for root in ("/usr/lib", "/usr/lib64", "/usr/local/lib") for path in Path(root).glob("**/libfaketimeMT.so.1")]
LIBRARY = str(LIBRARIES[0]) if LIBRARIES else ""

pytestmark = pytest.mark.skipif(not LIBRARY, reason="libfaketime is not installed (Debian: apt-get install libfaketime)")


class FakeClock:
    """The wall clock of all programs of one nursery."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, ahead_s: int) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+d}\n")
        fresh.rename(self.path)

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self.path),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",  # a real clock leaves the times of old files alone
        }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Future[None]]]:
    def scenario(ahead_s: int) -> None:
        directory = tmp_path_factory.mktemp("clock")
        clock = FakeClock(directory / "clock")
        nursery = Nursery(clock.environment())
        settings = SMALL_FILES | {"flushConsumerOffsetInterval": "200", "flushDelayOffsetInterval": "200", "deleteWhen": every_hour()}
        with closing(nursery), nursery.broker(directory / "broker", settings) as made:
            set_the_clock(made, clock, ahead_s)

    with beside(scenario, STEPS_S) as begun:
        yield begun


def every_hour() -> str:
    return ";".join(f"{hour:02}" for hour in range(24))


def soon(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.02)


def bodies(line: Line) -> list[bytes]:
    found: list[bytes] = []
    while True:
        answer = line.ask(pull(TOPIC, len(found)))
        if answer.code:
            return found
        found += [record.body for record in records(answer)]


def checkpoint_s(broker: Broker) -> int:
    """Store time, in seconds, up to which the log is on disk."""
    data = (broker.store / "checkpoint").read_bytes() if (broker.store / "checkpoint").exists() else b""
    return int.from_bytes(data[:8], "big") // 1_000


def commit(line: Line, offset: int) -> None:
    fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    assert line.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


def saved_offset(broker: Broker) -> int:
    path = broker.store / "config/consumerOffset.json"
    text = path.read_text() if path.exists() else "{}"
    _, _, behind = text.partition(f'"{TOPIC}@g":{{')
    return int(behind.partition(":")[2].partition("}")[0].split(",")[0] or -1) if behind else -1


@pytest.mark.parametrize("ahead_s", STEPS_S)
def test_a_running_broker_goes_on_when_its_clock_is_set(ahead_s: int, outcomes: dict[int, Future[None]]) -> None:
    outcomes[ahead_s].result()


def set_the_clock(broker: Broker, clock: FakeClock, ahead_s: int) -> None:
    with Line(broker.address) as line:
        assert line.ask(create_topic(TOPIC, 1)).code == 0
        started_s = time.time()
        assert line.ask(send_message(TOPIC, b"before")).code == 0
        assert line.ask(send_message(TOPIC, b"delayed before", properties={"DELAY": "2"})).code == 0
        clock.set(ahead_s)
        broker.program.wait_for("set forward by" if ahead_s > 0 else "set back by")
        # Timers and delays, of before and of now.
        assert line.ask(send_message(TOPIC, b"delayed", properties={"DELAY": "1"})).code == 0
        assert line.ask(send_message(TOPIC, b"timed", properties={"TIMER_DELAY_SEC": "1", "UNIQ_KEY": "T1"})).code == 0
        soon("delivery", lambda: len(bodies(line)) == 4)
        assert sorted(bodies(line)) == [b"before", b"delayed", b"delayed before", b"timed"]
        # A long poll ends in time, not before and not never.
        begun = time.monotonic()
        assert line.ask(pull(TOPIC, 4, suspend_ms=1_000)).code == ResponseCode.PULL_NOT_FOUND
        assert 0.9 < time.monotonic() - begun < PATIENCE_S / 2
        # The log is synced, and offsets are saved.
        assert line.ask(send_message(TOPIC, b"synced")).code == 0
        soon("a checkpoint", lambda: abs(checkpoint_s(broker) - started_s - ahead_s) < 600)
        commit(line, 3)
        soon("saving of offsets", lambda: saved_offset(broker) == 3)
        # And back again, with a delayed message from the time in between.
        assert line.ask(send_message(TOPIC, b"of another time", properties={"DELAY": "1"})).code == 0
        clock.set(0)
        soon("delivery", lambda: len(bodies(line)) == 6)
    log_files = sorted(path.name for path in (broker.store / "commitlog").iterdir())
    assert broker.program.end(signal.SIGKILL) == -signal.SIGKILL
    again = broker.program.nursery.broker(broker.store.parent, SMALL_FILES)
    with again, Line(again.address) as line:
        assert len(bodies(line)) == 6
        assert sorted(path.name for path in (broker.store / "commitlog").iterdir()) == log_files
    assert json.loads((broker.store / "config/roquet.json").read_bytes())["clean"] is True
