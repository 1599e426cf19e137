"""Each message once: what is remembered, for how long, and what a listener gets to see."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet.client import RETRY_LATER, Idempotent, Message, PushConsumer, ReceivedMessage, RetryLater, Seen, Suspend
from roquet.client.idempotent import message_key
from roquet.errors import Damaged
from roquet.wire.record import Record, encode_properties


def message(unique_id: str | None = "A", body: bytes = b"x", offset: int = 0, **properties: str) -> ReceivedMessage:
    if unique_id is not None:
        properties["UNIQ_KEY"] = unique_id
    return ReceivedMessage(Record("t", 0, body, encode_properties(properties).encode(), physical_offset=offset))


def call(listener: Idempotent, *given: Any) -> list[Any]:
    """All at the same time."""

    async def work() -> list[Any]:
        async with asyncio.timeout(600):
            return await asyncio.gather(*(listener(one) for one in given), return_exceptions=True)

    return asyncio.run(work())


# -- what is remembered


def test_a_restart_does_not_forget(tmp_path: Path) -> None:
    with Seen(tmp_path / "seen") as seen:
        seen.remember(["A", "B"])
    with Seen(tmp_path / "seen") as seen:
        assert seen.known(["A", "B", "C"]) == {"A", "B"}


def test_the_oldest_are_forgotten_beyond_the_count() -> None:
    seen = Seen(count_max=10)
    for number in range(40):
        seen.remember([str(number)])
    assert 10 <= len(seen) < 20
    assert seen.known([str(number) for number in range(20)]) == set()
    assert seen.known([str(number) for number in range(30, 40)]) == {str(number) for number in range(30, 40)}


def test_what_is_too_old_is_forgotten_and_can_be_remembered_anew(tmp_path: Path) -> None:
    now = [1_000.0]
    seen = Seen(tmp_path / "seen", age_max_s=60, clock=lambda: now[0])
    seen.remember(["A"])
    now[0] += 61
    assert seen.known(["A"]) == set()
    seen.remember(["A", "B"])
    assert seen.known(["A", "B"]) == {"A", "B"}
    seen.close()
    now[0] += 61
    assert len(Seen(tmp_path / "seen", age_max_s=60, clock=lambda: now[0])) == 0


def test_a_clock_that_is_set_makes_nothing_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(age_max_s=60)
    seen.remember(["A"])
    for ahead_s in (315_360_000, -315_360_000):
        wall_s = time.time() + ahead_s
        monkeypatch.setattr(time, "time", lambda wall_s=wall_s: wall_s)
        assert seen.known(["A"]) == {"A"}
        seen.remember(["B"])
        assert seen.known(["A", "B"]) == {"A", "B"}
        monkeypatch.undo()
    seen.close()


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("dear diary, " * 1_000)
    with pytest.raises(Damaged, match=r"cannot be used to remember messages.*move it away"):
        Seen(path)
    assert path.read_text().startswith("dear diary")


# -- what a listener sees


def test_a_message_that_comes_twice_is_handled_once() -> None:
    handled: list[bytes] = []
    listener = Idempotent(lambda one: handled.append(one.body))
    assert call(listener, message("A", b"1")) == [None]
    assert call(listener, message("A", b"2"), message("B", b"3")) == [None, None]
    assert handled == [b"1", b"3"]
    assert listener.dropped == 1


@pytest.mark.parametrize("verdict", [False, RETRY_LATER, RetryLater(3), Suspend(10), ValueError("no")])
def test_a_message_that_failed_is_handled_again(verdict: Any) -> None:
    tries = 0

    async def handle(_: ReceivedMessage) -> Any:
        nonlocal tries
        tries += 1
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    listener = Idempotent(handle)
    assert call(listener, message()) == [verdict]
    assert call(listener, message()) == [verdict]
    assert tries == 2


def test_two_deliveries_at_the_same_time_are_handled_one_after_the_other() -> None:
    running = most = 0
    handled: list[bytes] = []

    async def handle(one: ReceivedMessage) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        handled.append(one.body)
        return one.body != b"1"  # the first fails, so the second is tried, and the third dropped

    assert call(Idempotent(handle), message("A", b"1"), message("A", b"2"), message("A", b"3")) == [False, True, None]
    assert handled == [b"1", b"2"]
    assert most == 1


def test_of_a_list_only_the_new_ones_are_passed_on() -> None:
    calls: list[list[bytes]] = []
    listener = Idempotent(lambda many: calls.append([one.body for one in many]))
    assert call(listener, [message("A", b"1"), message("B", b"2"), message("A", b"3")]) == [None]
    assert call(listener, [message("B", b"4"), message("C", b"5")], [message("A"), message("B")]) == [None, None]
    assert calls == [[b"1", b"2"], [b"5"]]


def test_of_a_list_that_failed_in_part_the_rest_is_remembered() -> None:
    calls: list[list[str]] = []

    def handle(many: list[ReceivedMessage]) -> RetryLater:
        calls.append([one.message_id for one in many])
        return RetryLater(messages=[one for one in many if one.message_id == "B"])

    listener = Idempotent(handle)
    given = [message("A"), message("B")]
    call(listener, given)
    call(listener, given)
    assert calls == [["A", "B"], ["B"]]


@pytest.mark.parametrize("fails_by", ["raising", "saying so"])
def test_when_a_list_fails_those_that_were_dropped_from_it_do_not_come_again(fails_by: str) -> None:
    def handle(many: list[ReceivedMessage]) -> bool:
        if many[0].message_id == "B" and fails_by == "raising":
            raise ValueError("no")
        return many[0].message_id != "B"

    listener = Idempotent(handle)
    call(listener, [message("A")])
    [verdict] = call(listener, [message("A"), second := message("B")])
    assert verdict == RetryLater(messages=[second], why="ValueError: no" if fails_by == "raising" else "")


def test_a_key_of_your_own_counts_in_place_of_the_id() -> None:
    handled: list[str] = []
    listener = Idempotent(lambda one: handled.append(one.message_id), key=lambda one: one.properties["order"])
    call(listener, message("A", order="17"))
    call(listener, message("B", order="17"))
    assert handled == ["A"]


def test_a_message_without_an_id_is_known_by_the_record_it_was_first() -> None:
    first = message(None, offset=100)
    retried = message(None, offset=900, ORIGIN_MESSAGE_ID=first.offset_message_id)
    assert message_key(first) == message_key(retried) != message_key(message(None, offset=901))


def test_what_cannot_be_remembered_is_still_consumed(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def known(self, ids: Any) -> set[str]:
            return set()

        def remember(self, ids: Any) -> None:
            raise OSError("disk full")

    assert call(Idempotent(lambda _: None, Full()), message()) == [None]
    assert "1 handled messages could not be remembered" in caplog.text


# -- with a real broker


def test_a_retried_message_keeps_its_id_and_a_send_that_was_repeated_is_dropped() -> None:
    async def work() -> list[tuple[bytes, int]]:
        handled: list[tuple[bytes, int]] = []

        def handle(one: ReceivedMessage) -> bool:
            handled.append((one.body, one.reconsume_times))
            return one.body != b"failing" or one.reconsume_times > 0

        settings = {"messageDelayLevel": "1s 1s 1s"}
        async with asyncio.timeout(600), roquet.embedded(settings=settings) as mq, mq.producer() as producer:
            consumer: PushConsumer = mq.consumer(consume_from="first")
            listener = Idempotent(handle)
            consumer.subscribe("orders", function=listener)
            for body, unique_id in ((b"failing", "F1"), (b"once", "A1"), (b"once", "A1"), (b"last", "Z1")):
                await producer.send(Message("orders", body, properties={"UNIQ_KEY": unique_id}))
            async with consumer:
                while len(handled) < 4 or not listener.dropped:
                    await asyncio.sleep(0.005)
        return handled

    assert sorted(asyncio.run(work())) == [(b"failing", 0), (b"failing", 1), (b"last", 0), (b"once", 0)]
