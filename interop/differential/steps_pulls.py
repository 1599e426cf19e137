"""Steps for pulls, offsets and queries."""

from __future__ import annotations

import time

from differential.requests import (
    binary,
    commit,
    committed,
    create_group,
    create_topic,
    heartbeat,
    leave,
    of_queue,
    of_topic,
    oneway,
    pull,
    request,
    send,
    subscription,
    with_fields,
)
from differential.side import Side
from differential.steps_deliveries import HALF, OP
from differential.steps_sends import has, wait_for
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.members import MessageModel
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_records

FAR = 9_999_999_999_999
WHILE_S = 0.5
"""Until a pull is most likely held, which cannot be seen from outside: Apache reads and holds in different threads. One that is not
yet held then is answered differently at first, and the same in the end (`Side.follow`)."""


def fill(side: Side) -> None:
    """D-pull, queue 0: ten messages with tags a and b in turn, and a number n."""
    side.quietly(create_topic("D-pull", 2))
    for n in range(10):
        side.quietly(send("D-pull", b"message %d" % n, TAGS="ab"[n % 2], n=n, KEYS=f"key{n}", UNIQ_KEY=f"D1AA{n:028d}"))
    # Not only stored, but all in one answer: Roquet answers with fewer while a queue's newest entries are not in its file.
    side.until_quietly(pull("D-pull", 0), lambda answer: len(decode_records(answer.body)) == 10)


def pulls(side: Side) -> None:
    fill(side)
    side.ask("all", pull("D-pull", 0))
    side.ask("all, binary header", binary(pull("D-pull", 0, count=2)))
    side.ask("one", pull("D-pull", 4, count=1))
    side.ask("none", pull("D-pull", 4, count=0))
    side.ask("fewer than none", pull("D-pull", 4, count=-1))
    side.ask("more than allowed", pull("D-pull", 0, count=100_000), only="fields")
    side.ask("at the end", pull("D-pull", 10))
    side.ask("past the end", pull("D-pull", 11))
    side.ask("before the start", pull("D-pull", -1))
    side.ask("an empty queue", pull("D-pull", 0, 1))
    side.ask("an empty queue, further on", pull("D-pull", 5, 1))
    side.ask("an empty queue, before the start", pull("D-pull", -5, 1))
    side.ask("a queue past the last", pull("D-pull", 0, 2))
    side.ask("a negative queue", pull("D-pull", 0, -1))
    side.ask("an unknown topic", pull("D-unknown", 0))
    side.ask("an unknown topic with an illegal name", pull("a b", 0))
    side.ask("a write-only topic", pull("D-write", 0))
    side.ask("a group nobody has made", pull("D-pull", 0, group="D-new-pullers", count=1))
    for what, group in {"blank": " ", "with a dot": "a.b", "of 256 characters": "g" * 256}.items():
        side.ask(f"a group {what}", pull("D-pull", 0, group=group, count=1))
        side.quietly(request(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": group}))  # so that both have none
    for field in ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"):
        side.ask(f"without {field}", with_fields(pull("D-pull", 0, count=1), **{field: None}))
    side.ask("without subVersion", with_fields(pull("D-pull", 0, count=1), subVersion=None))
    side.ask("without expressionType", with_fields(pull("D-pull", 0, count=1), expressionType=None))
    side.ask("an offset that is no number", with_fields(pull("D-pull", 0, count=1), queueOffset="first"))
    side.ask("oneway", oneway(pull("D-pull", 0)), silent=True)
    side.records("events of moved offsets", pull("OFFSET_MOVED_EVENT", 0), 4)


def filters(side: Side) -> None:
    side.ask("one tag", pull("D-pull", 0, sub="a"))
    side.ask("one tag, two messages", pull("D-pull", 0, sub="b", count=2))
    side.ask("two tags", pull("D-pull", 0, sub="a || b", count=3))
    side.ask("no match", pull("D-pull", 0, sub="c"))
    side.ask("no match for the rest", pull("D-pull", 8, sub="c || d"))
    side.ask("nothing said", pull("D-pull", 8, sub=""))
    side.ask("only bars", pull("D-pull", 8, sub=" || "))
    side.ask("a star among tags", pull("D-pull", 8, sub="* || a"))
    side.ask("subscription missing", with_fields(pull("D-pull", 8), subscription=None))
    for what, expression in {
        "equal": "TAGS = 'a'",
        "more": "n > 6",
        "between": "n BETWEEN 2 AND 4",
        "in": "TAGS IN ('b', 'c') AND n < 4",
        "missing property": "nowhere = 1",
        "is null": "nowhere IS NULL AND n = 1",
        "a key": "KEYS = 'key3'",
        "not": "NOT (n < 9)",
        "never": "n > 100",
        "no comparison": "n",
        "a number as text": "n = '3'",
        "true": "TRUE",
    }.items():
        side.ask(f"SQL, {what}", pull("D-pull", 0, sub=expression, kind="SQL92"))
    side.ask("SQL, not an expression", pull("D-pull", 0, sub="n >", kind="SQL92"))
    side.ask("SQL, empty", pull("D-pull", 0, sub="", kind="SQL92"))
    side.ask("SQL, arithmetic", pull("D-pull", 0, sub="n + 1 > 3", kind="SQL92"))
    side.ask("SQL, like", pull("D-pull", 0, sub="TAGS LIKE 'a'", kind="SQL92"))
    side.ask("a kind nobody knows", pull("D-pull", 0, sub="n > 1", kind="XPATH"))


def subscriptions(side: Side) -> None:
    """Pulls that rely on what a heartbeat has said."""
    line = side.line("subscriber")
    side.ask("group offline", pull("D-pull", 0, group="D-subs", sub=None))
    side.quietly(heartbeat("sub@1", {"D-subs": [subscription("D-pull", "a", version=10), subscription("D-one", version=10)]}), line)
    side.ask("by tag", pull("D-pull", 0, group="D-subs", sub=None, version=10), line)
    side.ask("an older version", pull("D-pull", 0, group="D-subs", sub=None, version=9, count=1), line)
    side.ask("a newer version", pull("D-pull", 0, group="D-subs", sub=None, version=11), line)
    side.ask("the request's own is stronger", pull("D-pull", 0, group="D-subs", sub="b", version=10, count=1), line)
    side.ask("a topic it has not subscribed", pull("D-plain", 0, group="D-subs", sub=None, version=10), line)
    side.ask("its retry topic", pull("%RETRY%D-subs", 0, group="D-subs", sub=None, version=10), line)
    side.quietly(heartbeat("sub@1", {"D-subs": [subscription("D-pull", "b", version=20)]}), line)
    side.ask("by the new tag", pull("D-pull", 0, group="D-subs", sub=None, version=20, count=1), line)
    side.ask("a topic it no longer subscribes", pull("D-one", 0, group="D-subs", sub=None, version=20), line)
    sql = subscription("D-pull", "n > 7", version=30, kind="SQL92")
    by_sql = pull("D-pull", 0, group="D-sql", sub=None, version=30, kind="SQL92")
    # Apache removes a topic's expressions every ten seconds when there are none, also when the first is just being added: it is gone, and
    # pulls fail until the next heartbeat. Clients send one every 30 s; so do we, sooner.
    side.after(heartbeat("sub@2", {"D-sql": [sql]}), by_sql, lambda answer: answer.code != ResponseCode.FILTER_DATA_NOT_EXIST, line)
    side.ask("by SQL", by_sql, line)
    side.ask("by SQL, a newer version", pull("D-pull", 0, group="D-sql", sub=None, version=31, kind="SQL92"), line)
    bad = subscription("D-pull", "n >", version=30, kind="SQL92")
    side.ask("heartbeat with SQL that is none", heartbeat("sub@3", {"D-badsql": [bad]}), line)
    side.ask("by SQL that is none", pull("D-pull", 0, group="D-badsql", sub=None, version=30, kind="SQL92"), line)
    side.quietly(create_group(GroupConfig("D-noread", consume_enable=False)))
    side.ask("a group that may not consume", pull("D-pull", 0, group="D-noread"))
    side.quietly(create_group(GroupConfig("D-nobroadcast", consume_broadcast_enable=False)))
    broadcast = heartbeat("sub@4", {"D-nobroadcast": [subscription("D-pull", version=1)]}, model=MessageModel.BROADCASTING)
    side.ask("heartbeat of broadcasting", broadcast, line)
    side.ask("a group that may not broadcast", pull("D-pull", 0, group="D-nobroadcast", sub=None, version=1), line)
    side.quietly(create_group(GroupConfig("D-elsewhere", broker_id=3, which_broker_when_consume_slowly=2)))
    side.ask("a group that reads at another broker", pull("D-pull", 0, group="D-elsewhere", count=1), only="fields")
    for client, group in (("sub@1", "D-subs"), ("sub@2", "D-sql"), ("sub@3", "D-badsql"), ("sub@4", "D-nobroadcast")):
        side.quietly(leave(client, consumer=group), line)
    side.ask("after it left", pull("D-pull", 0, group="D-subs", sub=None, version=20), line)


def long_polls(side: Side) -> None:
    line, other = side.line("poller"), side.line("other poller")
    side.quietly(create_topic("D-poll", 1))
    side.quietly(send("D-poll", b"first", TAGS="a"))
    wait_for(side, "D-poll", 1)
    waits = pull("D-poll", 1, suspend_ms=12_000)
    picky = pull("D-poll", 1, sub="b", suspend_ms=12_000)
    number, picky_number = side.start(waits, line), side.start(picky, other)
    time.sleep(WHILE_S)
    side.quietly(send("D-poll", b"second", TAGS="a"))
    side.finish("woken by a message", line, number, waits)
    side.quietly(send("D-poll", b"third", TAGS="b"))
    side.follow("woken by a message that matches", other, picky_number, picky)
    late = pull("D-poll", 3, suspend_ms=1_000)
    side.ask("nothing came in time", late, line)
    side.ask("not held past the end", pull("D-poll", 9, suspend_ms=5_000), line)
    side.ask("not held without a match before the end", pull("D-poll", 0, sub="c", suspend_ms=5_000), line)
    sql = pull("D-poll", 3, sub="n = 5", kind="SQL92", suspend_ms=12_000)
    number = side.start(sql, line)
    time.sleep(WHILE_S)
    side.quietly(send("D-poll", b"fourth", n=4))
    side.quietly(send("D-poll", b"fifth", n=5))
    side.follow("woken by a message that SQL matches", line, number, sql)


def offsets(side: Side) -> None:
    side.ask("never committed, small queue", committed("D-offsets", "D-pull"))
    side.ask("never committed, empty queue", committed("D-offsets", "D-pull", 1))
    side.ask("never committed, unknown queue", committed("D-offsets", "D-pull", 99))
    side.ask("never committed, unknown topic", committed("D-offsets", "D-unknown"))
    side.ask("commit", commit("D-offsets", "D-pull", 5))
    side.ask("committed", committed("D-offsets", "D-pull"))
    side.ask("committed, binary header", binary(committed("D-offsets", "D-pull")))
    side.ask("commit backwards", commit("D-offsets", "D-pull", 3))
    side.ask("committed backwards", committed("D-offsets", "D-pull"))
    side.ask("commit past the end", commit("D-offsets", "D-pull", 500))
    side.ask("committed past the end", committed("D-offsets", "D-pull"))
    side.ask("commit a negative offset", commit("D-offsets", "D-pull", -4, 1))
    side.ask("committed a negative offset", committed("D-offsets", "D-pull", 1))
    side.ask("commit for an unknown topic", commit("D-offsets", "D-unknown", 1))
    side.ask("committed for an unknown topic", committed("D-offsets", "D-unknown"))
    side.tell(oneway(commit("D-offsets", "D-one", 2)))
    side.until("committed oneway", committed("D-offsets", "D-one"), lambda answer: answer.number("offset") == 2)
    side.ask("pull that commits", pull("D-pull", 0, group="D-committers", count=1, commit=7))
    side.ask("committed by a pull", committed("D-committers", "D-pull"))
    for field in ("queueId", "commitOffset"):
        side.ask(f"commit without {field}", with_fields(commit("D-incomplete", "D-pull", 1), **{field: None}))
    for field in ("queueId",):
        side.ask(f"committed without {field}", with_fields(committed("D-incomplete", "D-pull"), **{field: None}))
    for code, name in (
        (Code.GET_MAX_OFFSET, "largest"),
        (Code.GET_MIN_OFFSET, "smallest"),
        (Code.GET_EARLIEST_MSG_STORETIME, "earliest time"),
    ):
        side.ask(f"{name}", of_queue(code, "D-pull"))
        side.ask(f"{name}, binary header", binary(of_queue(code, "D-pull")))
        side.ask(f"{name}, empty queue", of_queue(code, "D-pull", 1))
        side.ask(f"{name}, unknown queue", of_queue(code, "D-pull", 77))
        side.ask(f"{name}, negative queue", of_queue(code, "D-pull", -1))
        side.ask(f"{name}, unknown topic", of_queue(code, "D-unknown"))
        side.ask(f"{name}, no topic", with_fields(of_queue(code, "D-pull"), topic=None))
        side.ask(f"{name}, no queue", with_fields(of_queue(code, "D-pull"), queueId=None))
    by_time(side)
    side.ask(
        "progress of all groups",
        request(Code.GET_ALL_CONSUMER_OFFSET),
        without=[f"body.JSON.offsetTable.{topic}@CID_RMQ_SYS_TRANS" for topic in (HALF, OP)],
    )


def by_time(side: Side) -> None:
    """Messages some time apart, and searches around their store times."""
    side.quietly(create_topic("D-time", 2))
    for n in range(4):
        side.quietly(send("D-time", b"%d" % n))
        time.sleep(0.1)
    times = [record.store_timestamp for record in side.gather(pull("D-time", 0), 4)]

    def search(timestamp: int, queue: int = 0, topic: str = "D-time") -> Command:
        return request(Code.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": topic, "queueId": queue, "timestamp": timestamp})

    side.ask("time before all", search(times[0] - 1_000))
    side.ask("time 0", search(0))
    side.ask("a negative time", search(-1))
    side.ask("time of the first", search(times[0]))
    side.ask("time of the third", search(times[2]))
    side.ask("time shortly before the third", search(times[2] - 5))
    side.ask("time shortly after the third", search(times[2] + 5))
    side.ask("time of the last", search(times[3]))
    side.ask("time after all", search(times[3] + 1_000))
    side.ask("time in the far future", search(FAR))
    side.ask("time, empty queue", search(times[2], 1))
    side.ask("time, unknown queue", search(times[2], 77))
    side.ask("time, unknown topic", search(times[2], 0, "D-unknown"))
    side.ask("time, none said", with_fields(search(0), timestamp=None))


def queries(side: Side) -> None:
    def query(key: str, topic: str = "D-pull", count: int = 32, begin: int = 0, end: int = FAR, **more: object) -> Command:
        fields: dict[str, object] = {"topic": topic, "key": key, "maxNum": count, "beginTimestamp": begin, "endTimestamp": end, **more}
        return request(Code.QUERY_MESSAGE, fields)

    unique = f"D1AA{3:028d}"
    side.until("by key", query("key3"), lambda answer: answer.code == 0)
    side.ask("by key, binary header", binary(query("key3")))
    side.ask("by unique id", query(unique, _UNIQUE_KEY_QUERY=True))
    side.ask("by unique id, not marked as one", query(unique))
    side.ask("by an unknown key", query("nothing"))
    side.ask("by key in another topic", query("key3", "D-plain"))
    side.ask("by key in an unknown topic", query("key3", "D-unknown"))
    side.ask("by key at another time", query("key3", end=1_000))
    side.ask("by key in a time that ends before it begins", query("key3", begin=FAR, end=0))
    for n in range(3):
        side.quietly(send("D-pull", b"same key %d" % n, 1, KEYS="same other", TAGS="s"))
    side.until("by a key that several have", query("same"), lambda answer: len(decode_records(answer.body)) == 3)
    side.ask("by the second of two keys", query("other", count=1))
    side.ask("none of several", query("same", count=0))
    side.ask("by an empty key", query(""))
    for field in ("topic", "key", "maxNum", "beginTimestamp", "endTimestamp"):
        side.ask(f"without {field}", with_fields(query("key3"), **{field: None}))

    place = side.quietly(send("D-one", b"to be looked at", TAGS="v", KEYS="v1")).physical_offset

    def view(offset: int) -> Command:
        return request(Code.VIEW_MESSAGE_BY_ID, {"offset": offset})

    side.ask("by place", view(place))
    side.ask("by place, binary header", binary(view(place)))
    side.ask("by a place inside a record", view(place + 10), without=["remark"])
    side.ask("by a place past the end", view(1 << 40))
    side.ask("by a negative place", view(-1))
    side.ask("by no place", request(Code.VIEW_MESSAGE_BY_ID))
    side.until("of the queue after", of_queue(Code.GET_MAX_OFFSET, "D-pull", 1), has(3))
    side.ask(
        "correction of offsets",
        request(Code.QUERY_CORRECTION_OFFSET, {"topic": "D-pull", "compareGroup": "D-offsets", "filterGroups": "D-new-pullers"}),
    )
    side.ask("groups of a topic", of_topic(Code.QUERY_TOPIC_CONSUME_BY_WHO, "D-pull"))
