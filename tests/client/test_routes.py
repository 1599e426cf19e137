"""Routes, name servers and timers."""

from __future__ import annotations

import pytest

from roquet.client.core.resolver import Resolver, TopicRoute, replica_of
from roquet.client.core.timers import Timers
from roquet.errors import ClientError, ConnectFailed, NoRoute
from roquet.routing.name_servers import NameServers, parse_name_servers
from roquet.wire.calls.routes import BrokerData, QueueData, RouteInfo
from roquet.wire.command import Command
from tests.client.fakes import FakeCluster, Results


def counts(route: TopicRoute) -> tuple[dict[str, int], dict[str, int]]:
    writes: dict[str, int] = {}
    reads: dict[str, int] = {}
    for queues, table in ((route.write_queues, writes), (route.read_queues, reads)):
        for queue in queues:
            table[queue.broker_name] = table.get(queue.broker_name, 0) + 1
    return writes, reads


def test_queues_to_write_need_permission_and_a_master_queues_to_read_only_permission() -> None:
    info = RouteInfo(
        [QueueData("full", 4, 2, 6), QueueData("readonly", 3, 3, 4), QueueData("writeonly", 3, 3, 2), QueueData("slave", 2, 2, 6)],
        [BrokerData("c", name, {1 if name == "slave" else 0: f"{name}:1"}) for name in ("full", "readonly", "writeonly", "slave")],
    )
    assert counts(TopicRoute("t", info)) == ({"full": 2, "writeonly": 3}, {"full": 4, "readonly": 3, "slave": 2})


def test_an_order_configuration_decides_the_queues_to_write() -> None:
    info = RouteInfo([QueueData("a", 8, 8, 6)], [BrokerData("c", "a", {0: "a:1"})], order_topic_conf="a:2;b:1;odd")
    assert counts(TopicRoute("t", info))[0] == {"a": 2, "b": 1}


def test_questions_for_the_same_topic_are_asked_once() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    client = cluster.client()
    results = Results()
    for _ in range(5):
        client.tasks.start(client.routes.fetch("t"), results.append)
    cluster.run()
    assert len(results) == 5
    assert len(cluster.requests(105)) == 1


def test_a_known_route_outlives_a_name_server_that_forgot_it() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    client = cluster.client()
    results = Results()
    client.tasks.start(client.routes.fetch("t"), results.append)
    cluster.run()
    cluster.topics.clear()
    client.tasks.start(client.routes.fetch("t"), results.append)
    cluster.run()
    assert isinstance(results[1], TopicRoute)
    client.tasks.start(client.routes.fetch("unknown"), results.append)
    cluster.run()
    assert isinstance(results[2], NoRoute)


def test_a_master_that_another_topic_s_older_answer_took_away_comes_back_with_the_next_answer() -> None:
    """Found by the simulation of groups (seed 2440): the other topic was used no more, and sends failed for ever."""
    resolver = Resolver(NameServers(["n:1"]))
    both = RouteInfo([QueueData("a", 4, 4, 6)], [BrokerData("c", "a", {0: "a:1", 1: "a:2"})])
    resolver.learn("t", both)
    resolver.learn("other", RouteInfo([QueueData("a", 4, 4, 6)], [BrokerData("c", "a", {1: "a:2"})]))
    assert resolver.master("a") is None
    told: list[str] = []
    resolver.on_change = lambda route: told.append(route.topic)
    resolver.learn("t", both)
    assert resolver.master("a") == "a:1"
    resolver.learn("t", both)
    assert told == ["t"]


def test_a_route_that_cannot_be_read_is_an_error_and_not_a_crash() -> None:
    cluster = FakeCluster("a")
    cluster.overrides[105] = lambda _, command: command.reply(body=b'{"queueDatas":7}')
    results = Results()
    client = cluster.client()
    client.tasks.start(client.routes.fetch("t"), results.append)
    cluster.run()
    assert isinstance(results.only, NoRoute)
    assert "cannot be read" in str(results.only)


def test_routes_that_nobody_uses_are_forgotten_at_the_next_poll() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    client = cluster.client()
    client.tasks.start(client.routes.fetch("t"), lambda _: None)
    cluster.run()
    assert client.routes.master("a") == "a:10911"
    cluster.advance(30_000, 100)
    assert (client.routes.topics, client.routes.brokers) == ({}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 ;; a:1 ", ("a:1",)),
        ("a", ("a:9876",)),
        (["a:1", "b:2"], ("a:1", "b:2")),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_name_servers_are_read_as_people_write_them(text: str | list[str], expected: tuple[str, ...]) -> None:
    assert parse_name_servers(text) == expected


@pytest.mark.parametrize("text", ["", ";", "a:b", "a:0", "a:70000", ":1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientError, match="name server"):
        parse_name_servers(text)


def test_timers_run_in_order_once_and_can_be_cancelled() -> None:
    timers = Timers()
    ran: list[str] = []
    sooner: list[int] = []
    timers.on_sooner = sooner.append
    timers.at(20, lambda: ran.append("late"))
    timers.at(10, lambda: ran.append("early"))
    timers.at(10, lambda: ran.append("never")).cancel()
    timers.at(10, lambda: 1 // 0)  # type: ignore[arg-type] # a bug in somebody's work
    assert (sooner, timers.next_due_ms) == ([20, 10], 10)
    timers.run(9)
    assert ran == []
    timers.run(10)
    timers.run(30)
    assert ran == ["early", "late"]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_neither_stops_the_clients_timers_nor_runs_them_early(step_ms: int) -> None:
    cluster = FakeCluster("b1")
    client = cluster.client()
    ran: list[str] = []
    client.after(100, lambda: ran.append("x"))
    cluster.clock.step(step_ms)
    cluster.advance(90)
    assert ran == []
    cluster.advance(10)
    assert ran == ["x"]


def test_one_question_is_the_same_steps_for_everybody_who_has_connections() -> None:
    """No connection, no clock: the steps say whom to ask, and are told what came of it."""
    name_servers = NameServers(("n1:1", "n2:1", "n3:1"), 1)
    steps = name_servers.ask(lambda: Command(105))
    assert next(steps)[0] == "n2:1"
    assert steps.send(ConnectFailed("away"))[0] == "n3:1"
    with pytest.raises(StopIteration) as end:
        steps.send(Command(105).reply(17))
    assert end.value.value[0] == "n3:1"
    assert name_servers.current == "n3:1", "the one that answered is asked next time"
    again = name_servers.ask(lambda: Command(105))
    asked = [next(again)[0], again.send(ConnectFailed("a"))[0], again.send(ConnectFailed("b"))[0]]
    assert asked == ["n3:1", "n1:1", "n2:1"]
    with pytest.raises(ConnectFailed, match=r"no name server answered \(n3:1: a; n1:1: b; n2:1: c\)"):
        again.send(ConnectFailed("c"))


@pytest.mark.parametrize(
    ("addresses", "wanted", "expected"),
    [({}, 0, None), (None, 0, None), ({0: "m", 1: "s"}, 0, ("m", 0)), ({0: "m", 1: "s"}, 1, ("s", 1)), ({0: "m"}, 7, ("m", 0)),
     ({3: "c", 2: "b"}, 0, ("b", 2))],
)  # fmt: skip
def test_the_replica_asked_for_serves_else_the_master_else_the_first_slave(
    addresses: dict[int, str] | None, wanted: int, expected: tuple[str, int] | None
) -> None:
    assert replica_of(addresses, wanted) == expected
