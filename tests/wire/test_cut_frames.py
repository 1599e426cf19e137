"""Both forms of cut_frames give the same frames for the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.speedups import native
from roquet.wire.frame import cut_frames, distrust, encode_frame

FORMS = [pytest.param(cut_frames, id="python")] + ([pytest.param(native.cut_frames, id="compiled")] if native else [])
LIMIT = 1_000

whole = st.builds(encode_frame, st.integers(0, 1), st.binary(max_size=40), st.binary(max_size=40))
word = st.one_of(
    st.integers(0, 0xFFFFFFFF), st.integers(0, 64), st.integers(LIMIT - 4, LIMIT + 4), st.integers(0, 64).map((1 << 24).__or__)
)
odd = st.builds(lambda size, head, rest: size.to_bytes(4, "big") + head.to_bytes(4, "big") + rest, word, word, st.binary(max_size=80))


@pytest.mark.parametrize("cut", FORMS)
def test_frames_come_whole_and_the_rest_says_how_much_it_needs(cut: Any) -> None:
    data = encode_frame(0, b"{}", b"body") + encode_frame(1, b"", b"")
    assert cut(data, LIMIT) == ([(0, b"{}", b"body"), (1, b"", b"")], len(data), 8)
    assert cut(data + data[:10], LIMIT) == ([(0, b"{}", b"body"), (1, b"", b"")], len(data), 14)
    assert cut(data + data[:7], LIMIT) == ([(0, b"{}", b"body"), (1, b"", b"")], len(data), 8)
    assert cut(b"", LIMIT) == ([], 0, 8)


@pytest.mark.parametrize("cut", FORMS)
@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("00000003 00000000", "frame length 3, allowed are 4 to 1000"),
        ("ffffffff 00000000", "frame length 4294967295, allowed"),
        ("000003e9 00000000", "frame length 1001, allowed"),
        ("00000004 00000001", "bad header length 1 in a frame of 4"),
        ("00000004 00ffffff", "bad header length 16777215 in a frame of 4"),
        ("00000004 02000000", "unknown header form 2"),
        ("00000004 ff000000", "unknown header form 255"),
    ],
)
def test_a_stream_that_cannot_be_trusted_needs_nothing_and_says_why(cut: Any, data: str, why: str) -> None:
    before = encode_frame(0, b"{}")
    frames, at, need = cut(before + bytes.fromhex(data), LIMIT)
    assert (frames, at, need) == ([(0, b"{}", b"")], len(before), 0)
    assert why in str(distrust(before + bytes.fromhex(data), at, LIMIT))


@pytest.mark.skipif(native is None, reason="the extension is not built")
@given(st.lists(st.one_of(whole, odd), max_size=5).map(b"".join), st.integers(0, 200))
def test_both_forms_agree(data: bytes, cut_off: int) -> None:
    assert native is not None
    data = data[: max(0, len(data) - cut_off)]
    assert native.cut_frames(data, LIMIT) == cut_frames(data, LIMIT)
