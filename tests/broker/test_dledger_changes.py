"""Topics and groups that were changed a moment before the leader of a DLedger group died."""

from __future__ import annotations

import pytest

from roquet.wire.calls import groups, topics
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import CHANGES_TOPIC
from tests.broker.simulated_group import Member, SimulatedGroup
from tests.broker.test_dledger import message


def create_topic(name: str, queues: int = 4) -> Command:
    header = topics.CreateTopicHeader(name, "TBW102", queues, queues, 6, "SINGLE_TAG", False)
    return topics.UPDATE_AND_CREATE_TOPIC.request(header)


def delete_topic(name: str) -> Command:
    return topics.DELETE_TOPIC_IN_BROKER.request(topics.DeleteTopicHeader(name))


def create_group(name: str, retry_queues: int = 1) -> Command:
    return groups.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.request(body=groups.GroupConfig(name, retry_queue_nums=retry_queues))


def delete_group(name: str) -> Command:
    return groups.DELETE_SUBSCRIPTIONGROUP.request(groups.DeleteGroupHeader(name))


def change(group: SimulatedGroup, member: Member, *requests: Command) -> None:
    for request in requests:
        answer = group.ask(member.address, request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def fail_over(group: SimulatedGroup, leader: Member) -> Member:
    leader.kill()
    return group.leader(but=leader)


@pytest.fixture
def group() -> SimulatedGroup:
    made = SimulatedGroup()
    made.start()
    made.run(5)
    return made


def test_a_topic_that_was_made_and_is_empty_is_there_when_its_leader_dies_at_once(group: SimulatedGroup) -> None:
    leader = group.leader()
    change(group, leader, create_topic("orders", 7))
    second = fail_over(group, leader)
    found = second.core.topics.get("orders")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums) == (7, 7)


def test_the_last_change_of_a_topic_counts(group: SimulatedGroup) -> None:
    leader = group.leader()
    change(group, leader, create_topic("orders", 7), create_topic("orders", 3), delete_topic("orders"), create_topic("orders", 5))
    change(group, leader, create_topic("gone"), delete_topic("gone"))
    second = fail_over(group, leader)
    found = second.core.topics.get("orders")
    assert found is not None
    assert found.read_queue_nums == 5
    assert second.core.topics.get("gone") is None


def test_a_topic_that_was_deleted_stays_deleted(group: SimulatedGroup) -> None:
    leader = group.leader()
    change(group, leader, create_topic("orders"), message("orders"))
    group.run(3)
    change(group, leader, delete_topic("orders"))
    second = fail_over(group, leader)
    assert second.core.topics.get("orders") is None


def test_a_topic_that_was_deleted_and_made_again_by_a_send_is_there_with_its_messages(group: SimulatedGroup) -> None:
    leader = group.leader()
    change(group, leader, create_topic("orders"), message("orders", b"1"), delete_topic("orders"), message("orders", b"2"))
    second = fail_over(group, leader)
    assert second.core.topics.get("orders") is not None
    assert [queue.visible - queue.first for queue in second.core.store.queues_of("orders") if queue.visible > queue.first] == [1]


def test_groups_survive_and_stay_deleted_alike(group: SimulatedGroup) -> None:
    leader = group.leader()
    change(group, leader, create_group("old"))
    group.run(3)
    change(group, leader, create_group("billing", 3), delete_group("old"))
    second = fail_over(group, leader)
    found = second.core.groups.get("billing")
    assert found is not None
    assert found.retry_queue_nums == 3
    assert "old" not in second.core.groups


def test_a_change_survives_two_leaders_that_die_one_after_the_other() -> None:
    group = SimulatedGroup(count=5)
    leader = group.start()
    group.run(5)
    change(group, leader, create_topic("orders", 7))
    second = fail_over(group, leader)
    second.kill()
    group.wait(lambda: any(member.serves for member in group.members), "a third one serves")
    third = next(member for member in group.members if member.serves)
    assert third.core.topics.get("orders") is not None


def test_a_member_that_was_restarted_and_leads_before_it_copied_anything_knows_all_changes(group: SimulatedGroup) -> None:
    leader = group.leader()
    change(group, leader, create_topic("orders", 7))
    other, restarted = group.others(leader)
    for member in (other, restarted):
        member.kill()
        member.start()
    group.wait(lambda: restarted.raft.ledger.committed == leader.raft.ledger.committed, "it has the log again")
    second = fail_over(group, leader)
    assert second.core.topics.get("orders") is not None


def test_a_change_that_no_majority_holds_is_not_acknowledged(group: SimulatedGroup) -> None:
    leader = group.leader()
    for member in group.others(leader):
        member.kill()
    answer = group.ask(leader.address, create_topic("orders"), 10_000)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "majority" in (answer.remark or "")


def test_nobody_else_writes_to_the_topic_of_changes(group: SimulatedGroup) -> None:
    leader = group.leader()
    answer = group.ask(leader.address, message(CHANGES_TOPIC))
    assert answer.code == ResponseCode.NO_PERMISSION
    answer = group.ask(leader.address, create_topic(CHANGES_TOPIC))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert group.ask(leader.address, Command(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
