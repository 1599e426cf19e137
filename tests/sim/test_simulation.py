"""Clusters from seeds: the promises hold, one seed is one story, and the checker finds bugs that were put there for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from roquet.broker.core import Broker
from roquet.testing.simulate import SeedFailed, main, replay_command, run_seed
from roquet.testing.world import Cores, Shape
from tests.sim import planted

SEEDS = 100 if os.environ.get("ROQUET_LONG") else 20
CHUNK = 10
ONE_OF_EACH = Shape(groups=1, name_servers=1)
TWO_OF_EACH = Shape(groups=2, name_servers=2)
SHAPES = pytest.mark.parametrize("shape", [ONE_OF_EACH, TWO_OF_EACH], ids=["one-group", "two-groups"])


@SHAPES
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_holds_in_every_seed(first: int, shape: Shape) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed, shape)


@pytest.mark.parametrize("shape", [Shape(groups=3, name_servers=1, clients=5), Shape(groups=1, name_servers=3, clients=1)], ids=str)
def test_every_promise_holds_in_other_shapes(shape: Shape) -> None:
    for seed in range(3):
        run_seed(seed, shape)


@SHAPES
def test_one_seed_has_one_trace(shape: Shape) -> None:
    assert run_seed(3, shape).simulation.trace_hash() == run_seed(3, shape).simulation.trace_hash()


TRACE = "from roquet.testing.simulate import run_seed; print(*[run_seed(seed).simulation.trace_hash() for seed in (3, 8)])"


def test_the_trace_does_not_depend_on_the_process() -> None:
    """Another process has other addresses and other string hashes: what iterates over a set in that order shows here."""

    def traces(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", TRACE], env=environment, capture_output=True, text=True, check=True, timeout=900)
        return run.stdout

    assert traces("1") == traces("2")


@pytest.mark.parametrize(
    ("bug", "symptom"),
    [
        (planted.answers_before_the_flush, "was acknowledged at"),
        (planted.shows_before_the_flush, "was shown at|a consumer was told|was sent back to"),
        (planted.counts_a_failed_fsync, "was acknowledged at|was shown at|was flushed to|leads to log offset"),
    ],
)
def test_the_checker_finds_a_bug_planted_in_a_broker(bug: Callable[..., Broker], symptom: str) -> None:
    assert_found(ONE_OF_EACH, Cores(broker=bug), symptom, first=31)


@pytest.mark.parametrize(
    ("cores", "symptom"),
    [
        (Cores(broker=planted.registers_with_the_first_name_server_only), "name server 1 does not know sim-broker-[01].0 at"),
        (Cores(broker=planted.comes_back_with_an_empty_disk), "was acknowledged at|was flushed to"),
        (Cores(name_server=planted.hides_the_second_group), "(acknowledged by|group sim-group never got .* of) sim-broker-1"),
        (Cores(producer=planted.SendsToTheFirstGroupOnly), "client [AB] had no message acknowledged by sim-broker-1"),
        (Cores(consumer=planted.takes_nothing_of_the_second_group), "group sim-group never got .* of sim-broker-1"),
    ],
)
def test_the_checker_finds_a_bug_planted_between_groups(cores: Cores, symptom: str) -> None:
    assert_found(TWO_OF_EACH, cores, symptom)


@pytest.mark.parametrize(
    ("cores", "symptom"),
    [
        (Cores(producer=planted.gathers_out_of_order), "message .* of key .* stands at"),
        (Cores(producer=planted.SendsTwice), "was sent once, and is there 2 times"),
    ],
)
def test_the_checker_finds_a_bug_planted_in_a_producer(cores: Cores, symptom: str) -> None:
    assert_found(ONE_OF_EACH, cores, symptom)


def assert_found(shape: Shape, cores: Cores, symptom: str, first: int = 0) -> None:
    """By one of 200 seeds; `first` is one that was seen to find it, which saves the time of those before."""

    def run_all() -> None:
        for seed in [*range(first, 200), *range(first)]:
            run_seed(seed, shape, cores)

    with pytest.raises(SeedFailed, match=symptom):
        run_all()


def broken(*parts: Any) -> Broker:
    raise RuntimeError("nobody can start this")


def test_a_failing_seed_says_how_to_see_it_again() -> None:
    with pytest.raises(SeedFailed, match=replay_command(17)):
        run_seed(17, cores=Cores(broker=broken))
    assert replay_command(17) == "python -m roquet.testing.simulate --seed 17 --trace"


def test_the_command_that_replays_a_seed_names_the_shape() -> None:
    shape = Shape(groups=1, name_servers=3)
    with pytest.raises(SeedFailed, match=replay_command(17, shape)):
        run_seed(17, shape, Cores(broker=broken))
    assert replay_command(17, shape) == "python -m roquet.testing.simulate --groups 1 --name-servers 3 --seed 17 --trace"


def test_the_replay_command_prints_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "= seed 3, 2 broker groups of 1, 2 name servers, 3 clients" in out
    assert "= at rest" in out
    assert "seed 3:" in out.splitlines()[-1]


def test_a_shape_that_cannot_be_is_refused_with_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seed", "3", "--groups", "0"])
    assert "0 groups, expected 1 to 20" in capsys.readouterr().err
