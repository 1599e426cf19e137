"""Members of a DLedger group whose disks are full or have failed."""

from __future__ import annotations

import errno

import pytest

from roquet.wire.codes import ResponseCode
from tests.broker.simulated_group import Member, SimulatedGroup
from tests.broker.test_dledger import message


def accepts(group: SimulatedGroup, member: Member, count: int = 5) -> bool:
    return all(group.ask(member.address, message(body=b"%d" % number)).code == ResponseCode.SUCCESS for number in range(count))


def same_ends(group: SimulatedGroup) -> bool:
    return len({(member.raft.ledger.end, member.raft.ledger.end_term, member.raft.ledger.committed) for member in group.members}) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_whose_disk_is_full_lets_a_member_with_room_lead_and_catches_up_when_there_is_room(seed: int) -> None:
    group = SimulatedGroup(seed)
    first = group.start()
    assert accepts(group, first)
    first.disk.full = True
    group.ask(first.address, message())  # it notices
    began_us = group.simulation.now_us
    second = group.leader(but=first)
    assert accepts(group, second)
    assert group.simulation.now_us - began_us < 2_000_000
    group.run(10)
    assert second.serves
    assert accepts(group, second)
    first.disk.full = False
    group.wait(lambda: same_ends(group), "the member with the full disk has everything")


def test_a_leader_whose_disk_fails_lets_another_member_lead() -> None:
    group = SimulatedGroup(flush_disk_type="SYNC_FLUSH")
    first = group.start()
    assert accepts(group, first)
    first.disk.fail("sync", errno.EIO, "dledger", times=1_000_000)
    group.begin(first.address, message())
    second = group.leader(but=first)
    assert accepts(group, second)


def test_a_follower_whose_disk_is_full_stops_nobody_and_catches_up_when_there_is_room() -> None:
    group = SimulatedGroup()
    leader = group.start()
    full = group.others(leader)[0]
    full.disk.full = True
    for _ in range(5):
        assert accepts(group, leader)
        group.run(2)
    assert leader.serves
    full.disk.full = False
    group.wait(lambda: same_ends(group), "the member with the full disk has everything")


def test_a_preferred_member_whose_disk_is_full_is_not_handed_the_lead() -> None:
    group = SimulatedGroup(preferred_leader_id="n1")
    group.start()
    preferred = group.members[1]
    group.wait(lambda: preferred.serves, "the preferred member leads")
    preferred.disk.full = True
    group.ask(preferred.address, message())
    other = group.leader(but=preferred)
    term = other.raft.term
    for _ in range(5):
        assert accepts(group, other)
        group.run(2)
    assert (other.serves, other.raft.term) == (True, term)
    preferred.disk.full = False
    group.wait(lambda: preferred.serves, "the preferred member leads again")
    assert accepts(group, preferred)


def test_where_all_disks_are_full_somebody_leads_and_serves_readers() -> None:
    group = SimulatedGroup()
    first = group.start()
    assert accepts(group, first)
    for member in group.members:
        member.disk.full = True
    group.ask(first.address, message())
    group.run(10)
    for member in group.members:
        member.disk.full = False
    group.run(5)
    assert accepts(group, group.leader())
