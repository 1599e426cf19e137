"""Steps for topics and sends."""

from __future__ import annotations

from collections.abc import Callable

from differential.requests import binary, create_topic, of_queue, of_topic, oneway, pull, request, send, send_batch, with_fields
from differential.side import Answer, Side
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode as Code

FORBIDDEN = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
)
SYSTEM = ("TBW102", "BenchmarkTest", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "rmq_sys_mine", "RMQ_SYS_TRACE_TOPIC")
ILLEGAL = {
    "empty": "",
    "blank": " ",
    "with a space": "a b",
    "with a slash": "a/b",
    "with a dot": "a.b",
    "not ASCII": "thème",
    "of 127 characters": "t" * 127,
    "of 128 characters": "t" * 128,
    "with a percent sign": "D%name",
    "with a bar": "D|name",
}
MAX_BODY = 65_536
"""maxMessageSize of both brokers."""


def has(count: int) -> Callable[[Answer], bool]:
    """That a queue ends at this offset or later."""

    def good(answer: Answer) -> bool:
        return answer.code == 0 and answer.number("offset") >= count

    return good


def wait_for(side: Side, topic: str, count: int, queue: int = 0) -> None:
    """Wait until a queue has so many messages: Apache fills its queues a moment after it answers the send."""
    side.until_quietly(of_queue(Code.GET_MAX_OFFSET, topic, queue), has(count))


def topics(side: Side) -> None:
    side.ask("create", create_topic("D-plain"))
    side.ask("create, binary header", binary(create_topic("D-one", 1)))
    side.ask("create again, unchanged", create_topic("D-one", 1))
    side.ask("create read only", create_topic("D-read", 1, perm=4))
    side.ask("create write only", create_topic("D-write", 1, perm=2))
    side.ask("create with more to write than to read", create_topic("D-uneven", 2, write=4))
    side.ask("create ordered", create_topic("D-ordered", 2, order=True))
    side.ask("create for units", create_topic("D-unit", 1, sys_flag=1))
    for what, name in ILLEGAL.items():
        if what not in ("of 127 characters",):
            side.ask(f"create, a name {what}", create_topic(name, 1))
    for name in (*FORBIDDEN, *SYSTEM):
        side.ask(f"create {name}", create_topic(name, 1))
    for field in ("topic", "defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "order"):
        side.ask(f"create without {field}", with_fields(create_topic("D-incomplete", 1), **{field: None}))
        side.quietly(of_topic(Code.DELETE_TOPIC_IN_BROKER, "D-incomplete"))  # so that both have none
    side.ask("create, topicSysFlag left out", with_fields(create_topic("D-flagless", 1), topicSysFlag=None))
    side.ask("create with queues that are no number", with_fields(create_topic("D-words", 1), readQueueNums="many"))
    side.ask("create with a filter type nobody knows", with_fields(create_topic("D-filter", 1), topicFilterType="NO_TAG"))
    side.ask("more queues", create_topic("D-uneven", 4))
    side.ask("fewer queues", create_topic("D-uneven", 1))
    side.quietly(create_topic("D-gone", 1))
    side.ask("delete", of_topic(Code.DELETE_TOPIC_IN_BROKER, "D-gone"))
    side.ask("delete again", of_topic(Code.DELETE_TOPIC_IN_BROKER, "D-gone"))
    side.ask("delete nothing", request(Code.DELETE_TOPIC_IN_BROKER))
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", ""):
        side.ask(f"delete {name or 'an empty name'}", of_topic(Code.DELETE_TOPIC_IN_BROKER, name))
    side.ask("all topics", request(Code.GET_ALL_TOPIC_CONFIG), without=["body.JSON.dataVersion.counter"])
    side.ask("all topics, binary header", binary(request(Code.GET_ALL_TOPIC_CONFIG)), only="form")
    side.ask("system topics", request(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))


def plain_sends(side: Side) -> None:
    side.ask("short names", send("D-plain", b"one", TAGS="a", KEYS="k1 k2", UNIQ_KEY="D0001", color="blue"))
    side.ask("short names, binary header", binary(send("D-plain", b"two", TAGS="b", WAIT="true")))
    side.ask("long names", send("D-plain", b"three", code=Code.SEND_MESSAGE, flag=7))
    side.ask("long names, binary header", binary(send("D-plain", b"four", code=Code.SEND_MESSAGE, WAIT="false", TAGS="ä")))
    side.ask("no properties", with_fields(send("D-plain", b"five"), i=None))
    side.ask("empty properties", send("D-plain", b"six", text=""))
    side.ask("properties with a separator at the end", send("D-plain", b"seven", text="TAGS\x01a\x02x\x01y\x02"))
    side.ask("properties that come twice", send("D-plain", b"eight", text="x\x011\x02x\x012"))
    side.ask("properties that are broken", send("D-plain", b"nine", text="x\x02\x01y\x02z\x01"))
    side.ask("compressed, as it says", send("D-plain", b"x\x9c\x03\x00\x00\x00\x00\x01", sys_flag=0x1))
    side.ask("several tags, as it says", send("D-plain", b"eleven", sys_flag=0x2, TAGS="a||b"))
    side.ask("consumed before", send("D-plain", b"twelve", reconsumed=3))
    side.ask("optional fields missing", with_fields(send("D-plain", b"thirteen"), j=None, k=None, l=None, m=None))
    side.ask("not ASCII", send("D-plain", "böse Äpfel 🍎".encode(), text="name\x01böse 🍎"))
    side.ask("unit mode", with_fields(send("D-plain", b"fifteen"), k=True))
    side.ask("the properties a broker adds", send("D-plain", b"16", CLUSTER="other", MSG_REGION="here", TRACE_ON="false", PGROUP="x"))
    side.ask("a body of the largest size", send("D-plain", b"x" * MAX_BODY, 1), only="code")
    side.records("what is stored", pull("D-plain", 0), 16)
    for queue in (1, 2, 3):
        side.ask(f"queue {queue}", send("D-plain", b"elsewhere", queue))
    side.ask("any queue of one", send("D-one", b"anywhere", -1))
    side.ask("any queue of one, a very negative number", send("D-one", b"anywhere", -2_147_483_648))
    side.ask("a queue past the last", send("D-plain", b"", 4))
    side.ask("a queue far past the last", send("D-plain", b"nothing", 2_147_483_647))
    side.ask("a topic with fewer queues to read", send("D-uneven", b"x", 1))
    side.tell(oneway(send("D-one", b"no answer wanted", TAGS="oneway")))
    side.until("after oneway", of_queue(Code.GET_MAX_OFFSET, "D-one"), has(3))
    side.ask("what oneway stored", pull("D-one", 2))
    side.ask("a send that is oneway is not answered", oneway(send("D-one", b"again")), silent=True)
    side.ask("a bad oneway send is not answered", oneway(send("D-one", b"again", 99)), silent=True)


def refused_sends(side: Side) -> None:
    """To a topic of their own: where one broker is more patient than the other, offsets differ from there on."""
    side.quietly(create_topic("D-scratch", 1))
    for letter in "abcdefgh":
        side.ask(f"without {letter}", with_fields(send("D-scratch"), **{letter: None}))
    side.ask("without b, binary header", binary(with_fields(send("D-scratch"), b=None)))
    for field in ("producerGroup", "topic", "queueId", "bornTimestamp"):
        side.ask(f"without {field}", with_fields(send("D-scratch", code=Code.SEND_MESSAGE), **{field: None}))
    side.ask("a field nobody knows", with_fields(send("D-scratch"), zz=1), without=["fields.queueOffset"])
    crossed = send("D-scratch")
    crossed.code = Code.SEND_MESSAGE
    side.ask("short names with the code of long ones", crossed)
    crossed = send("D-scratch", code=Code.SEND_MESSAGE)
    crossed.code = Code.SEND_MESSAGE_V2
    side.ask("long names with the code of short ones", crossed)
    side.ask("a queue that is no number", with_fields(send("D-scratch"), e="first"))
    side.ask("a queue number too large", with_fields(send("D-scratch"), e="4294967296"))
    side.ask("a time that is no number", with_fields(send("D-scratch"), g="now"))
    side.ask("no fields at all", request(Code.SEND_MESSAGE_V2))
    for what, name in ILLEGAL.items():
        side.ask(f"to a topic {what}", send(name))
    for name in FORBIDDEN:
        side.ask(f"to {name}", send(name))
    for name in SYSTEM:
        side.ask(f"to {name}", send(name))
    side.ask("to a read-only topic", send("D-read"))
    side.ask("to a write-only topic", send("D-write"))
    side.ask("an empty body", send("D-scratch", b""), without=["fields.queueOffset"])
    side.ask("too large a body", send("D-scratch", b"x" * (MAX_BODY + 1)))
    side.ask("far too large a body", send("D-scratch", b"x" * (4 * MAX_BODY)))
    side.ask("too large properties", send("D-scratch", text="x\x01" + "y" * 32_766))
    side.ask("the largest properties", send("D-scratch", text="x\x01" + "y" * 32_700), only="code")
    side.ask("an unknown request", request(9_999))
    side.ask("an unknown request, binary header", binary(request(9_999)))
    side.ask("a name server's request", of_topic(Code.GET_ROUTEINFO_BY_TOPIC, "D-scratch"))
    side.ask("a lite pull of 5.x", pull("D-one", 0, code=Code.LITE_PULL_MESSAGE))
    side.raw("bytes that are no frame", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    side.raw("a frame with a header that is no JSON", b"\0\0\0\x0a\0\0\0\x06{nope}")
    side.raw("a frame longer than allowed", b"\x7f\xff\xff\xff\0\0\0\x06{nope}")


def new_topics(side: Side) -> None:
    side.ask("to an unknown topic", send("D-new", b"first"))
    wait_for(side, "D-new", 1)
    side.ask("what it stored", pull("D-new", 0))
    side.ask("with more queues than the default topic has", send("D-new-many", b"x", queues=100))
    side.ask("with the cluster as the default topic", send("D-new-cluster", b"x", 3, default_topic="DefaultCluster"))
    side.ask("with the broker as the default topic", send("D-new-broker", b"x", default_topic="broker-a"))
    side.ask("with an unknown default topic", send("D-new-none", b"x", default_topic="D-nowhere"))
    side.ask("with a plain topic as the default one", send("D-new-plain", b"x", default_topic="D-plain"))
    for what, queues in {"no queues": 0, "fewer than no queues": -3}.items():
        side.ask(f"with {what}", send(f"D-new-{-queues}", b"x", queues=queues))
        side.quietly(of_topic(Code.DELETE_TOPIC_IN_BROKER, f"D-new-{-queues}"))  # so that both have none
    side.ask("to a queue the new topic has not", send("D-new-short", b"x", 5))
    side.ask("a batch to an unknown topic", send_batch("D-new-batch", [b"x"]))
    side.ask("to a retry topic of nobody", send("%RETRY%D-nobody", b"x"))
    side.ask("to a dead letter topic of nobody", send("%DLQ%D-nobody", b"x"))
    side.ask("all topics after", request(Code.GET_ALL_TOPIC_CONFIG), without=["body.JSON.dataVersion.counter"])


def batches(side: Side) -> None:
    side.quietly(create_topic("D-batch", 2))
    side.ask("batch", send_batch("D-batch", [b"a", b"bb", b"ccc"]))
    side.ask("batch, binary header", binary(send_batch("D-batch", [b"d"], WAIT="true")))
    side.ask("batch with the code of a single message", send_batch("D-batch", [b"e", b"f"], code=Code.SEND_MESSAGE_V2))
    side.ask("the code of a batch without its mark", send("D-batch", b"not a batch", code=Code.SEND_BATCH_MESSAGE, batch=None))
    side.ask("batch with properties for all", send_batch("D-batch", [b"g", b"h"], color="red", WAIT="false"))
    side.records("what is stored", pull("D-batch", 0), 9)
    side.ask("batch to any queue", send_batch("D-one", [b"i", b"j"], -1))
    side.ask("batch to a queue past the last", send_batch("D-batch", [b"k"], 2))
    side.ask("batch with an empty message", send_batch("D-batch", [b"", b"l"], 1))
    side.ask("batch of nothing", send("D-batch", b"", 1, code=Code.SEND_BATCH_MESSAGE, batch=True))
    side.ask("batch to a retry topic", send_batch("%RETRY%D-nobody", [b"m"]), without=["fields.queueOffset"])
    side.ask("batch to a forbidden topic", send_batch("SCHEDULE_TOPIC_XXXX", [b"m"]))
    side.ask("batch to a topic with a long name", send_batch("t" * 128, [b"m"]))
    side.ask("batch with a message too large", send_batch("D-batch", [b"n", b"x" * (MAX_BODY + 1)], 1))
    side.ask("batch too large", send_batch("D-batch", [b"x" * 40_000] * 2, 1))
    side.ask("batch cut short", send("D-batch", join_batch([(0, b"abc", b"")])[:-4], 1, code=Code.SEND_BATCH_MESSAGE, batch=True))
    side.ask("batch of noise", send("D-batch", b"\xff" * 40, 1, code=Code.SEND_BATCH_MESSAGE, batch=True))
    side.ask("queue 1 after all", of_queue(Code.GET_MAX_OFFSET, "D-batch", 1))


def delays(side: Side) -> None:
    side.quietly(create_topic("D-delay", 1))
    side.ask("delayed", send("D-delay", b"later", DELAY=1, TAGS="t", KEYS="d1"))
    side.ask("delayed by a level past the last", send("D-delay", b"much later", DELAY=99, TAGS="t"))
    side.ask("delayed by no level", send("D-delay", b"now", DELAY=0))
    side.ask("delayed by a negative level", send("D-delay", b"now too", DELAY=-1))
    delayed_batch = send("D-delay-batch", join_batch([(0, b"x", b"DELAY\x011")]), code=Code.SEND_BATCH_MESSAGE, batch=True)
    side.ask("delayed by a word", send("D-delay", b"now, or not", DELAY="soon"))
    side.until_quietly(of_queue(Code.GET_MAX_OFFSET, "SCHEDULE_TOPIC_XXXX", 0), has(1))
    side.until_quietly(of_queue(Code.GET_MAX_OFFSET, "SCHEDULE_TOPIC_XXXX", 17), has(1))
    side.records("how it waits", pull("SCHEDULE_TOPIC_XXXX", 0, 0), 1)
    side.records("how the last level waits", pull("SCHEDULE_TOPIC_XXXX", 0, 17), 1)
    side.records("what was delivered", pull("D-delay", 0), 3)
    side.quietly(create_topic("D-delay-batch", 1))
    side.ask("a batch delayed in one message", delayed_batch, without=["fields.queueOffset"])
    side.ask("a batch delayed as a whole", send_batch("D-delay-batch", [b"y"], DELAY=1), without=["fields.queueOffset"])
    side.ask("progress of the levels", request(Code.GET_ALL_DELAY_OFFSET))
