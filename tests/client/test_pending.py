"""PendingCalls: every caller hears exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roquet.errors import CallTimeout, ConnectFailed, RoquetError
from roquet.wire.command import Command
from roquet.wire.pending import NEVER, OPAQUE_MAX, PendingCalls

Heard = list[Command | RoquetError]


def test_an_answer_goes_to_the_one_who_asked() -> None:
    calls = PendingCalls()
    first: Heard = []
    second: Heard = []
    calls.add(first.append, 100)
    opaque = calls.add(second.append, 100)
    answer = Command(0, opaque=opaque, flag=1)
    assert calls.answer(answer)
    assert (first, second) == ([], [answer])
    assert not calls.answer(answer)


def test_what_is_late_times_out_and_the_rest_goes_on_waiting() -> None:
    calls = PendingCalls()
    soon: Heard = []
    later: Heard = []
    calls.add(soon.append, 100)
    calls.add(later.append, 200)
    assert calls.expire(99) == 0
    assert calls.expire(100) == 1
    assert isinstance(soon[0], CallTimeout)
    assert isinstance(soon[0], TimeoutError)
    assert (later, len(calls), calls.next_deadline_ms) == ([], 1, 200)


def test_only_so_many_time_out_at_once_as_is_asked_for_and_the_others_next_time() -> None:
    calls = PendingCalls()
    heard: Heard = []
    for _ in range(5):
        calls.add(heard.append, 100)
    assert [calls.expire(100, 2), len(heard), calls.next_deadline_ms] == [2, 2, 100]
    assert [calls.expire(100, 2), calls.expire(100, 2), len(heard), calls.next_deadline_ms] == [2, 1, 5, NEVER]


def test_what_is_due_before_is_put_off_once_and_no_call_that_is_due_later() -> None:
    calls = PendingCalls()
    first: Heard = []
    second: Heard = []
    third: Heard = []
    calls.add(first.append, 340)
    calls.add(second.append, 360)
    calls.put_off(350)
    calls.add(third.append, 250)
    assert calls.expire(349) == 1  # a call that came later goes; the other's is put off, whoever looks
    assert (first, second, calls.next_deadline_ms) == ([], [], 350)
    assert isinstance(third[0], CallTimeout)
    calls.put_off(600)
    assert calls.expire(400) == 1
    assert isinstance(first[0], CallTimeout)
    assert calls.next_deadline_ms == 600
    calls.put_off(900)
    assert calls.expire(600) == 1
    assert isinstance(second[0], CallTimeout)
    assert calls.next_deadline_ms == NEVER


def test_a_lost_connection_fails_all_and_one_bad_handler_hurts_nobody_else() -> None:
    calls = PendingCalls()
    heard: Heard = []

    def bad(_: Command | RoquetError) -> None:
        raise ValueError("a bug of the caller's")

    calls.add(bad, 100)
    calls.add(heard.append, 100)
    error = ConnectFailed("gone")
    assert calls.fail_all(error) == 2
    assert heard == [error]
    assert calls.next_deadline_ms == NEVER


def test_opaques_wrap_around_without_hitting_one_in_use() -> None:
    calls = PendingCalls(first_opaque=OPAQUE_MAX)
    assert [calls.add(lambda _: None, 1) for _ in range(3)] == [OPAQUE_MAX, 0, 1]
    other = PendingCalls(first_opaque=0)
    other.add(lambda _: None, 1)
    other._next = 0
    assert other.add(lambda _: None, 1) == 1


@given(st.lists(st.tuples(st.sampled_from(["add", "answer", "expire"]), st.integers(0, 50)), max_size=60))
def test_everybody_hears_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    calls = PendingCalls()
    heard: dict[int, int] = {}
    opaques: list[int] = []
    now = 0
    for step, number in steps:
        if step == "add":
            asked = len(opaques)
            heard[asked] = 0

            def done(_: Command | RoquetError, asked: int = asked) -> None:
                heard[asked] += 1

            opaques.append(calls.add(done, now + number))
        elif step == "answer" and opaques:
            calls.answer(Command(0, opaque=opaques[number % len(opaques)], flag=1))
        else:
            now += number
            calls.expire(now)
    calls.fail_all(ConnectFailed("end"))
    assert set(heard.values()) <= {1}
