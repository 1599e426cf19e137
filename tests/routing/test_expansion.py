"""What a new broker is given: the plan, of tables alone."""

from __future__ import annotations

import pytest

from roquet.routing.expansion import Holdings, plan
from roquet.wire.calls.access import PlainAccessConfig
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.topics import TopicConfig

OWN = {"a", "b", "new", "DefaultCluster"}


def holdings(*topics: TopicConfig, groups: tuple[GroupConfig, ...] = (), writable: bool = True) -> Holdings:
    return Holdings({one.topic_name: one for one in topics}, {one.group_name: one for one in groups}, writable=writable)


def guarded(*accounts: PlainAccessConfig, white: tuple[str, ...] = (), silent: str = "") -> Holdings:
    return Holdings(accounts={one.access_key: one for one in accounts}, white=white, access_control=True, silent=silent)


ORDERS = TopicConfig("orders", 8, 8)


def test_a_topic_that_all_others_have_is_copied_and_one_that_some_have_is_left_out_with_their_names() -> None:
    made = plan({"a": holdings(ORDERS, TopicConfig("paid", 4, 4)), "b": holdings(ORDERS)}, holdings(), own_names=OWN)
    assert made.topics == [ORDERS]
    assert made.left_out == {"paid": "it is on a, and not on b"}
    named = plan({"a": holdings(ORDERS, TopicConfig("paid", 4, 4)), "b": holdings(ORDERS)}, holdings(), own_names=OWN, named=["paid"])
    assert [one.topic_name for one in named.topics] == ["orders", "paid"]
    assert named.left_out == {}


def test_a_drained_broker_does_not_keep_a_topic_from_being_everywhere() -> None:
    made = plan({"a": holdings(ORDERS), "b": holdings(writable=False)}, holdings(), own_names=OWN)
    assert made.topics == [ORDERS]


def test_of_brokers_that_differ_the_one_with_the_most_queues_counts() -> None:
    wide = TopicConfig("orders", 16, 16)
    assert plan({"a": holdings(ORDERS), "b": holdings(wide)}, holdings(), own_names=OWN).topics == [wide]


@pytest.mark.parametrize(
    ("topic", "ordered"),
    [(TopicConfig("orders", 8, 8, order=True), ()), (ORDERS, ("orders",)), (TopicConfig("orders", 1, 1), ())],
    ids=["flag", "configuration of name servers", "one queue in all of the cluster"],
)
def test_a_topic_whose_order_would_end_is_left_out_unless_it_is_named(topic: TopicConfig, ordered: tuple[str, ...]) -> None:
    made = plan({"a": holdings(topic)}, holdings(), own_names=OWN, ordered=ordered)
    assert not made
    assert "order" in made.left_out["orders"]
    assert plan({"a": holdings(topic)}, holdings(), own_names=OWN, ordered=ordered, named=["orders"]).topics == [topic]


def test_one_queue_on_each_of_two_brokers_has_no_order_to_lose() -> None:
    one = TopicConfig("orders", 1, 1)
    assert plan({"a": holdings(one), "b": holdings(one)}, holdings(), own_names=OWN).topics == [one]


def test_topics_and_groups_of_the_system_and_of_brokers_are_nobodys_to_copy() -> None:
    names = [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "%RETRY%g",
        "%DLQ%g",
        "a",
        "DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
    ]
    old = holdings(*(TopicConfig(name, 8, 8) for name in names), groups=(GroupConfig("TOOLS_CONSUMER"), GroupConfig("CID_RMQ_SYS_TRANS")))
    made = plan({"a": old}, holdings(), own_names=OWN)
    assert not made
    assert made.left_out == {}


def test_what_the_new_broker_has_stays_as_it_is_unless_it_is_to_be_overwritten() -> None:
    old = holdings(ORDERS, groups=(GroupConfig("billing", retry_max_times=5),))
    new = holdings(TopicConfig("orders", 2, 2), groups=(GroupConfig("billing"),))
    made = plan({"a": old}, new, own_names=OWN)
    assert not made
    assert set(made.differing) == {"topic orders", "group billing"}
    made = plan({"a": old}, new, own_names=OWN, overwrite=True)
    assert (made.topics, [one.retry_max_times for one in made.groups], made.differing) == ([ORDERS], [5], {})


def test_a_plan_that_was_carried_out_is_followed_by_an_empty_one() -> None:
    old = holdings(ORDERS, groups=(GroupConfig("billing"),))
    made = plan({"a": old}, holdings(), own_names=OWN)
    assert made
    assert not plan({"a": old}, holdings(*made.topics, groups=tuple(made.groups)), own_names=OWN)


def test_accounts_come_along_and_an_account_with_another_secret_is_kept() -> None:
    app, admin = PlainAccessConfig("app-key", "secret-1"), PlainAccessConfig("admin-key", "secret-2", admin=True)
    made = plan(
        {"a": guarded(app, admin, white=("10.1.1.*",))}, guarded(PlainAccessConfig("admin-key", "other", admin=True)), own_names=OWN
    )
    assert made.accounts == [app]
    assert made.white == ["10.1.1.*"]
    assert set(made.differing) == {"account admin-key"}
    assert "secret-1" not in repr(made)


def test_a_new_broker_without_access_control_is_told_that_it_would_let_everybody_in() -> None:
    made = plan({"a": guarded(PlainAccessConfig("app-key", "secret-1"))}, holdings(), own_names=OWN)
    assert not made
    assert "everybody may use it" in made.notes[0]


def test_an_apache_broker_that_does_not_tell_its_accounts_is_named() -> None:
    made = plan({"a": guarded(silent="copy its plain_acl.yml yourself")}, guarded(), own_names=OWN)
    assert made.notes == ["accounts of a are not copied: copy its plain_acl.yml yourself"]
