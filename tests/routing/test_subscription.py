"""Tag expressions, against what Apache's FilterAPI makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roquet.routing.subscription import EXPRESSION_LENGTH_MAX, BadExpression, TagFilter, sql_subscription, subscribe
from roquet.wire.calls.members import SubscriptionData
from roquet.wire.hashing import java_hash

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "java-4.9.8.json").read_text())["subscription"]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: repr(case["expression"]))
def test_an_expression_means_what_it_means_to_apache_s_client(case: dict[str, Any]) -> None:
    expected = case["expect"]
    if expected is None:
        with pytest.raises(BadExpression, match="names no tag"):
            subscribe("T", case["expression"])
        return
    made = subscribe("T", case["expression"], 17)
    assert (made.topic, made.sub_string, made.sub_version, made.expression_type) == ("T", expected["sub"], 17, "TAG")
    assert made.tags_set == set(expected["tags"])
    assert made.code_set == set(expected["codes"])


def test_none_means_all_as_the_wire_may_leave_it_out() -> None:
    assert subscribe("T", None).sub_string == "*"


def test_an_endless_expression_is_refused() -> None:
    with pytest.raises(BadExpression, match=f"limit is {EXPRESSION_LENGTH_MAX}"):
        subscribe("T", "a" * (EXPRESSION_LENGTH_MAX + 1))


def test_the_broker_judges_by_hash_and_the_client_by_the_tag() -> None:
    judge = TagFilter.of(subscribe("T", "Aa || paid"))
    assert java_hash("Aa") == java_hash("BB")
    assert judge.takes_hash(java_hash("BB"))
    assert not judge.takes_tag("BB")
    assert judge.takes_tag("Aa")
    assert not judge.takes_hash(java_hash("other"))
    assert not judge.takes_tag(None)
    assert not judge.takes_hash(0)
    assert repr(judge) == "<TagFilter Aa || paid>"


def test_a_negative_hash_is_found_in_both_widths() -> None:
    tag = "polygenelubricants!"
    assert java_hash(tag) < 0
    judge = TagFilter.of(subscribe("T", tag))
    assert judge.takes_hash(java_hash(tag))
    assert judge.takes_hash(java_hash(tag) & 0xFFFFFFFF)


@pytest.mark.parametrize(
    "subscription",
    [
        subscribe("T", "*"),
        subscribe("T", ""),
        sql_subscription("T", "a > 5"),
        SubscriptionData("T", "x", {"x"}, {120}, class_filter_mode=True),
    ],
)
def test_what_is_no_list_of_tags_passes(subscription: SubscriptionData) -> None:
    judge = TagFilter.of(subscription)
    assert judge.takes_hash(0)
    assert judge.takes_hash(5)
    assert judge.takes_tag(None)
    assert judge.takes_tag("any")
    assert repr(TagFilter(True)) == "<TagFilter *>"


def test_an_expression_of_blanks_lets_nothing_through_the_broker() -> None:
    judge = TagFilter.of(subscribe("T", " || "))
    assert not judge.takes_hash(0)
    assert not judge.takes_hash(97)


def test_the_broker_goes_by_the_codes_it_was_sent() -> None:
    assert TagFilter.of(SubscriptionData("T", "a", {"a"}, {1, 2})).takes_hash(2)


def test_an_empty_sql_expression_is_refused() -> None:
    with pytest.raises(BadExpression, match="empty"):
        sql_subscription("T", " ")
