"""Real clusters whose members are killed. `make clusters` runs these, and CI; `make test` does not: each needs many Java machines."""

from __future__ import annotations

from tests.spark.conftest import servers, start_servers

__all__ = ["servers", "start_servers"]
