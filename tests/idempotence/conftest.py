"""The fixture `shop`: a store that the test is run with, every kind unless it says which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.idempotence.shops import KINDS, Shop, opened, url_of


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened(request.param, url_of(request.param, request.getfixturevalue, tmp_path)) as found:
        yield found
