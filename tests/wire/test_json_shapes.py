"""JSON headers of sends, read by their known pieces: what is found is what the whole header says, whatever was spoiled."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.wire import json_shapes
from roquet.wire.json_shapes import JsonShapes
from roquet.wire.send_shapes import Shaped

BORN, KEY = "1794732520853", "7F00000100002A9F0000000000000001"
PROPERTIES = f"TAGS\x01a\x02UNIQ_KEY\x01{KEY}\x02WAIT\x01true"
FIELDS = {
    "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": BORN, "h": "0", "i": PROPERTIES, "j": "0", "k": "false",
    "m": "false", "n": "broker-a",
}  # fmt: skip
HEAD: dict[str, Any] = {
    "code": 310, "extFields": FIELDS, "flag": 0, "language": "JAVA", "opaque": 1000, "serializeTypeCurrentRPC": "JSON", "version": 407,
}  # fmt: skip


@pytest.fixture(autouse=True)
def learn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_shapes, "LEARN_EVERY", 1)


def header_of(opaque: int = 1000, flag: int = 0, /, **more: str) -> bytes:
    return orjson.dumps(HEAD | {"extFields": FIELDS | more, "opaque": opaque, "flag": flag})


def whole(header: bytes) -> tuple[dict[str, Any], Shaped] | None:
    """As the broker reads it: None: it is no usual send."""
    try:
        head = orjson.loads(header)
        fields, opaque, flag = head["extFields"], head["opaque"], head["flag"]
        numbers = [fields[name] for name in "fgh"]
        if type(opaque) is not int or type(flag) is not int or opaque > 0x7FFFFFFF or not all(map(str.isdigit, numbers)):
            return None
        sys_flag, born_ms, user_flag = map(int, numbers)
        return head, (opaque, flag, fields["b"], fields["e"], sys_flag, born_ms, user_flag, fields["i"])
    except (KeyError, TypeError, ValueError):
        return None


def read(shapes: JsonShapes, header: bytes) -> Shaped | None:
    try:
        return shapes.read(header)
    except ValueError:
        return None


def check(shapes: JsonShapes, header: bytes) -> bool:
    """Whether it was read, and as the whole of it would be; whatever it says is learnt."""
    found, said = read(shapes, header), whole(header)
    assert found is None or (said is not None and found == said[1])
    if said is not None:
        shapes.learn(header, *said)
        again = read(shapes, header)
        assert again is None or again == said[1]
    return found is not None


USUAL = [
    header_of(), header_of(7), header_of(0x7FFFFFFF), header_of(9, 2), header_of(e="12", g="1794732520999"), header_of(f="1", h="7"),
    header_of(b="größe", i="TAGS\x01größe"), header_of(l="16"), header_of(i=PROPERTIES * 50), header_of(i=""),
    header_of(i='a\x01"b"\\c\x02UNIQ_KEY\x01A'), header_of(n="a\\b\"c"),
]  # fmt: skip
FRONT, BEHIND = header_of().split(BORN.encode())
MIDDLE, BACK = b'","h":"0","i":"', b'","j":"0"' + BEHIND.partition(b'","j":"0"')[2]
ODD = [
    header_of(0), header_of(-5), header_of(1 << 31), header_of(g="179473252085"), header_of(g="17947325208530"),
    header_of(g="+179473252085"),
    header_of(i="x" * 20).replace(b'"xxx', b'"\\xxx'), header_of(Signature="abc"), header_of(x="y" * 2_000), header_of()[:-1],
    header_of()[:40], b"", header_of() + b"x", header_of().replace(b"UNIQ", b"\xff\xff\xff\xff"), header_of().replace(b":1000", b":01000"),
    header_of().replace(b":1000", b":1e3"), header_of().replace(b":1000", b":10.0"), header_of().replace(b":1000", b":1_0"),
    header_of().replace(b":1000", b":1000 "), header_of().replace(b":1000", b":" + b"9" * 5_000),
    header_of().replace(b'"j":"0"', b'"g":"0000000000000","j":"0"'), header_of().replace(b"407}", b'407,"opaque":1}'),
    header_of().replace(b'"j":"0"', b'"i":"x","j":"0"'), header_of().replace(b'"j":"0"', b'"i":"","j":"0"'),
    header_of().replace(b'"j":"0"', b'"g":"1","j":"0"'),
    header_of().replace(b'},"flag"', b'},"opaque":5,"flag"'), header_of().replace(b"407}", b'407,"opaque":5}'),
    header_of().replace(b'},"flag"', b'},"extFields":{"i":"x"},"flag"'), header_of()[:-1] + b',"code":11}',
    FRONT + BORN.encode() + MIDDLE + b'a","j":"1","i":"b' + BACK, FRONT + BORN.encode() + MIDDLE + b"a\n" + BACK,
    FRONT + BORN.encode() + MIDDLE + b"a\\" + BACK, FRONT + BORN.encode() + MIDDLE + b"\\ud800" + BACK,
    FRONT + BORN.encode()[:-1] + b"x" + MIDDLE + BACK, FRONT + BORN.encode() + MIDDLE.replace(b"0", b"1") + BACK,
    FRONT + BORN.encode() + MIDDLE + BACK[:-1] + b" }", FRONT + BORN.encode() + MIDDLE + BACK.partition(b",\"serialize")[0],
]  # fmt: skip


@pytest.mark.parametrize("header", USUAL)
def test_what_clients_send_is_known_when_another_one_was_read(header: bytes) -> None:
    shapes = JsonShapes()
    assert not check(shapes, header)
    assert check(shapes, header)
    for old, new in ((BORN.encode(), b"1794732520777"), (b":1000", b":1"), (b":1000", b":999999999"), (KEY.encode(), b'\\u0041\\"')):
        assert check(shapes, header.replace(old, new))


@pytest.mark.parametrize("header", ODD)
def test_what_is_odd_is_left_to_whoever_reads_all_of_it(header: bytes) -> None:
    shapes = JsonShapes()
    for known in [*USUAL, header_of()]:
        check(shapes, known)
    assert read(shapes, header_of()) is not None
    assert read(shapes, header) is None
    check(shapes, header)
    for known in USUAL:
        check(shapes, known)


@pytest.mark.parametrize("header", ODD)
def test_nothing_wrong_is_learnt_from_what_is_odd(header: bytes) -> None:
    shapes = JsonShapes()
    check(shapes, header)
    for old, new in ((BORN.encode(), b"1794732520777"), (b":1000", b":5"), (KEY.encode(), b"A")):
        check(shapes, header.replace(old, new))
    for known in USUAL + ODD:
        check(shapes, known)


SPOILS = [b'"g":"', b'"i":"x"', b'"opaque":7', b'"opaque":', b'","', b'"}', b"},", b"\\", b'"', b"{", b"0", b" ", b"e0", b".0", b"\\u0022"]


@given(data=st.data())
def test_a_spoiled_header_is_read_as_the_whole_of_it_would_be_or_not_at_all(data: st.DataObject) -> None:
    shapes = JsonShapes()
    usual = [header_of(), header_of(5, i=""), header_of(f="1", h="7")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shapes, "LEARN_EVERY", 1)
        for known in usual if data.draw(st.booleans()) else []:
            check(shapes, known)
        for _ in range(4):
            header = bytearray(data.draw(st.sampled_from(usual)))
            for _ in range(data.draw(st.integers(0, 3))):
                at = data.draw(st.integers(0, len(header)))
                header[at : at + data.draw(st.integers(0, 4))] = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from(SPOILS)))
            check(shapes, bytes(header))


members = st.tuples(
    st.sampled_from(['"i"', '"g"', '"h"', '"opaque"', '"j"', '"flag"', '"x"', '"\\u0069"']),
    st.sampled_from(['"x"', '""', '"0000000000000"', "1", "20", '"1"', "{}", '{"i":"x","g":"0000000000000"}', "1e0"]),
)


@given(inner=st.lists(members, max_size=2), outer=st.lists(members, max_size=2), at=st.sampled_from(["front", "back", "tail"]))
def test_members_that_stand_twice_are_never_taken_for_the_last_ones(inner: Any, outer: Any, at: str) -> None:
    shapes = JsonShapes()
    text = header_of().decode()
    more = [",".join([f"{name}:{value}" for name, value in pairs]) for pairs in (inner, outer)]
    place = {"front": '"a":', "back": '"j":', "tail": '"n":'}[at]
    text = text.replace(place, f"{more[0]},{place}" if more[0] else place)
    place = {"front": '"code":', "back": '"flag":', "tail": '"version":'}[at]
    text = text.replace(place, f"{more[1]},{place}" if more[1] else place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shapes, "LEARN_EVERY", 1)
        check(shapes, text.encode())
        for old, new in ((BORN, "1794732520777"), (":1000", ":5"), (KEY, "A")):
            check(shapes, text.replace(old, new).encode())


def test_what_is_known_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_shapes, "KNOWN_MAX", 10)
    shapes = JsonShapes()
    for number in range(100):
        header = header_of(b=f"T{number}")
        check(shapes, header)
        assert check(shapes, header)
        assert len(shapes._known) <= 10


@pytest.mark.parametrize("more", [{"Signature": "abc"}, {"x": "y" * 2_000}, {"a": "g" * 2_000}], ids=["signed", "long back", "long front"])
def test_what_is_of_no_use_again_or_large_is_not_kept(more: dict[str, str]) -> None:
    shapes = JsonShapes()
    check(shapes, header_of(**more))
    assert not shapes._known


def test_who_never_sends_a_header_of_a_known_shape_has_few_of_them_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_shapes, "LEARN_EVERY", 8)
    shapes = JsonShapes()
    tried: list[bytes] = []
    monkeypatch.setattr(json_shapes, "pieces_of", tried.append)
    for number in range(80):
        check(shapes, header_of(b=f"T{number}"))
    assert len(tried) == 10


@pytest.mark.parametrize("other", [header_of(Signature="abc"), header_of(i="x" * 10_000)], ids=["signed", "large"])
@pytest.mark.parametrize("period", [2, 3, 16])
def test_headers_that_are_never_kept_do_not_keep_others_from_being_known(
    monkeypatch: pytest.MonkeyPatch, other: bytes, period: int
) -> None:
    monkeypatch.setattr(json_shapes, "LEARN_EVERY", 16)
    for phase in range(period):
        shapes = JsonShapes()
        for number in range(100):
            check(shapes, other if number % period == phase else header_of())
        assert read(shapes, header_of()) is not None


def test_shapes_with_one_front_are_known_beside_each_other_but_not_without_end() -> None:
    shapes = JsonShapes()
    headers = [header_of(9, 2), *[header_of().replace(b"407}", b"%d}" % version) for version in range(401, 410)]]
    for header in headers[:4] * 2:
        check(shapes, header)
    assert [check(shapes, header) for header in headers[:4]] == [True] * 4
    for header in headers * 2:
        check(shapes, header)
    assert [len(known) for known in shapes._known.values()] == [4]
