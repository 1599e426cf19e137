"""Counters and rates."""

from __future__ import annotations

import pytest

from roquet.broker.stats import Stats
from roquet.testing.clock import ManualClock
from roquet.wire import fastjson
from roquet.wire.codes import RequestCode, ResponseCode

from .conftest import BrokerKit, Golden, golden

ZERO = {"avgpt": 0.0, "sum": 0, "tps": 0.0}


def run(stats: Stats, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.ms += 1_000
        stats.tick(clock.ms)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats(clock: ManualClock) -> Stats:
    return Stats(clock, "DefaultCluster")


@pytest.mark.parametrize("pair", golden(315), ids=str)
def test_the_answer_is_apaches(kit: BrokerKit, pair: Golden) -> None:
    """The same messages at the same pace give the same numbers."""
    if pair.response.code == ResponseCode.SUCCESS:
        for _ in range(fastjson.loads(pair.response.body)["statsMinute"]["sum"]):
            kit.stats.put(pair.request.fields["statsKey"], 1, 100)
        run(kit.stats, kit.clock, 60)
    ours = kit.ask(pair.request)
    assert (ours.code, ours.remark) == (pair.response.code, pair.response.remark)
    if pair.response.code == ResponseCode.SUCCESS:
        assert ours.body == pair.response.body


def view(kit: BrokerKit, name: str, key: str) -> dict[str, dict[str, float]]:
    answer = kit.request(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found: dict[str, dict[str, float]] = fastjson.loads(answer.body)
    return found


def test_messages_and_bytes_of_a_topic_and_of_a_group(kit: BrokerKit) -> None:
    kit.stats.put("T", 10, 1_000)
    kit.stats.put("T", 20, 2_000)
    kit.stats.got("g", "T", 5, 500)
    run(kit.stats, kit.clock, 10)
    assert view(kit, "TOPIC_PUT_NUMS", "T")["statsMinute"] == {"avgpt": 15.0, "sum": 30, "tps": 3.0}
    assert view(kit, "TOPIC_PUT_SIZE", "T")["statsMinute"] == {"avgpt": 1_500.0, "sum": 3_000, "tps": 300.0}
    assert view(kit, "GROUP_GET_NUMS", "T@g")["statsMinute"] == {"avgpt": 5.0, "sum": 5, "tps": 0.5}
    assert view(kit, "GROUP_GET_SIZE", "T@g")["statsMinute"]["sum"] == 500
    assert view(kit, "BROKER_PUT_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 30
    assert view(kit, "BROKER_GET_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 5
    assert kit.stats.group_rate("g", "T") == 0.5
    assert kit.stats.group_rate("g", "U") == 0.0


def test_a_minute_is_the_last_minute(kit: BrokerKit) -> None:
    kit.stats.put("T", 60, 60)
    run(kit.stats, kit.clock, 30)
    assert view(kit, "TOPIC_PUT_NUMS", "T")["statsMinute"] == {"avgpt": 60.0, "sum": 60, "tps": 2.0}
    run(kit.stats, kit.clock, 30)
    assert view(kit, "TOPIC_PUT_NUMS", "T")["statsMinute"] == {"avgpt": 60.0, "sum": 60, "tps": 1.0}
    run(kit.stats, kit.clock, 20)
    assert view(kit, "TOPIC_PUT_NUMS", "T")["statsMinute"] == ZERO
    kit.stats.put("T", 5, 5)
    run(kit.stats, kit.clock, 10)
    assert view(kit, "TOPIC_PUT_NUMS", "T")["statsMinute"] == {"avgpt": 5.0, "sum": 5, "tps": 0.5}


def test_hours_and_days_follow_more_slowly(kit: BrokerKit) -> None:
    kit.stats.put("T", 7, 7)
    for _ in range(7):
        kit.clock.ms += 600_000
        kit.stats.tick(kit.clock.ms)
    found = view(kit, "TOPIC_PUT_NUMS", "T")
    assert found["statsMinute"] == ZERO
    assert found["statsHour"] == ZERO
    assert found["statsDay"]["sum"] == 7


def test_rates_over_10_60_and_600_seconds(stats: Stats, clock: ManualClock) -> None:
    assert stats.rates(10) == (0.0, 0.0, 0.0, 0.0)
    for second in range(120):
        stats.put("T", 10 if second < 110 else 20, 100)
        stats.got("g", "T", 5, 50)
        stats.get_missed += 2
        run(stats, clock, 1)
    assert stats.rates(10) == (20.0, 5.0, 1.0, 2.0)
    assert stats.rates(60)[0] == pytest.approx((50 * 10 + 10 * 20) / 60)
    assert stats.rates(600)[0] == pytest.approx((110 * 10 + 10 * 20) / 120), "of what there is"


def test_totals_of_yesterday_and_this_morning(stats: Stats, clock: ManualClock) -> None:
    stats.put("T", 10, 100)
    stats.got("g", "T", 4, 40)
    clock.ms += 86_400_000
    stats.tick(clock.ms)
    assert (stats.yesterday_morning, stats.this_morning) == ((0, 0), (10, 4))
    stats.put("T", 1, 10)
    clock.ms += 86_400_000
    stats.tick(clock.ms)
    assert (stats.yesterday_morning, stats.this_morning) == ((10, 4), (11, 4))


def test_topics_beyond_the_limit_count_in_the_totals_alone(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.broker.stats.ROWS_MAX", 2)
    for name in ("A", "B", "C", "D"):
        stats.put(name, 1, 10)
        stats.got("g", name, 1, 10)
    assert stats.puts.count == stats.gets.count == 4
    assert stats.find("TOPIC_PUT_NUMS", "B") is not None
    assert stats.find("TOPIC_PUT_NUMS", "C") is None
    assert stats.find("GROUP_GET_NUMS", "D@g") is None


def test_rows_that_stood_still_for_a_day_make_room(stats: Stats, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.broker.stats.ROWS_MAX", 2)
    stats.put("old", 1, 10)
    stats.put("live", 1, 10)
    for _ in range(26):
        clock.ms += 3_600_000
        stats.put("live", 1, 10)
        stats.tick(clock.ms)
    stats.put("new", 1, 10)
    assert stats.find("TOPIC_PUT_NUMS", "old") is None
    assert stats.find("TOPIC_PUT_NUMS", "live") is not None
    assert stats.find("TOPIC_PUT_NUMS", "new") is not None


def test_a_deleted_topic_is_forgotten(stats: Stats) -> None:
    stats.put("T", 1, 1)
    stats.got("g", "T", 1, 1)
    stats.got("g", "TT", 1, 1)
    stats.topic_deleted("T")
    assert stats.find("TOPIC_PUT_NUMS", "T") is None
    assert stats.find("GROUP_GET_NUMS", "T@g") is None
    assert stats.find("GROUP_GET_NUMS", "TT@g") is not None


@pytest.mark.parametrize(("name", "key"), [("TOPIC_PUT_NUMS", "none"), ("NONSENSE", "T"), ("BROKER_PUT_NUMS", "OtherCluster")])
def test_what_is_not_counted_does_not_exist(kit: BrokerKit, name: str, key: str) -> None:
    answer = kit.request(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
