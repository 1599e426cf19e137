"""Lag over time: samples of real groups, the table, and when a group will have caught up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from roquet import Admin, Message
from roquet.cli.main import main
from roquet.errors import ClientError
from roquet.message import MessageQueue
from roquet.spark.pipelines import lag
from roquet.spark.pipelines.lag import Sample
from tests.spark.conftest import Servers

T0 = 1_700_000_000_000
COLUMNS = ["time", "group", "topic", "broker", "queue_id", "broker_offset", "consumer_offset", "lag", "last_timestamp", "members"]


def line(group: str, ends: list[int], offsets: list[int], *, queue: int = 0, members: int = 1, every_s: int = 10) -> list[Sample]:
    """Samples of one queue, every ten seconds."""
    return [
        Sample(T0 + number * every_s * 1000, group, "orders", "broker-a", queue, end, offset, end - offset, T0, members)
        for number, (end, offset) in enumerate(zip(ends, offsets, strict=True))
    ]


@pytest.fixture(scope="module")
def forecasts(spark: Any) -> tuple[dict[tuple[str, int], Any], dict[str, Any]]:
    """By group and queue, and by group."""
    rows = [
        *line("catching", [1000, 1100, 1200], [0, 300, 600]),
        *line("losing", [1000, 1300, 1600], [0, 100, 200]),
        *line("even", [1000, 1100, 1200], [0, 100, 200]),
        *line("stalled", [1000, 1100, 1200], [50, 50, 50]),
        *line("alone", [1000, 1100, 1200], [50, 50, 50], members=0),
        *line("done", [1000, 1100, 1200], [900, 1000, 1200]),
        *line("keeping", [1000, 1100, 1200], [995, 1095, 1195]),
        *line("new", [1000], [0]),
        *line("two queues", [100, 100, 100], [0, 20, 40]),
        *line("two queues", [1000, 1000, 1000], [500, 600, 700], queue=1),
        *line("one is lost", [100, 100, 100], [0, 20, 40]),
        *line("one is lost", [1000, 1100, 1200], [0, 10, 20], queue=1),
        *line("was slow", [1000] * 9, [0, 0, 0, 0, 0, 0, 100, 200, 300], every_s=100),
    ]
    queues = lag.forecast(lag.frame(spark, rows), window_s=250).cache()
    return {(row.group, row.queue_id): row for row in queues.collect()}, {row.group: row for row in lag.of_groups(queues).collect()}


def test_a_group_that_reads_faster_than_is_written_catches_up_at_the_moment_the_lines_meet(forecasts: Any) -> None:
    row = forecasts[1]["catching"]
    assert (row.lag, row.produce_rate, row.consume_rate, row.state) == (600, pytest.approx(10), pytest.approx(30), lag.CATCHING_UP)
    assert row.catch_up_s == pytest.approx(30)
    assert row.catch_up.timestamp() == pytest.approx(T0 / 1000 + 20 + 30, abs=0.01)


@pytest.mark.parametrize(
    ("group", "state"),
    [("losing", lag.NEVER), ("even", lag.NEVER), ("stalled", lag.STALLED), ("alone", lag.NO_MEMBERS), ("new", lag.UNKNOWN)],
)
def test_a_group_that_will_not_catch_up_says_why_and_no_moment(forecasts: Any, group: str, state: str) -> None:
    assert (forecasts[1][group].state, forecasts[1][group].catch_up) == (state, None)


def test_a_group_with_nothing_or_a_few_seconds_of_messages_left_is_there_already(forecasts: Any) -> None:
    assert [(forecasts[1][group].state, forecasts[1][group].catch_up_s) for group in ("done", "keeping")] == [
        (lag.CAUGHT_UP, 0.0),
        (lag.KEEPING_UP, 0.0),
    ]


def test_a_group_has_caught_up_when_its_last_queue_has(forecasts: Any) -> None:
    by_queue, groups = forecasts
    assert [by_queue["two queues", queue].catch_up_s for queue in (0, 1)] == [pytest.approx(30), pytest.approx(30)]
    assert (groups["two queues"].queues, groups["two queues"].lag, groups["two queues"].state) == (2, 360, lag.CATCHING_UP)
    assert by_queue["one is lost", 0].state == lag.CATCHING_UP
    assert (groups["one is lost"].state, groups["one is lost"].catch_up) == (lag.NEVER, None)


def test_rates_are_those_of_the_last_window_and_not_of_all_time(forecasts: Any) -> None:
    assert forecasts[1]["was slow"].consume_rate == pytest.approx(1.0)


def test_samples_that_were_written_are_the_table_that_is_read(tmp_path: Path) -> None:
    rows = [*line("billing", [10, 20], [1, 2]), Sample(T0, "g", "t", "b", 3, 5, 0, 5, None, 0)]
    first, second = lag.append(tmp_path, rows), lag.append(tmp_path, rows[:1])
    assert first is not None
    assert second is not None
    assert first != second
    table = pq.read_table(first)
    assert table.column_names == COLUMNS
    assert table.equals(lag.as_table(rows))
    assert sorted(tmp_path.iterdir()) == sorted([first, second]), "no partial file is left"


def test_a_file_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("pyarrow.parquet.write_table", fails)
    with pytest.raises(OSError, match="disk full"):
        lag.append(tmp_path, line("g", [1], [0]))
    assert list(tmp_path.iterdir()) == []


# Of real groups


@pytest.fixture(scope="module")
def behind(servers: Servers) -> Servers:
    """billing has read 3 of 10 messages."""
    servers.topic("lagging", 1)
    servers.send(Message("lagging", b"%d" % number) for number in range(10))

    async def work() -> None:
        async with Admin(servers.namesrv) as admin:
            (status,) = await admin.topic_status("lagging")
            await admin.create_group(admin_group("lag_billing"))
            await admin.set_consumer_offset("lag_billing", status.queue, 3)

    servers.run(work())
    return servers


def admin_group(name: str) -> Any:
    from roquet.wire.calls.groups import GroupConfig

    return GroupConfig(group_name=name)


def test_a_sample_is_what_the_brokers_say_of_every_queue(behind: Servers) -> None:
    (row,) = lag.sample({"namesrvAddr": behind.namesrv}, ["lag_billing"])
    assert (row.topic, row.queue_id, row.broker_offset, row.consumer_offset, row.lag, row.members) == ("lagging", 0, 10, 3, 7, 0)
    assert row.last_timestamp is not None
    assert abs(row.time - row.last_timestamp) < 600_000
    assert row in [one._replace(time=row.time) for one in lag.sample({"namesrvAddr": behind.namesrv})], "and of all groups"


def test_what_has_no_lag_to_tell_is_a_sentence(behind: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClientError, match="asking how far groups are goes through brokers"):
        lag.sample({"path": "."})
    assert main(["pipeline", "lag", "-n", behind.namesrv, "--group", "nobody", "--once"]) == 1
    assert "no broker knows the group 'nobody'" in capsys.readouterr().err


def test_one_sample_is_shown_without_spark(behind: Servers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.spark.session.session", None)
    assert main(["pipeline", "lag", "-n", behind.namesrv, "--group", "lag_billing", "--once"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["GROUP", "TOPIC", "QUEUES", "MEMBERS", "LAG"]
    assert row.split() == ["lag_billing", "lagging", "1", "0", "7"]


def test_runs_add_to_one_table_and_forecast_from_all_of_it(
    behind: Servers, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "lag", "-n", behind.namesrv, "--group", "lag_billing", "--to", str(tmp_path), "--json"]
    assert main([*command, "--every", "0.01", "--for", "0.05"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 6

    async def read_on() -> None:
        async with Admin(behind.namesrv) as admin:
            (status,) = await admin.topic_status("lagging")
            assert status.queue == MessageQueue("lagging", status.queue.broker_name, 0)
            await admin.set_consumer_offset("lag_billing", status.queue, 8)

    behind.run(read_on())
    assert main([*command, "--once"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (queue,) = answer["queues"]
    assert (queue["samples"], queue["lag"], queue["state"]) == (7, 2, lag.NO_MEMBERS)
    assert queue["consume_rate"] > 0
    assert main([*command, "--once", "--dry-run"]) == 0
    assert len(list(tmp_path.iterdir())) == 2, "a dry run writes nothing"
