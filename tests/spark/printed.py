"""Snippets of documents on Spark, run as they are printed: only servers, topics and directories are the test's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.docs.snippets import PRINTED_ADDRESS
from tests.spark.conftest import Servers

STORES = ('"store"', '"./data/broker-0"')
FILES = re.compile(r'"([a-z-]+\.(?:checkpoint|parquet|seen))"')


class Printed:
    """Runs one snippet after another with the same names, as a reader would type them.

    `topics`: what each that is printed is called here.
    """

    def __init__(self, servers: Servers, directory: Path, topics: Mapping[str, str], **names: Any) -> None:
        self.names: dict[str, Any] = names
        self._directory = directory
        self._replaced = {PRINTED_ADDRESS: servers.namesrv}
        self._replaced |= dict.fromkeys(STORES, f'"{servers.store}"')
        self._replaced |= {f'"{printed}"': f'"{here}"' for printed, here in topics.items()}

    def run(self, snippet: str) -> None:
        for printed, here in self._replaced.items():
            snippet = snippet.replace(printed, here)
        exec(FILES.sub(rf'"{self._directory}/\1"', snippet), self.names)  # as it is printed is the test
