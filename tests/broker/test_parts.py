"""The broker's parts: one list, one order, and one line to add another."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from roquet.broker.core import Broker
from roquet.broker.handler import Handler
from roquet.broker.part import Part
from roquet.broker.topics import Topic
from roquet.ports import Peer
from roquet.testing import FakePeer
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

from .whole import Whole

ECHO = 9_998


class Echo(Part):
    """A part of the test's own: it knows nothing of the core, and the core nothing of it."""

    def __init__(self, broker: Broker) -> None:
        self.store = broker.store
        self.heard: list[str] = []
        self.needed = 0

    def load(self) -> None:
        self.heard.append(f"load, open {self.store.is_open}")

    def open(self) -> None:
        self.heard.append(f"open, open {self.store.is_open}")

    def listening(self, address: str, ha_address: str) -> None:
        self.heard.append(f"listening {address} {ha_address}")

    def handlers(self) -> Mapping[int, Handler]:
        return {ECHO: self.echo}

    def echo(self, peer: Peer, command: Command) -> Command:
        return command.reply(body=command.body)

    def tick(self, now_ms: int) -> None:
        self.heard.append("tick")

    def disconnected(self, peer: Peer) -> None:
        self.heard.append("disconnected")

    def settings_changed(self, names: AbstractSet[str]) -> None:
        self.heard.append(f"changed {sorted(names)}")

    def topic_deleted(self, topic: str) -> None:
        self.heard.append(f"deleted {topic}")

    def metrics(self) -> Mapping[str, object]:
        return {"echoes": 7}

    def may_drop(self, end: int) -> bool:
        return end <= self.needed

    @property
    def busy(self) -> bool:
        return "busy" in self.heard

    def save_now(self) -> None:
        self.heard.append(f"saved, open {self.store.is_open}")


def test_a_part_is_added_without_a_change_of_the_core(tmp_path: Path) -> None:
    whole = Whole(tmp_path, more=[Echo])
    broker = whole.broker
    echo = broker.parts[-1]
    assert isinstance(echo, Echo)
    assert echo.heard[:3] == ["load, open False", "open, open True", "listening 127.0.0.1:10911 127.0.0.1:10911"]
    echo.heard.clear()
    assert whole.ask(ECHO, {}, b"hello").body == b"hello"
    whole.tick(50)
    assert echo.heard == ["tick"]
    broker.disconnected(FakePeer())
    broker.topics.put(Topic("T", 1, 1))
    whole.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    whole.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"flushDelayOffsetInterval=20000\n")
    assert echo.heard[1:] == ["disconnected", "deleted T", "changed ['flush_delay_offset_interval']"]
    assert b'"echoes":"7"' in whole.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body
    assert not broker.store.may_drop(1)
    echo.needed = 1
    assert broker.store.may_drop(1)
    assert not broker.saving
    echo.heard = ["busy"]
    assert broker.saving
    echo.heard.clear()
    broker.close()
    assert echo.heard == ["saved, open True"]


def test_two_parts_do_not_answer_one_request(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="answered by two parts"):
        Whole(tmp_path, more=[Echo, Echo])


def test_every_part_stands_behind_those_that_it_uses(tmp_path: Path) -> None:
    whole = Whole(tmp_path)
    place = {id(part): number for number, part in enumerate(whole.broker.parts)}
    for number, part in enumerate(whole.broker.parts):
        for name, used in vars(part).items():
            assert place.get(id(used), -1) < number, f"{type(part).__name__}.{name} comes later"
    whole.close()
