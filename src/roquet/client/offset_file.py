"""The file of a broadcasting consumer's offsets: upstream's place and format, replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = "~/.rocketmq_offsets"
SIZE_MAX = 64 * 1024 * 1024


class DiskOffsetFile:
    """<directory>/<client id>/<group>/offsets.json, with the one before it as offsets.json.bak."""

    def __init__(self, client_id: str, group: str, directory: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(directory or DIRECTORY).expanduser() / client_id / group / "offsets.json"

    def read(self) -> list[bytes]:
        found: list[bytes] = []
        for path in (self.path, self._beside(".bak")):
            try:
                if path.stat().st_size <= SIZE_MAX:
                    found.append(path.read_bytes())
            except FileNotFoundError:
                continue
        return found

    def replace(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._beside(".tmp")
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._beside(".bak"))
        os.replace(fresh, self.path)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
