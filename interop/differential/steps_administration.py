"""Steps that operators take: statistics, settings, counters."""

from __future__ import annotations

from differential.requests import binary, commit, create_topic, of_group, of_topic, pull, request, send
from differential.side import Side
from differential.steps_sends import wait_for
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command

TIMES = ["body.JSON.consumeTimeSpanSet.*.delayTime"]

RATE = ["body.JSON.consumeTps"]
RATES = ["body.JSON.consumeStatsList.*.*.*.consumeTps"]
"""Left out: a rate that each broker samples at its own moments (Apache's first at the next full minute)."""


def statistics(side: Side) -> None:
    side.quietly(create_topic("D-stats", 2))
    for n in range(5):
        side.quietly(send("D-stats", b"counted %d" % n, TAGS="s", KEYS=f"s{n}"))
    wait_for(side, "D-stats", 5)
    side.quietly(commit("D-counters", "D-stats", 3))
    side.quietly(pull("D-stats", 0, group="D-counters"))
    side.ask("topic", of_topic(Code.GET_TOPIC_STATS_INFO, "D-stats"))
    side.ask("topic, binary header", binary(of_topic(Code.GET_TOPIC_STATS_INFO, "D-stats")))
    side.ask("unknown topic", of_topic(Code.GET_TOPIC_STATS_INFO, "D-unknown"))
    side.ask("no topic", request(Code.GET_TOPIC_STATS_INFO))
    side.ask("group", of_group(Code.GET_CONSUME_STATS, "D-counters"), without=RATE)
    side.ask("group and topic", of_group(Code.GET_CONSUME_STATS, "D-counters", topic="D-stats"), without=RATE)
    side.ask("group and another topic", of_group(Code.GET_CONSUME_STATS, "D-counters", topic="D-one"), without=RATE)
    side.ask("unknown group", of_group(Code.GET_CONSUME_STATS, "D-unheard"), without=RATE)
    side.ask("unknown topic of a group", of_group(Code.GET_CONSUME_STATS, "D-counters", topic="D-unknown"), without=RATE)
    side.ask("groups of a topic", of_topic(Code.QUERY_TOPIC_CONSUME_BY_WHO, "D-stats"))
    side.ask("groups of an unknown topic", of_topic(Code.QUERY_TOPIC_CONSUME_BY_WHO, "D-unknown"))
    side.ask("time span", request(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "D-stats", "group": "D-counters"}), without=TIMES)
    side.ask("time span of an unknown topic", request(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "D-unknown", "group": "D-counters"}))

    def counter(name: str, key: str) -> Command:
        return request(Code.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})

    numbers = [f"body.JSON.stats{span}" for span in ("Minute", "Hour", "Day")]  # sampled at each broker's own moments
    for what, name, key in (
        ("a topic", "TOPIC_PUT_NUMS", "D-stats"),
        ("a group", "GROUP_GET_NUMS", "D-stats@D-counters"),
        ("the broker", "BROKER_PUT_NUMS", "DefaultCluster"),
    ):
        side.until(f"counter of {what}", counter(name, key), lambda answer: answer.code == 0, shape=numbers)
    side.ask("counter of an unknown topic", counter("TOPIC_PUT_NUMS", "D-unknown"))
    side.ask("an unknown counter", counter("NOTHING", "D-stats"))
    side.ask("no counter", request(Code.VIEW_BROKER_STATS_DATA))
    side.ask("progress of all groups", request(Code.GET_BROKER_CONSUME_STATS, {"isOrder": False}), without=RATES)
    side.ask("progress of all groups in order", request(Code.GET_BROKER_CONSUME_STATS, {"isOrder": True}), without=RATES)

    def entries(index: int = 0, count: int = 3, queue: int = 0, topic: str = "D-stats", group: str | None = None) -> Command:
        fields: dict[str, object] = {"topic": topic, "queueId": queue, "index": index, "count": count, "consumerGroup": group}
        return request(Code.QUERY_CONSUME_QUEUE, fields)

    side.ask("entries of a queue", entries())
    side.ask("entries further on", entries(4, 10))
    side.ask("entries past the end", entries(40))
    side.ask("entries of a group", entries(group="D-counters"))
    side.ask("entries of an empty queue", entries(queue=1))
    side.ask("entries of an unknown topic", entries(topic="D-unknown"))


def settings(side: Side) -> None:
    side.ask("read", request(Code.GET_BROKER_CONFIG), without=["body"])
    side.ask("names of the settings", request(Code.GET_BROKER_CONFIG), only="body", shape=["body"])
    side.ask("change one", request(Code.UPDATE_BROKER_CONFIG, None, b"waitTimeMillsInSendQueue=19999\n"))
    side.ask("change nothing", request(Code.UPDATE_BROKER_CONFIG))
    side.ask("change an unknown one", request(Code.UPDATE_BROKER_CONFIG, None, b"nobodyKnowsThis=1\n"))
    with_time = [
        "body.JSON.table.scheduleMessageOffset_3",  # there or not: ten seconds after a message was sent back
        *(f"body.JSON.table.roquetWarning_{number}" for number in range(1, 21)),  # of a busy machine, for instance
    ]
    side.ask("running values", request(Code.GET_BROKER_RUNTIME_INFO), shape=["body.JSON.table"], without=with_time)
    side.ask("clean expired queues", request(Code.CLEAN_EXPIRED_CONSUMEQUEUE))
    side.ask("clean unused topics", request(Code.CLEAN_UNUSED_TOPIC))
    side.ask("delete expired files", request(Code.DELETE_EXPIRED_COMMITLOG))
    side.ask("resume a check of nothing", request(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": "7F00000100002A9F000000FFFFFFFFFF"}))
    side.ask("resume a check of no id", request(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": "x"}))
    for code in (1, 13, 16, 19, 350, 351, 352, 900, 5_000, 32_767, 100_000, -1):
        side.ask(f"request {code}", request(code))
    side.ask("version of an answer", request(Code.GET_ALL_TOPIC_CONFIG), only="version")


def rest(side: Side) -> None:
    """All tables at the end: what every step before has made of them."""
    side.ask("topics", request(Code.GET_ALL_TOPIC_CONFIG), without=["body.JSON.dataVersion"])
    side.ask("groups", request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), without=["body.JSON.dataVersion"])
