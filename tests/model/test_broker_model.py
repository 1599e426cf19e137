"""Random sequences of everything that a client, an operator and a power cut can do, against a whole broker and a model of it.

What is compared, and which duplicates and losses are documented and so allowed, stands in `model.py`. ROQUET_LONG=1 runs many more.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis import strategies as st

from .model import COMMIT, ROLLBACK, UNKNOWN, Model, Step
from .planted import PLANTS, Plant

LONG = bool(os.environ.get("ROQUET_LONG"))
HOUR_MS = 3_600_000
EXAMPLES = 5_000 if LONG else 200
FIND_WITHIN, AT_A_TIME = 2_000, 40
"""Random sequences until a planted fault must have been found; most are within a hundred. They come in many short searches, since
Hypothesis begins each with small sequences, up to a tenth of what it may try, and those find little here."""
SEARCHES = [*range(2, FIND_WITHIN // AT_A_TIME), 0, 1]
"""Their seeds. The first two find nine of the 14 faults; those behind them find all within three searches, so they go first."""
FIRST = {"delay_cursors_are_saved_before_the_log_is_flushed": 11}
"""Of a fault that those find late: a seed that was seen to find it, which saves the time of those before."""

queues = st.integers(0, 2)
numbers = st.integers(0, 9)
kinds = st.sampled_from([COMMIT, ROLLBACK, COMMIT, ROLLBACK, UNKNOWN])
TIMER_NAMES = ["TIMER_DELIVER_MS", "__STARTDELIVERTIME", "TIMER_DELAY_MS"]


def step(name: str, *values: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), *values)


WAITS = {
    "fine": step("wait", st.sampled_from([1, 50, 100, 200, 300, 400])),  # shorter than the times between flushes
    "coarse": step("wait", st.sampled_from([500, 600, 1_000, 1_000, 2_500, 5_001, 11_000])),
    "any": step("wait", st.integers(1, 6_000)),
}
timer_ms = st.one_of(st.sampled_from([1, 30, 400, 900, 3_000, 5_000, 15_000, HOUR_MS, 3 * HOUR_MS]), st.integers(1, 9_000))
first_ones = st.one_of(st.integers(0, 2), numbers)

STEPS: dict[str, st.SearchStrategy[Step]] = {
    "send": step("send", queues, st.sampled_from([0, 0, 0, 3_000])),
    "batch": step("batch", queues, st.integers(1, 4)),
    "delayed": step("delayed", queues, st.one_of(st.integers(1, 3), st.integers(1, 7))),
    "timed": step("timed", queues, timer_ms, st.sampled_from(TIMER_NAMES)),
    "cancel": step("cancel", first_ones),
    "prepare": step("prepare", queues),
    "end": st.one_of(step("end", first_ones, kinds), step("end", first_ones, kinds, numbers)),
    "consume": st.one_of(
        step("consume", st.integers(0, 3), st.integers(0, 5), st.integers(0, 31), st.sampled_from([0, 0, 1, -1])),
        step("consume", st.integers(0, 3), st.just(5), st.sampled_from([31, 31, 5, 0]), st.sampled_from([1, 0])),
        step("consume", st.just(-1), st.just(9), st.just(511), st.just(1)),
    ),
    "wait": st.one_of(list(WAITS.values())),
    "ripen": step("ripen"),
    "hold": step("hold", st.sampled_from([True, True, False])),
    "work": step("work", st.sampled_from([1, 1, 2, 4])),
    "stop": step("stop"),
    "kill": step("kill"),
    "power": step("power", st.one_of(st.just(0), st.just(0), st.integers(0, 25))),
    "unlucky": step("unlucky", st.integers(1, 40)),
}
THEMES = [
    ("send",), ("batch",), ("delayed",), ("timed",), ("timed", "cancel"), ("prepare", "end"), ("consume",),
    ("hold", "work"), ("stop",), ("kill",), ("power",), ("unlucky",),
]  # fmt: skip
"""Kinds of steps that mean little without each other."""
MAKING, ENDING = ["send", "delayed", "timed", "prepare"], ["kill", "power"]


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    """Steps of a few kinds only, others each time: what only some kinds together show, and often enough, the others would drown.

    Those that fail are made short by putting "nothing" in place of steps that do not matter.
    """
    themes = draw(st.lists(st.sampled_from(THEMES), min_size=1, max_size=5, unique=True))
    chosen = ["wait", "ripen", draw(st.sampled_from(MAKING)), draw(st.sampled_from(ENDING)), *(kind for theme in themes for kind in theme)]
    size = draw(st.sampled_from([6, 10, 16, 30, 50]))
    pace = draw(st.sampled_from([STEPS["wait"], WAITS["fine"], WAITS["coarse"]]))
    one = st.sampled_from(chosen).flatmap((STEPS | {"wait": pace}).__getitem__)
    return draw(st.lists(st.one_of(step("nothing"), one, one, one, one, one, one), min_size=size, max_size=size))


EVERYTHING: list[Step] = [
    ("send", 0, 0), ("batch", 1, 3), ("delayed", 0, 1), ("delayed", 2, 99), ("timed", 1, 3_000, "TIMER_DELIVER_MS"),
    ("timed", 1, 4_000, "__STARTDELIVERTIME"), ("timed", 2, HOUR_MS, "TIMER_DELAY_MS"), ("cancel", 1), ("prepare", 0), ("prepare", 0),
    ("prepare", 1), ("prepare", 2), ("end", 0, COMMIT), ("end", 1, ROLLBACK), ("end", 0, ROLLBACK), ("end", 2, UNKNOWN), ("kill",),
    ("consume", 0, 2, 3, 1), ("consume", 1, 5, 1, 0), ("consume", 1, 5, 2, -1), ("wait", 1_100), ("consume", -1, 9, 511, 1),
    ("wait", 1_100), ("kill",), ("consume", -1, 9, 511, 1), ("wait", 2_500), ("unlucky", 9), ("consume", -1, 9, 511, 1), ("wait", 5_001),
    ("stop",), ("wait", 5_001), ("end", 2, COMMIT, 1), ("hold", True), ("send", 0, 0), ("work", 1), ("send", 0, 3_000), ("power", 3),
    ("wait", 5_001), ("send", 0, 0), ("power", 0), ("wait", 5_001),
]  # fmt: skip


class Complaints(logging.Handler):
    """What the broker logs as an error: parts that fail in a tick are only logged, and the others go on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


COMPLAINTS = Complaints()


@pytest.fixture(autouse=True, scope="module")
def _only_errors_are_logged() -> Iterator[None]:
    """A crash is worth a warning, and there are thousands here."""
    logger = logging.getLogger("roquet")
    logger.addHandler(COMPLAINTS)
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(COMPLAINTS)


AFTER_A_POWER_LOSS = re.compile(
    r"is missing|the log is damaged|the log has \d+ damaged places|the records of entries \d+ to \d+ are lost|the log ends at offset|"
    r"lead to no record of the log"
)
"""What a broker is to say when it finds traces of one."""


def complaints(model: Model) -> list[str]:
    return [text for text in COMPLAINTS.texts if not (model.losses and AFTER_A_POWER_LOSS.search(text))]


def run(steps: list[Step], flush: str, seed: int = 0, cold_ratio: float = 0.0) -> Counter[str]:
    COMPLAINTS.texts.clear()
    model = Model(flush, seed, cold_ratio)
    for one in steps:
        model.do(one)
        assert not complaints(model)
    model.finish()
    assert not complaints(model)
    return model.met


def searching(examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test of random sequences."""

    def made(test: Callable[..., None]) -> Callable[..., None]:
        flushes = st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"])
        driven = given(steps=sequences(), flush=flushes, seed=st.integers(0, 1 << 30), cold_ratio=st.sampled_from([0.0, 0.2]))(test)
        health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
        return settings(max_examples=examples, deadline=None, suppress_health_check=health, phases=phases)(driven)

    return made


LATER_ONES_OUTLIVED: list[Step] = [
    ("kill",), ("prepare", 0), ("prepare", 0), ("power", 0), ("power", 0), ("batch", 0, 1), ("batch", 0, 4), ("batch", 0, 1),
    ("consume", 0, 5, 31, 1), ("power", 0), ("ripen",), ("power", 0),
]  # fmt: skip
"""A power loss takes the first deliveries of a level and leaves later ones: those are not made again."""
DELAYED_ONES_LOST: list[Step] = [
    ("prepare", 0), ("kill",), ("prepare", 0), ("power", 0), ("batch", 0, 4), ("batch", 0, 1), ("batch", 0, 1), ("consume", 0, 5, 31, 1),
    ("power", 0), ("ripen",), ("power", 0),
]  # fmt: skip
"""One takes delayed messages: they are not said to have left with old files."""
AN_OP_RECORD_OUTLIVED_ITS_HALF: list[Step] = [("prepare", 0), ("send", 0, 0), ("end", 0, 8), ("power", 1), ("wait", 1), ("prepare", 0)]
"""Its number is given again: the op record of before ends nothing of what comes."""

TWO_HOLES: list[Step] = [
    ("prepare", 0), ("send", 0, 0), ("end", 0, 8), ("power", 1), ("wait", 1), ("prepare", 0), ("power", 3), ("end", 0, 8), ("ripen",),
    ("end", 0, 8),
]  # fmt: skip
"""A second power loss, before the next checkpoint: what was flushed since the first one counts."""


@searching(EXAMPLES)
@example(steps=EVERYTHING, flush="SYNC_FLUSH", seed=1, cold_ratio=0.0)
@example(steps=LATER_ONES_OUTLIVED, flush="ASYNC_FLUSH", seed=3456, cold_ratio=0.0)
@example(steps=DELAYED_ONES_LOST, flush="ASYNC_FLUSH", seed=3456, cold_ratio=0.0)
@example(steps=AN_OP_RECORD_OUTLIVED_ITS_HALF, flush="ASYNC_FLUSH", seed=0, cold_ratio=0.0)
@example(steps=TWO_HOLES, flush="ASYNC_FLUSH", seed=0, cold_ratio=0.0)
@example(steps=EVERYTHING, flush="ASYNC_FLUSH", seed=1, cold_ratio=0.2)
def test_nothing_is_lost_early_out_of_order_or_there_twice_whatever_happens(
    steps: list[Step], flush: str, seed: int, cold_ratio: float
) -> None:
    run(steps, flush, seed, cold_ratio)


SENT_BACK: Step = ("consume", -1, 9, 511, 1)
SOON: Step = ("timed", 0, 1, "TIMER_DELIVER_MS")
ONCE_WRONG: dict[str, tuple[str, int, float, list[Step]]] = {
    "a timer that was delivered before a crash could be cancelled": (
        "SYNC_FLUSH", 0, 0.0, [("wait", 1), SOON, ("wait", 1), ("kill",), ("cancel", 0)],
    ),
    "timers fired before the cancellations of before the start were read": (
        "SYNC_FLUSH", 62, 0.2, [("timed", 0, 52, "TIMER_DELIVER_MS"), ("wait", 1), ("cancel", 0), ("stop",)],
    ),
    "timers delivered before a crash fired again when the queue was read late": (
        "SYNC_FLUSH", 11, 0.2, [SOON, ("wait", 5_001), SOON, ("wait", 5_001), ("kill",)],
    ),
    "a power loss in a stop left an empty log file that stopped the start": ("SYNC_FLUSH", 10, 0.0, [("power", 17), ("stop",)]),
    "the progress of transactions was saved before the log was flushed": (
        "ASYNC_FLUSH", 6_609, 0.0, [("prepare", 0), ("wait", 5_001), ("power", 10), ("stop",)],
    ),
    "a retry at the end of the log ended the transaction at its beginning": (
        "SYNC_FLUSH", 0, 0.0, [("prepare", 0), ("prepare", 0), ("end", 1, COMMIT), SENT_BACK, ("kill",)],
    ),
    "a producer was asked about a transaction that it had ended while the question waited for the flush": (
        "SYNC_FLUSH", 0, 0.0, [("prepare", 0), ("hold", True), ("wait", 11_000), ("end", 0, COMMIT), ("hold", False)],
    ),
    "a queue whose messages a power loss took begins behind them, and that is no loss of others": (
        "ASYNC_FLUSH", 723_664_486, 0.2, [
            ("wait", 5_001), ("delayed", 1, 2), ("consume", 2, 3, 1, 0), ("wait", 5_001), ("unlucky", 22), ("unlucky", 28), ("prepare", 2),
            ("prepare", 2), ("prepare", 2), ("consume", 0, 2, 19, 1), ("batch", 0, 4), ("unlucky", 34),
        ],
    ),
    "an entry without a record among half messages was taken for the log's first message, which came again and again": (
        "ASYNC_FLUSH", 544_547_861, 0.2, [
            ("power", 0), ("send", 1, 0), ("prepare", 0), ("power", 0), ("power", 0), ("wait", 1), ("power", 0), ("wait", 4_972),
            ("prepare", 1), ("prepare", 2), ("prepare", 1), ("power", 0),
        ],
    ),
    "an op record outlived the copy that it follows from, and the transaction was forgotten": (
        "ASYNC_FLUSH", 317_104_377, 0.2, [("prepare", 0), ("prepare", 1), ("wait", 11_000), ("unlucky", 10)],
    ),
    "a retry topic lost in a crash was not made again by its delivery": (
        "SYNC_FLUSH", 0, 0.0, [("send", 0, 0), ("hold", True), SENT_BACK, ("kill",), ("wait", 5_001), SENT_BACK],
    ),
}  # fmt: skip
"""Sequences that showed a mistake, made short, and what it was."""


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_what_went_wrong_once_does_not_again(name: str) -> None:
    flush, chance, cold_ratio, steps = ONCE_WRONG[name]
    for more in range(10):
        run(steps, flush, chance + more, cold_ratio)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_the_model_gets_as_far_as_dead_letters_checks_and_transactions_that_are_given_up(flush: str) -> None:
    met = run(EVERYTHING, flush)
    for what in ("dead letter", "sent back", "asked", "committed", "rolled back", "given up", "power lost"):
        assert met[what], f"{what} never happened"
    for kind in ("plain", "level", "timed", "retry"):
        assert met[f"came: {kind}"], f"no {kind} message was delivered"


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_random_sequences_find_a_broker_in_which(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> None:
        for number in sorted(SEARCHES, key=lambda one: one != FIRST.get(plant.__name__)):

            @searching(AT_A_TIME, (Phase.generate,))
            @seed(number)
            def some(steps: list[Step], flush: str, seed: int, cold_ratio: float) -> None:
                run(steps, flush, seed, cold_ratio)

            some()

    plant(monkeypatch)
    with pytest.raises(AssertionError):
        search()
