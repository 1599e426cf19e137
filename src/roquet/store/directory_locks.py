"""Every directory that is written is locked: the store's root as upstream locks it, and the log's, which may be elsewhere."""

from __future__ import annotations

import errno
import logging
from contextlib import ExitStack

from roquet.errors import Damaged
from roquet.store.disk import Disk

log = logging.getLogger("roquet.store")


def lock_directories(disk: Disk, root: str, log_directory: str, held: ExitStack) -> None:
    """`held` gets what releases them. Raises Damaged when another broker has one, and those that were taken are held then."""
    for path, made, setting in ((f"{root}/lock", root, "storePathRootDir"), (log_directory, log_directory, "storePathCommitLog")):
        disk.make_dir(made)
        try:
            held.callback(disk.lock(path))
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF) and path is log_directory:
                log.warning("%s cannot be locked (%s): take care that no other broker uses it", path, error)
                continue
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise Damaged(f"{made} is in use by another broker: stop that one, or choose another {setting}") from None
