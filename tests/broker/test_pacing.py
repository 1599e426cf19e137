"""Readers that catch up give way to those who send: only while both are there and processors are short, and never wholly."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker import pull as pull_module
from roquet.broker.pacing import AWAITED_MAX, CEILING, FLOOR, QUIET_TICKS, SENT_BYTES, Pace
from roquet.net.processor import ProcessorTime
from roquet.wire.command import Command

from .whole import Whole, pull_fields, send_fields

SHORT, ENOUGH = 0.6, 0.0
"""Shares of its time that the loop waits for a processor."""
TICK_MS = 50


def pace_after(ticks: int, *, share: float, sent: int = SENT_BYTES, scanned: int = 8 * FLOOR, pace: Pace | None = None) -> Pace:
    """Ticks in which so much was sent and scanned, as far as it was allowed."""
    pace, end = pace or Pace(), 1_000_000
    pace.tick(end)
    for _ in range(ticks):
        end += sent
        pace.spent = int(min(scanned, pace.limit))
        pace.processor_awaited(share)
        pace.tick(end)
    return pace


def test_scans_get_less_from_tick_to_tick_while_processors_are_short_and_others_send() -> None:
    limits = [pace_after(ticks, share=SHORT).limit for ticks in range(1, 12)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] < 8 * FLOOR


def test_they_never_get_less_than_a_floor() -> None:
    assert pace_after(100, share=1.0).limit == FLOOR


def test_who_reads_about_as_much_as_is_sent_is_not_held_back() -> None:
    """A stream from topic to topic, or a few who follow what is sent."""
    pace = pace_after(100, share=1.0, sent=4 * FLOOR, scanned=8 * FLOOR)
    assert pace.limit > 8 * FLOOR
    assert pace_after(100, share=1.0, sent=4 * FLOOR, scanned=80 * FLOOR).limit < 16 * FLOOR


@pytest.mark.parametrize(("share", "sent"), [(ENOUGH, SENT_BYTES), (AWAITED_MAX, SENT_BYTES), (SHORT, SENT_BYTES - 1), (SHORT, 0)])
def test_nothing_is_limited_when_processors_are_enough_or_hardly_anybody_sends(share: float, sent: int) -> None:
    assert pace_after(100, share=share, sent=sent).limit == math.inf


def test_the_limit_goes_when_processors_are_enough_again() -> None:
    pace = pace_after(30, share=SHORT)
    low = pace.limit
    pace_after(20, share=ENOUGH, pace=pace)
    assert low < pace.limit < CEILING
    pace_after(100, share=ENOUGH, pace=pace)
    assert pace.limit == math.inf


def test_the_limit_goes_when_nobody_sends_any_more() -> None:
    pace = pace_after(30, share=SHORT)
    pace_after(QUIET_TICKS - 2, share=SHORT, sent=0, pace=pace)
    assert pace.limit < math.inf
    pace_after(2, share=SHORT, sent=0, pace=pace)
    assert pace.limit == math.inf


def test_ticks_in_which_nobody_scanned_say_nothing_about_scans() -> None:
    assert pace_after(100, share=SHORT, scanned=0).limit == math.inf


# Through the broker


@pytest.fixture
def pressed(tmp_path: Path) -> Iterator[Whole]:
    """A broker to whom others send, short of processors, with a topic full of messages; the limit is at its floor."""
    whole = Whole(tmp_path / "store", mapped_file_size_commit_log=64 << 20)
    for _ in range(24):
        assert whole.ask(310, send_fields(), bytes(128 << 10)).code == 0
    for _ in range(60):
        tick(whole)
        scan(whole)
        whole.peer.take()
    assert whole.broker.puller.pace.limit == FLOOR
    tick(whole)
    whole.peer.take()
    yield whole
    whole.close()


def tick(whole: Whole) -> None:
    whole.broker.puller.pace.processor_awaited(1.0)
    assert whole.ask(310, send_fields(queue_id=1), bytes(SENT_BYTES)).code == 0
    whole.tick(TICK_MS)


def scan(whole: Whole, *opaques: int) -> None:
    fields = pull_fields(scanBytes=str(FLOOR // 2))
    whole.frames(*(Command(11, fields, opaque=opaque) for opaque in opaques or (1,)))


def answered(whole: Whole) -> list[int]:
    return [answer.opaque for answer in whole.peer.take() if answer.code == 0 and "scanCount" in answer.fields]


def test_a_scan_beyond_the_limit_is_answered_with_the_next_tick_in_the_order_of_asking(pressed: Whole) -> None:
    scan(pressed, *range(100, 112))
    first = answered(pressed)
    assert first == list(range(100, 100 + len(first)))
    assert 0 < len(first) < 12
    rest: list[int] = []
    for _ in range(12):
        pressed.tick(TICK_MS)
        rest += answered(pressed)
    assert first + rest == list(range(100, 112))


def test_ordinary_pulls_and_sends_are_not_held_back(pressed: Whole) -> None:
    scan(pressed, *range(100, 112))
    pressed.peer.take()
    assert pressed.ask(11, pull_fields()).code == 0
    assert pressed.ask(310, send_fields(), b"x").code == 0


def test_more_scans_than_may_wait_are_answered_at_once(pressed: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "HELD_MAX", 2)
    scan(pressed, *range(100, 112))
    assert len(answered(pressed)) == 10


def test_a_reader_that_left_meanwhile_is_forgotten(pressed: Whole) -> None:
    scan(pressed, *range(100, 112))
    pressed.peer.take()
    pressed.peer.closed = True
    pressed.tick(TICK_MS)
    assert answered(pressed) == []


# What the shell measures


def test_the_share_is_what_was_waited_of_the_time_since_the_last_look(tmp_path: Path) -> None:
    counters, times = tmp_path / "schedstat", iter([10_000, 14_000, 20_000])
    counters.write_text("1000 500 7\n")
    processor = ProcessorTime(str(counters), lambda: next(times))
    counters.write_text("4000 1500 9\n")
    assert processor.awaited() == 0.25
    assert processor.awaited() == 0.0
    processor.close()


def test_where_nobody_counts_it_nothing_is_waited(tmp_path: Path) -> None:
    assert ProcessorTime(str(tmp_path / "nothing")).awaited() == 0.0


@pytest.mark.parametrize("said", ["", "what?", "1 x 3", "7"])
def test_a_system_that_says_something_else_keeps_nobody_from_serving(tmp_path: Path, said: str) -> None:
    counters = tmp_path / "schedstat"
    counters.write_text("1000 500 7\n")
    processor = ProcessorTime(str(counters))
    counters.write_text(said)
    assert (processor.awaited(), processor.awaited()) == (0.0, 0.0)
    assert ProcessorTime(str(counters)).awaited() == 0.0


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="this system does not count it")
def test_a_thread_that_must_share_a_processor_waits() -> None:
    shares: list[float] = []
    one = {min(os.sched_getaffinity(0))}

    def work() -> None:
        os.sched_setaffinity(0, one)  # of this thread alone
        processor = ProcessorTime()
        done = os.times().user + 0.3
        while os.times().user < done:
            sum(range(10_000))
        shares.append(processor.awaited())
        processor.close()

    # A process of its own beside it: threads of one take turns over the interpreter, not over the processor.
    spin = f"import os; os.sched_setaffinity(0, {one}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as rival:
        assert rival.stdout is not None
        rival.stdout.readline()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(300)
        rival.kill()
    assert 0.2 < shares[0] <= 1.0
