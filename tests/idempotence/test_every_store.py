"""What holds whatever the store is."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from roquet import DEAD_LETTER, RETRY_LATER, RetryLater, Suspend
from roquet.message import ReceivedMessage
from tests.idempotence.shops import REDIS_KINDS, SQL_KINDS, Gate, Shop, message, until


def test_a_message_that_comes_twice_takes_effect_once(shop: Shop) -> None:
    guard: Any = shop.guard()
    assert shop.call(guard, message()) is None
    assert shop.call(guard, message(times=1)) is None
    assert shop.effects() == ["order-17"]
    assert (guard.once.handled, guard.once.dropped, guard.once.postponed) == (1, 1, 0)


@pytest.mark.parametrize("answer", [ValueError("no"), False, RETRY_LATER, RetryLater(3), DEAD_LETTER, Suspend(10)], ids=repr)
@pytest.mark.parametrize("shop", ["memory", "sqlite", "sqlite-async", *REDIS_KINDS], indirect=True)
def test_one_that_failed_is_handled_again_with_the_next_delivery(shop: Shop, answer: Any) -> None:
    guard = shop.guard(answer=answer)
    for _ in range(2):
        if isinstance(answer, Exception):
            with pytest.raises(ValueError, match="no"):
                shop.call(guard, message())
        else:
            assert shop.call(guard, message()) is answer
    assert shop.began == ["order-17", "order-17"]
    assert shop.effects() == ([] if shop.is_sql else ["order-17", "order-17"]), "what a failed handler wrote through its session is gone"
    assert shop.call(shop.guard(), message()) is None
    assert shop.call(shop.guard(), message()) is None
    assert len(shop.began) == 3


def test_a_duplicate_that_meets_a_running_one_is_put_off_and_not_handled(shop: Shop) -> None:
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message())
    assert gate.reached.wait(60)
    guard: Any = shop.guard(store=another(shop))
    put_off = shop.call(guard, message())
    assert isinstance(put_off, RetryLater)
    assert put_off.delay_level == (3 if shop.kind == "memory" else 5), "the first level that is over after the lease of 60 s"
    assert put_off.why == "it was delivered while another delivery of it was being handled"
    assert isinstance(shop.call(shop.guard(orderly=True), message()), Suspend)
    assert shop.began == ["order-17"]
    gate.opened.set()
    assert first.result(60) is None
    assert shop.call(guard, message()) is None
    assert shop.effects() == ["order-17"]
    assert (guard.once.handled, guard.once.dropped, guard.once.postponed) == (0, 1, 1)


def test_groups_that_share_a_store_do_not_see_each_others_marks(shop: Shop) -> None:
    for group in ("billing", "shipping", "billing"):
        shop.call(shop.guard(group=group), message())
    assert shop.effects() == ["order-17", "order-17"]


def test_of_a_list_only_what_is_new_is_handled(shop: Shop) -> None:
    guard = shop.guard()
    shop.call(guard, [message("a"), message("b"), message("a")])
    assert shop.began == ["a", "b"]
    shop.call(guard, [message("b"), message("c")])
    shop.call(guard, [message("a"), message("b")])
    assert shop.began == ["a", "b", "c"]
    assert shop.effects() == ["a", "b", "c"]


def test_of_a_list_those_that_failed_come_again_and_the_others_are_done(shop: Shop) -> None:
    def answer(messages: list[ReceivedMessage]) -> Any:
        failed = [one for one in messages if one.keys == ["b"]]
        return RetryLater(messages=failed, why="not b") if failed else None

    guard = shop.guard(answer=answer)
    given = [message("a"), message("b"), message("c")]
    assert shop.call(guard, given) == RetryLater(messages=[given[1]], why="not b")
    assert shop.call(guard, given) == RetryLater(messages=[given[1]], why="not b")
    assert shop.began == ["a", "b", "c", "b"]


def test_of_a_list_that_raises_only_those_that_were_handled_come_again(shop: Shop) -> None:
    shop.call(shop.guard(), [message("a")])
    given = [message("a"), message("b")]
    verdict = shop.call(shop.guard(answer=ValueError("no")), given)
    assert verdict == RetryLater(messages=[given[1]], why="ValueError: no")
    assert shop.call(shop.guard(), given) is None
    assert shop.effects() == (["a", "b"] if shop.is_sql else ["a", "b", "b"])


def test_of_a_list_that_meets_a_running_one_the_others_are_handled(shop: Shop) -> None:
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message("b"))
    assert gate.reached.wait(60)
    given = [message("a"), message("b"), message("c")]
    store = another(shop)
    assert isinstance(shop.call(shop.guard(orderly=True, store=store), given), Suspend)
    assert shop.began == ["b"], "in an orderly queue nothing overtakes it"
    if shop.kind.startswith("sqlite"):  # it has one writer, so all of them wait for the handler's end
        verdict = shop.call(shop.guard(store=store), given)
        assert isinstance(verdict, RetryLater)
        assert verdict.messages == given
        assert shop.began == ["b"]
        return
    verdict = shop.call(shop.guard(answer=lambda messages: DEAD_LETTER), given)
    assert isinstance(verdict, RetryLater)
    assert (verdict.delay_level, verdict.messages) == (-1, [given[0], given[2]])
    assert [(part.delay_level > 0, part.messages) for part in verdict.also] == [(True, [given[1]])], "the busy one is no dead letter"
    verdict = shop.call(shop.guard(), given)
    assert isinstance(verdict, RetryLater)
    assert verdict.messages == [given[1]]
    gate.opened.set()
    first.result(60)
    assert shop.call(shop.guard(), given) is None
    assert sorted(shop.began) == ["a", "a", "b", "c", "c"]


@pytest.mark.parametrize(
    "shop", ["memory", "sqlite", "postgresql", "postgresql-async", "mariadb", "mariadb-async", *REDIS_KINDS], indirect=True
)
def test_of_two_consumers_that_get_the_same_messages_at_the_same_moment_one_handles_each(shop: Shop) -> None:
    """Lists and single messages, each of them in both consumers at once."""
    start = threading.Barrier(2)
    consumers: list[Any] = [shop.guard(store=shop.store if shop.kind == "memory" else shop.open()) for _ in range(2)]
    given: list[Any] = [message(f"m{number}") for number in range(10)]
    given += [[message(f"l{number}-{place}") for place in range(4)] for number in range(3)]

    def consume(guard: Any) -> None:
        for one in given:
            start.wait(60)
            while (answer := shop.call(guard, one)) is not None:
                assert isinstance(answer, RetryLater)

    threads = [threading.Thread(target=consume, args=(guard,)) for guard in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    everything = sorted(one.keys[0] for each in given for one in (each if isinstance(each, list) else [each]))
    assert shop.effects() == everything
    assert sorted(shop.began) == everything
    assert sum(guard.once.handled for guard in consumers) == len(everything)


@pytest.mark.parametrize("shop", [*SQL_KINDS, *REDIS_KINDS], indirect=True)
def test_a_claim_whose_owner_is_gone_is_tried_again_after_its_lease_and_not_before(shop: Shop) -> None:
    class Gone(BaseException):
        pass

    def vanish(*_: Any) -> Any:
        raise Gone

    lost = shop.open()
    lost.begin = lost.fail = vanish  # as if it were killed after the claim
    with pytest.raises(Gone):
        shop.call(shop.guard(store=lost), message())
    assert isinstance(shop.call(shop.guard(), message()), RetryLater)
    if shop.is_sql:
        shop.clock.now += 59
        assert isinstance(shop.call(shop.guard(), message()), RetryLater)
    shop.end_leases()
    until(lambda: shop.call(shop.guard(), message()) is None)
    assert shop.effects() == ["order-17"]


def test_a_slow_handler_is_not_overtaken_when_its_first_lease_is_over(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.idempotence.redis.RENEWALS", 1_200)  # of 60 s, every 50 ms
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message())
    assert gate.reached.wait(60)
    others: Any = shop.guard(store=another(shop))
    shop.clock.now += 3600
    if shop.kind in REDIS_KINDS:
        for _ in range(2):
            assert shop.left_ms(set_to=30_000) <= 30_000
            until(lambda: shop.left_ms() > 30_000)
    assert isinstance(shop.call(others, message()), RetryLater)
    gate.opened.set()
    assert first.result(60) is None
    assert shop.call(others, message()) is None
    assert shop.effects() == shop.began == ["order-17"]


def another(shop: Shop) -> Any:
    """The store of another consumer; one of SQLite does not wait for its turn."""
    return shop.store if shop.kind == "memory" else shop.open(timeout_s=0.01)
