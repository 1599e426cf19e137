from __future__ import annotations

import pytest
from chaos.links import Trouble, both_ways, by_addresses, inward, outward

A, B, C = b"\x0a\x4d\x00\x01", b"\x0a\x4d\x00\x02", b"\x0a\x4d\x00\x03"
PACKED = {"a": A, "b": B, "c": C}
EVERYONE = ["a", "b", "c"]
CUT = Trouble(cut=True)


def test_a_cut_machine_reaches_nobody_and_nobody_reaches_it() -> None:
    assert by_addresses(both_ways("a", EVERYONE, CUT), PACKED) == {A + B: CUT, A + C: CUT, B + A: CUT, C + A: CUT}


def test_a_cut_of_one_direction_leaves_the_other() -> None:
    assert by_addresses(outward("a", ["b"], CUT), PACKED) == {A + B: CUT}
    assert by_addresses(inward("a", ["b"], CUT), PACKED) == {B + A: CUT}


def test_troubles_of_one_direction_add_up() -> None:
    table = by_addresses(
        [*outward("a", ["b"], Trouble(loss=0.5, delay_s=0.1)), *outward("a", ["b"], Trouble(loss=0.5, delay_s=0.2))], PACKED
    )
    assert table[A + B].loss == pytest.approx(0.75)
    assert table[A + B].delay_s == pytest.approx(0.3)
    assert not table[A + B].cut
