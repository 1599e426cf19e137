"""Steps for clients: heartbeats, groups, locks, and what a broker sends to clients of its own accord."""

from __future__ import annotations

from differential.requests import (
    binary,
    check_client,
    commit,
    committed,
    create_group,
    create_topic,
    from_language,
    heartbeat,
    leave,
    lock,
    of_group,
    oneway,
    property_text,
    pull,
    request,
    send,
    subscription,
    with_fields,
)
from differential.side import Side
from differential.steps_sends import wait_for
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.members import ConsumeType, MessageModel
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command

LIST = Code.GET_CONSUMER_LIST_BY_GROUP
NOTIFY = Code.NOTIFY_CONSUMER_IDS_CHANGED
CPP_HEARTBEAT = b"""{"clientID":"127.0.0.1@cpp","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"D-cpp",
"messageModel":1,"subscriptionDataSet":[{"codeSet":["0"],"subString":"a","subVersion":"1700000000000","tagsSet":["a"],"topic":"D-pull"}]}]}"""


def clients(side: Side) -> None:
    one, two = side.line("first client"), side.line("second client")
    side.ask("list of nobody", of_group(LIST, "D-members"))
    side.ask("connections of nobody", of_group(Code.GET_CONSUMER_CONNECTION_LIST, "D-members"))
    side.ask("producers of nobody", request(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "D-makers"}))
    side.ask("consumer's heartbeat", heartbeat("c@1", {"D-members": [subscription("D-pull", "a || b", version=1)]}), one)
    side.pushed("it is told", one, NOTIFY)
    side.ask("list of one", of_group(LIST, "D-members"))
    side.ask("list of one, binary header", binary(of_group(LIST, "D-members")))
    one.forget_pushes()
    side.ask("second consumer's heartbeat", heartbeat("c@2", {"D-members": [subscription("D-pull", "a || b", version=1)]}), two)
    side.pushed("the first is told of the second", one, NOTIFY)
    side.pushed("the second is told of itself", two, NOTIFY)
    side.ask("list of two", of_group(LIST, "D-members"))
    side.ask("connections of two", of_group(Code.GET_CONSUMER_CONNECTION_LIST, "D-members"))
    side.ask("heartbeat that changes the subscription", heartbeat("c@1", {"D-members": [subscription("D-pull", "c", version=5)]}), one)
    side.ask("connections after the change", of_group(Code.GET_CONSUMER_CONNECTION_LIST, "D-members"))
    producer = side.line("producer")
    side.ask("producer's heartbeat", heartbeat("p@1", produces=("D-makers", "D-makers-too")), producer)
    side.ask("producers", request(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "D-makers"}))
    side.ask("all producers", request(Code.GET_ALL_PRODUCER_INFO))
    both = heartbeat(
        "b@1",
        {"D-both": [subscription("D-one", version=1)]},
        ("D-both",),
        model=MessageModel.BROADCASTING,
        how=ConsumeType.CONSUME_ACTIVELY,
    )
    side.ask("heartbeat of both, binary header", binary(from_language(both, "GO", 317)), side.line("both"))
    side.ask("connections of the broadcasting one", of_group(Code.GET_CONSUMER_CONNECTION_LIST, "D-both"))
    cpp = from_language(request(Code.HEART_BEAT, None, CPP_HEARTBEAT), "CPP", 333)
    side.ask("heartbeat as C++ writes it", cpp, side.line("cpp"))
    side.ask("connections of the C++ client", of_group(Code.GET_CONSUMER_CONNECTION_LIST, "D-cpp"))
    side.ask("heartbeat of nobody in particular", heartbeat("n@1"), two)
    side.ask("heartbeat without a body", request(Code.HEART_BEAT), two)
    side.ask("heartbeat that is no JSON", request(Code.HEART_BEAT, None, b"{beat"), two)
    side.ask("oneway heartbeat", oneway(heartbeat("n@1")), two, silent=True)
    one.forget_pushes()
    side.ask("leave", leave("c@2", consumer="D-members"), two)
    side.pushed("the first is told that the second left", one, NOTIFY)
    side.ask("leave again", leave("c@2", consumer="D-members"), two)
    side.ask("leave as a producer", leave("p@1", producer="D-makers"), producer)
    side.ask("producers after", request(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "D-makers"}))
    side.ask("leave without a name", request(Code.UNREGISTER_CLIENT, {"consumerGroup": "D-members"}), two)
    side.ask("list after", of_group(LIST, "D-members"))
    side.close_line("first client")
    side.until("list after the connection closed", of_group(LIST, "D-members"), lambda answer: answer.code != 0)
    side.ask("list without a group", request(LIST))
    for what, sub in {
        "SQL": subscription("D-pull", "n > 3", kind="SQL92"),
        "SQL that is none": subscription("D-pull", "n >", kind="SQL92"),
        "SQL that is empty": subscription("D-pull", "", kind="SQL92"),
        "tags": subscription("D-pull", "a || b"),
        "a kind nobody knows": subscription("D-pull", "x", kind="XPATH"),
    }.items():
        side.ask(f"check of {what}", check_client("c@1", "D-members", sub))
    side.ask("check of nothing", request(Code.CHECK_CLIENT_CONFIG))


def locks(side: Side) -> None:
    take, give = Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ
    side.ask("two queues", lock(take, "l@1", "D-ordered-group", ("D-pull", 0), ("D-pull", 1)))
    side.ask("two queues, binary header", binary(lock(take, "l@1", "D-ordered-group", ("D-pull", 0), ("D-pull", 1))))
    side.ask("one held, one free", lock(take, "l@2", "D-ordered-group", ("D-pull", 1), ("D-one", 0)))
    side.ask("again by its holder", lock(take, "l@1", "D-ordered-group", ("D-pull", 0)))
    side.ask("another group's lock", lock(take, "l@2", "D-ordered-other", ("D-pull", 0)))
    side.ask("no queue", lock(take, "l@1", "D-ordered-group"))
    side.ask("a queue that is not there", lock(take, "l@1", "D-ordered-group", ("D-unknown", 7)))
    side.ask("let go of another's", lock(give, "l@2", "D-ordered-group", ("D-pull", 0)))
    side.ask("still held", lock(take, "l@2", "D-ordered-group", ("D-pull", 0)))
    side.ask("let go", lock(give, "l@1", "D-ordered-group", ("D-pull", 0)))
    side.ask("free", lock(take, "l@2", "D-ordered-group", ("D-pull", 0)))
    side.ask("let go in an unknown group", lock(give, "l@1", "D-ordered-none", ("D-pull", 0)))
    side.ask("without a body", request(take))


def groups(side: Side) -> None:
    side.ask("create", create_group(GroupConfig("D-group", retry_queue_nums=2, retry_max_times=3)))
    side.ask("create, binary header", binary(create_group(GroupConfig("D-group-2"))))
    side.ask("change", create_group(GroupConfig("D-group", retry_max_times=5, consume_enable=False)))
    side.ask("create without a body", request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP))
    side.ask("create with a body that is no JSON", request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b"{no"))
    side.ask(
        "create with a partial body",
        request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"D-group-part","retryMaxTimes":2}'),
    )
    side.quietly(commit("D-group-2", "D-pull", 4))
    side.ask("delete", request(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "D-group-2"}))
    side.ask("its offsets stay", committed("D-group-2", "D-pull"))
    side.quietly(create_group(GroupConfig("D-group-2")))
    side.ask("delete with its offsets", request(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "D-group-2", "removeOffset": True}))
    side.ask("its offsets are gone", committed("D-group-2", "D-pull"))
    side.ask("delete again", request(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "D-group-2"}))
    side.ask("delete nothing", request(Code.DELETE_SUBSCRIPTIONGROUP))
    side.ask("all groups", request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), without=["body.JSON.dataVersion.counter"])
    for what, name in {"illegal": "a b", "empty": "", "long": "g" * 256}.items():
        side.ask(f"create with a name that is {what}", create_group(GroupConfig(name)))
        side.quietly(request(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": name}))  # so that both have none


def calls_to_clients(side: Side) -> None:
    """What is passed on to a client: its state, a message to consume, new offsets; and clones of offsets."""
    line = side.line("called client")
    side.quietly(create_topic("D-call", 2))
    for n in range(3):
        side.quietly(send("D-call", b"call %d" % n, KEYS=f"call{n}"))
    wait_for(side, "D-call", 3)

    def reset(timestamp: int, force: bool = False, topic: str = "D-call", group: str = "D-called") -> Command:
        fields: dict[str, object] = {"topic": topic, "group": group, "timestamp": timestamp, "isForce": force}
        return request(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields)

    def running(client: str = "call@1", group: str = "D-called") -> Command:
        return request(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": group, "clientId": client, "jstackEnable": False})

    def status(client: str | None = None) -> Command:
        fields: dict[str, object] = {"topic": "D-call", "group": "D-called", "clientAddr": client}
        return request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)

    side.ask("reset, nobody there", reset(0))
    side.ask("status, nobody there", status())
    side.ask("running info, nobody there", running())
    side.quietly(heartbeat("call@1", {"D-called": [subscription("D-call", version=1)]}), line)
    side.ask("reset before anything was consumed", reset(0))
    for queue in (0, 1):
        side.quietly(commit("D-called", "D-call", 2, queue))
    side.ask("reset to the start", reset(0))
    side.pushed("the client is told", line, Code.RESET_CONSUMER_CLIENT_OFFSET)
    side.ask("reset to the end, not forced", reset(-1))
    side.ask("reset to the end, forced", reset(-1, force=True))
    side.ask("reset of an unknown topic", reset(0, topic="D-unknown"))
    side.ask("reset without a time", with_fields(reset(0), timestamp=None))
    side.ask("committed after resets", committed("D-called", "D-call"))

    asked = running()
    number = side.start(asked, side.broker)
    push = side.pushed("running info is asked of the client", line, Code.GET_CONSUMER_RUNNING_INFO)
    if push is not None:
        line.answer(push, 0, body=b'{"properties":{"a":"b"},"subscriptionSet":[],"mqTable":{},"statusTable":{}}')
    side.finish("running info", side.broker, number, asked)
    side.ask("running info of an unknown client", running("call@9"))
    asked = running()
    number = side.start(asked, side.broker)
    if push := side.pushed("running info is asked again", line, Code.GET_CONSUMER_RUNNING_INFO):
        line.answer(push, 1, remark="not today")
    side.finish("running info that the client refuses", side.broker, number, asked)

    message_id = side.quietly(pull("D-call", 0, count=1))
    asked = request(
        Code.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "D-called", "clientId": "call@1", "msgId": offset_id(side, message_id.body), "brokerName": "broker-a"},
    )
    number = side.start(asked, side.broker)
    if push := side.pushed("a message is given to the client", line, Code.CONSUME_MESSAGE_DIRECTLY):
        line.answer(push, 0, body=b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}')
    side.finish("consumed directly", side.broker, number, asked)

    asked = status()
    number = side.start(asked, side.broker)
    if push := side.pushed("status is asked of the client", line, Code.GET_CONSUMER_STATUS_FROM_CLIENT):
        line.answer(push, 0, body=b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"D-call"}:2}}')
    side.finish("status", side.broker, number, asked)
    side.quietly(leave("call@1", consumer="D-called"), line)

    cpp = side.line("called C++ client")
    side.quietly(from_language(heartbeat("cpp@1", {"D-called-cpp": [subscription("D-call", version=1)]}), "CPP", 333), cpp)
    for queue in (0, 1):
        side.quietly(commit("D-called-cpp", "D-call", 1, queue))
    side.ask("reset of a C++ client", from_language(reset(0, group="D-called-cpp"), "CPP", 333))
    side.pushed("the C++ client is told", cpp, Code.RESET_CONSUMER_CLIENT_OFFSET)

    def clone(source: str, target: str, topic: str | None = None) -> Command:
        return request(Code.CLONE_GROUP_OFFSET, {"srcGroup": source, "destGroup": target, "topic": topic, "offline": False})

    side.ask("clone offsets", clone("D-called", "D-cloned", "D-call"))
    side.ask("cloned", committed("D-cloned", "D-call", 1))
    side.ask("clone all offsets", clone("D-called", "D-cloned-all"))
    side.ask("all cloned", committed("D-cloned-all", "D-call", 1))
    side.ask("clone of nobody", clone("D-nobody", "D-cloned-none"))
    side.ask("clone to nobody", with_fields(clone("D-called", "x"), destGroup=None))


def offset_id(side: Side, record: bytes) -> str:
    host, port = side.broker_address.rsplit(":", 1)
    ip = bytes(map(int, host.split(".")))
    return (ip + int(port).to_bytes(4, "big") + record[28:36]).hex().upper()


def replies(side: Side) -> None:
    """Request and reply: the answer is pushed to whom it is for."""
    asker, answerer = side.line("asker"), side.line("answerer")
    side.quietly(heartbeat("asker@1", produces=("D-askers",)), asker)

    def reply(code: int = Code.SEND_REPLY_MESSAGE_V2, to: str | None = "asker@1") -> Command:
        properties: dict[str, object] = {"CORRELATION_ID": "c-1", "TTL": 3000, "MSG_TYPE": "reply", "KEYS": "r1"}
        if to is not None:
            properties["REPLY_TO_CLIENT"] = to
        return send("DefaultCluster_REPLY_TOPIC", b"the reply", code=code, text=property_text(properties))

    for what, made in {
        "short names": reply(),
        "long names": reply(Code.SEND_REPLY_MESSAGE),
        "short names, binary header": binary(reply()),
    }.items():
        number = side.start(made, answerer)
        push = side.pushed(f"pushed, {what}", asker, Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
        if push is not None:
            asker.answer(push)
        side.finish(f"reply, {what}", answerer, number, made)
    refused = reply()
    number = side.start(refused, answerer)
    if push := side.pushed("pushed, to be refused", asker, Code.PUSH_REPLY_MESSAGE_TO_CLIENT):
        asker.answer(push, 1, remark="unwanted")
    side.finish("reply that is refused", answerer, number, refused)
    side.ask("reply to a client that is gone", reply(to="asker@9"), answerer)
    side.ask("reply to nobody", reply(to=None), answerer)
    side.ask("reply without a topic", with_fields(reply(), b=None), answerer)
    side.records("what is stored", pull("DefaultCluster_REPLY_TOPIC", 0), 7)
