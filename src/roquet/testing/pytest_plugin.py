"""Fixtures for pytest: a broker for each test that asks for one, its clock, and what was published.

    def test_a_reminder_comes_after_two_hours(roquet_broker, roquet_clock, published):
        asyncio.run(remind(roquet_broker.namesrv))
        assert not published.to("reminders")
        roquet_clock.advance(hours=2)
        assert published.bodies("reminders") == [b"pay"]

They are plain fixtures, so they serve plain tests, and async ones of whatever plugin runs those: then `await roquet_clock.advance(...)`.
pytest loads this in every run of whoever has Roquet installed; the broker is loaded by the first test that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from roquet.testing import Broker, Clock, Published


@pytest.fixture
def roquet_settings() -> Mapping[str, str]:
    """The settings of `roquet_broker`, under RocketMQ's keys. Define a fixture of this name to change them."""
    return {}


@pytest.fixture
def roquet_broker(roquet_settings: Mapping[str, str]) -> Iterator[Broker]:
    """A roquet.testing.Broker of this test's own, started. Give its `namesrv` to producers and consumers."""
    from roquet.testing import Broker

    with Broker(settings=roquet_settings) as broker:
        yield broker


@pytest.fixture
def roquet_clock(roquet_broker: Broker) -> Clock:
    """The clock of `roquet_broker` and its clients: it stands still until the test turns it."""
    return roquet_broker.clock


@pytest.fixture
def published(roquet_broker: Broker) -> Published:
    """What was published to the topics of `roquet_broker`."""
    return roquet_broker.published
