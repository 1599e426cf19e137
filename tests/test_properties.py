"""Java's properties text: read as Java reads it, changed without a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.properties import edited, parse_properties, property_line

TEXT = r"""# the broker of the orders
brokerName = broker-a
! another comment
namesrvAddr: 10.0.0.1:9876;\
   10.0.0.2:9876
  deleteWhen 04
path=C:\\data\\x
word=\u00e9t\u00e9\ttab
empty
listenPort=1
listenPort=2
"""


def test_a_file_is_read_as_java_reads_it() -> None:
    assert parse_properties(TEXT) == {
        "brokerName": "broker-a",
        "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876",
        "deleteWhen": "04",
        "path": r"C:\data\x",
        "word": "été\ttab",
        "empty": "",
        "listenPort": "2",
    }


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\r\nb=2\r", {"a": "1", "b": "2"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("# no line goes on \\\na=1", {"a": "1"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=x\u2028b=y", {"a": "x\u2028b=y"}),
        ("a=\\q\\u12", {"a": "qu12"}),
        ("=1", {"": "1"}),
        ("", {}),
    ],
)
def test_odd_lines(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


def test_a_change_keeps_comments_order_and_all_other_lines() -> None:
    after = edited(TEXT, {"namesrvAddr": "10.0.0.3:9876", "listenPort": "10911", "fileReservedTime": "48"})
    assert after == TEXT.replace("namesrvAddr: 10.0.0.1:9876;\\\n   10.0.0.2:9876\n", "namesrvAddr=10.0.0.3:9876\n").replace(
        "listenPort=2\n", "listenPort=10911\nfileReservedTime=48\n"
    )


def test_a_last_line_without_an_end_gets_one() -> None:
    assert edited("a=1", {"b": "2"}) == "a=1\nb=2\n"


@pytest.mark.parametrize("text", ["a=1\\", "a=1\\\n", "a=1\\\r\n"])
def test_a_last_line_that_would_go_on_does_not_swallow_what_is_added(text: str) -> None:
    assert parse_properties(edited(text, {"b": "2"})) == {"a": "1", "b": "2"}


def test_a_value_cannot_smuggle_in_a_line() -> None:
    assert property_line("a", "1\nlistenPort=9") == "a=1\\u000alistenPort=9\n"


@given(st.text(), st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_written_is_read_again_and_nothing_else_changes(text: str, pairs: dict[str, str]) -> None:
    plain = {key: value.rstrip() for key, value in pairs.items()}
    before, after = parse_properties(text), parse_properties(edited(text, plain))
    assert after == before | plain
