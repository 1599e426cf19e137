"""Binary headers of sends, read by their known pieces: what is found is what `read_header` finds, whatever was spoiled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.wire import send_shapes
from roquet.wire.binary import FRONT, encode_fields, read_header
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.send_shapes import CODES, SendShapes, is_number

PROPERTIES = "UNIQ_KEY\x017F00000100002A9F0000000000000001\x02WAIT\x01true"
FIELDS = {
    "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1794732520853", "h": "0", "i": PROPERTIES, "j": "0",
    "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


def header_of(opaque: int = 7, code: int = 310, flag: int = 0, /, **more: str) -> bytes:
    fields = {name: value for name, value in (FIELDS | more).items() if value}
    ((_, header, _),) = Framer().feed(Command(code, fields, opaque=opaque, flag=flag, binary=True).encode())
    return header


def with_fields(fields: bytes) -> bytes:
    return FRONT.pack(310, 0, 409, 7, 0, 0, len(fields)) + fields


def check(shapes: SendShapes, header: bytes) -> bool:
    """Whether it was read; if so, `read_header` finds the same, and nothing that is not plain."""
    found = shapes.read(header)
    if found is None:
        return False
    code, opaque, flag, fields, _, _, _ = read_header(header)
    assert code in CODES
    assert all(fields.get(name) for name in "abcdefgh")
    assert is_number(fields["d"])
    assert is_number(fields.get("l", "0"))
    assert (fields.get("j", "0"), fields.get("m", "false")) == ("0", "false")
    numbers = [int(fields[name]) for name in "fgh"]
    assert [str(number) for number in numbers] == [fields[name].lstrip("0") or "0" for name in "fgh"]
    assert found == (opaque, flag, fields["b"], fields["e"], *numbers, fields.get("i", ""))
    return True


USUAL = [
    header_of(), header_of(-5, 320), header_of(9, 310, 2), header_of(e="12", g="1794732520999"), header_of(f="1", h="7"),
    header_of(b="größe", i="TAGS\x01größe"), header_of(l="16"), header_of(j="", k="", m=""), header_of(i=PROPERTIES * 50),
]  # fmt: skip
ODD = [
    header_of(7, 10), header_of(7, 11), header_of(d="x"), header_of(d="\u0661"), header_of(e=""), header_of(f="8"), header_of(f="00"),
    header_of(g="179473252085"), header_of(g="+179473252085"), header_of(h="-1"), header_of(i=""), header_of(j="1"), header_of(m="true"),
    header_of(l="x"), header_of(l="-1"), header_of(j="", k="", m="", n=""), header_of(Signature="abc"), header_of(x="y" * 2_000),
    header_of(a="g" * 2_000), header_of(i="x" * 70_000), header_of()[:-1], header_of()[:20], b"", header_of() + b"x",
    with_fields(encode_fields(FIELDS) + encode_fields({"b": "U"})), with_fields(encode_fields({"i": "x"}) + encode_fields(FIELDS)),
    with_fields(encode_fields(FIELDS) + bytes(6)), with_fields(bytes(6) + encode_fields(FIELDS)),
    with_fields(encode_fields(FIELDS) + b"\0\1\xff\0\0\0\1x"), with_fields(encode_fields(FIELDS).replace(b"UNIQ", b"\xff\xff\xff\xff")),
]  # fmt: skip


@pytest.mark.parametrize("header", USUAL)
def test_what_clients_send_is_read_the_first_time_and_the_second(header: bytes) -> None:
    shapes = SendShapes()
    assert check(shapes, header)
    assert check(shapes, header)


@pytest.mark.parametrize("header", ODD)
def test_what_is_odd_is_left_to_whoever_reads_it_properly(header: bytes) -> None:
    shapes = SendShapes()
    for known in USUAL:
        assert check(shapes, known)
    assert shapes.read(header) is None
    assert shapes.read(header) is None


def test_properties_that_say_they_are_longer_than_the_header_are_not_cut_short() -> None:
    shapes, header = SendShapes(), header_of()
    assert check(shapes, header)
    at = header.index(b"\0\1i") + 5
    assert shapes.read(header[:at] + b"\xff\xff" + header[at + 2 :]) is None


@given(data=st.data())
def test_a_spoiled_header_is_read_as_the_whole_of_it_would_be_or_not_at_all(data: st.DataObject) -> None:
    shapes = SendShapes()
    for known in USUAL:
        shapes.read(known)
    for _ in range(3):
        header = bytearray(data.draw(st.sampled_from(USUAL)))
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(header)))
            new = data.draw(
                st.one_of(st.binary(max_size=3), st.sampled_from([b"\0\1f\0\0\0\1", b"\0\1b\0\0\0\1U", b"\0\1i\0\0\0\1", bytes(6)]))
            )
            header[at : at + data.draw(st.integers(0, 4))] = new
        if data.draw(st.booleans()) and len(header) >= FRONT.size:
            header[FRONT.size - 4 : FRONT.size] = (len(header) - FRONT.size).to_bytes(4, "big")
        check(shapes, bytes(header))


@given(
    values=st.lists(st.tuples(st.sampled_from("abcdefghijklmn"), st.text(max_size=8) | st.sampled_from(["0", "4", "false"])), max_size=4)
)
def test_whatever_the_fields_say_is_found_as_it_stands_there(values: list[tuple[str, str]]) -> None:
    shapes = SendShapes()
    header = header_of(**dict(values))
    assert check(shapes, header) == check(shapes, header)


def test_what_is_known_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_shapes, "KNOWN_MAX", 10)
    shapes = SendShapes()
    for number in range(100):
        assert check(shapes, header_of(b=f"T{number}", g=str(1794732520853 + number), n=f"broker-{number}"))
        assert max(len(shapes._fronts), len(shapes._middles), len(shapes._backs)) <= 10
