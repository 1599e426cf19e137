"""Dead letters of all groups: counted by reason, chosen with SQL, sent again once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from typing import Any

import pytest

from roquet import Admin, Message
from roquet.admin.dead_letters import Choice, DeadLetters
from roquet.cli.main import main
from roquet.cli.pipeline import sentence
from roquet.message import MessageQueue
from roquet.spark.pipelines import dead_letters as dead
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.sends import CONSUMER_SEND_MSG_BACK, SendBackHeader
from tests.spark.conftest import Servers


@pytest.fixture(scope="module")
def buried(servers: Servers, spark: Any) -> Servers:
    """Letters 0 to 5 of dlq_billing, four from dlq_orders and two from dlq_refunds, and one of dlq_mail that says why."""

    async def work() -> None:
        async with Admin(servers.namesrv) as admin, servers.embedded.producer() as producer:
            (master,) = await admin.masters()
            for topic in ("dlq_orders", "dlq_refunds"):
                await admin.create_topic(topic, read_queues=2, write_queues=2)
            await admin.create_group(GroupConfig(group_name="dlq_billing", retry_max_times=1))
            await admin.create_group(GroupConfig(group_name="dlq_mail", retry_max_times=16))

            async def bury(message: Message, group: str) -> None:
                receipt = await producer.send(message)
                stored = await admin.view_message(receipt.offset_message_id)
                header = SendBackHeader(stored.physical_offset, group, -1, stored.message_id, stored.topic, False, 16)
                await admin.call(master.address, CONSUMER_SEND_MSG_BACK, header)

            for number in range(6):
                topic, region = ("dlq_orders", "eu") if number < 4 else ("dlq_refunds", "us")
                tag = "odd" if number % 2 else "even"
                message = Message(topic, b"%d" % number, tags=tag, keys=[f"order-{number}", "all"], properties={"region": region})
                await bury(message, "dlq_billing")
            await bury(Message("dlq_orders", b"mail", properties={"exception": "no such address"}), "dlq_mail")

    servers.run(work())
    return servers


def ask(*arguments: str, code: int = 0) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["pipeline", "dlq", *arguments, "--group", "dlq_billing", "--group", "dlq_mail", "--json"]) == code
    return json.loads(out.getvalue())


def bodies(servers: Servers, topic: str) -> list[bytes]:
    async def work() -> list[bytes]:
        async with Admin(servers.namesrv) as admin:
            reader = DeadLetters(admin, "none")
            reader.topic = topic
            return [message.body async for message in reader.letters()]

    return sorted(servers.run(work()))


@pytest.mark.parametrize("from_files", [False, True], ids=["from brokers", "from files"])
def test_letters_are_counted_by_group_topic_tag_and_reason(buried: Servers, from_files: bool) -> None:
    place = ("--store", str(buried.store)) if from_files else ("-n", buried.namesrv)
    answer = ask(*place, "--show", "5")
    counts = [(row["group"], row["origin_topic"], row["tags"], row["reason"], row["letters"]) for row in answer["reasons"]]
    failed = "failed once" if from_files else "failed once, as often as allowed"
    assert sorted(counts, key=str) == [
        ("dlq_billing", "dlq_orders", "even", failed, 2),
        ("dlq_billing", "dlq_orders", "odd", failed, 2),
        ("dlq_billing", "dlq_refunds", "even", failed, 1),
        ("dlq_billing", "dlq_refunds", "odd", failed, 1),
        ("dlq_mail", "dlq_orders", None, "no such address", 1),
    ]
    times = [row["store_time"] for row in answer["shown"]]
    assert (len(times), times) == (5, sorted(times, reverse=True)), "the newest first"
    assert {row["properties"]["region"] for row in answer["shown"] if row["origin_topic"] == "dlq_refunds"} == {"us"}


def test_a_letter_given_up_before_its_groups_limit_says_so(spark: Any) -> None:
    rows = [("%DLQ%g", 3, {"RETRY_TOPIC": "t"}), ("%DLQ%g", 17, {"MAX_RECONSUME_TIMES": "17"}), ("%DLQ%h", 2, {"MAX_RECONSUME_TIMES": "x"})]
    ddl = "topic string, reconsume_times int, properties map<string,string>, store_time timestamp"
    found = dead.described(spark.createDataFrame([(*row, None) for row in rows], ddl), {"g": 16})
    assert [(row.group, row.origin_topic, row.reason) for row in found.collect()] == [
        ("g", "t", "failed 3 times, its consumer gave up before the 16 allowed"),
        ("g", None, "failed 17 times, as often as allowed"),
        ("h", None, "failed 2 times"),
    ]


def test_a_selection_is_sent_again_once_and_a_second_run_sends_nothing(buried: Servers) -> None:
    selection = ("-n", buried.namesrv, "--origin-topic", "dlq_orders", "--where", "properties['region'] = 'eu' and keys like 'order-%'")
    before = bodies(buried, "dlq_orders")

    plan = ask(*selection, "--tag", "odd", "--dry-run")["redrive"]
    assert (plan["dryRun"], plan["toSend"], plan["sent"]) == (True, 2, 0)
    assert bodies(buried, "dlq_orders") == before, "a dry run sends nothing"

    done = ask(*selection, "--tag", "odd", "--redrive", "--yes", "--rate", "50")["redrive"]
    assert (done["sent"], done["toSend"], done["sentBefore"]) == (2, 0, 0)
    assert bodies(buried, "dlq_orders") == sorted([*before, b"1", b"3"])

    wider = ask(*selection, "--redrive", "--yes")["redrive"]
    assert (wider["sent"], wider["sentBefore"]) == (2, 2), "what was sent before is not sent again"
    assert bodies(buried, "dlq_orders") == sorted([*before, b"0", b"1", b"2", b"3"])


def test_the_marks_are_those_of_the_dead_letters_command(buried: Servers) -> None:
    where = {"namesrvAddr": buried.namesrv}
    ((queue, first),) = offsets_of(buried, "dlq_mail")
    (sent,) = dead.redrive(where, {"dlq_mail": {queue: frozenset({first})}})
    assert (sent.chosen, sent.sent, sent.failed) == (1, 1, "")

    async def plan() -> list[bool]:
        async with Admin(buried.namesrv) as admin:
            return [bool(step.sent) for step in (await DeadLetters(admin, "dlq_mail").plan(Choice())).steps]

    assert asyncio.run(plan()) in ([], [True]), "behind the mark, or known as sent"
    (again,) = dead.redrive(where, {"dlq_mail": {queue: frozenset({first})}})
    assert (again.sent, again.sent_before) == (0, 1)


def offsets_of(servers: Servers, group: str) -> list[tuple[MessageQueue, int]]:
    async def work() -> list[tuple[MessageQueue, int]]:
        async with Admin(servers.namesrv) as admin:
            return [(letter.queue, letter.queue_offset) async for letter in DeadLetters(admin, group).letters()]

    return servers.run(work())


def test_sending_keeps_to_its_rate(buried: Servers) -> None:
    places: dict[MessageQueue, frozenset[int]] = {}
    for queue, offset in offsets_of(buried, "dlq_billing"):
        places[queue] = places.get(queue, frozenset()) | {offset}
    buried.topic("dlq_slowly", 1)
    began = time.monotonic()
    (sent,) = dead.redrive({"namesrvAddr": buried.namesrv}, {"dlq_billing": places}, to="dlq_slowly", rate=20)
    assert sent.sent == 6
    assert time.monotonic() - began >= 5 / 20
    assert bodies(buried, "dlq_slowly") == [b"%d" % number for number in range(6)]


def test_what_cannot_be_is_a_sentence(buried: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "dlq", "--store", str(buried.store), "--redrive", "--yes"]) == 1
    assert "sending dead letters again goes through brokers; files are only read" in capsys.readouterr().err
    assert main(["pipeline", "dlq", "-n", buried.namesrv, "--group", "dlq_mail", "--where", "regoin = 'eu'"]) == 1
    error = capsys.readouterr().err
    assert "--where \"regoin = 'eu'\" is no expression over dead letters" in error
    assert "origin_topic" in error
    assert main(["pipeline", "dlq", "-n", buried.namesrv, "--group", "dlq_billing", "--where", "cast(tags as int) = 1"]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("roquet:")]
    assert "'odd'" in line or "'even'" in line


def test_an_error_of_ours_in_a_task_is_what_is_said_of_sparks_pages() -> None:
    text = "[PYTHON] An exception\n  File x, line 3\nroquet.spark.places.DataGone: t/0 on b: offset 1 is gone\n\n\tat org.apache.spark\n"
    assert sentence(text) == "t/0 on b: offset 1 is gone"
    assert sentence("\n[CAST_INVALID_INPUT] The value 'x' is none.\n== SQL ==\n") == "[CAST_INVALID_INPUT] The value 'x' is none."


def test_a_place_without_dead_letters_has_an_empty_table(buried: Servers, spark: Any) -> None:
    assert dead.by_reason(dead.letters(spark, {"namesrvAddr": buried.namesrv}, ["nobody"])).collect() == []
