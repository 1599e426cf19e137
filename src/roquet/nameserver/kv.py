"""The name server's KV configuration: namespace -> key -> value, and the file that keeps it.

The file is upstream's kvConfig.json, readable by Java: {"configTable":{"namespace":{"key":"value"}}}. Every change
replaces it whole (`store/documents.py`).
"""

from __future__ import annotations

import hashlib
from contextlib import closing

from roquet.errors import Damaged, Refused
from roquet.store.disk import Disk
from roquet.store.documents import Document
from roquet.wire.calls.brokers import KvConfig
from roquet.wire.codes import ResponseCode

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""Namespace of "broker:queues;broker:queues" by topic, given to brokers with their registration."""

NAME_SIZE_MAX = 1_024
VALUE_SIZE_MAX = 256 * 1024
ENTRIES_MAX = 50_000
FILE_SIZE_MAX = 8 * 1024 * 1024
"""Half a frame, so that a whole namespace always fits into an answer."""


class KvStore:
    """Changed by `put` and `delete` only; what they return from is on disk. A failed write leaves everything as it was."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Raises Damaged when neither the file nor its .bak can be read, though one of them is there."""
        self.path = path
        self._disk = disk
        self._document = Document(disk, path, size_max=4 * FILE_SIZE_MAX)
        loaded = self._document.load(KvConfig.decode)
        if loaded is None and self._document.warning:
            raise Damaged(self._document.warning)
        self._table = {} if loaded is None else loaded.config_table
        self._seen = self._digest()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of the values by key; None when nothing was ever put there."""
        values = self._table.get(namespace)
        return None if values is None else dict(values)

    def put(self, namespace: str, key: str, value: str) -> None:
        for what, text, limit in (("namespace", namespace, NAME_SIZE_MAX), ("key", key, NAME_SIZE_MAX), ("value", value, VALUE_SIZE_MAX)):
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > limit:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} of {size} bytes, limit is {limit}; keep larger things elsewhere")
        values = self._table.get(namespace, {})
        if key not in values and sum(map(len, self._table.values())) >= ENTRIES_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the KV table has {ENTRIES_MAX} entries, the limit; delete some first")
        if namespace in self._table and values.get(key) == value:
            return  # already so, and on disk
        self._replace({**self._table, namespace: {**values, key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """What is not there need not be deleted. An emptied namespace stays, as upstream's does."""
        values = self._table.get(namespace)
        if values is not None and key in values:
            self._replace({**self._table, namespace: {name: value for name, value in values.items() if name != key}})

    # The file

    def _replace(self, table: dict[str, dict[str, str]]) -> None:
        data = KvConfig(table).encode()
        size = len(data)
        if size > FILE_SIZE_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the KV table would have {size} bytes, limit is {FILE_SIZE_MAX}; delete some first")
        disk, directory = self._disk, self.path.rpartition("/")[0] or "."
        try:
            disk.make_dir(directory)
            release = disk.lock(directory)
        except OSError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the KV table stays as it was, {directory} cannot be written: {error}") from error
        try:
            if self._digest() != self._seen:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the KV table stays as it was: somebody else has written {self.path} since this name server read it. Give each name "
                    "server its own kvConfigPath, and restart this one",
                )
            self._document.save(data)
            self._seen = hashlib.sha256(data).digest()
        except OSError as error:
            self._seen = self._digest()  # as far as it came, it was we
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the KV table stays as it was, {self.path} cannot be written: {error}") from error
        finally:
            release()
        self._table = table

    def _digest(self) -> bytes:
        """Of what the file holds now; two name servers that share it would take each other's entries away."""
        try:
            with closing(self._disk.open(self.path)) as file:
                return hashlib.sha256(file.read(0, file.size())).digest()
        except OSError:
            return b""
