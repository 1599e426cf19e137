"""No deadline per example: the machine is shared, and what is slow now need not be slow later."""

import gc

from hypothesis import HealthCheck, settings

from tests.services import mariadb_server, postgresql_server, pytest_terminal_summary, redis_server

__all__ = ["mariadb_server", "postgresql_server", "pytest_terminal_summary", "redis_server"]
"""Of tests.services: real databases, and the line that says which could not be had."""

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_collection_finish() -> None:
    """Thousands of tests that wait for their turn are no garbage: the collector need not look at them again and again."""
    gc.freeze()
