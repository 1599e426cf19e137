"""A new broker with copyTopicsFrom: it takes over what the cluster has before any client can find it. Simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from roquet.broker.topics import Topic
from roquet.testing.names import SHARED_TOPIC
from roquet.testing.simulation import SECOND
from roquet.testing.watched_log import watched_log
from roquet.wire.calls.groups import GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupConfig
from roquet.wire.command import Command

from .test_spreading import Cluster

NEW = 2
OLD = {"sim-broker-0", "sim-broker-1"}


class Growing(Cluster):
    """Two groups run; the third is started by the test."""

    def __init__(self, seed: int = 1, copy_from: str = "cluster", **settings: Any) -> None:
        super().__init__(seed, **settings)
        self.new = self.groups[NEW]
        self.new.master.settings["copy_topics_from"] = copy_from

    def start(self) -> None:
        for node in (*self.name_servers, *(group.master for group in self.groups[:NEW])):
            self.simulation.after(0, node.start)

    def start_new(self) -> None:
        """As a machine that was never used: the simulated world would make its own topic there."""
        self.new.started = lambda node, core: None  # type: ignore[method-assign]
        self.new.master.start()

    def known(self) -> list[bool]:
        return [self.new.name in node.core.registry.brokers for node in self.name_servers if node.core is not None]

    def joining_notices(self) -> list[str]:
        return [one.text for one in self.core(NEW).notices.list() if one.key == "joining"]


@contextlib.contextmanager
def grown(**settings: Any) -> Iterator[Growing]:
    made = Growing(**settings)
    with watched_log(made.simulation):
        made.start()
        assert made.until(lambda: made.shown("TBW102") == [OLD, OLD])
        for number in (0, 1):
            made.core(number).topics.put(Topic("orders", 6, 6))
            made.core(number).groups.put(GroupConfig("billing", retry_max_times=5))
        made.core(0).topics.put(Topic("on-one", 6, 6))
        assert made.until(lambda: made.shown("orders") == [OLD, OLD])
        yield made


@pytest.fixture
def growing() -> Iterator[Growing]:
    with grown() as made:
        yield made


def test_name_servers_hear_of_a_new_broker_when_it_has_what_the_others_have(growing: Growing) -> None:
    seen: list[bool] = []
    growing.start_new()

    def look() -> bool:
        known, core = any(growing.known()), growing.core(NEW)
        seen.append(not known or (core.topics.get("orders") is not None and core.groups.get("billing") is not None))
        return known

    assert growing.until(look)
    assert all(seen), "it was never known without them"
    assert growing.until(lambda: growing.shown("orders") == [OLD | {"sim-broker-2"}] * 2)
    core = growing.core(NEW)
    billing, orders = core.groups.get("billing"), core.topics.get("orders")
    assert orders == Topic("orders", 6, 6)
    assert billing is not None
    assert billing.retry_max_times == 5
    assert core.topics.get(SHARED_TOPIC) is not None
    assert core.topics.get("on-one") is None, "somebody put it on one broker"


def test_a_new_broker_that_was_killed_on_the_way_begins_anew(growing: Growing) -> None:
    master = growing.new.master
    growing.start_new()
    kills = 0
    for wait_us in range(0, 3 * SECOND, SECOND // 8):
        growing.simulation.run(growing.simulation.now_us + wait_us)
        if any(growing.known()):
            break
        master.power_loss()
        kills += 1
        master.start()
    assert growing.until(lambda: growing.shown("orders") == [OLD | {"sim-broker-2"}] * 2, seconds=60)
    assert kills > 0
    assert growing.core(NEW).groups.get("billing") is not None


def test_while_a_broker_of_the_cluster_does_not_answer_the_new_one_waits_and_says_so(growing: Growing) -> None:
    growing.groups[1].master.stand_still(40 * SECOND)
    growing.start_new()
    assert growing.until(growing.joining_notices)
    assert "this broker is new and waits, no client can find it" in growing.joining_notices()[0]
    assert growing.known() == [False, False]
    assert growing.until(lambda: all(growing.known()), seconds=90)
    assert growing.joining_notices() == []


def test_a_broker_that_is_refused_what_it_asks_for_waits_and_says_what_to_do(growing: Growing) -> None:
    def refuse(peer: object, command: Command) -> Command:
        return command.reply(16, "No accessKey is configured")

    growing.core(1).table[GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code] = refuse
    growing.start_new()
    assert growing.until(growing.joining_notices)
    assert "No accessKey is configured" in growing.joining_notices()[0]
    assert "take copyTopicsFrom out of its file" in growing.joining_notices()[0]
    assert growing.known() == [False, False]


def test_a_broker_that_has_topics_is_not_new_and_copies_nothing(growing: Growing) -> None:
    growing.start_new()
    assert growing.until(lambda: all(growing.known()))
    core = growing.core(NEW)
    core.topics.delete("orders")
    assert growing.until(lambda: not core.saving)
    growing.new.master.stop_cleanly(lambda: None)
    assert growing.until(lambda: not growing.new.master.up)
    growing.new.master.start()
    assert growing.until(lambda: all(growing.known()))
    growing.simulation.run(growing.simulation.now_us + 5 * SECOND)
    assert growing.core(NEW).topics.get("orders") is None, "what an operator deleted stays deleted"


def test_one_broker_may_be_named_and_is_waited_for() -> None:
    with grown(copy_from="sim-broker-0") as growing:
        growing.simulation.run(growing.simulation.now_us + 5 * SECOND)  # its topics are saved
        growing.groups[0].master.kill()
        assert growing.until(lambda: growing.shown("TBW102") == [{"sim-broker-1"}] * 2)
        growing.start_new()
        assert growing.until(growing.joining_notices)
        assert "no master named sim-broker-0 is registered in DefaultCluster; there are: sim-broker-1" in growing.joining_notices()[0]
        growing.groups[0].master.start()
        assert growing.until(lambda: all(growing.known()))
        assert growing.core(NEW).topics.get("on-one") == Topic("on-one", 6, 6), "all that this one has"


def test_the_first_broker_of_a_cluster_has_nobody_to_copy_from_and_starts() -> None:
    growing = Growing()
    with watched_log(growing.simulation):
        for node in growing.name_servers:
            growing.simulation.after(0, node.start)
        growing.simulation.after(0, growing.start_new)
        assert growing.until(lambda: growing.shown("TBW102") == [{"sim-broker-2"}] * 2)
