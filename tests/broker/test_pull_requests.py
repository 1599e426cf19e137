"""Pulls of a shape that was read before are answered as those that are taken apart; whether they are allowed is asked each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roquet.broker import pull_requests
from roquet.broker.pull_requests import PullRequest, PullRequests
from roquet.broker.topics import Topic
from roquet.testing import FakePeer
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import JSON, Framer
from roquet.wire.pull_shapes import pull_shape

from .whole import Whole, pull_fields, send_fields


@pytest.fixture(params=["as it runs", "without the extension"])
def whole(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    if request.param == "without the extension":
        monkeypatch.setattr(pull_requests, "shape_of", pull_shape)
    made = Whole(tmp_path / "store")
    for number in range(50):
        made.ask(310, send_fields(properties=f"UNIQ_KEY\x01U{number}\x02TAGS\x01{'ab'[number % 2]}"), b"%d" % number)
    yield made
    made.close()


def answers_of(whole: Whole, requests: list[Command]) -> list[tuple[Any, ...]]:
    peer = FakePeer()
    whole.give(peer, *requests)
    return [(one.opaque, one.code, one.remark, one.binary, one.fields, one.body) for one in peer.take()]


def test_the_answers_are_those_of_requests_that_are_taken_apart(whole: Whole) -> None:
    random = Random(5)
    requests = []
    for opaque in range(300):
        fields = pull_fields(
            offset=random.choice((0, 7, 40, 50, 51, 99)),
            commitOffset=str(random.choice((0, 3, 60))),
            sysFlag=random.choice(("4", "5")),
            subscription=random.choice(("*", "a", "a || b", "c")),
            maxMsgNums=random.choice(("0", "1", "32", "-1")),
            topic=random.choice(("T", "T", "T", "nowhere")),
            queueId=random.choice(("0", "0", "99")),
        )
        if random.random() < 0.2:
            fields |= {"maxMsgBytes": random.choice(("100", "0"))}
        if random.random() < 0.1:
            fields.pop(random.choice(sorted(fields)))
        requests.append(Command(11, fields, opaque=opaque, binary=random.random() < 0.5, flag=random.choice((0, 0, 0, 2))))
    short = answers_of(whole, requests)
    assert len(whole.broker.pull_requests._known) > 20
    whole.broker.admission.guards.append(lambda peer, command: None)  # who sees every request taken apart
    assert answers_of(whole, requests) == short
    assert {code for _, code, _, _, _, _ in short} >= {0, ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST}


def test_a_guard_sees_every_field(whole: Whole) -> None:
    seen: list[Command] = []
    whole.ask(11, pull_fields())
    whole.broker.admission.guards.append(lambda peer, command: seen.append(command))
    whole.ask(11, pull_fields(offset=3))
    assert [(type(one), one.fields["queueOffset"]) for one in seen] == [(Command, "3")]


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_not_allowed_any_more_is_refused(whole: Whole, binary: bool) -> None:
    def code() -> int:
        return whole.ask(11, pull_fields(), binary=binary).code

    assert code() == 0
    whole.broker.groups.put(GroupConfig("g", consume_enable=False))
    assert code() == ResponseCode.NO_PERMISSION
    whole.broker.groups.put(GroupConfig("g"))
    whole.broker.topics.put(Topic("T", 8, 8, perm=2))
    assert code() == ResponseCode.NO_PERMISSION
    whole.broker.topics.put(Topic("T", 8, 8))
    assert code() == 0
    whole.settings.broker_permission = 2
    assert code() == ResponseCode.NO_PERMISSION


def test_the_progress_that_comes_along_is_that_of_each_request(whole: Whole) -> None:
    for offset in (3, 17, 20):
        whole.ask(11, pull_fields(offset=offset, commitOffset=str(offset), sysFlag="5"))
        assert whole.broker.offsets.find("g", "T", 0) == offset


def test_a_mistake_in_one_is_the_answer_to_it_and_to_no_other(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    read = PullRequests.read

    def fails(self: PullRequests, frame: Any) -> PullRequest | None:
        if b'"opaque":2,' in frame[1]:
            raise RuntimeError("a mistake of ours")
        return read(self, frame)

    monkeypatch.setattr(PullRequests, "read", fails)
    codes = [(answer[0], answer[1]) for answer in answers_of(whole, [Command(11, pull_fields(), opaque=number) for number in range(5)])]
    assert codes == [(0, 0), (1, 0), (2, ResponseCode.SYSTEM_ERROR), (3, 0), (4, 0)]


def test_a_name_that_is_spelled_with_an_escape_is_not_remembered(whole: Whole) -> None:
    """Its numbers are those of other fields: the next request of the same shape has others there."""
    ((_, header, _),) = Framer().feed(Command(11, pull_fields(offset=5), opaque=1).encode())
    odd = header.replace(b'"queueOffset":"5"', b'"queue\\u004fffset":"5"').replace(b'{"code":11,', b'{"code":11,"queueOffset":"5",')
    requests = PullRequests()
    assert requests.read((JSON, odd, b"")) is None
    assert requests.read((JSON, odd, b"")) is None
    assert requests.read((JSON, header, b"")) is not None


def test_shapes_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_requests, "SHAPES_MAX", 10)
    requests = PullRequests()
    for number in range(100):
        ((form, header, body),) = Framer().feed(Command(11, pull_fields(topic=f"T{number}"), opaque=1).encode())
        for _ in range(2):
            request = requests.read((form, header, body))
            assert request is not None
            assert request.header is not None
            assert request.header.topic == f"T{number}"
        assert len(requests._known) <= 10
    ((form, header, body),) = Framer().feed(Command(11, pull_fields(subscription="x" * 2_000), opaque=1).encode())
    assert requests.read((form, header, body)) is None
    assert len(requests._known) <= 10


def test_a_reader_of_large_answers_is_read_properly(whole: Whole) -> None:
    for _ in range(2):
        answer = whole.ask(11, pull_fields(scanBytes="100000"))
        assert (answer.code, answer.fields["scanCount"]) == (0, "50")
