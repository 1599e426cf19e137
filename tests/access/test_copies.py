"""Copies of the log with access control: a slave that signs gets them, a stranger does not; and who is a member of a DLedger group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.broker.dledger import GroupDoor
from roquet.testing import FakePeer, WholeBroker
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.frame import Framer

from ..ha.streams import FakeStream
from .people import WHITE, accounts, signed


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[WholeBroker]:
    made = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path))
    yield made
    made.close()


def test_the_log_goes_to_nobody_who_has_not_shown_an_admins_key(whole: WholeBroker) -> None:
    stranger, slave, listed = FakeStream("10.4.4.4:1"), FakeStream("10.4.4.5:1"), FakeStream(WHITE)
    whole.broker.slaves.opened(stranger)
    assert stranger.closed
    assert stranger not in whole.broker.slaves.links
    whole.give(FakePeer("10.4.4.5:7"), signed(Command(Code.GET_ALL_TOPIC_CONFIG), "named"))
    whole.broker.slaves.opened(slave)
    assert slave.closed, "a key that is no admin's"
    slave = FakeStream("10.4.4.5:2")
    whole.give(FakePeer("10.4.4.5:7"), signed(Command(Code.GET_ALL_TOPIC_CONFIG), "admin"))
    whole.broker.slaves.opened(slave)
    whole.broker.slaves.opened(listed)
    assert not slave.closed
    assert not listed.closed


def test_nobody_but_members_speaks_on_the_dledger_port(tmp_path: Path) -> None:
    members: dict[str, Any] = {
        "enable_dleger_commit_log": True, "dleger_group": "broker-a", "dleger_self_id": "n0",
        "dleger_peers": "n0-10.3.0.1:40911;n1-10.3.0.2:40911;n2-10.3.0.3:40911",
    }  # fmt: skip
    whole = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path), **members)
    assert whole.broker.group is not None
    door = GroupDoor(whole.broker.group, whole.broker.access.guard)
    vote = Framer().feed(Command(51_001, {}, b"{}").encode())
    stranger, member = FakePeer("10.66.6.6:5"), FakePeer("10.3.0.2:5")
    door.receive(stranger, vote)
    door.receive(member, vote)
    assert stranger.closed
    assert not stranger.sent
    assert not member.closed
    whole.close()
