"""Steps for transactions and for messages sent back."""

from __future__ import annotations

import time

from differential.requests import (
    binary,
    create_group,
    create_topic,
    end_transaction,
    heartbeat,
    leave,
    of_queue,
    oneway,
    pull,
    send,
    send_back,
    subscription,
    with_fields,
)
from differential.side import Answer, Side
from differential.steps_sends import has, wait_for
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.record import decode_records, encode_properties

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


COUNTED = [
    "fields.queueOffset",
    "fields.tranStateTableOffset",
    "fields.nextBeginOffset",
    "fields.maxOffset",
    "body.*.offset",
    "body.*.properties.TRANSACTION_CHECK_TIMES",
    "body.*.properties.WAIT",
    "body.*.properties.TRAN_PREPARED_QUEUE_OFFSET",
]
"""Left out where it counts rounds of checks: in each, whatever is pending is written again, and rounds are not in step."""


def half(body: bytes, group: str = "D-deciders", **more: object) -> Command:
    """A half message. It is first checked after an hour unless `more` says otherwise: these steps are about its end."""
    properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"D2AA{body.hex():0>28}".upper()}
    properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "3600"
    properties |= {name: str(value) for name, value in more.items()}
    now = int(time.time() * 1000)  # one that is days old is given up instead of checked
    return send("D-deal", body, 1, sys_flag=4, group=group, born=now, text=encode_properties({"TAGS": "t", **properties}))


def transactions(side: Side) -> None:
    side.quietly(create_topic("D-deal", 2))
    first = side.ask("half", half(b"first"))
    side.records("how it is kept", pull(HALF, 0), 1)
    side.ask("it is not delivered", of_queue(Code.GET_MAX_OFFSET, "D-deal", 1))

    def end(answer: Answer, state: int, group: str = "D-deciders", **more: object) -> Command:
        return end_transaction(group, answer.number("queueOffset"), answer.physical_offset, state, **more)

    side.ask("commit", end(first, COMMIT, msgId="m1", transactionId="t1"))
    wait_for(side, "D-deal", 1, 1)
    side.ask("what was committed", pull("D-deal", 0, 1))
    side.ask("marks of ends are nobody's to pull", pull(OP, 0))
    side.ask("commit again", end(first, COMMIT))
    second = side.ask("second half, binary header", binary(half(b"second")), without=COUNTED)
    side.ask("roll back", end(second, ROLLBACK))
    third = side.quietly(half(b"third"))
    side.ask("do not know", end(third, UNKNOWN), silent=True)
    side.ask("do not know, after a check", end(third, UNKNOWN, fromTransactionCheck=True), silent=True)
    side.ask("neither", end(third, 4))
    side.ask("by another group", end(third, COMMIT, "D-others"))
    side.ask("by no group", with_fields(end(third, COMMIT), producerGroup=None))
    side.ask("another queue offset", with_fields(end(third, COMMIT), tranStateTableOffset=77))
    side.ask("another place", with_fields(end(third, COMMIT), commitLogOffset=third.physical_offset + 7))
    side.ask("a place past the end", with_fields(end(third, COMMIT), commitLogOffset=1 << 40))
    side.ask("no state", with_fields(end(third, COMMIT), commitOrRollback=None))
    plain = side.quietly(send("D-one", b"no half message"))
    side.ask("a message that is no half", end(plain, COMMIT))
    # Twice committed, a message comes twice from Apache; so this one is looked for, wherever it is.
    fourth = side.quietly(half(b"fourth"))
    side.tell(oneway(end(fourth, COMMIT)))

    def bodies(answer: Answer) -> list[bytes]:
        return [record.body for record in decode_records(answer.body)] if answer.code == 0 else []

    delivered = bodies(side.until_quietly(pull("D-deal", 0, 1), lambda answer: b"fourth" in bodies(answer)))
    side.ask("committed oneway", pull("D-deal", delivered.index(b"fourth"), 1), without=COUNTED)
    side.ask("half to a forbidden topic", with_fields(half(b"x"), b="SCHEDULE_TOPIC_XXXX"))
    side.ask("half to a queue past the last", with_fields(half(b"x"), e=9))
    side.ask("marked by the flag alone", send("D-deal", b"flag only", 0, sys_flag=4))
    side.ask("marked by the property alone", with_fields(half(b"property only"), f=0), without=COUNTED)
    side.ask("said to be no half message", send("D-deal", b"not half", 1, TRAN_MSG="false"), without=COUNTED)
    side.ask("queue of the flag alone", of_queue(Code.GET_MAX_OFFSET, "D-deal", 0))


def checks(side: Side) -> None:
    """A half message that nobody ends: its producer is asked."""
    line = side.line("decider")
    side.quietly(heartbeat("decider@1", produces=("D-checked",)), line)
    side.ask("half", half(b"whatever", "D-checked", CHECK_IMMUNITY_TIME_IN_SECONDS=1), without=COUNTED)
    push = side.pushed("the producer is asked", line, Code.CHECK_TRANSACTION_STATE, without=COUNTED)
    if push is None:
        return
    before = side.quietly(of_queue(Code.GET_MAX_OFFSET, "D-deal", 1)).number("offset")
    place, at = int(push.fields["commitLogOffset"]), int(push.fields["tranStateTableOffset"])
    side.ask("commit after the question", end_transaction("D-checked", at, place, COMMIT, fromTransactionCheck=True))
    wait_for(side, "D-deal", before + 1, 1)
    side.ask("what was committed", pull("D-deal", before, 1), without=COUNTED)
    side.ask("half and delayed", half(b"delayed", DELAY=1), without=COUNTED)


def send_backs(side: Side) -> None:
    side.quietly(create_topic("D-back", 1))
    side.quietly(create_group(GroupConfig("D-backs", retry_max_times=2)))
    sent = side.quietly(send("D-back", b"failing", TAGS="t", KEYS="f1", UNIQ_KEY="D3AA0001", flag=3))
    wait_for(side, "D-back", 1)
    place = sent.physical_offset
    side.ask("an unknown group", send_back("D-strangers", place))
    side.ask("an unknown place", send_back("D-backs", 1 << 40))
    side.ask("a negative place", send_back("D-backs", -1))
    side.ask("without a group", with_fields(send_back("D-backs", place), group=None))
    side.ask("without a place", with_fields(send_back("D-backs", place), offset=None))
    side.ask("without a level", with_fields(send_back("D-backs", place), delayLevel=None))
    side.ask("first time, level 1", send_back("D-backs", place, 1, originMsgId="origin", originTopic="D-back"))
    side.until("it comes back", of_queue(Code.GET_MAX_OFFSET, "%RETRY%D-backs"), has(1))
    again = side.ask("how it comes back", pull("%RETRY%D-backs", 0))
    second = int.from_bytes(again.body[28:36], "big") if again.body else 0
    side.ask("second time, binary header", binary(send_back("D-backs", second, 1)))
    side.until("it comes back again", of_queue(Code.GET_MAX_OFFSET, "%RETRY%D-backs"), has(2))
    again = side.ask("how it comes back again", pull("%RETRY%D-backs", 1))
    third = int.from_bytes(again.body[28:36], "big") if again.body else 0
    side.ask("too often", send_back("D-backs", third, 1))
    side.until("it is dead", of_queue(Code.GET_MAX_OFFSET, "%DLQ%D-backs"), has(1))
    side.ask("how it is dead", pull("%DLQ%D-backs", 0))
    side.ask("level by the number of times", send_back("D-backs", place, 0))
    side.records("how it waits", pull("SCHEDULE_TOPIC_XXXX", 0, 2), 2)
    side.ask("a level past the last", send_back("D-backs", place, 77))
    side.ask("dead at once", send_back("D-backs", place, -1))
    side.until("two are dead", of_queue(Code.GET_MAX_OFFSET, "%DLQ%D-backs"), has(2))
    side.ask("how it is dead at once", pull("%DLQ%D-backs", 1))
    side.ask("allowed fewer times by the client", send_back("D-backs", place, 1, maxReconsumeTimes=0))
    side.until("three are dead", of_queue(Code.GET_MAX_OFFSET, "%DLQ%D-backs"), has(3))
    old = send_back("D-backs", place, 1, maxReconsumeTimes=0)
    old.version = 100
    side.ask("an old client's limit is not heard", old)
    side.quietly(create_group(GroupConfig("D-backs-none", retry_queue_nums=0)))
    side.ask("a group without a retry queue", send_back("D-backs-none", place, 1))
    side.ask("unit mode", with_fields(send_back("D-backs", place, 1), unitMode=True))
    side.tell(oneway(send_back("D-backs", place, -1)))
    side.until("dead, oneway", of_queue(Code.GET_MAX_OFFSET, "%DLQ%D-backs"), has(4))
    side.ask(
        "to the retry topic by a plain send, too often",
        send("%RETRY%D-backs", b"sent", reconsumed=3, UNIQ_KEY="D3AA0002", RETRY_TOPIC="D-back"),
    )
    side.until("dead by a plain send", of_queue(Code.GET_MAX_OFFSET, "%DLQ%D-backs"), has(5))
    side.ask("how it is dead by a plain send", pull("%DLQ%D-backs", 4))
    side.ask("to the retry topic by a plain send, once more", send("%RETRY%D-backs", b"sent", reconsumed=1, max_reconsumed=1))
    side.ask("to the retry topic of an unknown group", send("%RETRY%D-strangers-too", b"sent", reconsumed=20))
    line = side.line("back")
    side.quietly(heartbeat("back@1", {"D-backs-new": [subscription("D-back", version=1)]}), line)
    side.ask("a heartbeat makes the retry topic", of_queue(Code.GET_MAX_OFFSET, "%RETRY%D-backs-new"))
    side.ask("pull from it", pull("%RETRY%D-backs-new", 0, group="D-backs-new", sub=None, version=0), line)
    side.quietly(leave("back@1", consumer="D-backs-new"), line)
