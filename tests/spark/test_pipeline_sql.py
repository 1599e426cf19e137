"""Every topic is a view."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roquet import Message
from roquet.cli.main import main
from roquet.cli.pipelines.sql import split
from roquet.errors import NoRoute
from roquet.spark.pipelines.sql import NotJson, Topics, Words, columns_for, need_tables, use_pushdown
from tests.spark.conftest import Servers


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("select tags, count(*) from orders group by tags", ["tags"]),
        ("select count(*) from orders", ["queue_offset"]),
        ("select COUNT( * ), Queue_Id from orders group by 2", ["queue_id"]),
        ("select json.amount from orders where STORE_TIME > now()", ["body", "store_time"]),
        ("select 'tags' from orders -- keys\n", ["queue_offset"]),
        ("select `tags` from `%DLQ%billing`", ["tags"]),
    ],
)
def test_a_view_has_only_the_columns_that_the_statement_can_mean(statement: str, columns: list[str]) -> None:
    assert columns_for(Words.of(statement)) == columns


def test_a_star_means_every_column() -> None:
    assert len(columns_for(Words.of("select * from orders"))) > 20


def test_a_topic_in_quotes_is_a_name_and_a_literal_is_not() -> None:
    words = Words.of("select * from `%DLQ%billing` where tags = 'orders'")
    assert "%DLQ%billing" in words.names
    assert "orders" not in words.names


def test_semicolons_inside_quotes_do_not_end_a_statement() -> None:
    assert split("select ';' ; select `a;b`;") == ["select ';' ", " select `a;b`"]
    assert split("select 1; select", keep_last=True) == ["select 1", " select"]


@pytest.fixture(scope="module")
def topic(servers: Servers) -> str:
    name = servers.topic("sql-orders", 2)
    tags = ("paid", "open", "paid")
    servers.send(
        Message(name, json.dumps({"customer": f"c{number % 2}", "amount": number / 2}).encode(), tags=tags[number % 3], keys=f"k{number}")
        for number in range(30)
    )
    return name


@pytest.fixture(scope="module")
def topics(spark: Any, servers: Servers, topic: str) -> Topics:
    use_pushdown(spark)
    return Topics(spark, {"namesrvAddr": servers.namesrv}, pushdown=True)


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("select count(*) from (select * from T where queue_id = 0 union all select * from T where queue_id = 1)", 30),
        ("with t as (select queue_id from T) select (select count(*) from t where queue_id = 0) + (select count(*) from t)", None),
        ("select count(*) from T a join T b using (queue_id, queue_offset) where a.queue_id = 1", None),
    ],
)
def test_a_table_that_a_statement_reads_twice_is_read_whole(topics: Topics, statement: str, answer: int | None) -> None:
    """Spark 4.3 keeps the filters of the first use for the second."""
    plain = Topics(topics.spark, topics.where, pushdown=False)
    found = topics.run(statement.replace("T", "`sql-orders`")).collect()[0][0]
    assert found == plain.run(statement.replace("T", "`sql-orders`")).collect()[0][0]
    assert answer is None or found == answer


def test_counts_by_tag_within_the_last_hour(topics: Topics) -> None:
    found = topics.run("select tags, count(*) from `sql-orders` where store_time > now() - interval 1 hour group by tags order by tags")
    assert [tuple(row) for row in found.collect()] == [("open", 10), ("paid", 20)]


def test_fields_of_json_bodies_are_inferred(topics: Topics) -> None:
    found = topics.run("select json.customer, sum(json.amount) from `sql-orders` group by 1 order by 1")
    assert [tuple(row) for row in found.collect()] == [("c0", 105.0), ("c1", 112.5)]


def test_a_schema_that_was_given_counts(spark: Any, servers: Servers, topic: str) -> None:
    given = Topics(spark, {"namesrvAddr": servers.namesrv}, {topic: "amount string"})
    assert given.run("select max(json.amount) from `sql-orders`").collect()[0][0] == "9.5"  # text, so not 14.5


def test_bodies_that_are_no_json_say_so(topics: Topics, servers: Servers) -> None:
    servers.topic("sql-plain", 1)
    servers.send([Message("sql-plain", b"\x00\x01 plain")])
    with pytest.raises(NotJson, match="none of the 1 newest messages of sql-plain"):
        topics.run("select json.a from `sql-plain`")


def test_files_answer_as_the_broker_does(spark: Any, servers: Servers, topics: Topics) -> None:
    statement = "select queue_id, queue_offset, text, keys from `sql-orders` order by 1, 2"
    files = Topics(spark, {"path": str(servers.store)})
    assert files.run(statement).collect() == topics.run(statement).collect()


def test_the_command_prints_a_table_and_json(servers: Servers, spark: Any, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    statement = f"select tags, count(*) as n from `{topic}` group by tags order by tags"
    assert main(["pipeline", "sql", "-n", servers.namesrv, statement]) == 0
    assert capsys.readouterr().out.splitlines() == ["tags   n", "open  10", "paid  20"]
    assert main(["pipeline", "sql", "-n", servers.namesrv, "--json", statement]) == 0
    assert json.loads(capsys.readouterr().out) == [{"tags": "open", "n": 10}, {"tags": "paid", "n": 20}]


def test_json_is_one_document_whatever_the_statements(servers: Servers, spark: Any, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = f"select min(store_time) as at from `{topic}`; select 1 as one; set spark.sql.shuffle.partitions = 1"
    assert main(["pipeline", "sql", "-n", servers.namesrv, "--json", first]) == 0
    at, one, *_ = json.loads(capsys.readouterr().out)
    assert one == {"one": 1}
    assert isinstance(at["at"], int)  # ms since 1970, as in every document
    assert main(["pipeline", "sql", "-n", servers.namesrv, "--json", f"select * from `{topic}` where tags = 'none'"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["pipeline", "sql", "-n", servers.namesrv, "--json", "--limit", "2", f"select keys from `{topic}`"]) == 0
    told = capsys.readouterr()
    assert len(json.loads(told.out)) == 2
    assert "and more: --limit 20" in told.err


@pytest.mark.parametrize(
    "statement",
    [
        "select * from orders o where x is distinct from y",
        "select extract(year from store_time), trim(both 'x' from tags) from orders",
        "with big as (select * from orders), small as (select 1) select * from big join small",
        "create temporary view mine as select * from orders; select * from mine",
        "select * from (select * from `orders`) a join orders b using (keys)",
        "select * from range(10)",
        "select * from values 1, 2",
        "select * from orders join lateral explode(map_keys(properties))",
        "select * from orders, lateral explode(map_keys(properties))",
        "show tables from default",
        "with `my-part` as (select 1) select * from `my-part`",
        "select * from parquet.`/data/file`",
        "select 'from nowhere' -- from nowhere",
    ],
)
def test_tables_that_are_there_pass(statement: str) -> None:
    assert need_tables(split(statement), ["orders"]) == split(statement)


def test_a_table_that_is_no_topic_is_named_with_the_nearest_one() -> None:
    for statement in (
        "select * from ordrs where tags = 'a'",
        "select 1 from orders a left join `ordrs` b using (keys)",
        "select * from ordrs",
    ):
        with pytest.raises(NoRoute, match=r"the statement reads ordrs, and there is no such topic; did you mean orders\?"):
            need_tables([statement], ["orders", "payments"])
    with pytest.raises(NoRoute, match=r"reads ORDERS, and there is no such topic; did you mean orders\?"):  # their names tell case
        need_tables(["select * from ORDERS"], ["orders"])


def test_a_statement_that_is_wrong_is_answered_with_a_sentence(
    servers: Servers, spark: Any, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "sql", "-n", servers.namesrv, f"select nothing from `{topic}`"]) == 1
    assert capsys.readouterr().err.startswith("roquet: the statement names nothing, which is no column of a topic; there are topic, broker")
