"""A sync master is killed under load, and its machine is gone: the slave has all that was acknowledged, and goes on as master."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Timer

from tests.process.line import Line, create_topic, max_offset, pull, records, send_message
from tests.process.programs import PATIENCE_S, SMALL_FILES, Broker, Nursery
from tests.process.test_sigkill import QUEUES, TOPIC, Load, read_on

ROUNDS = 60 if os.environ.get("ROQUET_LONG") else 5
PAIR = {**SMALL_FILES, "slaveTimeout": "600000", "brokerName": "broker-a"}


def start_pair(nursery: Nursery, master: Path, slave: Path) -> tuple[Broker, Broker]:
    """They have found each other, and a send waits for both."""
    first = nursery.broker(master, {**PAIR, "brokerRole": "SYNC_MASTER"})
    address = f"{first.address[0]}:{first.address[1] + 1}"
    second = nursery.broker(slave, {**PAIR, "brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": address})
    first.program.wait_for("is sent what follows")
    return first, second


def test_what_a_sync_pair_acknowledged_outlives_its_master_whichever_it_is(nursery: Nursery, tmp_path: Path) -> None:
    """The two change places round after round: what only the old master had is cut back, and nothing that was acknowledged is in that."""
    seed = int(os.environ.get("ROQUET_SEED") or time.time_ns() % 1_000_000)
    print(f"ROQUET_SEED={seed}")
    random = Random(seed)
    load, upto = Load(random), dict[int, int]()
    places = [tmp_path / "a", tmp_path / "b"]
    for round_number in range(ROUNDS):
        master, slave = start_pair(nursery, *places)
        with Line(master.address) as line:
            if round_number == 0:
                assert line.ask(create_topic(TOPIC, QUEUES)).code == 0
            read_on(line, load, upto)
        killer = Timer(random.uniform(0.05, 0.4), master.program.send_signal, (signal.SIGKILL,))
        load.run(master.address, killer.start)
        killer.join()
        master.program.end()
        slave.stop()
        for program in (master.program, slave.program):
            assert "Traceback" not in program.text, program.text
        places.reverse()
    master, slave = start_pair(nursery, *places)
    with slave, master, Line(master.address) as line:
        read_on(line, load, upto)
    assert len(load.acknowledged) > 20 * ROUNDS, "the load was none"


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_slave_serves_what_it_has_while_its_master_is_stopped_and_follows_it_again(nursery: Nursery, tmp_path: Path) -> None:
    master, slave = start_pair(nursery, tmp_path / "a", tmp_path / "b")
    with Line(master.address) as line:
        assert [line.ask(send_message("T", b"%d" % number)).code for number in range(10)] == [0] * 10
    slave.program.wait_for("topics, groups and progress are the master's")
    with Line(slave.address) as line:
        until(lambda: line.ask(pull("T", 0)).code == 0)  # its first round may have come before the topic
    master.stop()
    with slave, Line(slave.address) as line:
        answer = line.ask(pull("T", 0))
        assert answer.code == 0, answer
        assert [record.body for record in records(answer)] == [b"%d" % number for number in range(10)]
        assert line.ask(max_offset("T")).fields["offset"] == "10"
        assert line.ask(send_message("T", b"refused")).code == 14
        with nursery.broker(tmp_path / "a", {**PAIR, "brokerRole": "SYNC_MASTER"}) as master:
            master.program.wait_for("is sent what follows")
            with Line(master.address) as other:
                assert other.ask(send_message("T", b"again")).code == 0
            # It has the bytes; whether its queues show them already is another moment.
            until(lambda: line.ask(max_offset("T")).fields["offset"] == "11")
