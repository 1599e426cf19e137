"""The tour and the demo start Spark."""

from __future__ import annotations

from tests import small_jvm

small_jvm.use()
