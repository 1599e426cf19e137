"""The name server's tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.errors import Refused
from roquet.routing import registry as registry_module
from roquet.routing.registry import EXPIRY_MS, Registration, Registry
from roquet.wire.calls.topics import TopicConfig
from roquet.wire.calls.versions import DataVersion

MASTER = Registration(
    cluster="c",
    broker_name="a",
    broker_id=0,
    address="10.0.0.1:10911",
    ha_address="10.0.0.1:10912",
    version=DataVersion(1000, 1),
    topics=(TopicConfig("T", 4, 4, 6), TopicConfig("U", 8, 2, 4, topic_sys_flag=1)),
)
SLAVE = replace(MASTER, broker_id=1, address="10.0.0.2:10911", ha_address="10.0.0.2:10912")
OTHER = replace(MASTER, broker_name="b", address="10.0.0.9:10911")


def holding(*registrations: Registration) -> Registry[str]:
    tables: Registry[str] = Registry()
    for said in registrations:
        tables.register(said, link=said.address, now_ms=0)
    return tables


def perms(tables: Registry[str], topic: str) -> dict[str, int]:
    return {name: queues.perm for name, queues in tables.topics[topic].items()}


def test_a_master_s_topics_have_a_route() -> None:
    route = holding(MASTER).route("U")
    assert route is not None
    assert [(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm) for data in route.queue_datas] == [("a", 8, 2, 4)]
    assert [(data.cluster, data.broker_name, data.broker_addrs) for data in route.broker_datas] == [("c", "a", {0: "10.0.0.1:10911"})]
    assert route.filter_server_table == {}


def test_a_topic_nobody_has_no_route() -> None:
    assert holding(MASTER).route("nobody") is None


def test_a_slave_adds_an_address_but_no_topics() -> None:
    tables = holding(replace(SLAVE, topics=(TopicConfig("OnlyHere"),)))
    assert tables.topics == {}
    tables.register(MASTER, "m", 0)
    route = tables.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_a_slave_learns_where_its_master_is_while_that_is_alive() -> None:
    tables = holding(MASTER)
    master = tables.register(SLAVE, "s", 0)
    assert master is not None
    assert (master.address, master.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")
    assert tables.register(MASTER, "m", 0) is None
    tables.drop_link("m")
    assert tables.register(SLAVE, "s", 0) is None


def test_a_slave_that_became_the_master_leaves_its_old_id() -> None:
    tables = holding(MASTER, SLAVE)
    tables.register(replace(SLAVE, broker_id=0), "s", 0)
    assert tables.brokers["a"].broker_addrs == {0: "10.0.0.2:10911"}


def test_the_old_master_going_does_not_take_the_new_one_with_it() -> None:
    tables = holding(MASTER, SLAVE)
    tables.register(replace(SLAVE, broker_id=0), "s", 0)
    tables.unregister("a", "10.0.0.1:10911")
    assert tables.brokers["a"].broker_addrs == {0: "10.0.0.2:10911"}
    assert tables.route("T") is not None


def test_a_master_that_goes_leaves_reading_to_its_slaves() -> None:
    tables = holding(MASTER, SLAVE)
    tables.unregister("a", "10.0.0.1:10911")
    route = tables.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.2:10911"}


def test_the_last_of_a_group_takes_its_topics_along_but_not_those_of_others() -> None:
    tables = holding(MASTER, replace(OTHER, topics=(TopicConfig("T"),)))
    tables.unregister("a", "10.0.0.1:10911")
    assert list(tables.topics) == ["T"]
    assert list(tables.topics["T"]) == ["b"]
    assert tables.clusters == {"c": {"b"}}
    tables.unregister("b", "10.0.0.9:10911")
    assert (tables.topics, tables.brokers, tables.clusters, tables.live) == ({}, {}, {}, {})


def test_a_registration_with_one_topic_does_not_remove_the_others() -> None:
    tables = holding(MASTER)
    tables.register(replace(MASTER, version=DataVersion(2000, 2), topics=(TopicConfig("New"),)), "m", 0)
    assert set(tables.topics) == {"T", "U", "New"}


def test_topics_change_only_with_the_version() -> None:
    tables = holding(MASTER)
    wider = replace(MASTER, topics=(TopicConfig("T", 16, 16, 6),))
    tables.register(wider, "m", 0)
    assert tables.topics["T"]["a"].read_queue_nums == 4
    tables.register(replace(wider, version=DataVersion(1000, 2)), "m", 0)
    assert tables.topics["T"]["a"].read_queue_nums == 16


def test_what_we_lack_is_taken_even_with_the_version_unchanged() -> None:
    tables = holding(MASTER)
    tables.delete_topic("T")
    assert tables.route("T") is None
    tables.register(MASTER, "m", 0)
    assert tables.route("T") is not None


def test_after_our_restart_a_single_new_topic_does_not_hide_the_rest() -> None:
    tables = holding(replace(MASTER, topics=(TopicConfig("New"),)))
    assert tables.has_changed("a", MASTER.address, MASTER.version, 0)
    tables.register(MASTER, "m", 0)
    assert set(tables.topics) == {"New", "T", "U"}
    assert not tables.has_changed("a", MASTER.address, MASTER.version, 0)


def test_a_wiped_write_permission_stays_until_the_broker_s_topics_change() -> None:
    tables = holding(MASTER, OTHER)
    assert tables.wipe_write_perm("a") == 2
    assert perms(tables, "T") == {"a": 4, "b": 6}
    tables.register(MASTER, "m", 0)
    assert perms(tables, "T") == {"a": 4, "b": 6}
    tables.register(replace(MASTER, version=DataVersion(3000, 2)), "m", 0)
    assert perms(tables, "T") == {"a": 6, "b": 6}
    assert tables.wipe_write_perm("nobody") == 0


def test_write_permission_given_back_is_read_and_write() -> None:
    tables = holding(MASTER)
    tables.wipe_write_perm("a")
    assert tables.add_write_perm("a") == 2
    assert perms(tables, "U") == {"a": 6}


def test_an_answer_does_not_change_afterwards() -> None:
    tables = holding(MASTER)
    route = tables.route("T")
    assert route is not None
    tables.wipe_write_perm("a")
    tables.register(SLAVE, "s", 0)
    assert route.queue_datas[0].perm == 6
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}


def test_a_silent_broker_expires_after_two_minutes_and_not_before() -> None:
    tables = holding(MASTER, OTHER)
    tables.register(OTHER, "o", 60_000)
    assert tables.expire(EXPIRY_MS) == []
    assert [live.broker_name for live in tables.expire(EXPIRY_MS + 1)] == ["a"]
    assert list(tables.brokers) == ["b"]


def test_many_silent_brokers_go_some_at_a_time_until_all_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = holding(*[replace(MASTER, broker_name=name, address=f"{name}:1") for name in "abcde"])
    tables.register(replace(SLAVE, broker_name="a"), "s", 0)
    monkeypatch.setattr(registry_module, "DROPPED_MOST", 2 * (len(tables.topics) + 1))
    gone = [[live.address for live in tables.expire(EXPIRY_MS + 1)] for _ in range(4)]
    assert gone == [["a:1", "b:1"], ["c:1", "d:1"], ["e:1", SLAVE.address], []]
    assert (tables.topics, tables.brokers, tables.clusters, tables.live) == ({}, {}, {}, {})
    tables.register(MASTER, "m", 0)
    monkeypatch.setattr(registry_module, "DROPPED_MOST", 0)
    assert len(tables.expire(EXPIRY_MS + 1)) == 1, "at least one"


def test_a_broker_may_ask_for_another_patience_within_bounds() -> None:
    for asked, given_ms in ((5_000, 5_000), (1, 1_000), (10**12, 3_600_000)):
        tables = holding(replace(MASTER, expiry_ms=asked))
        assert tables.expire(given_ms) == []
        assert len(tables.expire(given_ms + 1)) == 1


def test_asking_with_the_same_version_is_a_sign_of_life() -> None:
    tables = holding(MASTER)
    assert not tables.has_changed("a", MASTER.address, MASTER.version, 100_000)
    assert tables.expire(EXPIRY_MS + 1) == []
    assert tables.has_changed("a", MASTER.address, DataVersion(9, 9), 200_000)
    assert len(tables.expire(100_000 + EXPIRY_MS + 1)) == 1
    assert tables.has_changed("a", MASTER.address, MASTER.version, 0)
    assert tables.version_of("a", MASTER.address) is None


def test_a_lost_connection_takes_only_what_was_last_heard_over_it() -> None:
    tables = holding(MASTER, OTHER)
    old, new = MASTER.address, "reconnected"
    tables.register(MASTER, new, 0)
    assert tables.drop_link(old) == []
    assert [live.broker_name for live in tables.drop_link(new)] == ["a"]
    assert list(tables.brokers) == ["b"]


def test_two_brokers_that_claim_one_address_do_not_remove_each_other() -> None:
    tables = holding(MASTER, replace(OTHER, address=MASTER.address))
    tables.unregister("b", MASTER.address)
    assert list(tables.brokers) == ["a"]
    assert tables.route("T") is not None


def test_lists_of_topics() -> None:
    elsewhere = replace(
        OTHER, cluster="d", topics=(TopicConfig("T"), TopicConfig("V", topic_sys_flag=2), TopicConfig("W", topic_sys_flag=3))
    )
    tables = holding(MASTER, elsewhere)
    assert set(tables.all_topics().topic_list) == {"T", "U", "V", "W"}
    assert set(tables.topics_of_cluster("c").topic_list) == {"T", "U"}
    assert set(tables.topics_of_cluster("d").topic_list) == {"T", "V", "W"}
    assert tables.topics_of_cluster("nobody").topic_list == []
    assert set(tables.unit_topics().topic_list) == {"U", "W"}
    assert set(tables.unit_sub_topics().topic_list) == {"V", "W"}
    assert tables.unit_sub_not_unit_topics().topic_list == ["V"]
    assert tables.system_topics().topic_list == ["c", "a", "d", "b"]
    assert tables.system_topics().broker_addr == "10.0.0.1:10911"
    empty: Registry[str] = Registry()
    assert (empty.system_topics().topic_list, empty.system_topics().broker_addr) == ([], None)


def test_a_topic_can_be_deleted_in_one_cluster_only() -> None:
    tables = holding(MASTER, replace(OTHER, cluster="d"))
    tables.delete_topic("T", "d")
    assert list(tables.topics["T"]) == ["a"]
    tables.delete_topic("T", "nobody")
    assert list(tables.topics["T"]) == ["a"]
    tables.delete_topic("T", "c")
    assert "T" not in tables.topics
    tables.delete_topic("T")


def test_filter_servers_are_kept_until_the_broker_says_otherwise() -> None:
    tables = holding(replace(MASTER, filter_servers=("f:1",)))
    tables.register(MASTER, "m", 0)
    route = tables.route("T")
    assert route is not None
    assert route.filter_server_table == {MASTER.address: ["f:1"]}
    tables.register(replace(MASTER, filter_servers=()), "m", 0)
    route = tables.route("T")
    assert route is not None
    assert route.filter_server_table == {}


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (replace(MASTER, broker_name=""), "brokerName of 0 characters"),
        (replace(MASTER, broker_name="x" * 256), "brokerName of 256 characters"),
        (replace(MASTER, address="x" * 256), "brokerAddr of 256"),
        (replace(MASTER, ha_address="x" * 256), "haServerAddr of 256"),
        (replace(MASTER, cluster=""), "clusterName"),
        (replace(MASTER, broker_id=-1), "brokerId is -1"),
        (replace(MASTER, topics=(TopicConfig("x" * 256),)), "a topic's name of 256"),
        (replace(MASTER, filter_servers=("f",) * 101), "101 filter servers, limit is 100"),
    ],
)
def test_a_registration_beyond_a_limit_is_refused_and_changes_nothing(said: Registration, match: str) -> None:
    tables = holding()
    with pytest.raises(Refused, match=match) as caught:
        tables.register(said, "m", 0)
    assert caught.value.code == 1
    assert (tables.topics, tables.brokers, tables.clusters, tables.live) == ({}, {}, {}, {})


@pytest.mark.parametrize(
    ("limit", "said", "match"),
    [
        ("BROKERS_MAX", OTHER, "1 broker groups"),
        ("TOPICS_MAX", replace(OTHER, topics=(TopicConfig("New"),)), "1 new topics beside the 2"),
        ("CLUSTERS_MAX", replace(OTHER, cluster="d"), "1 clusters"),
        ("ADDRESSES_MAX", SLAVE, "has 1 members"),
        ("LIVE_MAX", SLAVE, "there are 1 brokers"),
    ],
)
def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, said: Registration, match: str) -> None:
    tables = holding(MASTER)
    monkeypatch.setattr(registry_module, limit, 1)
    with pytest.raises(Refused, match=match):
        tables.register(said, "x", 0)
    monkeypatch.setattr(registry_module, limit, 2)
    tables.register(MASTER, "m", 0)
    assert list(tables.live) == [("a", MASTER.address)]


registrations = st.builds(
    Registration,
    cluster=st.sampled_from(["c", "d"]),
    broker_name=st.sampled_from(["a", "b"]),
    broker_id=st.integers(0, 2),
    address=st.sampled_from(["1:1", "2:2", "3:3"]),
    ha_address=st.just("h"),
    version=st.builds(DataVersion, st.just(0), st.integers(0, 2)),
    topics=st.lists(st.builds(TopicConfig, st.sampled_from(["T", "U", "V"])), max_size=3).map(tuple),
)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("register"), registrations, st.sampled_from(["l1", "l2"])),
            st.tuples(st.just("unregister"), st.sampled_from(["a", "b"]), st.sampled_from(["1:1", "2:2", "3:3"])),
            st.tuples(st.just("drop"), st.sampled_from(["l1", "l2"]), st.none()),
            st.tuples(st.just("delete"), st.sampled_from(["T", "U"]), st.sampled_from([None, "c", "d"])),
            st.tuples(st.just("expire"), st.integers(1, 200_000), st.none()),
        ),
        max_size=25,
    )
)
@settings(max_examples=150, deadline=None)
def test_the_tables_always_agree_with_each_other(steps: list[tuple[str, object, object]]) -> None:
    tables: Registry[object] = Registry()
    now_ms = 0
    for step, first, second in steps:
        if step == "register" and isinstance(first, Registration):
            tables.register(first, second, now_ms)
        elif step == "unregister":
            tables.unregister(str(first), str(second))
        elif step == "drop":
            tables.drop_link(first)
        elif step == "delete":
            tables.delete_topic(str(first), None if second is None else str(second))
        elif isinstance(first, int):
            now_ms += first
            tables.expire(now_ms)
        for group in tables.brokers.values():
            assert group.broker_addrs
            assert len(set(group.broker_addrs.values())) == len(group.broker_addrs)
        assert {name for names in tables.clusters.values() for name in names} == set(tables.brokers)
        assert all(tables.clusters.values())
        assert set(tables.live) == {(name, address) for name, group in tables.brokers.items() for address in group.broker_addrs.values()}
        for topic, queues in tables.topics.items():
            assert queues
            assert set(queues) <= set(tables.brokers)
            assert tables.route(topic) is not None
