"""A world without a plan of faults: the test does one thing to one node, and looks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roquet.testing.name_server_node import NameServerNode
from roquet.testing.names import GROUP
from roquet.testing.promises import Violation
from roquet.testing.simulation import SECOND
from roquet.testing.watched_log import watched_log
from roquet.testing.world import Shape, World


@pytest.fixture
def world() -> Iterator[World]:
    """Two broker groups and two name servers, at work."""
    made = World(1)
    with watched_log(made.simulation):
        made.start()
        run(made, 5)
        yield made


def run(world: World, seconds: int) -> list[int]:
    """How many messages each group acknowledged meanwhile."""
    before = [len(group.promises.acked) for group in world.groups]
    world.simulation.run(world.simulation.now_us + seconds * SECOND)
    return [len(group.promises.acked) - count for group, count in zip(world.groups, before, strict=True)]


def until_known(world: World, name_server: NameServerNode) -> None:
    """Until every broker has told it again: they do so every 30 s."""

    def known() -> bool:
        assert name_server.core is not None
        registry = name_server.core.registry
        return all(registry.holder(group.name, node.present_id) for group in world.groups for node in group.members)

    assert world.simulation.run(world.simulation.now_us + 40 * SECOND, known)


def test_every_node_has_a_disk_a_clock_and_an_address_of_its_own(world: World) -> None:
    count = len(world.nodes)
    assert count == 7
    assert len({node.disk for node in world.nodes}) == count
    assert len({node.clock for node in world.nodes}) == count
    assert len({node.clock.steady_ms() for node in world.nodes}) == count
    assert len({node.host for node in world.nodes}) == count


def test_a_group_that_is_down_does_not_stop_the_other_and_what_it_acknowledged_comes_when_it_is_back(world: World) -> None:
    gone = world.groups[1]
    gone.master.power_loss()
    before = len(gone.promises.acked)
    assert before > 0
    run(world, 5)  # answers that were on their way
    here, there = run(world, 20)
    assert here > 20, "its clients go on with the other group"
    assert there == 0
    gone.master.start()
    world.come_to_rest()
    assert len(gone.promises.acked) > before
    assert not world.checker.missing(GROUP, gone.name)


def test_a_group_that_never_comes_back_is_no_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.testing.world.REST_US", 60 * SECOND)  # a quarter: what is down stays down
    world.groups[1].master.kill()
    with pytest.raises(Violation, match=r"sim-broker-1\.0 is down|had no message acknowledged by sim-broker-1"):
        world.come_to_rest()


def test_one_name_server_is_enough_for_clients_that_start_while_the_other_is_down(world: World) -> None:
    for name_server in world.name_servers:
        name_server.kill()
        for client in world.clients:
            client.kill()
            client.start()
        assert all(count >= 5 for count in run(world, 20))
        name_server.start()
        until_known(world, name_server)
    world.come_to_rest()


def test_a_steady_clock_begins_again_with_its_machine_and_goes_on_with_its_process(world: World) -> None:
    node = world.groups[0].master
    before = node.clock.steady_ms()
    node.kill()
    assert node.clock.steady_ms() == before
    node.power_loss()
    assert node.clock.steady_ms() < 60_000 < before
    node.start()
    world.come_to_rest()


def test_clocks_of_two_nodes_are_set_one_by_one(world: World) -> None:
    one, other = (group.master.clock for group in world.groups)
    before = other.now_ms()
    one.skew_ms += 3_600_000
    assert other.now_ms() == before
    world.come_to_rest()


def test_a_second_member_is_a_machine_of_its_own_and_its_loss_is_not_the_groups() -> None:
    """Nothing is replicated yet; the place for it is there."""
    world = World(2, Shape(groups=1, members=2))
    with watched_log(world.simulation):
        world.start()
        run(world, 5)
        (group,) = world.groups
        master, slave = group.members
        assert group.master is master
        assert (master.broker_id, slave.broker_id) == (0, 1)
        assert len({id(one) for node in group.members for one in (node.disk, node.clock, node.core)}) == 6
        assert master.host != slave.host
        slave.power_loss()
        assert run(world, 10)[0] > 10
        slave.start()
        world.come_to_rest()
        for name_server in world.name_servers:
            assert name_server.core is not None
            assert name_server.core.registry.brokers[group.name].broker_addrs == {0: master.address, 1: slave.address}


def test_no_send_fails_while_the_only_broker_is_away_for_five_seconds() -> None:
    lines: list[str] = []
    world = World(3, shape=Shape(groups=1, name_servers=1, clients=3), show=lines.append)
    with watched_log(world.simulation):
        world.start()
        run(world, 5)
        lines.clear()
        world.groups[0].master.kill()
        run(world, 5)
        world.groups[0].master.start()
        [acked] = run(world, 20)
        assert acked > 50
        assert not [line for line in lines if " failed: SendFailed" in line]
        world.come_to_rest()
