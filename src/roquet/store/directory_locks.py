"""Every directory that is written is locked: the store's root as upstream locks it, and the log's, which may be elsewhere."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from roquet.errors import Damaged
from roquet.store.disk import Disk

log = logging.getLogger("roquet.store")


class DirectoryLocks:
    def __init__(self, disk: Disk, root: str, log_directory: str) -> None:
        self._disk = disk
        self._root = root
        self._log_directory = log_directory
        self._releases: list[Callable[[], None]] = []

    @property
    def held(self) -> bool:
        return bool(self._releases)

    def take(self) -> None:
        """Raises Damaged when another broker has one. Whoever catches what this raises releases those that were taken."""
        disk, root, directory = self._disk, self._root, self._log_directory
        for path, made, setting in ((f"{root}/lock", root, "storePathRootDir"), (directory, directory, "storePathCommitLog")):
            disk.make_dir(made)
            try:
                self._releases.append(disk.lock(path))
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF) and path is directory:
                    log.warning("%s cannot be locked (%s): take care that no other broker uses it", path, error)
                    continue
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise Damaged(f"{made} is in use by another broker: stop that one, or choose another {setting}") from None

    def release(self) -> None:
        while self._releases:
            self._releases.pop()()
