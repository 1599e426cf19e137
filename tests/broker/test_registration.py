"""Registration with real name server cores: what each is told, and what happens when another broker has our name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.broker.topics import Topic
from roquet.errors import ConnectFailed, Refused
from roquet.nameserver.core import NameServer
from roquet.ports import Answered, Peer
from roquet.settings import NameServerSettings
from roquet.store.disk import RealDisk
from roquet.testing import FakePeer
from roquet.testing.clock import ManualClock
from roquet.testing.whole_broker import HOST
from roquet.wire.calls.registration import RegisterBrokerBody
from roquet.wire.calls.routes import RouteInfo
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer

from .whole import Whole

NS = "ns1:9876"


def answer_of(server: NameServer, peer: FakePeer, request: Command) -> Command:
    server.receive(peer, Framer().feed(request.encode()))
    (answer,) = peer.take()
    return answer


class Lines:
    """A caller whose calls are answered at once by name servers in this process, or fail while one is away."""

    def __init__(self, servers: dict[str, NameServer], own: str) -> None:
        self.servers = servers
        self.own = own
        self.peers: dict[tuple[str, int], FakePeer] = {}
        self.calls: list[Command] = []

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        self.calls.append(command)
        server = self.servers.get(address)
        if server is None:
            done(ConnectFailed(f"{address} is away"))
            return
        peer = self.peers.setdefault((address, id(server)), FakePeer(self.own))
        done(answer_of(server, peer, command))

    def oneway(self, address: str, command: Command) -> None:
        raise AssertionError("a registration is answered")

    def hang_up(self, address: str) -> None:
        pass

    def told(self) -> list[RegisterBrokerBody]:
        return [RegisterBrokerBody.decode(one.body) for one in self.calls if one.code == RequestCode.REGISTER_BROKER]


class Town:
    """Name servers and brokers over one clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.servers: dict[str, NameServer] = {}
        self.brokers: list[Whole] = []

    def nameserver(self, address: str = NS, **settings: Any) -> NameServer:
        """A fresh one: what was known at this address is forgotten."""
        made = NameServer(NameServerSettings(**settings), self.clock, RealDisk(), str(self.root / address))
        self.servers[address] = made
        return made

    def broker(self, address: str, **settings: Any) -> Whole:
        made = Whole(self.root / address, clock=self.clock, namesrv_addr=";".join(self.servers), **settings)
        made.broker.registration.caller = self.lines(address)
        made.broker.listening(address, HOST)
        made.broker.registration.now()
        self.brokers.append(made)
        return made

    def lines(self, own: str) -> Lines:
        return Lines(self.servers, own)

    def tick(self, ms: int) -> None:
        """Time passes in steps of a second."""
        for _ in range(ms // 1_000):
            self.clock.forward(1_000)
            for broker in self.brokers:
                broker.broker.tick(self.clock.ms)
            for server in self.servers.values():
                server.tick(self.clock.ms)

    def route(self, topic: str = "broker-a", address: str = NS) -> str | None:
        """Where the master is that has the topic."""
        answer = answer_of(self.servers[address], FakePeer(), Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        (group,) = RouteInfo.decode(answer.body).broker_datas
        return group.broker_addrs[0]


def calls_of(broker: Whole) -> Lines:
    found = broker.broker.registration.caller
    assert isinstance(found, Lines)
    return found


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    for broker in made.brokers:
        broker.close()


class TestIncrements:
    def test_reach_every_name_server(self, town: Town) -> None:
        town.nameserver("ns1:9876")
        town.nameserver("ns2:9876")
        broker = town.broker("10.0.0.1:10911")
        calls_of(broker).calls.clear()
        broker.broker.topics.put(Topic("Fresh", 4, 4))
        assert [list(body.topics.topic_config_table) for body in calls_of(broker).told()] == [["Fresh"], ["Fresh"]]
        assert town.route("Fresh", "ns1:9876") == town.route("Fresh", "ns2:9876") == "10.0.0.1:10911"

    def test_are_followed_by_everything_after_a_failure(self, town: Town) -> None:
        town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        town.tick(1_000)  # the round of every 30 s is behind us
        away = town.servers.pop(NS)
        broker.broker.topics.put(Topic("Missed", 4, 4))
        town.servers[NS] = away
        town.tick(2_000)
        assert town.route("Missed") == "10.0.0.1:10911"

    def test_do_not_wait_for_a_name_server_that_failed_before(self, town: Town) -> None:
        town.nameserver("ns1:9876")
        town.nameserver("ns2:9876")
        broker = town.broker("10.0.0.1:10911")
        del town.servers["ns2:9876"]
        broker.broker.topics.put(Topic("First", 4, 4))
        assert set(broker.broker.registration.failing) == {"ns2:9876"}
        calls_of(broker).call = lambda address, command, timeout_ms, done: (  # type: ignore[method-assign]
            None if address == "ns2:9876" else done(command.reply())
        )
        for name in ("Second", "when it is tried again"):
            told: list[Exception | None] = []
            broker.broker.topics.put(Topic(name, 4, 4), told.append)
            assert told == [None]
            town.clock.forward(2_000)

    @pytest.mark.parametrize("settings", [{"compressed_register": True}, {"broker_permission": 4}])
    def test_and_whole_tables_come_in_every_form(self, town: Town, settings: dict[str, Any]) -> None:
        town.nameserver()
        broker = town.broker("10.0.0.1:10911", **settings)
        broker.broker.topics.put(Topic("Fresh", 4, 4, 6))
        queues = town.servers[NS].registry.topics
        assert queues["Fresh"]["broker-a"].perm == settings.get("broker_permission", 6)
        assert queues["SELF_TEST_TOPIC"]["broker-a"].perm == settings.get("broker_permission", 6)

    def test_are_the_same_words_as_the_typed_body_would_write(self, town: Town) -> None:
        town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        topics = broker.broker.topics
        (whole,) = calls_of(broker).told()
        assert whole.topics.topic_config_table == {topic.topic_name: topic for topic in topics.all()}
        assert calls_of(broker).calls[0].body == whole.encode()


class TestANameServer:
    def test_that_was_restarted_knows_the_broker_after_the_next_look(self, town: Town) -> None:
        town.nameserver()
        town.broker("10.0.0.1:10911")
        town.tick(40_000)
        town.nameserver()
        assert town.route() is None
        town.tick(3_000)
        assert town.route() == town.route("SELF_TEST_TOPIC") == "10.0.0.1:10911"

    def test_that_was_restarted_and_heard_of_one_change_first_gets_a_version_that_it_does_not_hold(self, town: Town) -> None:
        town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        town.tick(40_000)
        town.nameserver()
        calls_of(broker).calls.clear()
        broker.broker.topics.put_all([Topic("Fresh", 4, 4), Topic("Other", 4, 4)])
        town.tick(3_000)
        partial, whole = calls_of(broker).told()
        assert partial.topics.data_version != whole.topics.data_version
        assert town.route("SELF_TEST_TOPIC") == "10.0.0.1:10911"

    def test_that_does_not_have_our_topic_whatever_we_do_is_not_registered_with_at_every_look(self, town: Town) -> None:
        server = town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        calls = calls_of(broker)

        def knows_no_route(peer: Peer, request: Command) -> None:
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                raise Refused(ResponseCode.TOPIC_NOT_EXIST, "")

        server.guards.append(knows_no_route)
        calls.calls.clear()
        town.tick(60_000)
        assert len(calls.told()) <= 4


class TestASecondBroker:
    def test_of_the_same_name_is_noticed_by_both_and_by_the_name_server(self, town: Town, caplog: pytest.LogCaptureFixture) -> None:
        town.nameserver()
        one, other = town.broker("10.0.0.1:10911"), town.broker("10.0.0.2:10911")
        with caplog.at_level(logging.WARNING):
            town.tick(50_000)
        said = [record.getMessage() for record in caplog.records if record.name.startswith("roquet.nameserver")]
        assert len(said) <= 1, "they take it from each other every few seconds, and it is said once a minute"
        for broker, foreign in ((one, "10.0.0.2:10911"), (other, "10.0.0.1:10911")):
            (notice,) = broker.broker.notices.list()
            assert f"gave {foreign} as the address of broker broker-a with id 0" in notice.text
            assert "brokerName" in notice.text
        rows = one.broker.admin.runtime_table()
        assert "10.0.0.2:10911" in rows["roquetWarning_1"]

    def test_that_leaves_gives_the_route_back_within_seconds(self, town: Town) -> None:
        town.nameserver()
        town.broker("10.0.0.1:10911")
        town.tick(40_000)
        second = town.broker("10.0.0.2:10911")
        assert town.route() == "10.0.0.2:10911"
        second.broker.registration.unregister(lambda: None)
        town.tick(3_000)
        assert town.route() == "10.0.0.1:10911"
        town.tick(60_000)
        assert town.brokers[0].broker.notices.list() == [], "it is over"

    def test_that_unregisters_in_the_name_of_the_first_takes_nothing_that_is_not_its_own(self, town: Town) -> None:
        town.nameserver()
        first, second = town.broker("10.0.0.1:10911"), town.broker("10.0.0.2:10911")
        first.broker.registration.now()
        assert town.route() == "10.0.0.1:10911"
        second.broker.registration.unregister(lambda: None)
        assert town.route() == "10.0.0.1:10911"

    def test_registration_by_anybody_holds_for_seconds_only(self, town: Town) -> None:
        server = town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        town.tick(40_000)
        stolen = calls_of(broker).calls[0]
        fields = dict(stolen.fields) | {"brokerAddr": "6.6.6.6:666"}
        assert answer_of(server, FakePeer("6.6.6.6:1"), Command(RequestCode.REGISTER_BROKER, fields, stolen.body)).code == 0
        assert town.route() == "6.6.6.6:666"
        town.tick(3_000)
        assert town.route() == "10.0.0.1:10911"

    def test_withdrawal_by_anybody_holds_for_seconds_only(self, town: Town) -> None:
        server = town.nameserver()
        town.broker("10.0.0.1:10911")
        town.tick(40_000)
        fields = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "DefaultCluster", "brokerId": "0"}
        answer_of(server, FakePeer("6.6.6.6:1"), Command(RequestCode.UNREGISTER_BROKER, fields))
        assert town.route() is None
        town.tick(3_000)
        assert town.route() == "10.0.0.1:10911"

    def test_is_refused_by_a_name_server_that_is_told_to_while_the_first_is_alive(self, town: Town) -> None:
        server = town.nameserver(refuse_changed_broker_address=True)
        first, second = town.broker("10.0.0.1:10911"), town.broker("10.0.0.2:10911")
        town.tick(60_000)
        assert town.route() == "10.0.0.1:10911"
        (notice,) = second.broker.notices.list()
        assert "code 16" in notice.text
        assert "is 10.0.0.1:10911" in notice.text
        assert "refuseChangedBrokerAddress" in notice.text
        assert first.broker.notices.list() == []
        first.broker.registration.stopped = True  # as after a kill whose connection nobody saw end
        town.tick(server.settings.broker_expiry_ms + 15_000)
        assert town.route() == "10.0.0.2:10911"
        assert second.broker.notices.list() == []

    def test_is_let_in_as_soon_as_the_connection_of_the_first_is_gone(self, town: Town) -> None:
        server = town.nameserver(refuse_changed_broker_address=True)
        first = town.broker("10.0.0.1:10911")
        ((_, peer),) = calls_of(first).peers.items()
        first.broker.registration.stopped = True
        peer.closed = True
        town.broker("10.0.0.2:10911")
        assert town.route() == "10.0.0.2:10911"
        server.disconnected(peer)
        assert town.route() == "10.0.0.2:10911"


class TestABrokerThatIsToGo:
    def test_is_withdrawn_at_once_and_stays_so(self, town: Town) -> None:
        town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        assert town.route() == "10.0.0.1:10911"
        answer = broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"registerBroker=false\n")
        assert answer.code == 0
        assert town.route() is None
        broker.broker.topics.put(Topic("Fresh", 4, 4))
        town.tick(40_000)
        assert town.route() is None
        assert town.route("Fresh") is None
        assert broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"registerBroker=true\n").code == 0
        assert town.route("Fresh") == town.route() == "10.0.0.1:10911"

    def test_is_not_registered_with_a_name_server_that_comes_back_meanwhile(self, town: Town) -> None:
        town.nameserver()
        broker = town.broker("10.0.0.1:10911")
        town.tick(1_000)
        del town.servers[NS]
        broker.broker.topics.put(Topic("Fresh", 4, 4))
        assert broker.broker.registration.failing
        assert broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"registerBroker=false\n").code == 0
        town.nameserver()
        town.tick(40_000)
        assert town.route() is None
