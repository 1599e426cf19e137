"""Queue locks."""

from __future__ import annotations

import orjson
import pytest

from roquet.broker import locks as locks_module
from roquet.broker.locks import QueueLocks
from roquet.message import MessageQueue
from roquet.settings import BrokerSettings
from roquet.testing.clock import ManualClock
from roquet.wire import fastjson
from roquet.wire.calls.queues import LockResult
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

from .conftest import BrokerKit, Golden, golden, recorded, same_answer

ONE, TWO = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@pytest.fixture
def locks() -> QueueLocks:
    return QueueLocks(BrokerSettings(), ManualClock())


@pytest.mark.parametrize("pair", golden(41, 42), ids=str)
def test_locking_and_unlocking_is_answered_as_apache_answered_it(kit: BrokerKit, pair: Golden) -> None:
    ours = kit.ask(pair.request)
    same_answer(ours, pair.response)
    assert ours.body == pair.response.body


def test_a_client_of_5_locks_too(kit: BrokerKit) -> None:
    (command, *_) = [one for one in recorded(41, "c->s") if b"onlyThisBroker" in one.body]
    assert fastjson.loads(kit.ask(command).body)["lockOKMQSet"] == fastjson.loads(command.body)["mqSet"]


def test_a_queue_is_held_by_one_client_of_a_group(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", [ONE], 0) == {ONE}
    assert locks.lock("g", "b", [ONE, TWO], 1) == {TWO}
    assert locks.lock("other", "b", [ONE], 1) == {ONE}
    assert locks.lock("g", "a", [ONE], 2) == {ONE}


def test_a_lock_expires_a_minute_after_it_was_last_asked_for(locks: QueueLocks) -> None:
    locks.lock("g", "a", [ONE], 0)
    locks.lock("g", "a", [ONE], 30_000)
    assert locks.lock("g", "b", [ONE], 90_000) == set()
    assert locks.holder("g", ONE, 90_000) == "a"
    assert locks.holder("g", ONE, 90_001) is None
    assert locks.lock("g", "b", [ONE], 90_001) == {ONE}


def test_only_the_holder_lets_go(locks: QueueLocks) -> None:
    locks.lock("g", "a", [ONE, TWO], 0)
    locks.unlock("g", "b", [ONE])
    assert locks.holder("g", ONE, 0) == "a"
    locks.unlock("g", "a", [ONE])
    assert locks.lock("g", "b", [ONE], 1) == {ONE}
    locks.unlock("unknown", "a", [ONE])


def test_expired_locks_are_forgotten(locks: QueueLocks) -> None:
    locks.lock("g", "a", [ONE, TWO], 0)
    locks.lock("h", "a", [ONE], 50_000)
    locks.tick(60_001)
    assert len(locks) == 1
    locks.tick(200_000)
    assert len(locks) == 0


def test_there_is_a_limit_to_locks(locks: QueueLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.broker.locks.LOCKS_MAX", 1)
    assert locks.lock("g", "a", [ONE], 0) == {ONE}
    assert locks.lock("g", "a", [ONE, TWO], 0) == {ONE}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"clientId":"c"}',
        b'{"clientId":"c","consumerGroup":"../g","mqSet":[]}',
        b'{"clientId":"","consumerGroup":"g","mqSet":[]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[1]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"a/b","brokerName":"b","queueId":0}]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"a","brokerName":"b","queueId":-1}]}',
    ],
)  # fmt: skip
def test_a_body_that_makes_no_sense_is_refused(kit: BrokerKit, body: bytes) -> None:
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert kit.request(code, body=body).code == ResponseCode.SYSTEM_ERROR
    assert len(kit.locks) == 0


def test_a_sweep_looks_at_some_locks_a_tick_and_forgets_all_that_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "PIECE", 100)
    clock = ManualClock()
    locks = QueueLocks(BrokerSettings(), clock)
    for group in range(7):
        locks.lock(f"g{group}", "c", [MessageQueue("T", "b", n) for n in range(150)], clock.ms)
    locks.lock("empty", "c", [MessageQueue("T", "b", 0)], clock.ms)
    locks.unlock("empty", "c", [MessageQueue("T", "b", 0)])
    clock.forward(BrokerSettings().rebalance_lock_max_live_time + 1)
    locks.lock("g3", "c", [MessageQueue("T", "b", 5)], clock.ms)
    ticks = 0
    while len(locks) > 1:
        before = len(locks)
        locks.tick(clock.ms)
        ticks += 1
        assert before - len(locks) <= 100
        assert ticks < 30
    assert ticks >= 10
    assert locks.holder("g3", MessageQueue("T", "b", 5), clock.ms) == "c"


def test_a_request_for_very_many_queues_is_answered_in_portions_and_in_full(kit: BrokerKit) -> None:
    queues = [{"brokerName": "b", "queueId": n, "topic": "T"} for n in range(12_000)]
    body = orjson.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": queues})
    work = kit.locks.lock_batch(kit.peer, Command(RequestCode.LOCK_BATCH_MQ, {}, body))
    steps = 0
    while True:
        try:
            cold = next(work)
        except StopIteration as stop:
            answer = stop.value
            break
        steps += 1
        if cold is not None:
            cold.fetch()
    assert steps >= 4, "read elsewhere, locked in pieces, written elsewhere"
    assert len(LockResult.decode(answer.body).lock_ok_mq_set) == len(kit.locks) == 12_000
    kit.request(RequestCode.UNLOCK_BATCH_MQ, {}, body)
    assert len(kit.locks) == 0
