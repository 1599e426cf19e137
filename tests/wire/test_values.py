"""Headers and bodies equal each other, and show themselves, as dataclasses do."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.pulls import PullHeader, PullResponseHeader


@dataclasses.dataclass
class Model:
    group_name: str
    consume_enable: bool = True


def test_equality_and_repr_are_those_of_a_dataclass() -> None:
    one, same, other = PullResponseHeader(0, 1, 2, 3), PullResponseHeader(0, 1, 2, 3), PullResponseHeader(0, 1, 2, 4)
    assert one == same
    assert one != other
    assert one != (0, 1, 2, 3, None)
    assert repr(one) == ("PullResponseHeader(suggest_which_broker_id=0, next_begin_offset=1, min_offset=2, max_offset=3, scan_count=None)")
    shown = repr(GroupConfig("g"))
    assert shown.startswith(repr(Model("g")).replace("Model", "GroupConfig")[:-1])
    assert GroupConfig("g") == GroupConfig("g")
    assert GroupConfig("g") != GroupConfig("h")


@pytest.mark.parametrize("value", [GroupConfig("g"), PullResponseHeader(0, 1, 2, 3)])
def test_they_are_no_keys(value: Any) -> None:
    with pytest.raises(TypeError):
        hash(value)
    assert PullHeader.__hash__ is None
