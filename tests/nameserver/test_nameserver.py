"""The name server as its peers see it: frames in, frames out. Recorded frames are of Apache RocketMQ 4.9.7."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roquet.errors import Refused
from roquet.nameserver.core import HANDLERS, NameServer
from roquet.nameserver.rivals import KEPT_MAX
from roquet.ports import Peer
from roquet.properties import parse_properties
from roquet.routing import registry
from roquet.settings import NameServerSettings
from roquet.store.disk import RealDisk
from roquet.testing import FakePeer, ManualClock
from roquet.wire import fastjson
from roquet.wire.calls.registration import RegisterBrokerBody
from roquet.wire.calls.routes import RouteInfo
from roquet.wire.calls.topics import TopicConfig, TopicTable
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, RESPONSE, Command, decode
from roquet.wire.frame import Frame, Framer
from roquet.wire.record import body_crc

FRAMES: list[dict[str, Any]] = [
    frame
    for frame in map(json.loads, (Path(__file__).parent.parent / "vectors" / "frames.jsonl").read_text().splitlines())
    if frame["server"] == "namesrv"
]


class World:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.clock = ManualClock(1_000_000)
        self.directory = directory
        self.server = NameServer(NameServerSettings(**settings), self.clock, RealDisk(), str(directory))
        self.link = FakePeer()

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, link: FakePeer | None = None, **about: Any
    ) -> Command:
        link = link or self.link
        before = len(link.sent)
        self.feed(Command(code, fields or {}, body, opaque=7, **about).encode(), link)
        assert len(link.sent) == before + 1
        answer = link.sent[-1]
        assert (answer.opaque, answer.flag) == (7, RESPONSE)
        return answer

    def feed(self, data: bytes, link: FakePeer | None = None) -> None:
        self.server.receive(link or self.link, Framer().feed(data))

    def pass_ms(self, ms: int) -> None:
        self.clock.ms += ms
        self.server.tick(self.clock.ms)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def fields_of(broker_name: str = "a", broker_id: int = 0, address: str = "10.0.0.1:10911", **more: str) -> dict[str, str]:
    return {
        "brokerName": broker_name,
        "brokerId": str(broker_id),
        "brokerAddr": address,
        "clusterName": "c",
        "haServerAddr": address.replace("10911", "10912"),
        **more,
    }


def body_of(*topics: str, counter: int = 1) -> RegisterBrokerBody:
    names = topics or ("T", "TBW102")
    return RegisterBrokerBody(TopicTable({name: TopicConfig(name, 4, 4, 6) for name in names}, DataVersion(5, counter)))


def topics_of(answer: Command) -> set[str]:
    return set(json.loads(answer.body)["topicList"])


# ---- recorded frames --------------------------------------------------------------------------------------------------


def recorded(code: int, response_code: int | None = None, *, oneway: bool = False) -> list[bytes]:
    return [
        bytes.fromhex(frame["hex"])
        for frame in FRAMES
        if (frame["request_code"], frame["response_code"], frame["oneway"]) == (code, response_code, oneway)
    ]


def command(data: bytes) -> Command:
    [frame] = Framer().feed(data)
    return decode(frame)


def value(one: Command) -> tuple[Any, ...]:
    return (one.code, one.opaque, one.flag, one.remark, one.fields, fastjson.loads(one.body) if one.body else None)


def test_recorded_registrations_are_answered_as_recorded(world: World) -> None:
    requests, answers = recorded(103), recorded(103, 0)
    assert len(requests) == len(answers) == 2
    for request in requests:
        world.feed(request)
    assert [value(one) for one in world.link.sent] == [value(command(one)) for one in answers]
    for request in recorded(103, oneway=True):
        world.feed(request)
    assert len(world.link.sent) == 2
    assert {"VecTopic", "VecAuto", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"} <= set(world.server.registry.topics)


@pytest.mark.parametrize("code", [100, 102, 105, 106, 216])
def test_recorded_requests_are_answered_as_recorded(world: World, code: int) -> None:
    world.feed(recorded(103)[0])
    world.link.sent.clear()
    requests = {command(one).opaque: one for one in recorded(code)}
    compared = 0
    for answer in map(command, recorded(code, 0)):
        request = requests[answer.opaque]
        if command(request).binary != answer.binary:
            continue
        world.feed(request)
        ours = world.link.sent[-1]
        assert value(ours) == value(answer)
        assert ours.binary == answer.binary
        compared += 1
    assert compared
    assert world.link.sent[-1].body == b"" or code in (105, 106)


def test_a_recorded_route_is_the_same_bytes(world: World) -> None:
    """Go clients cut the addresses out of the route's text, so not only the value counts."""
    world.feed(recorded(103)[0])
    assert world.ask(105, {"topic": "TBW102"}, version=407).body == command(recorded(105, 0)[0]).body
    assert b'"brokerAddrs":{0:"127.0.0.1:20911"}' in command(recorded(106, 0)[0]).body
    assert b'"brokerAddrs":{0:"127.0.0.1:20911"}' in world.ask(106).body


@pytest.mark.parametrize("answer", recorded(105, 17), ids=lambda data: str(command(data).opaque))
def test_a_missing_route_is_answered_as_recorded(world: World, answer: bytes) -> None:
    expected = command(answer)
    assert expected.remark is not None
    topic = expected.remark.partition("topic: ")[2].partition("\n")[0]
    ours = world.ask(105, {"topic": topic})
    assert (ours.code, ours.remark, ours.fields, ours.body) == (17, expected.remark, {}, b"")


@pytest.mark.parametrize(("code", "field"), [(205, "wipeTopicCount"), (327, "addTopicCount")])
def test_write_permission_requests_count_topics_under_the_recorded_name(world: World, code: int, field: str) -> None:
    topics = [f"T{number}" for number in range(20)]
    body = body_of(*topics).encode()
    world.ask(103, fields_of("broker-a"), body)
    [request], [answer] = recorded(code), recorded(code, 0)
    world.feed(request)
    assert value(world.link.sent[-1]) == value(command(answer))
    assert world.link.sent[-1].fields == {field: "20"}


def test_the_list_of_topics_has_the_recorded_shape(world: World) -> None:
    expected = command(recorded(206, 0)[0])
    world.ask(103, fields_of(), body_of(*json.loads(expected.body)["topicList"]).encode())
    world.feed(recorded(206)[0])
    assert set(json.loads(world.link.sent[-1].body)) == {"topicList"}
    assert topics_of(world.link.sent[-1]) == topics_of(expected)


def test_the_configuration_is_properties_text_under_upstream_s_keys(tmp_path: Path) -> None:
    world = World(tmp_path, listen_port=19876, config_store_path="ns.conf", kv_config_path=str(tmp_path / "kv.json"))
    expected = parse_properties(command(recorded(319, 0)[0]).body.decode())
    world.feed(recorded(319)[0])
    ours = parse_properties(world.link.sent[-1].body.decode())
    assert expected.keys() - ours.keys() == {"rocketmqHome"}  # which is shown only where it was given
    different = {key for key in expected.keys() & ours.keys() if ours[key] != expected[key]}
    assert different == {"kvConfigPath"}


# ---- frames and connections -------------------------------------------------------------------------------------------


def test_every_code_of_a_name_server_is_handled() -> None:
    assert set(HANDLERS) == {
        50, 51, 53, 54, 100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 30_002,
    }  # fmt: skip


def test_requests_of_one_read_are_answered_in_order_with_one_write(world: World) -> None:
    world.feed(b"".join(Command(106, opaque=number).encode() for number in (3, 1, 2)))
    assert [answer.opaque for answer in world.link.sent] == [3, 1, 2]
    assert world.link.sends == 1


def test_an_answer_has_the_header_form_of_its_request(world: World) -> None:
    assert world.ask(206, binary=True).binary
    assert not world.ask(206).binary


def test_a_oneway_request_is_carried_out_and_not_answered(world: World) -> None:
    world.feed(Command(103, fields_of(), body_of().encode(), flag=ONEWAY).encode())
    world.feed(Command(999, flag=ONEWAY).encode())
    assert world.link.sends == 0
    assert world.ask(105, {"topic": "T"}).code == 0


def test_a_response_that_nobody_waits_for_is_ignored(world: World) -> None:
    world.feed(Command(0, flag=RESPONSE).encode())
    assert world.link.sends == 0


def test_an_unknown_code_is_answered_with_3(world: World) -> None:
    for binary in (False, True):
        answer = world.ask(999, binary=binary)
        assert (answer.code, answer.remark) == (3, " request type 999 not supported")


def test_bytes_that_are_no_command_close_the_connection_after_what_came_before(world: World) -> None:
    world.server.receive(world.link, [(0, b'{"code":206,"opaque":5}', b""), (0, b"not json", b""), (0, b'{"code":206}', b"")])
    assert [answer.opaque for answer in world.link.sent] == [5]
    assert world.link.closed
    assert "not JSON" in world.link.close_reason


def test_a_handler_that_fails_answers_1_and_the_server_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(server: NameServer, peer: Peer, request: Command) -> Command:
        raise KeyError("surprise")

    monkeypatch.setitem(HANDLERS, 106, fail)
    answer = world.ask(106)
    assert (answer.code, answer.remark) == (1, "KeyError: 'surprise'")
    assert world.ask(206).code == 0


@pytest.mark.parametrize(
    ("code", "fields", "missing"),
    [
        (105, {}, "topic"), (100, {"namespace": "n", "key": "k"}, "value"), (100, {"key": "k"}, "namespace"),
        (101, {"namespace": "n"}, "key"),
        (103, {}, "brokerName"), (104, {}, "brokerName"), (205, {}, "brokerName"), (327, {}, "brokerName"), (216, {}, "topic"),
        (219, {}, "namespace"), (224, {}, "cluster"), (322, {}, "brokerName"), (102, {}, "namespace"),
    ],
)  # fmt: skip
def test_a_missing_field_is_named(world: World, code: int, fields: dict[str, str], missing: str) -> None:
    answer = world.ask(code, fields)
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark == f"the custom field <{missing}> is null, but this request needs it"


# ---- brokers ----------------------------------------------------------------------------------------------------------


def test_a_registered_topic_has_a_route_in_both_json_forms(world: World) -> None:
    assert world.ask(103, fields_of(), body_of().encode()).code == 0
    old = world.ask(105, {"topic": "T"}, version=317)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in old.body
    for new in (world.ask(105, {"topic": "T"}, version=401), world.ask(105, {"topic": "T", "acceptStandardJsonOnly": "true"}, version=317)):
        assert json.loads(new.body)["brokerDatas"] == [{"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "a", "cluster": "c"}]
        assert b" " not in new.body
        assert RouteInfo.decode(new.body) == RouteInfo.decode(old.body)


@pytest.mark.parametrize("form", ["plain", "compressed", "before 3.0.11"])
def test_every_form_of_a_registration_is_understood(world: World, form: str) -> None:
    body, version = body_of(), 409
    data = body.encode()
    if form == "compressed":
        data = body.encode_compressed()
    elif form == "before 3.0.11":
        data, version = body.topics.encode(), 36
    fields = fields_of(compressed="true" if form == "compressed" else "false", bodyCrc32=str(body_crc(data)))
    assert world.ask(103, fields, data, version=version).code == 0
    assert topics_of(world.ask(206)) == {"T", "TBW102"}


def test_a_damaged_registration_is_refused_and_changes_nothing(world: World) -> None:
    answer = world.ask(103, fields_of(bodyCrc32="12345"), body_of().encode())
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    for fields, body in (
        (fields_of(), b"{"),
        (fields_of(compressed="true"), b"garbage"),
        (fields_of(), b'{"topicConfigSerializeWrapper":7}'),
    ):
        assert world.ask(103, fields, body).code == 1
    assert topics_of(world.ask(206)) == set()
    assert world.server.registry.brokers == {}


def test_a_registration_without_a_body_is_a_broker_without_topics(world: World) -> None:
    assert world.ask(103, fields_of()).code == 0
    assert json.loads(world.ask(304).body) == {"brokerAddr": "10.0.0.1:10911", "topicList": ["c", "a"]}


def test_a_slave_is_told_its_master(world: World) -> None:
    assert world.ask(103, fields_of(), body_of().encode()).fields == {}
    answer = world.ask(103, fields_of(broker_id=1, address="10.0.0.2:10911"), body_of().encode())
    assert answer.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    assert b'{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in world.ask(106).body


def test_an_unregistered_broker_is_gone(world: World) -> None:
    world.ask(103, fields_of(), body_of().encode())
    assert world.ask(104, fields_of()).code == 0
    assert world.ask(105, {"topic": "T"}).code == 17
    assert world.ask(104, fields_of()).code == 0


def test_a_broker_whose_connection_drops_is_gone_at_once(world: World) -> None:
    broker = FakePeer("10.0.0.1:40000")
    world.ask(103, fields_of(), body_of().encode(), link=broker)
    world.server.disconnected(world.link)
    assert world.ask(105, {"topic": "T"}).code == 0
    world.server.disconnected(broker)
    assert world.ask(105, {"topic": "T"}).code == 17


def test_brokers_that_fall_silent_together_go_one_tick_after_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DROPPED_MOST", 0)
    for name in "abc":
        world.ask(RequestCode.REGISTER_BROKER, fields_of(name, address=f"10.0.0.{ord(name)}:10911"), body_of().encode())
    world.pass_ms(120_001)
    assert list(world.server.registry.brokers) == ["b", "c"]
    world.pass_ms(50)
    world.pass_ms(50)
    assert not world.server.registry.brokers


def test_a_silent_broker_is_removed_after_120_s_and_hung_up_on(world: World) -> None:
    broker, other = FakePeer(), FakePeer()
    world.ask(103, fields_of(), body_of().encode(), link=broker)
    world.ask(103, fields_of("b", address="10.0.0.2:10911"), body_of("V").encode(), link=other)
    world.pass_ms(119_000)
    world.ask(103, fields_of("b", address="10.0.0.2:10911"), body_of("V").encode(), link=other)
    world.pass_ms(11_000)
    assert (broker.closed, other.closed) == (True, False)
    assert topics_of(world.ask(206)) == {"V"}
    world.server.disconnected(broker)


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_neither_removes_a_broker_nor_keeps_a_silent_one(world: World, step_ms: int) -> None:
    world.ask(RequestCode.REGISTER_BROKER, fields_of(), body_of().encode())
    world.clock.step(step_ms)
    world.pass_ms(115_000)
    assert world.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.SUCCESS
    world.pass_ms(15_000)
    assert world.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, link=FakePeer()).code == ResponseCode.TOPIC_NOT_EXIST


def test_asking_for_the_data_version_says_whether_it_changed_and_keeps_alive(world: World) -> None:
    world.ask(103, fields_of(), body_of().encode())
    world.pass_ms(100_000)
    same = world.ask(322, fields_of(), DataVersion(5, 1).encode())
    assert (same.fields, json.loads(same.body)) == ({"changed": "false"}, {"counter": 1, "timestamp": 5})
    changed = world.ask(322, fields_of(), DataVersion(6, 2).encode())
    assert (changed.fields, json.loads(changed.body)) == ({"changed": "true"}, {"counter": 1, "timestamp": 5})
    world.pass_ms(100_000)
    assert world.ask(105, {"topic": "T"}).code == 0
    unknown = world.ask(322, fields_of("nobody"), DataVersion(6, 2).encode())
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")


def test_write_permission_can_be_taken_and_given(world: World) -> None:
    world.ask(103, fields_of(), body_of().encode())
    world.ask(205, {"brokerName": "a"})
    assert RouteInfo.decode(world.ask(105, {"topic": "T"}).body).queue_datas[0].perm == 4
    world.ask(327, {"brokerName": "a"})
    assert RouteInfo.decode(world.ask(105, {"topic": "T"}).body).queue_datas[0].perm == 6


def test_topic_lists(world: World) -> None:
    body = body_of("T", "Unit", "Sub", "Both")
    for name, flag in (("Unit", 1), ("Sub", 2), ("Both", 3)):
        body.topics.topic_config_table[name].topic_sys_flag = flag
    world.ask(103, fields_of(), body.encode())
    assert topics_of(world.ask(224, {"cluster": "c"})) == {"T", "Unit", "Sub", "Both"}
    assert topics_of(world.ask(224, {"cluster": "nobody"})) == set()
    assert topics_of(world.ask(311)) == {"Unit", "Both"}
    assert topics_of(world.ask(312)) == {"Sub", "Both"}
    assert topics_of(world.ask(313)) == {"Sub"}
    assert topics_of(world.ask(304)) == {"c", "a"}
    world.ask(216, {"topic": "T"})
    world.ask(216, {"topic": "Unit", "clusterName": "nobody"})
    assert topics_of(world.ask(206)) == {"Unit", "Sub", "Both"}


# ---- KV and configuration ---------------------------------------------------------------------------------------------


def test_kv_values_live_through_a_restart(world: World) -> None:
    assert world.ask(100, {"namespace": "ns", "key": "k", "value": "v"}).code == 0
    again = World(world.directory)
    assert again.ask(101, {"namespace": "ns", "key": "k"}).fields == {"value": "v"}
    assert json.loads(again.ask(219, {"namespace": "ns"}).body) == {"table": {"k": "v"}}
    again.ask(102, {"namespace": "ns", "key": "k"})
    answer = again.ask(101, {"namespace": "ns", "key": "k"})
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: ns Key: k")
    answer = again.ask(219, {"namespace": "other"})
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: other")


def test_the_kv_file_is_where_the_settings_say(tmp_path: Path) -> None:
    world = World(tmp_path, kv_config_path=str(tmp_path / "deep" / "kv.json"))
    world.ask(100, {"namespace": "ns", "key": "k", "value": "v"})
    assert (tmp_path / "deep" / "kv.json").exists()


def test_order_topics_go_to_brokers_and_with_routes_when_enabled(tmp_path: Path) -> None:
    world = World(tmp_path, order_message_enable=True)
    world.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"})
    assert json.loads(world.ask(103, fields_of(), body_of().encode()).body) == {"table": {"T": "a:4"}}
    assert json.loads(world.ask(105, {"topic": "T"}).body)["orderTopicConf"] == "a:4"
    assert "orderTopicConf" not in json.loads(world.ask(105, {"topic": "TBW102"}).body)
    world.ask(318, body=b"orderMessageEnable=false\nreturnOrderTopicConfigToBroker=false\n")
    assert "orderTopicConf" not in json.loads(world.ask(105, {"topic": "T"}).body)
    assert world.ask(103, fields_of(), body_of().encode()).body == b""


def test_node_s_lookup_of_a_project_group_finds_nothing(world: World) -> None:
    assert world.ask(217, {"namespace": "PROJECT_CONFIG", "key": "10.0.0.1"}).code == 22


@pytest.mark.parametrize(
    "line",
    ["kvConfigPath=/etc/passwd", "configStorePath=/tmp/x", "rocketmqHome=/tmp", "listenPort=1", "nonsense=1", "orderMessageEnable=perhaps"],
)
def test_a_refused_setting_changes_nothing_at_all(world: World, line: str) -> None:
    before = world.ask(319).body
    answer = world.ask(318, body=f"returnOrderTopicConfigToBroker=false\n{line}\n".encode())
    assert answer.code == 16
    assert answer.remark is not None
    assert line.partition("=")[0] in answer.remark
    assert world.ask(319).body == before


def test_an_update_that_is_no_text_or_too_much_of_it_is_refused(world: World) -> None:
    assert world.ask(318, body=b"\xff\xfe").code == 1
    answer = world.ask(318, body=b"#" * 70_000)
    assert (answer.code, answer.remark) == (1, "configuration of 70000 bytes, limit is 65536")
    assert world.ask(318).code == 0


def test_codes_are_those_of_the_table() -> None:
    assert all(code in set(RequestCode) for code in HANDLERS)


class TestTwoBrokersOfOneName:
    def register(self, world: World, address: str, link: FakePeer, body: bytes | None = None) -> Command:
        table = TopicTable({"T": TopicConfig("T")}, DataVersion(1, 1))
        body = RegisterBrokerBody(table, []).encode() if body is None else body
        return world.ask(RequestCode.REGISTER_BROKER, fields_of(address=address), body, link=link)

    def lines(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "roquet.nameserver.rivals"]

    def test_are_said_once_and_then_once_a_minute(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        one, other = FakePeer("10.0.0.1:5"), FakePeer("10.0.0.2:5")
        for _ in range(20):
            self.register(world, "10.0.0.1:10911", one)
            self.register(world, "10.0.0.2:10911", other)
            world.clock.forward(2_000)
        (line,) = self.lines(caplog)
        assert "broker a id 0 is registered at 10.0.0.1:10911; a registration from 10.0.0.2:5 names 10.0.0.2:10911" in line
        world.clock.forward(60_000)
        self.register(world, "10.0.0.1:10911", one)
        assert "38 more times" in self.lines(caplog)[1]

    def test_are_said_when_one_comes_back_on_another_address_after_it_was_silent(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.server.settings.refuse_changed_broker_address = True
        self.register(world, "10.0.0.1:10911", FakePeer("10.0.0.1:5"))
        world.clock.forward(121_000)
        assert self.register(world, "10.0.0.2:10911", FakePeer("10.0.0.2:5")).code == 0
        (line,) = self.lines(caplog)
        assert "silent for too long" in line

    def test_with_addresses_that_somebody_makes_up_fill_no_memory(self, world: World) -> None:
        link = FakePeer("10.0.0.1:5")
        for number in range(KEPT_MAX + 50):
            self.register(world, f"10.0.0.1:{10_000 + number}", link)
        assert len(world.server.rivals._reported) == KEPT_MAX

    def test_are_not_kept_apart_by_default_as_with_apache(self, world: World) -> None:
        self.register(world, "10.0.0.1:10911", FakePeer("10.0.0.1:5"))
        assert self.register(world, "10.0.0.2:10911", FakePeer("10.0.0.2:5")).code == 0

    def test_that_are_refused_change_nothing(self, world: World) -> None:
        world.server.settings.refuse_changed_broker_address = True
        self.register(world, "10.0.0.1:10911", FakePeer("10.0.0.1:5"))
        before = world.server.registry.cluster_info(), dict(world.server.registry.topics)
        answer = self.register(world, "10.0.0.2:10911", FakePeer("10.0.0.2:5"))
        assert answer.code == 16
        assert "10.0.0.1:10911, which registered 0 s ago and is alive: 10.0.0.2:10911 is refused" in str(answer.remark)
        assert before == (world.server.registry.cluster_info(), dict(world.server.registry.topics))


def test_a_registration_is_read_in_one_turn_and_taken_in_by_a_later_one_and_what_is_behind_it_waits(world: World) -> None:
    """Issue 10.18: a table of 10,000 topics held the loop for some 90 ms."""
    data = Command(103, fields_of(), body_of("T").encode(), opaque=1).encode() + Command(105, {"topic": "T"}, opaque=2).encode()
    rest: list[Frame] | None = Framer().feed(data)
    assert rest is not None
    world.server.clock = ticking = ManualClock(world.clock.ms, look_ms=1)
    rest = world.server.receive(world.link, rest, ticking.ms + 2)
    assert rest is not None
    assert len(rest) == 1
    assert not world.link.sent
    assert not world.server.registry.topics
    while rest is not None:
        rest = world.server.receive(world.link, rest, ticking.ms + 2)
    assert [(answer.opaque, answer.code) for answer in world.link.sent] == [(1, 0), (2, 0)]


def test_a_registration_whose_connection_is_gone_half_way_registers_nothing(world: World) -> None:
    world.server.clock = ticking = ManualClock(world.clock.ms, look_ms=1)
    data = Command(103, fields_of(), body_of("T").encode(), opaque=1).encode()
    assert world.server.receive(world.link, Framer().feed(data), ticking.ms + 2) == []
    world.server.disconnected(world.link)
    assert world.server.receive(world.link, []) is None
    assert not world.server.registry.topics


class TestARegistrationThatComesAgain:
    def ask(self, world: World, link: FakePeer | None = None, **more: Any) -> Command:
        table = TopicTable({"T": TopicConfig("T"), "U": TopicConfig("U")}, DataVersion(1, 1))
        return world.ask(RequestCode.REGISTER_BROKER, fields_of(**more), RegisterBrokerBody(table, []).encode(), link=link)

    def test_is_not_read_again(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ask(world)
        monkeypatch.setattr("roquet.nameserver.core.registered_body", None)
        assert self.ask(world).code == 0

    def test_is_a_sign_of_life(self, world: World) -> None:
        self.ask(world)
        for _ in range(10):
            world.pass_ms(60_000)
            self.ask(world)
        assert world.server.registry.route("T") is not None
        fresh = FakePeer()
        self.ask(world, link=fresh)
        world.server.disconnected(world.link)
        assert world.server.registry.route("T") is not None, "it came over the other connection last"

    def test_brings_back_what_was_deleted_meanwhile(self, world: World) -> None:
        self.ask(world)
        world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
        assert world.server.registry.route("T") is None
        self.ask(world)
        assert world.server.registry.route("T") is not None

    def test_leaves_a_wiped_permission_wiped(self, world: World) -> None:
        self.ask(world)
        world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
        self.ask(world)
        assert world.server.registry.topics["T"]["a"].perm == 4

    def test_with_another_header_is_read(self, world: World) -> None:
        self.ask(world)
        self.ask(world, haServerAddr="10.0.0.1:9")
        assert world.server.registry.live["a", "10.0.0.1:10911"].ha_address == "10.0.0.1:9"


def test_topics_that_look_odd_are_read_as_the_machinery_reads_them() -> None:
    usual: dict[str, Any] = {
        "topicName": "T", "readQueueNums": 3, "writeQueueNums": 4, "perm": 6, "topicFilterType": "MULTI_TAG", "topicSysFlag": 1,
        "order": True,
    }  # fmt: skip
    odd: dict[str, Any] = {
        "short": {"topicName": "short"},
        "texts": usual | {"topicName": "texts", "readQueueNums": "3"},
        "more": usual | {"topicName": "more", "attributes": {"a": "b"}, "unknown": 1},
    }
    table = TopicTable.from_json({"topicConfigTable": {"T": usual} | odd, "dataVersion": {"timestamp": 1, "counter": 2}})
    assert list(table.topic_config_table) == ["T", "short", "texts", "more"]
    assert table.topic_config_table["T"] == TopicConfig("T", 3, 4, 6, "MULTI_TAG", 1, True)
    assert table.topic_config_table["texts"].read_queue_nums == 3
    assert table.topic_config_table["more"].attributes == {"a": "b"}
    assert table.data_version == DataVersion(1, 2)
    bad: list[Any] = [usual | {"perm": 1 << 31}, usual | {"perm": 6.5}, usual | {"topicName": []}, usual | {"order": []}, None, 5, []]
    for value in bad:
        with pytest.raises(Refused, match="topicConfigTable"):
            TopicTable.from_json({"topicConfigTable": {"T": value}})


# ---- the gate ---------------------------------------------------------------------------------------------------------


def test_no_request_slips_past_a_guard_and_a_peer_that_it_knows_gets_its_answer(world: World) -> None:
    def members_only(peer: Peer, command: Command) -> None:
        if not peer.principal and command.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            raise Refused(ResponseCode.NO_PERMISSION, f"request {command.code}: who are you?")

    world.server.guards.append(members_only)
    for code in (*HANDLERS, 9_999):
        expected = 0 if code == RequestCode.GET_BROKER_CLUSTER_INFO else ResponseCode.NO_PERMISSION
        assert world.ask(code, fields_of()).code == expected, code
    assert not world.server.registry.live, "nothing has happened"
    member = FakePeer()
    member.principal = "alice"
    assert world.ask(RequestCode.REGISTER_BROKER, fields_of(), link=member).code == 0
    assert world.ask(9_999, link=member).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_guard_is_asked_once_about_a_request_that_needs_several_turns(world: World) -> None:
    asked: list[int] = []
    world.server.guards.append(lambda peer, command: asked.append(command.code))

    class Passing(ManualClock):
        def steady_ms(self) -> int:
            self.ms += 5
            return self.ms

    world.server.clock = clock = Passing(1_000_000)
    body = RegisterBrokerBody(TopicTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1)), []).encode()
    command = Command(RequestCode.REGISTER_BROKER, fields_of(), body, opaque=7, version=401)
    rest: list[Frame] | None = Framer().feed(command.encode())
    turns = 0
    while rest is not None:
        rest = world.server.receive(world.link, rest, clock.ms + 7)
        turns += 1
    assert turns > 1
    assert asked == [RequestCode.REGISTER_BROKER]
