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
from tests.sim import planted

SEEDS = 200
CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_holds_in_every_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


def test_one_seed_has_one_trace() -> None:
    assert run_seed(3).simulation.trace_hash() == run_seed(3).simulation.trace_hash()


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
def test_the_checker_finds_a_planted_bug(bug: Callable[..., Broker], symptom: str) -> None:
    def run_all() -> None:
        for seed in range(SEEDS):
            run_seed(seed, make_broker=bug)

    with pytest.raises(SeedFailed, match=symptom):
        run_all()


def test_a_failing_seed_says_how_to_see_it_again() -> None:
    def broken(*parts: Any) -> Broker:
        raise RuntimeError("nobody can start this")

    with pytest.raises(SeedFailed, match=replay_command(17)):
        run_seed(17, make_broker=broken)
    assert replay_command(17) == "python -m roquet.testing.simulate --seed 17 --trace"


def test_the_replay_command_prints_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "= seed 3" in out
    assert "= at rest" in out
    assert "seed 3:" in out.splitlines()[-1]
