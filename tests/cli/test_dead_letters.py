"""Dead letters from the command line: listed, looked at, sent again once and not twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import roquet
from roquet.admin import Admin
from roquet.admin.dead_letters import REDRIVE_GROUP, Choice, DeadLetters, Step, sent_again
from roquet.cli.main import main
from roquet.client import Message, MessageQueue
from roquet.embed import Embedded
from roquet.errors import ClientError, Rejected
from roquet.message import ReceivedMessage
from roquet.wire.calls.call import AnyCall
from roquet.wire.calls.sends import CONSUMER_SEND_MSG_BACK, SEND_MESSAGE, SendBackHeader
from roquet.wire.record import Record
from tests.cli.servers import up

DEAD = MessageQueue("%DLQ%g", "broker-a", 0)


def against_a_broker(scenario: Callable[[Embedded, Admin], Awaitable[None]], **settings: str) -> None:
    async def run() -> None:
        async with roquet.embedded(settings=settings) as mq, mq.admin() as admin:
            await admin.create_topic("orders", read_queues=2, write_queues=2)
            await scenario(mq, admin)

    asyncio.run(run())


async def bury(admin: Admin, message: ReceivedMessage, group: str = "g") -> None:
    """Fail it for good."""
    (master,) = await admin.masters()
    header = SendBackHeader(message.physical_offset, group, -1, message.message_id, message.topic, False, 16)
    await admin.call(master.address, CONSUMER_SEND_MSG_BACK, header)


async def dead_letters(mq: Embedded, admin: Admin, *messages: Message) -> None:
    async with mq.producer() as producer:
        for message in messages:
            receipt = await producer.send(message)
            await bury(admin, await admin.view_message(receipt.offset_message_id))


async def read_all(admin: Admin, topic: str) -> list[ReceivedMessage]:
    reader = DeadLetters(admin, "none")
    reader.topic = topic
    return [message async for message in reader.letters()]


def order(number: int, **more: Any) -> Message:
    return Message("orders", b"%d" % number, tags="odd" if number % 2 else "even", keys=[f"order-{number}"], **more)


def test_a_replay_sends_each_letter_once_as_the_producer_made_it() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, *(order(number, properties={"region": "eu"}) for number in range(3)))
        before = len(await read_all(admin, "orders"))
        async with DeadLetters(admin, "g") as dead:
            plan = await dead.plan(Choice())
            assert [(step.target, step.sent, step.why_not) for step in plan.steps] == [("orders", 0, "")] * 3
            outcome = await dead.replay(plan)
        assert (outcome.sent, outcome.failed) == (3, "")
        fresh = (await read_all(admin, "orders"))[-3:]
        letters = {letter.offset_message_id: letter for letter in await read_all(admin, "%DLQ%g")}
        assert len(await read_all(admin, "orders")) == before + 3
        for message in [one for one in await read_all(admin, "orders") if one.message_id in letters]:
            letter = letters[message.message_id]
            assert (message.body, message.tags, message.keys) == (letter.body, letter.tags, letter.keys)
            assert message.reconsume_times == 0
            assert message.properties["region"] == "eu"
            assert message.properties["DLQ_ORIGIN_MESSAGE_ID"] == letter.message_id
            assert not {"RETRY_TOPIC", "DELAY", "REAL_TOPIC"} & message.properties.keys()
        assert fresh
        async with DeadLetters(admin, "g") as dead:
            plan = await dead.plan(Choice())
            assert (plan.to_send(), plan.skipped, plan.looked_at) == ([], 3, 0), "the mark saves the questions"
            assert (await dead.replay(plan)).sent == 0

    against_a_broker(scenario)


def test_the_check_does_not_need_the_mark() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, *(order(number) for number in range(4)))
        async with DeadLetters(admin, "g") as dead:
            await dead.replay(await dead.plan(Choice(tag="odd")))
        assert await admin.consumer_offset(REDRIVE_GROUP, DEAD) in (0, None), "letter 0 was not sent"
        async with DeadLetters(admin, "g") as dead:
            plan = await dead.plan(Choice())
            assert [bool(step.sent) for step in plan.steps] == [False, True, False, True]
            assert (await dead.replay(plan)).sent == 2
        assert await admin.consumer_offset(REDRIVE_GROUP, DEAD) == 4
        await admin.set_consumer_offset(REDRIVE_GROUP, DEAD, 0)
        async with DeadLetters(admin, "g") as dead:
            assert (await dead.plan(Choice())).to_send() == []

    against_a_broker(scenario)


def test_a_mark_that_cannot_be_true_is_not_believed() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, order(0), order(1))
        for mark in (1, 2, 99):
            await admin.set_consumer_offset(REDRIVE_GROUP, DEAD, mark)
            assert len((await DeadLetters(admin, "g").plan(Choice())).to_send()) == 2

    against_a_broker(scenario)


def test_a_failure_stops_the_run_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, *(order(number) for number in range(5)))
        call, sends = admin.call, []

        async def failing(address: str, asked: AnyCall, *rest: Any, **more: Any) -> Any:
            if asked is SEND_MESSAGE:
                sends.append(asked)
                if len(sends) == 3:
                    # The worst moment: the broker has it, and the answer is lost.
                    await call(address, asked, *rest, **more)
                    raise ClientError("the answer was lost")
            return await call(address, asked, *rest, **more)

        monkeypatch.setattr(admin, "call", failing)
        async with DeadLetters(admin, "g") as dead:
            outcome = await dead.replay(await dead.plan(Choice()))
        assert (outcome.sent, outcome.failed) == (2, "the answer was lost")
        async with DeadLetters(admin, "g") as dead:
            outcome = await dead.replay(await dead.plan(Choice()))
        assert (outcome.sent, outcome.failed) == (2, "")
        assert len(await read_all(admin, "orders")) == 10

    against_a_broker(scenario)


def test_two_runs_at_once_are_one_run() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, order(0))
        async with DeadLetters(admin, "g"):
            with pytest.raises(ClientError, match="another replay"):
                async with DeadLetters(admin, "g"):
                    pass
        async with DeadLetters(admin, "g"):
            pass

    against_a_broker(scenario)


def test_letters_can_be_sent_to_another_topic_or_to_their_group_alone() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await admin.create_topic("elsewhere")
        await dead_letters(mq, admin, order(0))
        for more, topic in (({"to": "elsewhere"}, "elsewhere"), ({"only_this_group": True}, "%RETRY%g")):
            for expected in (1, 0):
                async with DeadLetters(admin, "g", **more) as dead:
                    assert (await dead.replay(await dead.plan(Choice()))).sent == expected
            (message,) = await read_all(admin, topic)
            assert message.properties["DLQ_ORIGIN_TOPIC"] == "orders"
            assert message.properties.get("RETRY_TOPIC") == ("orders" if "RETRY" in topic else None)
        assert len((await DeadLetters(admin, "g").plan(Choice())).to_send()) == 1, "to its own topic it was not sent"

    against_a_broker(scenario)


def test_what_cannot_be_sent_says_why() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, order(0))
        plan = await DeadLetters(admin, "g", to="nowhere").plan(Choice())
        assert "'nowhere'" in plan.steps[0].why_not
        await admin.create_topic("orders", read_queues=2, write_queues=2, perm=4)
        plan = await DeadLetters(admin, "g").plan(Choice())
        assert "no queue of 'orders' takes messages" in plan.steps[0].why_not

    against_a_broker(scenario)


def test_without_an_index_nothing_is_sent_unless_asked_for() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, order(0))
        assert "messageIndexEnable" in (await DeadLetters(admin, "g").plan(Choice())).steps[0].why_not
        assert len((await DeadLetters(admin, "g").plan(Choice(), again=True)).to_send()) == 1

    against_a_broker(scenario, messageIndexEnable="false")


def test_a_dead_letter_topic_that_may_not_be_read_says_what_to_do() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await dead_letters(mq, admin, order(0))
        await admin.create_topic("%DLQ%g", read_queues=1, write_queues=1, perm=2)
        with pytest.raises((ClientError, Rejected), match="--perm rw"):
            await DeadLetters(admin, "g").plan(Choice())

    against_a_broker(scenario)


def letter(**properties: str) -> ReceivedMessage:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return ReceivedMessage(Record("%DLQ%g", 0, b"x", text.encode(), store_timestamp=100, physical_offset=16))


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), True),
        (Choice(message_id="U"), True),
        (Choice(message_id="O"), True),
        (Choice(message_id="0" * 30 + "10"), True),
        (Choice(message_id="X"), False),
        (Choice(key="b"), True),
        (Choice(key="a b"), False),
        (Choice(tag="t", properties=(("p", "1"),)), True),
        (Choice(tag="t", properties=(("p", "2"),)), False),
        (Choice(begin_ms=100, end_ms=101), True),
        (Choice(end_ms=100), False),
        (Choice(begin_ms=101), False),
        (Choice(topic="T"), True),
        (Choice(topic="%DLQ%g"), False),
    ],
    ids=str,
)
def test_letters_are_chosen_by_id_key_tag_property_time_and_topic(choice: Choice, taken: bool) -> None:
    assert choice.takes(letter(UNIQ_KEY="U", ORIGIN_MESSAGE_ID="O", KEYS="a b", TAGS="t", p="1", RETRY_TOPIC="T")) is taken


def test_nothing_of_the_last_journey_travels_again() -> None:
    made = sent_again(letter(TRAN_MSG="true", PGROUP="p", DELAY="0", WAIT="false", TIMER_DELIVER_MS="1", x="y", UNIQ_KEY="U"), "T")
    assert made == {"x": "y", "UNIQ_KEY": "0" * 30 + "10", "DLQ_ORIGIN_MESSAGE_ID": "U"}


def test_a_step_is_small() -> None:
    """A plan of a million letters must fit into memory: no bodies in it."""
    assert not hasattr(Step(DEAD, 0, "k", "m", "t"), "message")


# The command


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server, address = up(tmp_path_factory.mktemp("data"))

    async def fill() -> None:
        async with roquet.Producer("p", address) as producer, Admin(address) as admin:
            await admin.create_topic("orders", read_queues=2, write_queues=2)
            for number in range(6):
                receipt = await producer.send(order(number, properties={"region": "eu" if number < 2 else "us"}))
                await bury(admin, await admin.view_message(receipt.offset_message_id), "billing")

    with server:
        asyncio.run(fill())
        yield address


@pytest.fixture
def run(cluster: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NAMESRV_ADDR", cluster)

    def made(*arguments: str) -> tuple[int, str, str]:
        code = main(["dead-letters", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return made


def test_the_commands_from_listing_to_the_second_replay(run: Run) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["billing", "6"]
    assert json.loads(run("list", "--json")[1])[0]["letters"] == 6

    code, out, err = run("look", "billing", "--count", "2")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "<- orders, not sent again" in out
    assert "4 more letters" in err
    code, out, _ = run("look", "billing", "--key", "order-3", "--full")
    assert "RETRY_TOPIC = orders" in out
    assert run("look", "billing", "--key", "nobody")[0] == 1
    code, _, err = run("look", "nobody")
    assert code == 1
    assert "has no dead letters" in err
    assert "topic create" not in err, "there is nothing to create"

    assert run("replay", "billing")[0] == 2
    assert run("replay", "billing", "--all", "--tag", "odd")[0] == 2
    code, out, _ = run("replay", "billing", "--property", "region=eu", "--dry-run")
    assert code == 0
    assert "would send 2 dead letters; 0 were sent before" in out
    code, out, err = run("replay", "billing", "--property", "region=eu")
    assert (code, "say --yes" in err) == (1, True)
    code, out, _ = run("replay", "billing", "--property", "region=eu", "--yes")
    assert (code, out) == (0, "sent 2 dead letters; 0 were sent before\n")

    made = json.loads(run("replay", "billing", "--all", "--yes", "--json")[1])
    assert (made["sent"], made["sentBefore"], made["toSend"], made["failed"]) == (4, 2, 0, None)
    code, out, _ = run("replay", "billing", "--all", "--yes")
    assert (code, out) == (0, "sent 0 dead letters; 6 were sent before\n")
    assert run("look", "billing")[1].count("sent again 2") == 6
    code, out, _ = run("replay", "billing", "--id", made["letters"][0]["messageId"], "--again", "--yes")
    assert (code, out) == (0, "sent 1 dead letter; 0 were sent before\n")


def test_a_group_whose_letters_are_all_gone_has_none_now(run: Run, cluster: str) -> None:
    async def empty_topic() -> None:
        async with Admin(cluster) as admin:
            await admin.create_topic("%DLQ%spent", read_queues=1, write_queues=1)

    asyncio.run(empty_topic())
    assert run("look", "spent") == (1, "", "group 'spent' has no dead letters now\n")
    assert run("look", "spent", "--key", "order-3") == (1, "", "no such dead letter of group spent\n")
