"""Seeded sequences of half-sensible requests of every code, from several connections, while background work is held back.

Single frames are judged in test_mutations; here it is their order that hurts: a topic deleted while its files are synced, a
connection gone while its answer is being read, time that jumps. Afterwards the broker takes a message and its store reads back.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from roquet.testing import FakePeer, WholeBroker
from roquet.wire import headers
from roquet.wire.batch import join_batch
from roquet.wire.calls.table import CALLS
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.access.people import TEXT, accounts, signed
from tests.hostile.conftest import LastResort
from tests.hostile.test_mutations import read_back, report
from tests.process.line import create_topic, send_message

SEEDS = 300 if os.environ.get("ROQUET_LONG") else 8
"""ROQUET_LONG=1 makes it 300."""
STEPS = 800

FIELDS = sorted(
    {column.name for call in CALLS.values() for kind in (call.header_type, call.answer_header_type) for column in headers.fields_of(kind)}
)
VALUES = [
    "0", "1", "-1", "3", "32", "known", "group", "TBW102", "true", "false", "2147483647", "-2147483648", "9223372036854775807",
    "-9223372036854775808", "", "*", "TAG", "SQL92", "a || b", "%RETRY%group", "../x", "127.0.0.1@1", "7F00000100002A9F0000000000000000",
    "TAGS\x01t\x02KEYS\x01a b", "DELAY\x013", "UNIQ_KEY\x01u",
]  # fmt: skip
LIKELY = {
    "topic": ["known", "known", "other", "%RETRY%group"],
    "consumerGroup": ["group"],
    "group": ["group"],
    **{name: ["0", "1", "2", "32"] for name in ("queueId", "queueOffset", "commitOffset", "maxMsgNums", "sysFlag", "subVersion")},
    "suspendTimeoutMillis": ["0", "15000"],
}
BODIES = [
    b"",
    b"{}",
    b"[]",
    b'{"clientID":"c","consumerDataSet":[{"groupName":"group","subscriptionDataSet":[{"topic":"known","subString":"a||b"}]}],'
    b'"producerDataSet":[{"groupName":"group"}]}',
    b'{"consumerGroup":"group","clientId":"c","mqSet":[{"topic":"known","brokerName":"broker-a","queueId":0}]}',
    b'{"groupName":"group"}',
]
ACCOUNTS = TEXT.replace("- T=", "- known=").replace("- g=", "- group=")
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def some_send(random: Random) -> Command:
    command = send_message("known", random.randbytes(random.randrange(200)), random.choice((0, 1, -1, 5)), properties={"TAGS": "t"})
    command.code = random.choice(SENDS)
    if command.code == RequestCode.SEND_BATCH_MESSAGE:
        part = (random.choice((0, -1)), b"part", random.choice((b"", b"TAGS\x01t\x02")))
        command.body = join_batch([part] * random.randrange(4))
        command.fields["m"] = "true"
    for name in random.sample(sorted(command.fields), random.choice((0, 0, 1, 2))):
        command.fields[name] = random.choice(VALUES)
    return command


def some_request(random: Random, codes: list[int]) -> Command:
    if random.random() < 0.15:
        command = some_send(random)
    else:
        fields = {name: random.choice(VALUES) for name in random.sample(FIELDS, random.randrange(12))}
        fields |= {name: random.choice(values) for name, values in LIKELY.items() if random.random() < 0.7}
        command = Command(random.choice(codes), fields, random.choice(BODIES))
    command.opaque = random.randrange(1_000)
    command.flag = random.choice((0, 0, 0, 1, 2))
    command.binary = random.random() < 0.3
    return command


PEOPLE = ("admin", "default", "named", "nobody", "stranger", "")
"""Whose keys the requests of a broker with access control have; "": none."""


def some_key(random: Random, request: Command) -> Command:
    """The request signed by somebody, and sometimes changed afterwards."""
    who = random.choice(PEOPLE)
    if who:
        signed(request, who)
    if random.random() < 0.1:
        request.fields[random.choice(("AccessKey", "Signature", "SecurityToken", "_UNIQUE_KEY_QUERY", "topic"))] = random.choice(VALUES)
    return request


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "with access control"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_order_of_requests_stops_a_broker(seed: int, guarded: bool, tmp_path: Path, last_resort: LastResort) -> None:
    random = Random(seed)
    rules = accounts(tmp_path, ACCOUNTS) if guarded else None
    inside = WholeBroker(tmp_path / "store", accounts=rules, flush_disk_type=random.choice(("SYNC_FLUSH", "ASYNC_FLUSH")))
    codes = sorted({*inside.broker.table, 36, 37, 39, 40, 220, 221, 307} - {RequestCode.UPDATE_BROKER_CONFIG})
    host = "10.1.1.1" if guarded else "127.0.0.1"
    peers = [FakePeer(f"{host}:{number}") for number in range(3)]
    troubles: list[str] = []
    inside.peer = FakePeer("10.9.9.9:1" if guarded else "127.0.0.1:40001")  # on the white list
    for step in range(STEPS):
        if step % 50 == 0:
            inside.give(inside.peer, create_topic("known", 2))  # it may have been deleted since
        which = random.randrange(len(peers))
        if peers[which].closed:
            peers[which] = FakePeer(f"{host}:{which}")
        requests = [some_request(random, codes) for _ in range(random.choice((1, 1, 2, 5)))]
        if guarded:
            requests = [some_key(random, request) for request in requests]
        if random.random() < 0.1:
            inside.background.hold = not inside.background.hold
            if not inside.background.hold:
                inside.background.release()
        try:
            inside.give(peers[which], *requests)
            if random.random() < 0.2:
                inside.tick(random.choice((1, 100, 5_000, 20_000)))
            if random.random() < 0.02:
                peers[which].closed = True
                inside.broker.disconnected(peers[which])
        except Exception as error:
            troubles.append(f"{error!r} at step {step} for {requests}")
            break
        troubles += [f"{what} at step {step} for {requests}" for what in last_resort.caught]
        last_resort.caught.clear()
        for peer in (*peers, inside.peer):
            peer.sent.clear()
    inside.background.hold = False
    inside.background.release()
    inside.peer.sent.clear()
    if guarded:  # somebody may have changed the white list
        (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
        for _ in range(3):
            inside.tick(1_000)
            inside.background.release()
    for body in (b"before", b"after"):
        inside.give(inside.peer, create_topic("known", 2))
        inside.peer.sent.clear()
        answer = inside.ask(send_message("known", body, queue_id=1))
        if answer.code:
            troubles.append(f"a good message is refused afterwards: {answer}")
    inside.broker.close()
    troubles += read_back(tmp_path / "store")
    report(troubles)
