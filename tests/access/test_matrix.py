"""Every request code that a server answers, asked by everybody: generated from the table of needs."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.access.needs import ADMIN, KEY, NEEDS
from roquet.broker.topics import Topic
from roquet.message import MessageQueue
from roquet.nameserver.core import HANDLERS, NameServer
from roquet.settings import NameServerSettings
from roquet.store.disk import RealDisk
from roquet.testing import FakePeer, ManualClock, WholeBroker
from roquet.wire.batch import join_batch
from roquet.wire.calls.members import CheckClientBody, ConsumerData, HeartbeatBody, SubscriptionData
from roquet.wire.calls.queues import LockBody
from roquet.wire.calls.table import CALLS
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.headers import fields_of

from ..broker.whole import long_names, send_fields
from .people import HOME, WHITE, accounts, signed

ACL = "org.apache.rocketmq.acl.common.AclException: "
NO_KEY = ACL + "No accessKey is configured"
UNKNOWN = ACL + "No acl config for "
WRONG = ACL + "Check signature failed for accessKey="
NOT_ADMIN = ACL + "Need admin permission for request code="
NO_PERMISSION = ACL + "No default permission for "

BODIES: dict[int, bytes] = {
    Code.HEART_BEAT: HeartbeatBody("client", consumer_data_set=[ConsumerData("g", subscription_data_set=[SubscriptionData("T")])]).encode(),
    Code.LOCK_BATCH_MQ: LockBody("g", "client", {MessageQueue("T", "broker-a", 0)}).encode(),
    Code.UNLOCK_BATCH_MQ: LockBody("g", "client", {MessageQueue("T", "broker-a", 0)}).encode(),
    Code.CHECK_CLIENT_CONFIG: CheckClientBody("client", "g", SubscriptionData("T")).encode(),
    Code.SEND_BATCH_MESSAGE: join_batch([(0, b"a", b""), (0, b"b", b"")]),
}
LETTERS = (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)
LONG = (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE)


def request(code: int) -> Command:
    """One that makes sense, about topic T and group g; an operator's is about others, which it may delete."""
    if code in LETTERS or code in LONG:
        fields = send_fields(m="true" if code == Code.SEND_BATCH_MESSAGE else "false")
        return Command(code, long_names(fields) if code in LONG else fields, BODIES.get(code, b"body"))
    header = CALLS[code].header_type
    if not dataclasses.fields(header):
        return Command(code, {}, BODIES.get(code, b""))
    hints = typing.get_type_hints(header)
    fields = {}
    for one in fields_of(header):
        is_number = hints[one.attribute] in (int, int | None, bool, bool | None)
        name = one.attribute
        if one.required or name in ("topic", "consumer_group"):
            fields[one.name] = "0" if is_number else "T" if name == "topic" else "g" if "group" in name else "x"
    if NEEDS[code] is ADMIN:
        fields = {name: value if value in ("0", "x") else "gone" for name, value in fields.items()}
    return Command(code, fields, BODIES.get(code, b""))


class Asked:
    """A server, and what it answers to one request: of somebody new, or `among` requests of somebody who is known and may make them, in
    one read with them. Those take the short ways, signed sends and pulls like ones before."""

    askers = itertools.count(1)

    def __init__(self, receive: Callable[[FakePeer, Any], Any], among: Callable[[], Command] | None = None) -> None:
        self._receive = receive
        self._among = among

    def __call__(self, command: Command, address: str = "") -> str:
        """The remark of its refusal by access control; "" when it was let in."""
        number = next(self.askers)
        peer = FakePeer(address or f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:40001")
        command.opaque = number
        commands = [command]
        if self._among is not None:
            self._receive(peer, Framer().feed(self._among().encode()))
            commands = [self._among(), self._among(), command, self._among()]
        self._receive(peer, Framer().feed(b"".join(one.encode() for one in commands)))
        answers = [answer for answer in peer.take() if answer.is_response]
        if self._among is not None:
            assert [answer.code for answer in answers if answer.opaque == AMONG] == [0] * 4, "the others are served"
        remarks = [answer.remark or "" for answer in answers if answer.opaque == number]
        return next((one for one in remarks if one.startswith(ACL)), "")


AMONG = 0x414D4F4E


def known_send() -> Command:
    return signed(Command(Code.SEND_MESSAGE_V2, send_fields(), b"among others", opaque=AMONG), "named")


def known_question() -> Command:
    return signed(Command(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, opaque=AMONG), "named")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBroker]:
    root = tmp_path_factory.mktemp("acl")
    made = WholeBroker(root / "store", accounts=accounts(root))
    made.broker.topics.put(Topic("T", 4, 4))
    made.peer = FakePeer(WHITE)
    assert made.ask(Command(Code.SEND_MESSAGE_V2, send_fields(), b"at offset 0")).code == 0
    yield made
    made.close()


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> NameServer:
    root = tmp_path_factory.mktemp("acl")
    return NameServer(NameServerSettings(acl_enable=True), ManualClock(), RealDisk(), str(root), accounts=accounts(root))


@pytest.fixture(params=["alone", "among others"])
def ask_for(request: pytest.FixtureRequest, broker: WholeBroker, name_server: NameServer) -> Callable[[int], Asked]:
    """Off the short way, and on it."""
    among = request.param != "alone"
    servers = Asked(broker.broker.receive, known_send if among else None), Asked(name_server.receive, known_question if among else None)
    return lambda code: servers[code in HANDLERS and code not in broker.broker.table]


def every_code() -> list[int]:
    return sorted(NEEDS)


def test_every_code_that_a_server_answers_has_a_line_and_no_line_is_for_nobody(broker: WholeBroker) -> None:
    assert set(NEEDS) == set(broker.broker.table) | set(HANDLERS)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("code", every_code())
def test_who_may_ask_for_what(code: int, binary: bool, ask_for: Callable[[int], Asked]) -> None:
    ask, need = ask_for(code), NEEDS[code]

    def fresh(who: str = "") -> Command:
        made = request(code)
        made.binary = binary
        return signed(made, who) if who else made

    # who are you?
    assert ask(fresh()) == NO_KEY
    assert ask(fresh("stranger")) == UNKNOWN + "stranger-key"
    changed = fresh("admin")
    changed.fields["Signature"] = signed(fresh(), "nobody").fields["Signature"]
    assert ask(changed) == WRONG + "admin-key"
    changed = fresh("admin")
    del changed.fields["Signature"]
    assert ask(changed) == WRONG + "admin-key"
    changed = fresh("admin")
    changed.body += b"x"
    assert ask(changed) == WRONG + "admin-key"
    changed = fresh("admin")
    changed.fields["zz"] = "1"
    assert ask(changed) == WRONG + "admin-key"

    # may you?
    allowed = need is KEY or code == Code.END_TRANSACTION  # whose half message is not there: test_records.py
    refusal = NOT_ADMIN if need.admin else NO_PERMISSION
    for who in ("nobody", "denied"):
        assert ask(fresh(who)).startswith(refusal) != allowed, who
        assert bool(ask(fresh(who))) != allowed, who
    for who in ("default", "named"):
        reply = code in (Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)
        assert ask(fresh(who)).startswith(NOT_ADMIN) == need.admin, who
        assert need.admin or reply or not ask(fresh(who)), who
    assert not ask(fresh("admin"))
    assert not ask(fresh(), WHITE), "the white list needs no key"
    assert not ask(fresh("at-home"), HOME), "an account's own white list opens everything to it, as in RocketMQ"
    assert ask(fresh("at-home")).startswith(refusal) != allowed, "and to nobody else"


@pytest.mark.parametrize("code", [1, 39, 9_999, Code.POP_MESSAGE, -5])
def test_a_code_without_a_line_is_refused_whoever_asks(code: int, broker: WholeBroker) -> None:
    peer = FakePeer("10.2.2.2:1")
    for who in ("nobody", "admin"):
        broker.give(peer, signed(Command(code, {}, opaque=3), who))
    assert [(answer.code, answer.remark) for answer in peer.take()] == [(3, f" request type {code} not supported")] * 2


@pytest.mark.parametrize(
    ("code", "producer", "consumer"),
    [
        (Code.SEND_MESSAGE_V2, True, False),
        (Code.SEND_BATCH_MESSAGE, True, False),
        (Code.SEND_MESSAGE, True, False),
        (Code.PULL_MESSAGE, False, True),
        (Code.QUERY_MESSAGE, False, True),
        (Code.HEART_BEAT, False, True),
        (Code.LOCK_BATCH_MQ, False, True),
        (Code.GET_MAX_OFFSET, True, True),
        (Code.UPDATE_CONSUMER_OFFSET, False, True),
    ],
)
def test_producers_send_and_consumers_read(code: int, producer: bool, consumer: bool, broker: WholeBroker) -> None:
    ask = Asked(broker.broker.receive)
    assert bool(ask(signed(request(code), "producer"))) != producer
    assert bool(ask(signed(request(code), "consumer"))) != consumer


def test_the_answers_and_the_log_have_no_secret(broker: WholeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    peer = FakePeer("10.3.3.3:1")
    for code in sorted(broker.broker.table):
        for who in ("admin", "nobody"):
            broker.give(peer, signed(request(code), who))
    texts = caplog.text + "".join(f"{answer!r}{answer.body!r}" for answer in peer.take())
    for who in ("admin", "nobody", "default", "named"):
        assert f"{who}-secret" not in texts


def test_routes_need_a_key_unless_the_setting_says_otherwise(name_server: NameServer, tmp_path: Path) -> None:
    """Pull consumers of Go's client do not sign that."""
    settings = NameServerSettings(acl_enable=True, acl_routes_need_key=False)
    lenient = NameServer(settings, ManualClock(), RealDisk(), str(tmp_path), accounts=accounts(tmp_path))
    route = Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert Asked(name_server.receive)(route) == NO_KEY
    assert Asked(lenient.receive)(route) == ""
    for code in set(HANDLERS) - {Code.GET_ROUTEINFO_BY_TOPIC, Code.REGISTER_TOPIC_IN_NAMESRV}:
        assert Asked(lenient.receive)(request(code)) == NO_KEY, code
