"""Clusters of Spark whose members are killed, and our brokers with them."""

from __future__ import annotations

from tests.spark.conftest import servers, start_servers

__all__ = ["servers", "start_servers"]
