"""Every client's usual send stays on the short way, and is stored and answered there as the long way does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from roquet.broker.topics import Topic
from roquet.testing import FakePeer
from roquet.wire import json_shapes
from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer, encode_frame

from .usual_sends import GROUP, TOPIC, TRACES, USUAL
from .whole import Whole, send_fields


def made(root: Path) -> Whole:
    whole = Whole(root)
    for name in (TOPIC, TRACES, f"%RETRY%{GROUP}"):
        whole.broker.topics.put(Topic(name, 4, 4))
    whole.broker.groups.find(GROUP)
    return whole


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    whole = made(tmp_path)
    yield whole
    whole.close()


def read(whole: Whole, data: bytes) -> list[Command]:
    """What is answered to one read."""
    peer = FakePeer()
    whole.broker.receive(peer, Framer().feed(data))
    assert not peer.closed
    return peer.take()


@pytest.mark.parametrize("name", USUAL)
def test_it_stays_on_the_short_way(whole: Whole, name: str) -> None:
    read(whole, USUAL[name] * 3)
    assert (whole.broker.sender.fast, whole.broker.sender.general) == (3, 0)


@pytest.mark.parametrize("name", USUAL)
def test_it_is_stored_and_answered_as_on_the_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    results = []
    for short in (True, False):
        whole = made(tmp_path / str(short))
        if not short:
            monkeypatch.setattr(whole.broker.admission, "lets_plain_in", bool)
        answers = read(whole, USUAL[name] * 2)
        assert whole.broker.sender.general == (0 if short else 2)
        whole.close()
        log = b"".join(path.read_bytes() for path in sorted((whole.root / "commitlog").iterdir()))
        index = [path.read_bytes() for path in sorted((whole.root / "index").iterdir())]
        results.append((answers, log, index))
    assert results[0] == results[1]
    assert len(results[0][0]) == (0 if "oneway" in name else 2)
    assert all(answer.code == 0 for answer in results[0][0])


@pytest.mark.parametrize("name", USUAL)
def test_it_is_stored_and_answered_the_same_where_nothing_is_known_by_its_shape(tmp_path: Path, name: str) -> None:
    results = []
    for known in (True, False):
        whole = made(tmp_path / str(known))
        plain = whole.broker.sender.plain
        plain.native = None
        if not known:
            plain.usual.read = lambda frames, at: ([], [], None)  # type: ignore[method-assign]
        peer = FakePeer()
        for _ in range(2):
            whole.broker.receive(peer, Framer().feed(USUAL[name] * 12))  # numbers of two digits too
        assert whole.broker.sender.general == 0
        whole.close()
        log = b"".join(path.read_bytes() for path in sorted((whole.root / "commitlog").iterdir()))
        index = [path.read_bytes() for path in sorted((whole.root / "index").iterdir())]
        results.append((peer.take(), log, index))
    assert results[0] == results[1]


@pytest.mark.parametrize("region", ["%d", "r" * 1_500])
def test_an_answer_by_its_shape_says_whatever_the_settings_say(tmp_path: Path, region: str) -> None:
    whole = made(tmp_path)
    plain = whole.broker.sender.plain
    plain.native, plain.settings.region_id = None, region
    plain.write_host()
    answers = read(whole, USUAL["Java 4.9, JSON, recorded"] + USUAL["Java 4.9, binary, recorded"])
    assert [answer.fields["MSG_REGION"] for answer in answers] == [region, region]
    whole.close()


def test_all_of_them_in_one_read_are_answered_each_in_its_form_and_in_order(whole: Whole) -> None:
    answers = read(whole, b"".join(USUAL.values()))
    asked = [decode(frame) for data in USUAL.values() for frame in Framer().feed(data)]
    assert [(one.binary, one.opaque) for one in answers] == [(one.binary, one.opaque) for one in asked if not one.is_oneway]


def test_the_broker_counts_which_way_sends_took_and_says_so(whole: Whole) -> None:
    whole.ask(310, send_fields(TOPIC), b"x")
    whole.ask(310, send_fields(TOPIC, properties="WAIT\x01false"), b"x")
    whole.ask(310, send_fields("%%"), b"x")
    table = whole.broker.admin.runtime_table()
    assert (table["roquetSendsFast"], table["roquetSendsGeneral"]) == ("1", "2")


@pytest.mark.parametrize("name", ["UNIQ_KEY", "KEYS"])
def test_a_key_that_stands_twice_is_stored_once_and_found_by_its_last_value(whole: Whole, name: str) -> None:
    assert whole.ask(310, send_fields(TOPIC, properties=f"{name}\x01first\x02{name}\x01last"), b"x").code == 0
    found = [len(whole.broker.store.query(TOPIC, key, 8, 0, 1 << 60)[0]) for key in ("first", "last")]
    assert found == [0, 1]


@pytest.mark.parametrize("binary", [False, True])
def test_sends_that_are_refused_do_not_make_those_behind_them_be_read_again_and_again(whole: Whole, binary: bool) -> None:
    plain = whole.broker.sender.plain
    plain.native = None
    looked_at, stored = [], plain.usual._texts.stored
    plain.usual._texts.stored = lambda text: (looked_at.append(text), stored(text))[1]  # type: ignore[method-assign, func-returns-value]
    bad = Command(310, send_fields(TOPIC, properties="UNIQ_KEY\x01a\0b\x02WAIT\x01true"), b"x", binary=binary).encode()
    answers = read(whole, bad * 200)
    assert [answer.code for answer in answers] == [13] * 200
    assert len(looked_at) <= 200


@pytest.mark.parametrize("more", [{"b": [{}] * 200}, {"b": {"x": {}}}, {"b": "T" * 200}, {"e": ["1"]}, {"e": "77"}], ids=repr)
def test_nothing_is_kept_of_sends_whose_topic_or_queue_is_not_there(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, more: dict[str, object]
) -> None:
    monkeypatch.setattr(json_shapes, "LEARN_EVERY", 1)
    plain = whole.broker.sender.plain
    plain.native = None
    head = {"code": 310, "extFields": send_fields(TOPIC) | more, "flag": 0, "language": "JAVA", "opaque": 7, "version": 407}
    assert [answer.code != 0 for answer in read(whole, encode_frame(0, orjson.dumps(head), b"x") * 3)] == [True] * 3
    assert not plain.usual._json._known
    read(whole, encode_frame(0, orjson.dumps(head | {"extFields": send_fields(TOPIC)}), b"x"))
    assert plain.usual._json._known


@pytest.mark.parametrize("name", ["UNIQ_KEY", "KEYS", "TAGS", "a"])
@pytest.mark.parametrize("binary", [False, True])
def test_a_zero_character_in_any_property_is_refused(whole: Whole, name: str, binary: bool) -> None:
    """Recovery would take the record for torn, and cut the log there."""
    end = whole.broker.store.log.end
    answer = whole.ask(310, send_fields(TOPIC, properties=f"{name}\x01a\0b\x02WAIT\x01true"), b"x", binary=binary)
    assert answer.code == 13
    assert "zero character" in str(answer.remark)
    assert whole.broker.store.log.end == end


@pytest.mark.parametrize("missing", "abcdefgh")
def test_a_send_without_a_field_that_it_must_have_is_refused_in_either_form(whole: Whole, missing: str) -> None:
    fields = send_fields(TOPIC)
    del fields[missing]
    for binary in (False, True):
        answer = whole.ask(310, fields, b"x", binary=binary)
        assert answer.code == 1
        assert "is null, but this request needs it" in str(answer.remark)


def test_a_header_that_is_no_object_closes_the_connection(whole: Whole) -> None:
    for header in (b"[1]", b"5", b"{", b'{"code":310', b"\xff"):
        peer = FakePeer()
        whole.broker.receive(peer, Framer().feed(encode_frame(0, header)))
        assert peer.closed


ODD_NUMBERS = [{letter: text} for letter in "dfghj" for text in ("1_0", "\uff14", " 4", "+4", "x")] + [{"l": "x"}, {"l": "1_0"}]


@pytest.mark.parametrize("odd", ODD_NUMBERS, ids=str)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_number_that_is_written_oddly_gets_the_same_answer_on_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: dict[str, str], compiled: bool
) -> None:
    found = []
    for short in (True, False):
        whole = made(tmp_path / str(short))
        if not compiled:
            whole.broker.sender.plain.native = None
        if not short:
            monkeypatch.setattr(whole.broker.admission, "lets_plain_in", bool)
        answer = whole.ask(310, send_fields(TOPIC) | odd, b"x")
        found.append((answer.code, answer.remark, answer.fields))
        whole.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("flag", [b"null", b'""', b"false", b"0.0"])
def test_a_flag_that_is_no_number_is_no_plain_send(whole: Whole, flag: bytes) -> None:
    command = Command(310, send_fields(TOPIC), b"x", opaque=7).encode()
    [(form, header, body)] = Framer().feed(command)
    spoiled = header.replace(b'"flag":0', b'"flag":' + flag)
    assert spoiled != header
    peer = FakePeer()
    whole.broker.receive(peer, Framer().feed(encode_frame(form, spoiled, body)))
    assert whole.broker.sender.fast == 0
