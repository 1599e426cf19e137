"""Leases that are renewed while plain handlers run, and what happens when that fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from roquet.idempotence import Claim
from roquet.idempotence.renewing import Renewals
from tests.idempotence.shops import Gate, Shop, message, until


def is_alive(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_claims_are_renewed_each_at_its_time_until_they_are_removed() -> None:
    renewed: list[str] = []
    renewals = Renewals("test-each", lambda claim: renewed.append(claim.token))
    slow, quick = Claim([], "slow", 0), Claim([], "quick", 0)
    renewals.add(slow, 600)
    renewals.add(quick, 0.001)  # before what the thread waits for
    until(lambda: len(renewed) >= 3)
    renewals.remove(quick)
    renewals.remove(slow)
    assert set(renewed) == {"quick"}


def test_the_thread_ends_when_nothing_is_left_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.idempotence.renewing.IDLE_S", 0.01)
    renewed: list[Claim] = []
    renewals = Renewals("test-idle", renewed.append)
    for count in (1, 2):
        claim = Claim([], "token", 0)
        renewals.add(claim, 0.001)
        until(lambda: claim in renewed)  # noqa: B023 (called here)
        renewals.remove(claim)
        until(lambda: not is_alive("test-idle"))
        assert len({*renewed}) == count


def test_a_renewal_that_fails_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def fail(claim: Claim) -> None:
        raise OSError("away")

    renewals = Renewals("test-fails", fail)
    claim = Claim([], "token", 0)
    renewals.add(claim, 0.001)
    until(lambda: caplog.text.count("could not be renewed; it is tried again: away") >= 2)
    renewals.remove(claim)


@pytest.mark.parametrize("shop", ["redis-async"], indirect=True)
def test_so_it_is_on_the_event_loop(shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("roquet.idempotence.redis.RENEWALS", 6_000)
    renewed = shop.store._renewed
    failures: list[int] = []

    def fails_twice(claim: Claim) -> Any:
        if len(failures) < 2:
            failures.append(1)
            raise OSError("away")
        return renewed(claim)

    shop.store._renewed = fails_twice
    gate = Gate()
    first = shop.start(shop.guard(gate=gate), message())
    assert gate.reached.wait(60)
    until(lambda: caplog.text.count("could not be renewed; it is tried again: away") == 2)
    shop.left_ms(set_to=30_000)
    until(lambda: shop.left_ms() > 30_000)
    gate.opened.set()
    assert first.result(60) is None
