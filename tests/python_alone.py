"""Without the compiled step, in this process and in every program that the tests start.

`python -m pytest -p tests.python_alone tests/hostile`
"""

from __future__ import annotations

import os

import pytest

os.environ["ROQUET_SPEEDUPS"] = "0"  # not by Roquet's own name for it: nothing of Roquet may be loaded before


def pytest_configure() -> None:
    from roquet import speedups

    if speedups.native is not None:
        raise pytest.UsageError("the compiled step was loaded before it could be turned off")
