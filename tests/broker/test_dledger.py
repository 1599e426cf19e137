"""Brokers of a DLedger group and what goes wrong with them, in a simulation."""

from __future__ import annotations

import errno

import pytest

from roquet.broker.dledger import PREPARE_MS
from roquet.broker.portions import Work
from roquet.raft.codes import Role
from roquet.raft.options import BadGroup
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.broker.simulated_group import Member, SimulatedGroup
from tests.broker.whole import pull_fields, send_fields


def message(topic: str = "T", body: bytes = b"hello", properties: str = "") -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, send_fields(topic, properties=f"UNIQ_KEY\x01{body.decode()}\x02{properties}"), body)


def count(member: Member, topic: str = "T") -> int:
    """Messages that consumers can see there."""
    return sum(queue.visible - queue.first for queue in member.core.store.queues_of(topic))


def test_another_member_serves_when_the_leader_is_killed() -> None:
    group = SimulatedGroup()
    first = group.start()
    assert group.ask(first.address, message()).code == ResponseCode.SUCCESS
    first.kill()
    began_us = group.simulation.now_us
    second = group.leader(but=first)
    assert group.ask(second.address, message()).code == ResponseCode.SUCCESS
    assert group.simulation.now_us - began_us < 1_000_000


def test_a_follower_that_is_restarted_unseats_nobody() -> None:
    group = SimulatedGroup()
    leader = group.start()
    term = leader.raft.term
    for member in group.others(leader):
        member.kill()
        group.run(1.0)
        member.start()
        group.run(3.0)
    assert leader.serves
    assert [member.raft.term for member in group.members] == [term] * 3


def test_a_follower_takes_no_tables_from_a_member_that_does_not_lead_any_more() -> None:
    """Found by the simulation of whole groups (seed 164): the old leader came back with an old table, and a topic was forgotten."""
    group = SimulatedGroup()
    leader = group.start()
    one, other = group.others(leader)
    one.core.topics.ensure("Newer")
    group.run(0.3)  # it is told to name servers, which say who leads
    one.core.copying.master = other.address  # as a name server may still say
    group.wait(lambda: "is a slave itself" in (one.core.copying._metadata_said or ""), "the tables refused")
    assert one.core.topics.get("Newer") is not None


def test_a_member_that_prepares_to_lead_does_not_hear_of_an_old_master() -> None:
    """Found by the simulation of whole groups (seed 9500): a name server still told of it, and its tables took the place of what was just
    being found."""
    group = SimulatedGroup()
    leader = group.start()
    one, other = group.others(leader)
    copying = one.core.copying
    group.wait(lambda: copying.master == leader.address, "it knows who leads")
    work = one.core.prepare_to_lead()
    next(work)
    assert copying.master == "", "what was asked already counts for nothing, before any part begins"
    copying.found_master(other.address, "")
    assert copying.master == ""
    work.close()  # it is deposed before it serves
    copying.found_master(other.address, "")
    assert copying.master == other.address


class LongWork:
    """Preparing to lead takes so many milliseconds, in pieces of one. State: how long each turn of the loop took for it."""

    def __init__(self, group: SimulatedGroup, member: Member, ms: int) -> None:
        self.simulation, self.ms, self.done = group.simulation, ms, 0
        self.turns: list[int] = []
        self._event = -1
        assert member.core.group is not None
        member.core.group._prepare_to_lead = self.work

    def work(self) -> Work[None]:
        for _ in range(self.ms):
            if self.simulation.events != self._event:
                self._event = self.simulation.events
                self.turns.append(0)
            self.simulation.now_us += 1_000
            self.turns[-1] += 1
            self.done += 1
            yield None


def test_a_member_that_prepares_for_long_keeps_the_lead_and_serves_when_it_is_ready() -> None:
    group = SimulatedGroup()
    first = group.start()
    works = {member: LongWork(group, member, 5_000) for member in group.others(first)}
    first.kill()
    group.wait(lambda: any(member.raft.role is Role.LEADER for member in works), "somebody is elected")
    second = next(member for member in works if member.raft.role is Role.LEADER)
    term = second.raft.term
    group.run(3)
    assert not second.serves
    group.wait(lambda: second.serves, "it serves")
    assert (second.raft.role, second.raft.term) == (Role.LEADER, term)
    assert works[second].done == 5_000
    assert max(works[second].turns) <= PREPARE_MS
    assert group.ask(second.address, message()).code == ResponseCode.SUCCESS


def test_a_member_that_is_deposed_while_it_prepares_begins_anew_the_next_time() -> None:
    group = SimulatedGroup()
    first = group.start()
    works = {member: LongWork(group, member, 3_000) for member in group.others(first)}
    first.kill()
    group.wait(lambda: any(work.done > 1_000 for work in works.values()), "somebody prepares")
    second = next(member for member in works if works[member].done)
    group.cut_off(second)
    group.wait(lambda: second.raft.role is not Role.LEADER, "it is deposed")
    before = works[second].done
    assert before < 3_000
    group.run(1)
    assert (second.serves, works[second].done) == (False, before)
    group.network.heal()
    served = group.leader(but=first)
    assert works[served].done >= 3_000 + (before if served is second else 0)


@pytest.mark.parametrize("cold_ratio", [0.0, 0.5], ids=["in memory", "half of it on disk"])
def test_timed_delayed_and_prepared_messages_come_once_from_the_next_leader(cold_ratio: float) -> None:
    group = SimulatedGroup()
    for member in group.members:
        member.disk.cold_ratio = cold_ratio
    leader = group.start()
    for number, asks in enumerate(("TIMER_DELAY_SEC\x013", "TIMER_DELAY_SEC\x0120", "DELAY\x012", "DELAY\x013")):
        assert group.ask(leader.address, message("T", b"%d" % number, asks)).code == ResponseCode.SUCCESS
    group.wait(lambda: count(leader) == 2, "the first of each is delivered")  # after 3 and 5 s
    leader.kill()
    second = group.leader(but=leader)
    assert count(second) == 2
    group.run(25)
    assert count(second) == 4


def test_a_follower_that_is_restarted_commits_what_its_leader_has_while_nobody_sends() -> None:
    group = SimulatedGroup()
    leader = group.start()
    assert group.ask(leader.address, message()).code == ResponseCode.SUCCESS
    for member in group.others(leader):
        member.kill()
        member.start()
    group.wait(lambda: all(count(member) == 1 for member in group.members), "the message is seen everywhere")


@pytest.mark.parametrize(
    "place",
    [
        "/data/store/commitlog",
        "/data/store/commitlog/",
        "/data/store/./x/../commitlog",
        "/data/store/consumequeue",
        "/data/store",
        "/data/log",
    ],
)
def test_data_files_of_the_ledger_do_not_go_where_other_files_of_the_store_are(place: str) -> None:
    """With the plain log's directory it started, once."""
    group = SimulatedGroup(store_path_dledger_commit_log=place, store_path_commit_log="/data/log" if place == "/data/log" else "")
    with pytest.raises(BadGroup, match="storePathDLedgerCommitLog"):
        group.members[0].start()
    assert group.members[0].disk.list("/data") == []


def test_data_files_of_the_ledger_may_have_a_directory_of_their_own() -> None:
    group = SimulatedGroup(store_path_dledger_commit_log="/data/ledger")
    assert group.ask(group.start().address, message()).code == ResponseCode.SUCCESS
    assert group.members[0].disk.list("/data/ledger")


def pull(offset: int) -> Command:
    return Command(RequestCode.PULL_MESSAGE, pull_fields("T", 0, offset))


def test_a_leader_that_was_replaced_while_it_stood_still_sends_nobody_back() -> None:
    """Found by the simulation of groups (seed 85): a consumer that had read from the new leader began anew where the old one ended."""
    group = SimulatedGroup()
    old = group.start()
    assert group.ask(old.address, message()).code == ResponseCode.SUCCESS
    group.cut_off(old)
    new = group.leader(but=old)
    for _ in range(5):
        assert group.ask(new.address, message()).code == ResponseCode.SUCCESS
    group.network.heal()
    assert old.serves, "it has not learned of the new leader yet"
    answer = group.ask(old.address, pull(4))
    assert not old.serves
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "6")  # it waited, and was given them


def test_a_leader_that_leads_says_that_an_offset_is_not_there() -> None:
    group = SimulatedGroup()
    leader = group.start()
    assert group.ask(leader.address, message()).code == ResponseCode.SUCCESS
    began_us = group.simulation.now_us
    answer = group.ask(leader.address, pull(4))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert group.simulation.now_us - began_us < 600_000  # the next heartbeat was answered by a majority


def test_an_elected_member_without_a_free_file_tells_it_and_serves_when_there_is_one() -> None:
    """Found by the simulation of groups (seed 241): it led, and never served."""
    group = SimulatedGroup()
    first = group.start()
    assert group.ask(first.address, message("T", b"delayed", "DELAY\x011")).code == ResponseCode.SUCCESS
    group.run(12)  # progress of delays is saved
    rest = group.others(first)
    faults = [member.disk.fail("open", errno.EMFILE, "delayOffset.json", times=1_000_000) for member in rest]
    first.kill()
    group.wait(lambda: any(notice_of(member) for member in rest), "somebody is elected and says what is wrong")
    assert not any(member.serves for member in rest)
    for member, fault in zip(rest, faults, strict=True):
        member.disk.faults.remove(fault)
    second = group.leader(but=first)
    assert group.ask(second.address, message()).code == ResponseCode.SUCCESS


def notice_of(member: Member) -> bool:
    return any("cannot serve yet" in notice.text for notice in member.core.notices.list())


def test_progress_is_not_put_back_while_the_log_is_not_applied_yet() -> None:
    """Found by the simulation of groups (seed 1475): two numbers of one reader were put back to different places, and transactions that
    had ended were committed once more."""
    group = SimulatedGroup(flush_consumer_offset_interval=50)
    leader = group.start()
    follower = group.others(leader)[0]
    group.run(3)
    for number in range(5):
        assert group.ask(leader.address, message("T", b"%d" % number)).code == ResponseCode.SUCCESS
    leader.core.offsets.commit("g", "T", 0, 5)
    group.wait(lambda: follower.core.offsets.find("g", "T", 0) == 5, "progress is copied")
    group.run(0.2)  # and saved; the ledger's checkpoint is older
    follower.kill()
    group.cut_off(follower)
    follower.start()
    assert count(follower) < 5
    assert follower.core.offsets.find("g", "T", 0) == 5
