"""The options of the source: read, checked, and documented."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from roquet.spark.columns import COLUMNS, DEFAULT
from roquet.spark.options import EARLIEST, LATEST, OPTIONS, BadOption, Edge, Options, duration_s, known, read_options, where_of

BROKERS = {"namesrvAddr": "127.0.0.1:9876"}
ORDERS = {**BROKERS, "subscribe": "orders"}
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()


def read(**given: str) -> Options:
    return read_options({**ORDERS, **given})


def problem(given: dict[str, str]) -> str:
    with pytest.raises(BadOption) as caught:
        read_options(given)
    return str(caught.value)


def test_what_is_not_given_has_its_default() -> None:
    options = read()
    assert options.topics == ("orders",)
    assert (options.starting, options.ending) == (None, None)
    assert options.fail_on_data_loss
    assert (options.rows_max, options.bytes_max, options.rows_min, options.delay_max_s) == (None, None, None, 900)
    assert options.where.timeout_s == 120


def test_upper_and_lower_case_are_the_same() -> None:
    assert read_options({"NAMESRVADDR": "a:1", "Subscribe": "x"}) == read_options({"namesrvaddr": "a:1", "subscribe": "x"})


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert problem({**ORDERS, "startingOffset": "latest"}).endswith("did you mean startingOffsets?")
    assert "there are namesrvAddr" in problem({**ORDERS, "qqqqqqq": "1"})


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("kafka.bootstrap.servers", "namesrvAddr"),
        ("includeHeaders", "columns"),
        ("groupIdPrefix", "groupId"),
        ("kafka.group.id", "groupId"),
        ("kafka.security.protocol", "useTLS"),
        ("kafka.ssl.truststore.location", "tlsCaFile"),
        ("kafka.sasl.jaas.config", "accessKey"),
        ("kafkaConsumer.pollTimeoutMs", "timeout"),
        ("fetchOffset.numRetries", "timeout"),
    ],
)
def test_an_option_of_kafkas_source_is_refused_with_the_name_that_it_has_here(name: str, ours: str) -> None:
    told = problem({**ORDERS, name.lower(): "x"})  # Spark makes it lower case
    assert f"has no option {name.lower()}, which is Kafka's; here it is {ours}" in told
    assert "Coming from Kafka's source" in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "orders"}, ("namesrvAddr", "path")),
        (BROKERS, ("subscribe", "assign")),
        ({**ORDERS, "path": "store"}, ("namesrvAddr=127.0.0.1:9876", "path=store", "exclude")),
        ({**ORDERS, "assign": '{"orders": [0]}'}, ("subscribe and assign exclude",)),
        ({**ORDERS, "startingOffsets": "latest", "startingTimestamp": "1"}, ("startingOffsets and startingTimestamp exclude",)),
        ({**ORDERS, "endingOffsets": "earliest"}, ("endingOffsets=earliest", "nothing")),
        ({**ORDERS, "startingOffsets": "first"}, ("startingOffsets=first", "earliest, latest")),
        ({**ORDERS, "startingOffsets": '{"orders": 5}'}, ("startingOffsets", "orders", "queue id")),
        ({**ORDERS, "startingOffsets": '{"orders": {"b": {"0": -3}}}'}, ("0: -3", "-2 for earliest")),
        ({**ORDERS, "startingOffsets": "{broken"}, ("not JSON",)),
        ({**ORDERS, "startingOffsets": '{"ordres": {}}'}, ("startingOffsets", "ordres names no queue", "queue id")),
        ({**ORDERS, "endingOffsets": '{"orders": {"b": {}}}'}, ("endingOffsets", "orders/b names no queue")),
        ({**ORDERS, "startingOffsetsByTimestamp": '{"orders": {}}'}, ("startingOffsetsByTimestamp", "orders names no queue")),
        ({**ORDERS, "endingOffsetsByTimestamp": '{"orders": {"b": {}}}'}, ("endingOffsetsByTimestamp", "orders/b names no queue")),
        ({**BROKERS, "assign": '{"orders": {}}'}, ("assign", "orders names no queue")),
        ({**ORDERS, "startingTimestamp": "9" * 20}, ("startingTimestamp=999", "year 9999")),
        ({**ORDERS, "startingOffsetsByTimestamp": '{"orders": %s}' % ("9" * 20)}, ("startingOffsetsByTimestamp=999", "year 9999")),
        ({**ORDERS, "endingTimestamp": "9" * 5_000}, ("endingTimestamp=999", "year 9999")),
        ({**ORDERS, "maxOffsetsPerTrigger": "9" * 5_000}, ("maxOffsetsPerTrigger=999", "whole number")),
        ({**ORDERS, "startingTimestamp": "yesterday"}, ("startingTimestamp=yesterday", "-10 minutes")),
        ({**ORDERS, "maxOffsetsPerTrigger": "0"}, ("maxOffsetsPerTrigger=0", "at least 1")),
        ({**ORDERS, "maxBytesPerTrigger": "lots"}, ("maxBytesPerTrigger=lots", "64m")),
        ({**ORDERS, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, ("minOffsetsPerTrigger=9", "maxOffsetsPerTrigger=5")),
        ({**ORDERS, "maxTriggerDelay": "5m"}, ("minOffsetsPerTrigger",)),
        ({**ORDERS, "minOffsetsPerTrigger": "9", "maxTriggerDelay": "5"}, ("maxTriggerDelay=5", "unit")),
        ({**ORDERS, "failOnDataLoss": "no"}, ("failOnDataLoss=no", "true or false")),
        ({**ORDERS, "tags": "a", "sql": "b = 1"}, ("tags and sql exclude",)),
        ({**ORDERS, "accessKey": "a"}, ("accessKey and secretKey",)),
        ({**ORDERS, "tlsCaFile": "ca.pem"}, ("tlsCaFile", "useTLS=true")),
        ({**ORDERS, "broker": "broker-a"}, ("path", "assign")),
        ({"path": "store", "subscribe": "x", "groupId": "g"}, ("groupId", "namesrvAddr")),
        ({**ORDERS, "startingTimestamp": "2000", "endingTimestamp": "1000"}, ("startingTimestamp=2000 lies after endingTimestamp=1000",)),
        ({**ORDERS, "startingTimestamp": "-1h", "endingTimestamp": "-2h"}, ("startingTimestamp=-1h lies after",)),
        ({**ORDERS, "startingOffsetsByTimestamp": '{"orders": 1}', "startingOffsets": "latest"}, ("ByTimestamp exclude",)),
        ({**ORDERS, "startingOffsetsByTimestamp": '{"orders": {"a": {"x": 1}}}'}, ("orders has x: 1", '{"topic": {"0": 1700000000000}}')),
        ({**ORDERS, "startingOffsetsByTimestamp": '{"orders": {"0": true}}'}, ("orders has 0: True",)),
        ({**ORDERS, "startingOffsetsByTimestamp": '{"orders": "monday"}'}, ("startingOffsetsByTimestamp=monday", "-10 minutes")),
        ({**ORDERS, "startingOffsetsByTimestampStrategy": "error"}, ("does nothing without startingTimestamp",)),
        ({**ORDERS, "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "earliest"}, ("expected latest or error",)),
        ({**ORDERS, "columns": "body,bodi"}, ("columns=body,bodi names bodi, which is no column", "did you mean body?", "stored_size")),
        ({**ORDERS, "columns": "body,,tags"}, ("columns=body,,tags", "commas")),
        ({**ORDERS, "columns": "body,Body"}, ("columns=body,Body", "body stands there twice")),
        ({**BROKERS, "subscribePattern": "(orders"}, ("subscribePattern=(orders", "regular expression")),
        ({**BROKERS, "subscribe": "a,,b"}, ("subscribe=a,,b", "commas")),
        ({**BROKERS, "assign": '{"orders": {"broker-a": "0"}}'}, ("assign", "list of numbers")),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_sentence(given: dict[str, str], words: tuple[str, ...]) -> None:
    text = problem(given)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_topics_are_separated_by_commas_and_named_once() -> None:
    assert read(subscribe="b, a,b").topics == ("b", "a")


def test_queues_are_assigned_with_or_without_their_broker() -> None:
    given = {**BROKERS, "assign": '{"t": [1, 0], "s": {"broker-b": [3]}}'}
    assert read_options(given).assigned == (("s", "broker-b", 3), ("t", "", 0), ("t", "", 1))


def test_offsets_are_words_or_json() -> None:
    assert read(startingOffsets="EARLIEST").starting == Edge(EARLIEST)
    assert read(startingOffsets="latest").starting == Edge(LATEST)
    given = '{"orders": {"b": {"1": 7, "0": -1}, "a": {"0": -2}}}'
    offsets = (("orders", "a", 0, EARLIEST), ("orders", "b", 0, LATEST), ("orders", "b", 1, 7))
    assert read(startingOffsets=given).starting == Edge(EARLIEST, offsets)
    assert read(endingOffsets=given).ending == Edge(LATEST, offsets)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("-10 minutes", 400_000),
        ("-1h", -2_600_000),
    ],
)
def test_a_time_is_a_number_a_date_or_counted_back(text: str, time_ms: int) -> None:
    edge = read(startingTimestamp=text).starting
    assert edge is not None
    assert edge.time(now_ms=1_000_000) == time_ms


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("90s", 90), ("15m", 900), ("2 hours", 7_200), ("1 day", 86_400), ("5", None), ("m", None)]
)
def test_a_duration_has_a_unit(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds


def test_bytes_may_be_given_in_larger_units() -> None:
    assert read(maxBytesPerTrigger="64m").bytes_max == 64 << 20
    assert read(maxBytesPerTrigger="1000").bytes_max == 1_000


def test_blank_values_count_as_not_given() -> None:
    assert known({"tags": "  ", "subscribe": " x "}) == {"subscribe": "x"}


def test_a_place_can_be_kept_by_its_options_and_does_not_show_its_secret() -> None:
    given = {**BROKERS, "accessKey": "who", "secretKey": "hidden-thing"}
    where = where_of(given)
    assert {where: 1}[where_of(given)] == 1
    assert pickle.loads(pickle.dumps(where)) == where
    assert "hidden-thing" not in repr(where)


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the document."""
    part = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_option_is_documented_as_it_is() -> None:
    expected = [[f"`{one.name}`", one.form, one.default, one.about] for one in OPTIONS]
    assert rows_of("Options") == expected


def test_every_column_is_documented_as_it_is() -> None:
    assert rows_of("Columns") == [[f"`{one.name}`", one.sql, "yes" if one.name in DEFAULT else "", one.about] for one in COLUMNS]
