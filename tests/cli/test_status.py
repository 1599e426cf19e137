"""What `roquet status` makes of what brokers say, without brokers."""

from __future__ import annotations

from roquet.admin import Broker
from roquet.cli.status import BrokerStatus, ClusterStatus, to_json, to_text

BROKER = Broker("DefaultCluster", "broker-a", 0, "127.0.0.1:10911")
RUNTIME = {
    "brokerVersionDesc": "V4_9_8",
    "bootTimestamp": "1000",
    "putTps": "12.5 3.0 1.0",
    "getTransferedTps": "",
    "commitLogMinOffset": "1024",
    "commitLogMaxOffset": "3072",
    "commitLogDiskRatio": "0.25",
    "msgPutTotalTodayNow": "not a number",
    "roquetWarning_10": "ten",
    "roquetWarning_2": "two members of group g subscribe differently: \x1b[2J",
}


def status_of(*brokers: BrokerStatus, problems: list[str] | None = None) -> ClusterStatus:
    return ClusterStatus(("127.0.0.1:9876",), list(brokers), ["orders"], {"billing": 7, "idle": 0}, problems or [])


def test_the_first_of_several_averages_counts_and_nonsense_is_zero() -> None:
    (shown,) = to_json(status_of(BrokerStatus(BROKER, RUNTIME)), now_ms=61_000)["brokers"]
    assert shown["inPerSecond"] == 12.5
    assert shown["outPerSecond"] == 0
    assert shown["in"] == 0
    assert shown["logBytes"] == 2048
    assert shown["uptimeSeconds"] == 60


def test_warnings_are_in_their_order_and_cannot_drive_the_terminal() -> None:
    text = to_text(status_of(BrokerStatus(BROKER, RUNTIME)), now_ms=61_000)
    assert "WARNINGS (2)" in text
    assert text.index("two members of group g") < text.index("broker-a: ten")
    assert "\x1b" not in text


def test_a_broker_that_does_not_answer_is_shown_with_the_reason() -> None:
    text = to_text(status_of(BrokerStatus(BROKER, error="no answer"), problems=["broker-a does not answer: no answer"]), now_ms=0)
    assert "does not answer" in text.splitlines()[3]
    assert "PROBLEMS" in text


def test_groups_that_are_behind_are_named_and_the_others_counted() -> None:
    text = to_text(status_of(BrokerStatus(BROKER, RUNTIME)), now_ms=0)
    assert "1 topic, 2 groups, lag 7 messages" in text
    assert "billing  7 messages behind" in text
    assert "idle  " not in text


def test_a_cluster_without_brokers_says_what_to_do() -> None:
    assert "roquet broker" in to_text(status_of(), now_ms=0)
