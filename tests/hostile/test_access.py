"""The hostile frames once more, to cores with access control: unsigned ones change nothing at all, and signed ones reach what is behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roquet.errors import Broken
from roquet.nameserver.core import NameServer
from roquet.settings import NameServerSettings
from roquet.store.disk import RealDisk
from roquet.testing import FakePeer, WholeBroker
from roquet.testing.clock import ManualClock
from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import JSON, Framer, encode_frame
from roquet.wire.names import TRACE_TOPIC
from roquet.wire.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature, signed_text
from tests.access.people import TEXT, WHITE, accounts, key_of
from tests.access.people import signed as signed_by
from tests.hostile.conftest import LastResort
from tests.hostile.test_mutations import CORPORA, feed, report
from tests.process.line import create_topic, send_message

EVERY = 1 if os.environ.get("ROQUET_LONG") else 8
"""One in so many of the frames; ROQUET_LONG=1 takes all."""
ACCOUNTS = TEXT.replace("- T=", "- known=").replace("- g=", "- group=")
ACL = "org.apache.rocketmq.acl.common.AclException: "
MARK = b'"extFields":{'


def frames(name: str) -> list[bytes]:
    return CORPORA[name][::EVERY]


def signed(frame: bytes, who: str) -> bytes:
    """The frame with a right signature, and otherwise byte for byte as it was; as it is, where there is no place for one."""
    try:
        ((form, header, body),) = Framer().feed(frame)
        command = commands.decode((form, header, body))
    except (Broken, ValueError):
        return frame
    keys = key_of(who)
    if form != JSON:
        return signed_by(command, who).encode()
    if header.count(MARK) != 1:
        return frame
    for name in (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN):
        if name.encode() in header:
            return frame
    text = signature(keys.secret_key, signed_text(command.fields | {ACCESS_KEY: keys.access_key}, body))
    begin, end = header.split(MARK)
    comma = b"" if end.lstrip().startswith(b"}") else b","
    added = f'"{ACCESS_KEY}":"{keys.access_key}","{SIGNATURE}":"{text}"'.encode()
    return encode_frame(form, begin + MARK + added + comma + end, body)


def address(number: int) -> str:
    """Each asks from another one: those who ask wrongly too often are not answered any more."""
    return f"10.{100 + (number >> 16)}.{number >> 8 & 255}.{number & 255}:40001"


@pytest.fixture
def inside(tmp_path: Path) -> WholeBroker:
    made = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path, ACCOUNTS))
    made.peer = FakePeer(WHITE)
    assert made.ask(create_topic("known")).code == 0
    return made


def state(inside: WholeBroker) -> tuple[object, ...]:
    broker = inside.broker
    asked = [inside.ask(Command(code)).body for code in (21, 43, 201)]
    return (broker.store.log.end, sorted(broker.store.queues), asked, broker.members.clients, vars(inside.settings).copy())


@pytest.mark.parametrize("name", CORPORA)
def test_whatever_is_not_signed_changes_nothing_at_all(name: str, inside: WholeBroker, last_resort: LastResort) -> None:
    before, troubles = state(inside), list[str]()
    for number, frame in enumerate(frames(name)):
        for answer in feed(inside, frame, last_resort, troubles, address(number)):
            if not (answer.remark or "").startswith(ACL):
                troubles.append(f"{answer} for {frame[:400]!r}")
    assert state(inside) == before
    inside.close()
    report(troubles)


@pytest.mark.parametrize("name", CORPORA)
def test_who_may_do_nothing_stores_nothing_but_traces(name: str, inside: WholeBroker, last_resort: LastResort) -> None:
    topics, troubles = inside.ask(Command(21)).body, list[str]()
    for number, frame in enumerate(frames(name)):
        feed(inside, signed(frame, "nobody"), last_resort, troubles, address(number))
    stored = {topic for (topic, _), queue in inside.broker.store.queues.items() if queue.visible}
    assert stored <= {TRACE_TOPIC}
    if TRACE_TOPIC not in stored:
        assert inside.ask(Command(21)).body == topics
    inside.close()
    report(troubles)


@pytest.mark.parametrize("who", ["admin", "default"])
@pytest.mark.parametrize("name", CORPORA)
def test_signed_ones_stop_nobody(name: str, who: str, inside: WholeBroker, last_resort: LastResort) -> None:
    troubles, let_in = list[str](), 0
    for number, frame in enumerate(frames(name)):
        answers = feed(inside, signed(frame, who), last_resort, troubles, address(number))
        let_in += any(not (answer.remark or "").startswith(ACL) for answer in answers)
    assert name == "wrong-heads" or let_in > len(frames(name)) // 20, "the signatures are right"
    inside.settings.broker_permission = 6
    if who == "default" and inside.broker.topics.get("known") is None:
        troubles.append("the topic is gone, and nobody who may do that asked for it")
    inside.give(inside.peer, create_topic("known"))
    inside.peer.sent.clear()
    answer = inside.ask(send_message("known", b"after", queue_id=1))
    if answer.code:
        troubles.append(f"a good message is refused afterwards: {answer}")
    inside.close()
    report(troubles)


@pytest.mark.parametrize("who", ["", "nobody", "admin"])
@pytest.mark.parametrize("name", CORPORA)
def test_a_name_server_survives_them(name: str, who: str, tmp_path: Path, last_resort: LastResort) -> None:
    core = NameServer(NameServerSettings(acl_enable=True), ManualClock(), RealDisk(), str(tmp_path), accounts=accounts(tmp_path, ACCOUNTS))
    troubles: list[str] = []
    for number, frame in enumerate(frames(name)):
        feed(core, signed(frame, who) if who else frame, last_resort, troubles, address(number))
    peer = FakePeer(WHITE)
    core.receive(peer, Framer().feed(Command(206, opaque=5).encode()))
    (answer,) = peer.take()
    assert answer.code == 0
    if who != "admin":
        assert b'"topicList":[]' in answer.body
        assert not core.kv.namespace("ORDER_TOPIC_CONFIG")
    report(troubles)
