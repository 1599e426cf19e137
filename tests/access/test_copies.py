"""Copies of the log with access control: a slave that signs gets them, a stranger does not; and who is a member of a DLedger group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.access import guard as guarding
from roquet.broker.dledger import GroupDoor
from roquet.net.tls import PLAIN_ONLY
from roquet.programs import group_server
from roquet.testing import FakePeer, WholeBroker
from roquet.wire.calls.log_pieces import LOG_PIECE, LogPieceHeader
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.frame import Frame, Framer

from ..ha.streams import FakeStream
from .people import TEXT, WHITE, accounts, signed


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
    whole.give(FakePeer("10.4.4.5:7"), signed(log_piece(), "named"))
    whole.broker.slaves.opened(slave)
    assert slave.closed, "a key that is no admin's"
    slave = FakeStream("10.4.4.5:2")
    whole.give(FakePeer("10.4.4.5:7"), signed(Command(Code.GET_ALL_TOPIC_CONFIG), "admin"))
    whole.broker.slaves.opened(slave)
    assert slave.closed, "an operator's request: others sit at the same address"
    slave = FakeStream("10.4.4.5:3")
    whole.give(FakePeer("10.4.4.5:7"), signed(log_piece(), "admin"))
    whole.broker.slaves.opened(slave)
    whole.broker.slaves.opened(listed)
    assert not slave.closed
    assert not listed.closed


def log_piece() -> Command:
    return LOG_PIECE.request(LogPieceHeader(0, 0))


def reporting(whole: WholeBroker, *streams: FakeStream, times: int, asks: str = "") -> None:
    """So many times ten seconds pass, in which slaves report, and an admin's request comes with them."""
    for _ in range(times):
        if asks:
            whole.give(FakePeer("10.4.4.5:7"), signed(log_piece(), asks))
        for stream in streams:
            whole.broker.slaves.received(stream, (0).to_bytes(8, "big"))
        whole.tick(10_000)
        whole.background.release()


def test_a_slave_whose_key_is_taken_away_is_sent_no_more(whole: WholeBroker, tmp_path: Path) -> None:
    slave, listed = FakeStream("10.4.4.5:2"), FakeStream(WHITE)
    whole.give(FakePeer("10.4.4.5:7"), signed(log_piece(), "admin"))
    for stream in (slave, listed):
        whole.broker.slaves.opened(stream)
    reporting(whole, slave, listed, times=12, asks="admin")
    assert not slave.closed, "it asks again and again"
    write_accounts(tmp_path, TEXT.replace("admin-key", "another-admin").replace("10.9.9.*", "10.9.9.1"))
    reporting(whole, slave, listed, times=3)
    assert slave.closed
    assert listed.closed
    assert not whole.broker.slaves.links


def test_who_asks_about_the_log_no_more_is_sent_no_more(whole: WholeBroker) -> None:
    slave = FakeStream("10.4.4.5:2")
    whole.give(FakePeer("10.4.4.5:7"), signed(log_piece(), "admin"))
    whole.broker.slaves.opened(slave)
    reporting(whole, slave, times=4)
    assert not slave.closed
    reporting(whole, slave, times=4)
    assert slave.closed


def door_of(tmp_path: Path, peers: str) -> tuple[WholeBroker, GroupDoor]:
    members: dict[str, Any] = {
        "enable_dleger_commit_log": True, "dleger_group": "broker-a", "dleger_self_id": "n0", "dleger_peers": peers,
    }  # fmt: skip
    whole = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path), **members)
    assert whole.broker.group is not None
    return whole, GroupDoor(whole.broker.group, whole.broker.access.guard)


def vote(who: str = "", body: bytes = b"{}") -> list[Frame]:
    command = Command(51_001, {}, body)
    return Framer().feed((signed(command, who) if who else command).encode())


def test_nobody_but_members_speaks_on_the_dledger_port(tmp_path: Path) -> None:
    whole, door = door_of(tmp_path, "n0-10.3.0.1:40911;n1-10.3.0.2:40911;n2-10.3.0.3:40911")
    stranger, member = FakePeer("10.66.6.6:5"), FakePeer("10.3.0.2:5")
    door.receive(stranger, vote())
    door.receive(member, vote())
    assert stranger.closed
    assert not stranger.sent
    assert not member.closed
    assert [call.code for call in whole.broker.access.audit.calls] == [51_001]
    whole.close()


def test_where_members_are_given_by_name_they_sign_what_they_ask_each_other(tmp_path: Path) -> None:
    whole, door = door_of(tmp_path, "n0-one.example:40911;n1-two.example:40911;n2-10.3.0.3:40911")
    for who in ("", "named", "stranger"):
        stranger = FakePeer("10.66.6.6:5")
        door.receive(stranger, vote(who))
        assert stranger.closed, who
        assert not stranger.sent, who
    changed = Command(51_001, {}, b"{}")
    signed(changed, "admin").body += b" "
    stranger = FakePeer("10.66.6.6:5")
    door.receive(stranger, Framer().feed(changed.encode()))
    assert stranger.closed
    member, by_address = FakePeer("10.66.6.7:5"), FakePeer("10.3.0.3:5")
    door.receive(member, vote("admin"))
    door.receive(member, vote("admin"))
    door.receive(by_address, vote())
    assert not member.closed
    assert not by_address.closed
    for _ in range(40):
        whole.tick(500)
    asked = [command for _, command, *_ in whole.caller.calls if command.code >= 50_000]
    assert asked
    assert {command.fields.get("AccessKey") for command in asked} == {"admin-key"}
    write_accounts(tmp_path, TEXT.replace("admin-key", "another-admin"))
    pass_time(whole)
    door.receive(member, vote("admin"))
    assert member.closed, "its account is gone"
    whole.close()


def pass_time(whole: WholeBroker) -> None:
    for _ in range(3):
        whole.tick(1_000)
        whole.background.release()


@pytest.fixture
def named(tmp_path: Path) -> Iterator[tuple[WholeBroker, GroupDoor]]:
    """A group whose members are given by name."""
    whole, door = door_of(tmp_path, "n0-one.example:40911;n1-two.example:40911;n2-10.3.0.3:40911")
    yield whole, door
    whole.close()


def test_a_member_signs_every_request_and_with_the_secret_of_now(named: tuple[WholeBroker, GroupDoor], tmp_path: Path) -> None:
    whole, door = named
    forgetful, member = FakePeer("10.66.6.6:5"), FakePeer("10.66.6.7:5")
    for peer in (forgetful, member):
        door.receive(peer, vote("admin"))
        assert not peer.closed
    door.receive(forgetful, vote())
    assert forgetful.closed, "that it signed once does not count"
    write_accounts(tmp_path, TEXT.replace("admin-secret", "another-secret"))
    pass_time(whole)
    door.receive(member, vote("admin"))
    assert member.closed


def test_a_certificate_of_an_admin_opens_the_dledger_port_as_long_as_it_is_one(
    named: tuple[WholeBroker, GroupDoor], tmp_path: Path
) -> None:
    whole, door = named
    member = FakePeer("10.66.6.7:5")
    member.certificate_subject = "admin-key"
    door.receive(member, vote())
    assert not member.closed
    write_accounts(tmp_path, TEXT.replace("admin-key", "another-admin"))
    pass_time(whole)
    door.receive(member, vote())
    assert member.closed


def test_wrong_signatures_at_the_dledger_port_are_counted_and_then_not_looked_at(
    named: tuple[WholeBroker, GroupDoor], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, door = named
    member = FakePeer("10.66.6.6:4")
    door.receive(member, vote("admin"))
    looked: list[int] = []

    def is_signed(fields: object, body: bytes, secret: bytes) -> bool:
        looked.append(len(body))
        return False

    with monkeypatch.context() as patched:
        patched.setattr(guarding, "is_signed", is_signed)
        for _ in range(10):
            stranger = FakePeer("10.66.6.6:5")
            door.receive(stranger, vote("admin", bytes(4 << 20)))
            assert stranger.closed
    assert len(looked) == 4, "twenty at once, and each of these counts for five"
    assert whole.broker.access.audit.guesses("10.66.6.6:5"), "at the other port, too"
    door.receive(member, vote("admin"))
    assert not member.closed, "it has shown a right one"
    late = FakePeer("10.66.6.6:6")
    door.receive(late, vote("admin"))
    assert late.closed
    whole.tick(1_000)
    late = FakePeer("10.66.6.6:7")
    door.receive(late, vote("admin"))
    assert not late.closed


def test_the_dledger_port_keeps_strangers_apart(named: tuple[WholeBroker, GroupDoor]) -> None:
    whole, door = named

    async def work() -> None:
        group, guard = whole.broker.group, whole.broker.access.guard
        assert group is not None
        strangers = group_server(group, guard, whole.clock, whole.settings, 10, PLAIN_ONLY).strangers
        assert strangers is not None
        by_address, by_key, stranger = FakePeer("10.3.0.3:5"), FakePeer("10.66.6.7:5"), FakePeer("10.66.6.6:5")
        assert strangers.knows(by_address)
        assert strangers.knows(FakePeer(WHITE))
        assert not strangers.knows(by_key)
        door.receive(by_key, vote("admin"))
        door.receive(stranger, vote("named"))
        assert strangers.knows(by_key)
        assert not strangers.knows(stranger)
        assert group_server(group, None, whole.clock, whole.settings, 10, PLAIN_ONLY).strangers is None

    asyncio.run(work())


def write_accounts(tmp_path: Path, text: str) -> None:
    (tmp_path / "plain_acl.yml").write_text(text)
