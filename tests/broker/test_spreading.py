"""A topic that its first message makes is made on every broker of the cluster: three broker groups and two name servers, simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roquet.broker.core import Broker
from roquet.broker.topics import Topic
from roquet.errors import RoquetError
from roquet.ports import Peer
from roquet.testing.network import SimCaller
from roquet.testing.simulation import SECOND
from roquet.testing.watched_log import watched_log
from roquet.testing.world import Shape, World
from roquet.wire.calls.topics import UPDATE_AND_CREATE_TOPIC
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

from .whole import send_fields


class Cluster(World):
    """Its client takes no part: the test sends what it wants to whom it wants."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.broker_settings = settings
        super().__init__(seed, Shape(groups=3, clients=1))
        self.clients = []
        self.outside = SimCaller(self.network, "10.0.9.1")

    def core(self, number: int) -> Broker:
        core = self.groups[number].master.core
        assert core is not None
        return core

    def until(self, found: Callable[[], object], seconds: int = 30) -> bool:
        return self.simulation.run(self.simulation.now_us + seconds * SECOND, lambda: bool(found()))

    def ask(self, number: int, command: Command) -> Command:
        answers: list[Command | RoquetError] = []
        self.outside.call(self.groups[number].master.address, command, 5_000, answers.append)
        assert self.until(lambda: answers)
        (answer,) = answers
        assert isinstance(answer, Command), answer
        return answer

    def send(self, number: int, topic: str, **more: str) -> int:
        return self.ask(number, Command(RequestCode.SEND_MESSAGE_V2, send_fields(topic) | more, b"hello")).code

    def holders(self, topic: str) -> dict[str, Topic]:
        found = {group.name: self.core(group.number).topics.get(topic) for group in self.groups if group.master.core is not None}
        return {name: one for name, one in found.items() if one is not None}

    def shown(self, topic: str) -> list[set[str]]:
        """Brokers that each name server shows for it."""
        return [set(node.core.registry.topics.get(topic, {})) for node in self.name_servers if node.core is not None]

    def notices(self, number: int) -> list[str]:
        return [one.text for one in self.core(number).notices.list() if one.key.startswith("spread")]


@contextlib.contextmanager
def started(**settings: Any) -> Iterator[Cluster]:
    made = Cluster(**settings)
    with watched_log(made.simulation):
        made.start()
        everybody = {group.name for group in made.groups}
        assert made.until(lambda: made.shown("TBW102") == [everybody] * 2)
        yield made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with started() as made:
        yield made


ALL = {"sim-broker-0", "sim-broker-1", "sim-broker-2"}


def test_the_first_message_of_a_topic_makes_it_on_every_broker_of_the_cluster(cluster: Cluster) -> None:
    assert cluster.send(1, "orders", d="3") == 0
    assert cluster.until(lambda: cluster.shown("orders") == [ALL, ALL], seconds=5)
    shapes = {(one.read_queue_nums, one.write_queue_nums, one.perm) for one in cluster.holders("orders").values()}
    assert shapes == {(3, 3, 6)}
    assert cluster.until(lambda: cluster.core(1).spreading._fresh == {}, seconds=600), "nothing is remembered for ever"
    assert [cluster.core(number).spreading.made for number in range(3)] == [0, 2, 0]


def test_who_has_the_topic_already_keeps_it_as_it_is(cluster: Cluster) -> None:
    cluster.core(0).topics.put(Topic("orders", 12, 12))
    assert cluster.until(lambda: cluster.shown("orders") == [{"sim-broker-0"}] * 2)
    assert cluster.send(1, "orders") == 0
    assert cluster.until(lambda: cluster.shown("orders") == [ALL, ALL])
    assert cluster.holders("orders")["sim-broker-0"].write_queue_nums == 12


def test_who_has_the_topic_already_keeps_it_as_it_is_although_it_knows_no_better(cluster: Cluster) -> None:
    """Apache's brokers change a topic that they are asked to make."""
    core = cluster.core(0)
    core.topics.put(Topic("orders", 12, 12))
    real = core.table[UPDATE_AND_CREATE_TOPIC.code]

    def as_apache(peer: Peer, command: Command) -> Any:
        command.fields.pop("roquetOnlyIfAbsent", None)
        return real(peer, command)

    core.table[UPDATE_AND_CREATE_TOPIC.code] = as_apache
    assert cluster.until(lambda: cluster.shown("orders") == [{"sim-broker-0"}] * 2)
    assert cluster.send(1, "orders") == 0
    assert cluster.until(lambda: cluster.shown("orders") == [ALL, ALL])
    cluster.simulation.run(cluster.simulation.now_us + 60 * SECOND)
    assert cluster.holders("orders")["sim-broker-0"].write_queue_nums == 12


def test_a_roquet_broker_that_made_it_a_moment_ago_keeps_it_as_it_is_although_no_name_server_knows_yet(cluster: Cluster) -> None:
    cluster.core(0).topics.put(Topic("orders", 12, 12))
    fields = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false", "roquetOnlyIfAbsent": "true",
    }  # fmt: skip
    assert cluster.ask(0, Command(UPDATE_AND_CREATE_TOPIC.code, dict(fields))).code == 0
    assert cluster.holders("orders")["sim-broker-0"].write_queue_nums == 12
    del fields["roquetOnlyIfAbsent"]
    assert cluster.ask(0, Command(UPDATE_AND_CREATE_TOPIC.code, dict(fields))).code == 0
    assert cluster.holders("orders")["sim-broker-0"].write_queue_nums == 4, "an operator's request changes it"


def test_retry_topics_stay_where_they_are(cluster: Cluster) -> None:
    assert cluster.send(0, "%RETRY%billing") == 0
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: len(cluster.holders("orders")) == 3)
    assert set(cluster.holders("%RETRY%billing")) == {"sim-broker-0"}


def test_a_broker_that_makes_no_topics_by_itself_gets_none(cluster: Cluster) -> None:
    core = cluster.core(2)
    core.settings.auto_create_topic_enable = False
    core.topics.settings_changed({"auto_create_topic_enable"})
    cluster.simulation.run(cluster.simulation.now_us + 2 * SECOND)
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: len(cluster.holders("orders")) == 2)
    cluster.simulation.run(cluster.simulation.now_us + 60 * SECOND)
    assert set(cluster.holders("orders")) == {"sim-broker-0", "sim-broker-1"}
    assert cluster.notices(0) == []


def test_a_broker_that_is_being_restarted_gets_it_when_it_is_back(cluster: Cluster) -> None:
    cluster.groups[2].master.kill()
    assert cluster.until(lambda: "sim-broker-2" not in cluster.shown("TBW102")[0])
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: len(cluster.holders("orders")) == 2), "the others do not wait for it"
    cluster.simulation.run(cluster.simulation.now_us + 60 * SECOND)
    cluster.groups[2].master.start()
    assert cluster.until(lambda: cluster.shown("orders") == [ALL, ALL], seconds=130)


def test_a_broker_that_does_not_answer_is_asked_again_and_a_notice_names_it_until_then(cluster: Cluster) -> None:
    cluster.groups[2].master.stand_still(30 * SECOND)
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: cluster.notices(0))
    (text,) = cluster.notices(0)
    assert "sim-broker-2 did not take the new topic" in text
    assert "roquet topic create orders --broker sim-broker-2" in text
    assert set(cluster.holders("orders")) == {"sim-broker-0", "sim-broker-1"}, "the others do not wait for it"
    assert cluster.until(lambda: cluster.shown("orders") == [ALL, ALL], seconds=120)
    assert cluster.until(lambda: not cluster.notices(0))


def test_a_broker_that_goes_for_good_is_forgotten_with_its_notice(cluster: Cluster) -> None:
    cluster.groups[2].master.stand_still(600 * SECOND)
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: cluster.notices(0))
    assert cluster.until(lambda: not cluster.notices(0), seconds=400), "name servers forget it after two minutes"


def test_a_broker_that_refuses_it_as_an_apache_broker_with_access_control_does_is_named_with_what_it_said(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = cluster.core(2)
    stranger.table[UPDATE_AND_CREATE_TOPIC.code] = lambda peer, command: command.reply(16, "No accessKey is configured")
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: cluster.notices(0))
    assert "No accessKey is configured" in cluster.notices(0)[0]
    assert set(cluster.holders("orders")) == {"sim-broker-0", "sim-broker-1"}


def test_a_topic_that_is_deleted_is_made_nowhere_any_more(cluster: Cluster) -> None:
    cluster.groups[2].master.stand_still(20 * SECOND)
    assert cluster.send(0, "orders") == 0
    assert cluster.until(lambda: cluster.notices(0))
    for number in (0, 1):
        assert cluster.ask(number, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})).code == 0
    assert cluster.notices(0) == []
    made = cluster.core(0).spreading.made
    cluster.simulation.run(cluster.simulation.now_us + 100 * SECOND)
    assert cluster.core(0).spreading.made == made == 1


def test_turned_off_the_topic_stays_on_the_broker_that_got_its_first_message() -> None:
    with started(spread_automatic_topics=False) as cluster:
        assert cluster.send(0, "orders") == 0
        cluster.simulation.run(cluster.simulation.now_us + 5 * SECOND)
        assert cluster.shown("orders") == [{"sim-broker-0"}] * 2


def test_a_storm_of_new_topics_is_worked_off_a_few_at_a_time_and_all_of_them_arrive(cluster: Cluster) -> None:
    for number in range(40):
        assert cluster.send(0, f"orders-{number}") == 0
    assert cluster.until(lambda: all(len(cluster.holders(f"orders-{number}")) == 3 for number in range(40)), seconds=60)
