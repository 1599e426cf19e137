"""PushConsumerCore over a scripted cluster: shares, progress, failures, and what operators ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roquet.client.core.producer import ProducerCore
from roquet.client.core.verdicts import Judged, Outcome
from roquet.client.member import CHOICES
from roquet.errors import ClientError
from roquet.message import Message, MessageQueue, ReceivedMessage
from roquet.routing.assign import AVERAGE_BY_CIRCLE
from roquet.wire.calls.consumers import ConsumeDirectlyResult, ConsumerRunningInfo
from roquet.wire.calls.offsets import ConsumerStatusBody, ResetOffsetBody
from roquet.wire.codes import PullFlag, ResponseCode
from roquet.wire.command import Command
from roquet.wire.fastjson import loads
from tests.client.fakes import FakeCluster
from tests.client.members import GROUP, Member, MemoryFile, ask, cluster_with, stored

# -- consuming


def test_messages_are_consumed_and_progress_is_committed_within_five_seconds() -> None:
    cluster, queues = cluster_with()
    member = Member(cluster).start()
    for number in range(20):
        cluster.append(queues[number % 4], b"%d" % number)
    cluster.run()
    assert sorted(member.bodies) == sorted(b"%d" % number for number in range(20))
    cluster.advance(5_000)
    assert [stored(cluster, queue) for queue in queues] == [5, 5, 5, 5]


def test_progress_waits_for_the_slowest_message() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None).start()
    for _ in range(3):
        cluster.append(queue, b"x")
    cluster.run()
    (_, first), (_, second), (_, third) = member.held
    third(Outcome.SUCCESS)
    second(Outcome.SUCCESS)
    cluster.advance(5_000)
    assert stored(cluster, queue) in (None, 0)
    first(Outcome.SUCCESS)
    cluster.advance(5_000)
    assert stored(cluster, queue) == 3


def test_at_most_so_many_calls_run_at_once_and_each_gets_at_most_a_batch() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, concurrency=2, batch_size=3).start()
    for _ in range(8):
        cluster.append(queue, b"x")
    cluster.run()
    assert member.calls == [3, 3]
    member.held[0][1](Outcome.SUCCESS)
    assert member.calls == [3, 3, 2]


def test_tags_are_compared_as_text_too() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, tags="Aa || C").start()
    for tag in ("Aa", "BB", "C", ""):  # "Aa" and "BB" have the same Java hash, so a broker lets both through
        cluster.append(queue, tag.encode() or b"none", f"TAGS\x01{tag}" if tag else "")
    cluster.advance(5_000)
    assert member.bodies == [b"Aa", b"C"]
    cluster.append(queue, b"BB", "TAGS\x01BB")
    cluster.advance(5_000)
    assert stored(cluster, queue) == 5  # what is not for us does not hold progress


def test_a_judgement_counts_once() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None).start()
    cluster.append(queue, b"x")
    cluster.run()
    for _ in range(2):
        member.held[0][1](Outcome.SUCCESS)
    assert member.core.consuming.running == 0


def test_a_full_queue_is_not_pulled_until_something_is_finished() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, count_max=10, pull_batch_size=8).start()
    for _ in range(50):
        cluster.append(queue, b"x")
    cluster.advance(1_000)
    assert len(member.core.queues[queue].messages) == 16  # one pull over the limit, as upstream
    for _, judge in member.held[:16]:
        judge(Outcome.SUCCESS)
    cluster.advance(100)
    assert len(member.seen) > 16


def test_a_full_queue_is_pulled_again_without_delay_when_an_eighth_of_what_it_holds_is_left() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, count_max=10, pull_batch_size=8, concurrency=64).start()
    for _ in range(50):
        cluster.append(queue, b"x")
    cluster.advance(1)
    assert len(member.held) == 16
    for _, judge in member.held[:13]:
        judge(Outcome.SUCCESS)
    cluster.run()
    assert len(member.held) == 16
    member.held[13][1](Outcome.SUCCESS)
    cluster.run()  # no time passes
    assert len(member.held) == 16 + 16


@pytest.mark.parametrize("orderly", [False, True])
def test_a_pull_for_which_there_is_room_again_knows_what_was_finished_and_that_the_call_is_over(orderly: bool) -> None:
    cluster, [queue] = cluster_with(1)
    for _ in range(50):
        cluster.append(queue, b"x")
    member = Member(cluster, decide=None, count_max=10, pull_batch_size=8, batch_size=8, concurrency=1, orderly=orderly).start()
    cluster.advance(1)
    pull, running = member.core._puller.pull, []

    async def watched(*args: Any, **kwargs: Any) -> Any:
        running.append(member.core.consuming.running)
        return await pull(*args, **kwargs)

    member.core._puller.pull = watched  # type: ignore[method-assign]
    for call in (0, 1):  # of eight messages each
        assert not running
        member.held[call][1](Outcome.SUCCESS)
    assert running == [0]
    cluster.run()
    assert [one.fields["commitOffset"] for one in cluster.requests(11) if one.fields["topic"] == "t"][:3] == ["0", "0", "16"]


def test_pausing_stops_pulling_and_resuming_goes_on() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster).start()
    member.core.pause()
    cluster.append(queue, b"1")
    cluster.advance(100)
    cluster.append(queue, b"2")
    cluster.advance(5_000)
    assert member.bodies == [b"1"]  # that pull was waiting at the broker already
    member.core.resume()
    cluster.advance(2_000)
    assert member.bodies == [b"1", b"2"]


def test_pulls_carry_progress_wait_at_the_broker_and_rely_on_the_heartbeats_subscription() -> None:
    cluster, [queue] = cluster_with(1)
    Member(cluster).start()
    cluster.append(queue, b"x")
    cluster.run()
    first, second = (command.fields for command in cluster.requests(11) if command.fields["topic"] == "t")
    assert (first["sysFlag"], first["suspendTimeoutMillis"], first["queueOffset"]) == (str(int(PullFlag.SUSPEND)), "15000", "0")
    assert second["sysFlag"] == str(int(PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET))
    assert second["commitOffset"] == "1"
    assert "subscription" not in first


# -- failures


def test_a_failed_message_is_sent_back_as_upstream_does() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.overrides[36] = lambda _, command: command.reply()
    Member(cluster, decide=Outcome.RETRY_LATER).start()
    record = cluster.append(queue, b"x", "UNIQ_KEY\x01ABC")
    cluster.advance(5_000)
    [command] = cluster.requests(36)
    assert command.fields == {
        "offset": str(record.physical_offset), "group": GROUP, "delayLevel": "0", "originMsgId": "ABC", "originTopic": "t",
        "unitMode": "false", "bname": "a",
    }  # fmt: skip
    assert stored(cluster, queue) == 1


def test_what_no_broker_takes_back_is_consumed_again_here_after_five_seconds_and_holds_progress() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=Outcome.RETRY_LATER).start()
    for code in (36, 310):
        cluster.overrides[code] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
    cluster.append(queue, b"x")
    cluster.advance(4_900)
    assert [message.reconsume_times for message in member.seen] == [1]  # the same object; it was called once
    assert len(member.calls) == 1
    member.decide = Outcome.SUCCESS
    assert stored(cluster, queue) in (None, 0)
    cluster.advance(5_200)
    assert len(member.calls) == 2
    assert stored(cluster, queue) == 1


def test_a_listener_that_raises_has_failed() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.overrides[36] = lambda _, command: command.reply()
    member = Member(cluster)

    def raising(messages: list[ReceivedMessage], judge: Judged) -> None:
        raise ValueError("no")

    member.core.consuming.listener = raising
    member.start()
    cluster.append(queue, b"x")
    cluster.run()
    assert len(cluster.requests(36)) == 1


def test_a_retried_message_shows_its_own_topic_and_comes_from_the_retry_queue() -> None:
    cluster, _ = cluster_with(1)
    member = Member(cluster).start()
    cluster.append(MessageQueue(f"%RETRY%{GROUP}", "a", 0), b"again", "RETRY_TOPIC\x01t")
    cluster.run()
    [message] = member.seen
    assert (message.topic, message.queue.topic) == ("t", f"%RETRY%{GROUP}")
    cluster.advance(5_000)
    assert stored(cluster, message.queue) == 1


# -- shares


def test_two_members_share_the_queues_and_the_survivor_takes_all() -> None:
    cluster, queues = cluster_with()
    one = Member(cluster, "c1").start()
    assert one.share == set(queues)
    two = Member(cluster, "c2").start()
    notify(cluster, one)
    assert (one.share, two.share) == (set(queues[:2]), set(queues[2:]))
    two.close()
    notify(cluster, one)
    assert one.share == set(queues)


def notify(cluster: FakeCluster, member: Member) -> None:
    member.core.client.receive("a:10911", Command(40, {"consumerGroup": GROUP}, flag=2), lambda _: None)
    cluster.run()


def test_without_a_notification_the_shares_are_right_after_twenty_seconds() -> None:
    cluster, queues = cluster_with()
    one = Member(cluster, "c1", strategy=AVERAGE_BY_CIRCLE).start()
    two = Member(cluster, "c2", strategy=AVERAGE_BY_CIRCLE).start()
    cluster.advance(20_000)
    assert (one.share, two.share) == ({queues[0], queues[2]}, {queues[1], queues[3]})


def test_a_queue_that_is_let_go_has_its_progress_written_and_its_late_results_ignored() -> None:
    cluster, queues = cluster_with(2)
    one = Member(cluster, "c1", decide=None).start()
    for _ in range(2):
        cluster.append(queues[1], b"x")
    cluster.run()
    one.held[0][1](Outcome.SUCCESS)
    two = Member(cluster, "c2", decide=None).start()
    notify(cluster, one)
    assert one.share == {queues[0]}
    assert stored(cluster, queues[1]) == 1
    one.held[1][1](Outcome.SUCCESS)
    cluster.advance(5_000)
    assert queues[1] not in one.core.offsets.table
    assert two.share == {queues[1]}


def test_members_that_cannot_be_learned_change_nothing() -> None:
    cluster, queues = cluster_with()
    one = Member(cluster, "c1").start()
    cluster.overrides[38] = lambda _, command: command.reply(1, "no consumer for this group, g")
    cluster.advance(25_000)
    assert one.share == set(queues)
    cluster.overrides[38] = lambda _, command: None
    cluster.members.clear()  # the broker restarted and has not heard of us
    notify(cluster, one)
    assert one.share == set(queues)
    cluster.advance(2_000)
    assert cluster.members[GROUP] == ["c1"]
    assert one.share == set(queues)


def test_a_topic_that_appears_later_is_consumed_without_waiting_for_the_polls() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("other")
    member = Member(cluster)
    member.core.subscribe("other")
    member.start()
    assert not member.share
    [queue] = cluster.create_topic("t", 1)
    cluster.append(queue, b"x")
    cluster.advance(7_000)
    assert member.bodies == [b"x"]


def test_new_queues_are_taken_when_the_route_changes() -> None:
    cluster, _ = cluster_with(2)
    member = Member(cluster).start()
    queues = cluster.create_topic("t", 4)
    cluster.advance(31_000)
    assert member.share == set(queues)


def test_unsubscribing_lets_go_and_tells_the_brokers() -> None:
    cluster, _ = cluster_with(2)
    member = Member(cluster).start()
    member.core.unsubscribe("t")
    cluster.run()
    assert not member.share
    _, body = cluster.heartbeats[-1]
    assert [one.topic for one in body.consumer_data_set[0].subscription_data_set] == [f"%RETRY%{GROUP}"]


# -- where to begin


@pytest.mark.parametrize(("consume_from", "begin"), [("first", 3), ("last", 5)])
def test_a_group_without_progress_begins_where_it_was_told(consume_from: str, begin: int) -> None:
    cluster, [queue] = cluster_with(1)
    cluster.first[queue] = 3
    for _ in range(2):
        cluster.append(queue, b"x")
    member = Member(cluster, consume_from=CHOICES["consume_from"][consume_from]).start()
    assert len(member.seen) == 5 - begin
    assert member.core.queues[queue].next_offset == 5


def test_a_group_with_progress_goes_on_from_it() -> None:
    cluster, [queue] = cluster_with(1)
    for number in range(5):
        cluster.append(queue, b"%d" % number)
    cluster.offsets[GROUP, queue] = 3
    assert Member(cluster).start().bodies == [b"3", b"4"]


def test_a_time_to_begin_at_is_looked_up() -> None:
    from roquet.client.core.push_consumer import FROM_TIMESTAMP

    cluster, [queue] = cluster_with(1)
    for _ in range(5):
        cluster.append(queue, b"x")
    cluster.overrides[29] = lambda _, command: command.reply(fields={"offset": "2"})
    member = Member(cluster, consume_from=FROM_TIMESTAMP, consume_timestamp_ms=77).start()
    assert len(member.seen) == 3
    assert cluster.requests(29)[0].fields["timestamp"] == "77"


@pytest.mark.parametrize(("progress", "expected"), [(0, [b"7", b"8"]), (100, [])])
def test_an_offset_that_does_not_exist_is_replaced_by_the_brokers(progress: int, expected: list[bytes]) -> None:
    cluster, [queue] = cluster_with(1)
    cluster.first[queue] = 7
    for number in (7, 8):
        cluster.append(queue, b"%d" % number)
    cluster.offsets[GROUP, queue] = progress
    member = Member(cluster).start()
    cluster.advance(5_000)
    assert member.bodies == expected
    assert stored(cluster, queue) == 9
    cluster.append(queue, b"new")
    cluster.run()
    assert member.bodies == [*expected, b"new"]


@pytest.mark.parametrize("orderly", [False, True])
def test_what_is_in_hand_is_consumed_though_the_broker_has_deleted_it(orderly: bool) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, orderly=orderly, concurrency=5).start()
    for number in range(10):
        cluster.append(queue, b"%d" % number)
    cluster.run()
    cluster.log[queue], cluster.first[queue] = [], 20
    cluster.append(queue, b"20")
    cluster.advance(6_000)
    assert stored(cluster, queue) in (None, 0)
    member.decide = Outcome.SUCCESS
    for _, judge in member.held:
        judge(Outcome.SUCCESS)
    cluster.advance(6_000)
    assert member.bodies == [b"%d" % number for number in (*range(10), 20)]
    assert stored(cluster, queue) == 21


@pytest.mark.parametrize("orderly", [False, True])
def test_when_a_broker_loses_its_end_what_is_in_hand_and_still_there_comes_again(orderly: bool) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, orderly=orderly, concurrency=5).start()
    for number in range(10):
        cluster.append(queue, b"%d" % number)
    cluster.run()
    del cluster.log[queue][8:]
    cluster.advance(6_000)
    assert stored(cluster, queue) in (None, 0)
    seen = len(member.bodies)
    member.decide = Outcome.SUCCESS
    for _, judge in member.held:
        judge(Outcome.SUCCESS)
    cluster.advance(6_000)
    assert member.bodies[seen:] == [b"%d" % number for number in range(8)]
    assert stored(cluster, queue) == 8


def test_a_broker_that_names_the_offset_it_does_not_have_is_asked_again_after_a_while() -> None:
    """As a slave of upstream does, which corrects no offsets."""
    cluster, [queue] = cluster_with(1)

    def illegal(_: str, command: Command) -> Command | None:
        if command.fields["topic"] != "t" or command.fields["queueOffset"] == "0":
            return None
        there = {"suggestWhichBrokerId": "0", "nextBeginOffset": command.fields["queueOffset"], "minOffset": "0", "maxOffset": "1"}
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", there)

    cluster.overrides[11] = illegal
    member = Member(cluster, decide=None).start()
    cluster.append(queue, b"x")
    cluster.advance(10_000)
    assert sum(command.fields["topic"] == "t" for command in cluster.requests(11)) == 5
    assert stored(cluster, queue) in (None, 0)
    member.held[0][1](Outcome.SUCCESS)
    cluster.advance(5_000)
    assert (member.bodies, stored(cluster, queue)) == ([b"x"], 1)


# -- trouble


def test_a_subscription_the_broker_has_not_heard_of_is_told_again_and_the_pull_repeated() -> None:
    cluster, [queue] = cluster_with(1)
    refusals = iter([ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])

    def refuse(_: str, command: Command) -> Command | None:
        code = next(refusals, None) if command.fields["topic"] == "t" else None
        return None if code is None else command.reply(code, "not yet")

    cluster.overrides[11] = refuse
    member = Member(cluster).start()
    cluster.append(queue, b"x")
    before = len(cluster.heartbeats)
    cluster.advance(2_500)
    assert member.bodies == [b"x"]
    assert len(cluster.heartbeats) > before


def test_a_broker_that_goes_away_is_pulled_again_when_it_is_back() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster).start()
    cluster.refused = {cluster.masters["a"]}
    cluster.advance(20_000)
    cluster.refused = set()
    cluster.append(queue, b"x")
    cluster.advance(2_000)
    assert member.bodies == [b"x"]
    assert len(cluster.requests(11)) < 60  # it did not hammer


def test_an_empty_answer_that_comes_at_once_is_not_asked_for_again_at_once() -> None:
    cluster, _ = cluster_with(1)
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    cluster.overrides[11] = lambda _, command: command.reply(19, "none", dict(fields))
    Member(cluster).start()
    cluster.advance(1_000)
    assert len(cluster.requests(11)) <= 2 * 11


# -- closing


@pytest.mark.parametrize("orderly", [False, True])
def test_a_closed_consumer_leaves_no_task_behind(orderly: bool) -> None:
    cluster, [queue, *_] = cluster_with(4)
    member = Member(cluster, orderly=orderly)
    before = len(member.core.client.tasks)
    member.start()
    cluster.append(queue, b"x")
    cluster.advance(2_000, 100)
    member.close()
    cluster.advance(60_000, 500)
    assert member.bodies == [b"x"]
    assert len(member.core.client.tasks) == before


def test_closing_waits_for_what_runs_writes_progress_and_unregisters() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None).start()
    cluster.append(queue, b"x")
    cluster.run()
    done: list[bool] = []
    member.core.client.tasks.start(member.core.close(), lambda _: done.append(True))
    cluster.advance(1_000)
    assert not done
    member.held[0][1](Outcome.SUCCESS)
    cluster.run()
    assert done == [True]
    assert stored(cluster, queue) == 1
    assert cluster.requests(35)[0].fields == {"clientID": "c1", "consumerGroup": GROUP}


def test_closing_does_not_wait_forever() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None).start()
    cluster.append(queue, b"x")
    cluster.run()
    done: list[bool] = []
    member.core.client.tasks.start(member.core.close(wait_ms=1_000), lambda _: done.append(True))
    cluster.advance(1_100)
    assert done == [True]
    assert stored(cluster, queue) in (None, 0)


# -- broadcasting


def test_broadcasting_takes_every_queue_and_keeps_progress_in_upstreams_file() -> None:
    cluster, queues = cluster_with(2)
    one, two = MemoryFile(), MemoryFile()
    members = [Member(cluster, name, file=file, broadcasting=True).start() for name, file in (("c1", one), ("c2", two))]
    for queue in queues:
        cluster.append(queue, b"x")
    cluster.advance(5_000)
    assert [len(member.seen) for member in members] == [2, 2]
    assert not cluster.requests(14) + cluster.requests(15)
    text = b"".join(one.data[0].split())
    assert text == (b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:1,{"brokerName":"a","queueId":1,"topic":"t"}:1}}')
    cluster.append(queues[0], b"later")
    assert Member(cluster, "c3", file=MemoryFile(*one.data), broadcasting=True).start().bodies == [b"later"]


def test_a_damaged_offset_file_falls_back_to_its_backup() -> None:
    cluster, [queue] = cluster_with(1)
    for number in range(3):
        cluster.append(queue, b"%d" % number)
    file = MemoryFile(b'{"offsetTab', ResetOffsetBody({queue: 2}).encode())
    assert Member(cluster, file=file, broadcasting=True).start().bodies == [b"2"]


def test_a_broadcast_message_that_fails_is_given_up() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, file=MemoryFile(), decide=Outcome.RETRY_LATER, broadcasting=True).start()
    cluster.append(queue, b"x")
    cluster.advance(10_000)
    assert len(member.calls) == 1
    assert not cluster.requests(36)
    assert member.core.offsets.table[queue] == 1


def test_broadcasting_without_a_file_is_refused() -> None:
    with pytest.raises(ClientError, match="offset_file"):
        Member(FakeCluster("a"), broadcasting=True)


# -- heartbeats


def test_a_heartbeat_has_the_shape_of_upstreams(golden: Callable[[int], list[Command]]) -> None:
    cluster, _ = cluster_with(1)
    member = Member(cluster, "10.0.0.1@x", tags="A || B").start()
    ProducerCore(member.core.client, "p").start()
    cluster.run()
    ours = cluster.requests(34)[-1]
    document = loads(ours.body)
    theirs = loads(golden(34)[0].body)  # of a producer
    assert set(document) == set(theirs)
    assert document["producerDataSet"] == [{"groupName": "p"}]
    [consumer] = document["consumerDataSet"]
    subscriptions = consumer.pop("subscriptionDataSet")
    assert consumer == {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
    }  # fmt: skip
    like = loads(next(one.body for one in golden(307) if one.is_response))["subscriptionSet"][0]
    assert all(
        {name: type(value) for name, value in one.items()} == {name: type(value) for name, value in like.items()} for one in subscriptions
    )
    subscription = next(one for one in subscriptions if one["topic"] == "t")
    assert (subscription["tagsSet"], subscription["codeSet"], subscription["subString"]) == (["A", "B"], [65, 66], "A || B")
    assert (ours.fields, ours.language, ours.version) == ({}, "PYTHON", 409)
    assert {address for address, _ in cluster.heartbeats} == {"a:10911"}


def test_heartbeats_go_to_every_broker_every_thirty_seconds_and_at_once_to_a_new_one() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t", 1, brokers=["a"])
    Member(cluster).start()
    before = len(cluster.heartbeats)
    cluster.advance(29_000, 100)
    assert len(cluster.heartbeats) == before
    cluster.create_topic("t", 1, brokers=["a", "b"])
    cluster.advance(2_000)
    assert {address for address, _ in cluster.heartbeats[before:]} == {"a:10911", "b:10911"}


def test_requests_have_the_fields_that_upstreams_have(golden: Callable[[int], list[Command]]) -> None:
    cluster, [queue] = cluster_with(1)
    cluster.overrides[36] = lambda _, command: command.reply()
    member = Member(cluster, decide=Outcome.RETRY_LATER, reconsume_times_max=16).start()
    producer = ProducerCore(member.core.client, "p")
    producer.start()
    producer.send(Message("t", b"x", tags="x"), lambda _: None)
    cluster.advance(5_000)
    cluster.append(queue, b"x")
    member.close()
    for code in (310, 11, 14, 15, 35, 36, 38, 105):
        ours = {frozenset(command.fields) for command in cluster.requests(code) if "producerGroup" not in command.fields}
        theirs = {frozenset(command.fields) for command in golden(code) if not command.is_response}
        assert ours & theirs, (code, ours, theirs)


# -- what operators ask


def test_an_operator_can_put_a_group_back() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster).start()
    for number in range(4):
        cluster.append(queue, b"%d" % number)
    cluster.run()
    body = ResetOffsetBody({queue: 2, MessageQueue("t", "elsewhere", 0): 9}).encode()
    ask(cluster, member, Command(220, {"topic": "t", "group": GROUP, "timestamp": "-1", "isForce": "true"}, body))
    assert member.bodies == [b"0", b"1", b"2", b"3", b"2", b"3"]
    cluster.advance(5_000)
    assert stored(cluster, queue) == 4


def test_an_operator_can_ask_where_a_member_is_and_what_it_does(golden: Callable[[int], list[Command]]) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster).start()
    cluster.append(queue, b"x")
    cluster.run()
    reply = ask(cluster, member, Command(221, {"topic": "t", "group": GROUP}))
    assert ConsumerStatusBody.decode(reply.body).message_queue_table == {queue: 1}
    reply = ask(cluster, member, Command(307, {"consumerGroup": GROUP, "clientId": "c1"}))
    info = ConsumerRunningInfo.decode(reply.body)
    assert info.mq_table[queue].commit_offset == 1
    assert info.properties["consumerGroup"] == GROUP
    theirs = next(ConsumerRunningInfo.decode(one.body) for one in golden(307) if one.is_response)
    assert set(info.mq_table[queue].to_json()) == set(next(iter(theirs.mq_table.values())).to_json())
    assert {name for name in theirs.properties if name.startswith("PROP_")} <= set(info.properties)


@pytest.mark.parametrize(("decide", "word"), [(Outcome.SUCCESS, "CR_SUCCESS"), (Outcome.RETRY_LATER, "CR_LATER")])
def test_an_operator_can_have_one_message_consumed(decide: Outcome, word: str) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=decide).start()
    record = cluster.append(MessageQueue("x", "a", 0), b"direct")
    reply = ask(cluster, member, Command(309, {"consumerGroup": GROUP, "brokerName": "a"}, record.encode()))
    assert ConsumeDirectlyResult.decode(reply.body).consume_result == word
    assert member.bodies == [b"direct"]
    assert stored(cluster, queue) is None


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (Command(326, {}), 1),
        (Command(12345, {}), 3),
        (Command(307, {"consumerGroup": "nobody", "clientId": "c1"}), 1),
        (Command(220, {"topic": "t", "group": GROUP, "timestamp": "x"}), 1),
        (Command(309, {"consumerGroup": GROUP}, b"no record"), 1),
    ],
)
def test_what_makes_no_sense_gets_an_error_answer(command: Command, code: int) -> None:
    cluster, _ = cluster_with(1)
    reply = ask(cluster, Member(cluster).start(), command)
    assert (reply.code, reply.is_response) == (code, True)
    assert reply.remark


# -- nothing is lost


def test_progress_does_not_pass_a_message_in_hand_when_what_comes_behind_it_is_not_for_us() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, tags="a", decide=None).start()
    cluster.append(queue, b"x", "TAGS\x01a")
    cluster.run()
    assert len(member.held) == 1
    cluster.append(queue, b"y", "TAGS\x01b")
    cluster.advance(20_000, 500)
    assert member.core.offsets.table.get(queue, 0) == 0
    assert not stored(cluster, queue)
    member.held[0][1](Outcome.SUCCESS)
    cluster.advance(20_000, 500)
    assert stored(cluster, queue) in (1, 2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(["join", "send", "fail"], 0)
@example(["join", "send", "fail", "wait", "crash"], 0)
@given(
    # It begins with a member and a message more often than not: without, nothing can fail.
    st.lists(st.sampled_from(["send", "ok", "fail", "join", "leave", "crash", "wait", "down", "up"]), max_size=40).map(
        lambda steps: ["join", "send", *steps] if len(steps) % 4 else steps
    ),
    st.integers(0, 99),
)
def test_whatever_members_do_every_message_is_consumed(steps: list[str], seed: int) -> None:
    """At least once: members join, leave, crash, fail and lose their broker; in the end a calm member sees the rest."""
    cluster, queues = cluster_with(3)
    members: list[Member] = []
    consumed: set[bytes] = set()
    sent: set[bytes] = set()

    def judge_one(outcome: Outcome) -> None:
        for member in members:
            if member.held:
                messages, judge = member.held.pop(seed % len(member.held))
                if outcome is Outcome.SUCCESS:
                    consumed.update(message.body for message in messages)
                judge(outcome)
                return

    for number, step in enumerate(steps):
        match step:
            case "send":
                body = b"%d" % number
                sent.add(body)
                cluster.append(queues[number % 3], body)
            case "ok":
                judge_one(Outcome.SUCCESS)
            case "fail":
                judge_one(Outcome.RETRY_LATER)
            case "join" if len(members) < 3 and not cluster.refused:
                members.append(Member(cluster, f"c{number}", decide=None).start())
            case "leave" if members and not cluster.refused:
                member = members.pop()
                member.core.client.tasks.start(member.core.close(wait_ms=10), lambda _: None)
            case "crash" if members:
                member = members.pop()
                member.core.client.close()
                member.core.state = "closing"
                if member.core.client.client_id in cluster.members[GROUP]:
                    cluster.members[GROUP].remove(member.core.client.client_id)
            case "wait":
                cluster.advance(3_000, 100)
            case "down":
                cluster.refused = {cluster.masters["a"]}
            case "up":
                cluster.refused = set()
        cluster.run()
    cluster.refused = set()
    cluster.advance(50)
    # Whoever left while the broker was down could not say so; a broker notices the closed connection.
    alive = {member.core.client.client_id for member in members}
    cluster.members[GROUP] = [name for name in cluster.members[GROUP] if name in alive]
    before = {member: len(member.seen) for member in members}
    calm = Member(cluster, "calm").start()
    members.append(calm)
    before[calm] = 0
    for member in members:
        member.decide = Outcome.SUCCESS
        for messages, judge in member.held:
            consumed.update(message.body for message in messages)
            judge(Outcome.SUCCESS)
        member.held.clear()
    cluster.advance(60_000, 250)
    for member in members:
        # From there on everything was a success. What was seen before counts only if it was judged so: a message that failed and
        # never came again is lost.
        consumed.update(message.body for message in member.seen[before[member] :])
    assert consumed >= sent
