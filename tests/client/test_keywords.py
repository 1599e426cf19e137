"""What type checkers are told about keyword arguments is what the classes take."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from roquet.client import keywords
from roquet.client.core.lite_pull import LitePullSettings
from roquet.client.core.producer import ProducerSettings
from roquet.client.core.pull_consumer import PullConsumerSettings
from roquet.client.core.push_consumer import PushConsumerSettings
from roquet.client.member import CHOICES
from roquet.wire.compression import KINDS

KINDS_OF_MEMBER = [
    (keywords.ProducerKeywords, ProducerSettings),
    (keywords.PushConsumerKeywords, PushConsumerSettings),
    (keywords.LitePullKeywords, LitePullSettings),
    (keywords.MemberKeywords, PullConsumerSettings),
]


@pytest.mark.parametrize(("known", "settings"), KINDS_OF_MEMBER, ids=lambda kind: kind.__name__)
def test_each_setting_is_a_keyword_of_the_same_type(known: type, settings: Any) -> None:
    wanted = get_type_hints(known)
    fields = {
        name: hint for name, hint in get_type_hints(settings).items() if name in {field.name for field in dataclasses.fields(settings)}
    }
    assert wanted.keys() == fields.keys() | get_type_hints(keywords.MemberKeywords).keys()
    for name in fields.keys() - {"namespace"} - CHOICES.keys() - {"compression"}:
        assert wanted[name] == fields[name]


@pytest.mark.parametrize("name", CHOICES)
def test_a_setting_given_by_a_name_has_the_names_that_there_are(name: str) -> None:
    hint = get_type_hints(keywords.GroupKeywords)[name]
    (names,) = [get_args(one) for one in get_args(hint) if get_origin(one) is Literal]
    assert set(names) == CHOICES[name].keys()


def test_so_has_the_way_to_compress() -> None:
    assert set(get_args(get_type_hints(keywords.ProducerKeywords)["compression"])) == KINDS.keys()
