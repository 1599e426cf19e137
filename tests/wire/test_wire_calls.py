"""The table of calls: one row a code, under the code's name."""

from __future__ import annotations

from roquet.broker.admin import NOT_YET
from roquet.nameserver.core import HANDLERS
from roquet.wire.calls.call import Call
from roquet.wire.calls.table import CALLS, NOUNS


def test_a_code_stands_once_and_under_its_own_name() -> None:
    rows = {(name, call.code) for noun in NOUNS for name, call in vars(noun).items() if isinstance(call, Call)}
    assert {name for name, _ in rows} == {code.name for _, code in rows}
    assert sorted(code for _, code in rows) == sorted(CALLS)


def test_whatever_a_name_server_answers_stands_in_the_table() -> None:
    assert HANDLERS.keys() - CALLS.keys() == set()


def test_what_is_not_answered_yet_does_not() -> None:
    assert NOT_YET.keys() & CALLS.keys() == set()
