"""The shop of examples/shop under kill -9, a few quick rounds of `python -m soak.orders`: real services, a real broker, real databases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from soak.orders import BROKER, SERVICES, Shop, choose, faults_of, put
from sqlalchemy import create_engine, text

from tests.services import Server


def test_whatever_is_killed_no_order_is_lost_and_none_is_paid_twice(tmp_path: Path) -> None:
    with Shop(tmp_path, seed=1, rate=20) as shop:
        report = shop.run([BROKER, "orders", "payments", "relay", "payments", BROKER])
        assert report.faults == []
        assert report.kills == {BROKER: 2, "payments": 2, "orders": 1, "relay": 1}
        assert report.orders > 20
        assert report.published >= report.orders
        known = next(iter(shop.customers.answered))
        assert put(shop.port, known, '{"customer": "Ada", "cents": 1}') == 200, "it was placed before"
        for order_id, body in [("17", "{}"), ("17", "no JSON"), ("17", ""), ("17", '{"customer": "Ada", "cents": -1}'), ("a%20b", "{}")]:
            assert put(shop.port, order_id, body) == 400
        for order_id in ("A1", "%C3%A1", "a" * 41, "a1%20"):  # some databases would take them for another one's
            assert put(shop.port, order_id, '{"customer": "Ada", "cents": 1}') == 400


def test_the_shop_keeps_its_promise_in_postgresql_too(tmp_path: Path, postgresql_server: Server) -> None:
    with Shop(tmp_path, seed=2, rate=20, database=postgresql_server.url("psycopg", new_database(postgresql_server))) as shop:
        report = shop.run(["payments"])
    assert report.faults == []
    assert report.orders > 5


def new_database(server: Server) -> str:
    engine = create_engine(server.url("psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("DROP DATABASE IF EXISTS shop"))
        connection.execute(text("CREATE DATABASE shop"))
    engine.dispose()
    return "shop"


def test_a_payment_service_whose_guard_knows_no_order_again_is_found_out(tmp_path: Path) -> None:
    """Or the tests above show nothing."""
    with Shop(tmp_path, seed=3, rate=20, bug="pay-again") as shop:
        report = shop.run(["payments"])
    assert any("paid more than once" in fault for fault in report.faults), report.faults


ORDERS = {"a": 5, "b": 7}


@pytest.mark.parametrize(
    ("answered", "orders", "payments", "faults"),
    [
        (ORDERS, ORDERS, [("b", 7), ("a", 5)], []),
        (
            ORDERS,
            {"a": 5},
            [("a", 5)],
            ["1 order lost: answered, and not in the table of orders: b"],
        ),
        ({"a": 5}, ORDERS, [*ORDERS.items()], ["1 order in the table of orders, and never answered: b"]),
        ({**ORDERS, "b": 8}, ORDERS, [*ORDERS.items()], ["1 order in the table of orders with another price: b"]),
        (ORDERS, ORDERS, [("a", 5)], ["1 order never paid: b", "ordered were 12 cents, and paid 5"]),
        (ORDERS, ORDERS, [("a", 5), ("a", 0), ("b", 7)], ["1 order paid more than once: a"]),
        (ORDERS, ORDERS, [("a", 6), ("b", 7)], ["ordered were 12 cents, and paid 13"]),
        (ORDERS, ORDERS, [("a", 5), ("b", 7), ("c", 0)], ["1 order paid, and never ordered: c"]),
    ],
)
def test_the_count_says_what_is_wrong(
    answered: dict[str, int], orders: dict[str, int], payments: list[tuple[str, int]], faults: list[str]
) -> None:
    assert faults_of(answered, orders, payments) == faults


def test_each_part_is_killed_equally_often_and_the_seed_says_when() -> None:
    chosen = choose(200, Random(1))
    assert Counter(chosen) == dict.fromkeys((*SERVICES, BROKER), 50)
    assert chosen == choose(200, Random(1)) != choose(200, Random(2))
