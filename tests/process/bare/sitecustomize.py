"""Makes this Python poorer, as others are: on the PYTHONPATH of a program, it takes away what its system would not have.

`ROQUET_WITHOUT` names the system: macos or windows. The standard library keeps what it holds already; whoever asks from now on
does not find it.
"""

from __future__ import annotations

import asyncio
import asyncio.unix_events
import ctypes
import errno
import logging.handlers  # noqa: F401  (before its os is poor)
import os
import random  # noqa: F401
import shutil
import signal
import socket
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import threading
from typing import Any, NoReturn

MACOS = {
    "os": [
        "RWF_NOWAIT", "RWF_DSYNC", "RWF_SYNC", "RWF_HIPRI", "posix_fallocate", "posix_fadvise", "fdatasync", "memfd_create", "pidfd_open",
        "copy_file_range", "sched_getaffinity", "sched_setaffinity", "eventfd", "splice", "O_DIRECT", "O_TMPFILE",
    ],
    "modules": ["uvloop"],
}  # fmt: skip
WINDOWS = {
    "os": [
        *MACOS["os"], "pread", "pwrite", "preadv", "pwritev", "readv", "writev", "sendfile", "statvfs", "fstatvfs", "sysconf",
        "sysconf_names",
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_DSYNC", "SEEK_DATA", "SEEK_HOLE", "fork", "forkpty", "setsid",
        "killpg", "getuid", "geteuid", "getgid", "getpgid", "setpgid", "fchmod", "fchown", "chown", "mkfifo", "pipe2", "nice",
        "getpriority",
        "setpriority", "register_at_fork", "getloadavg", "lockf", "truncate", "sync",
    ],
    "socket": ["SO_REUSEPORT"],
    "signal": ["SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD", "SIGQUIT", "pthread_sigmask", "setitimer"],
    "modules": ["uvloop", "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog"],
}  # fmt: skip
PLACES = {"os": os, "socket": socket, "signal": signal}


def refuse(*arguments: Any, **named: Any) -> NoReturn:
    raise NotImplementedError


def be_poor(missing: dict[str, list[str]]) -> None:
    for place, names in missing.items():
        for name in names:
            if place == "modules":
                sys.modules[name] = None  # type: ignore[assignment]
            elif hasattr(PLACES[place], name):
                delattr(PLACES[place], name)


def be_windows() -> None:
    """Beyond names: what does something else there."""
    usage, open_file, rich = shutil.disk_usage, os.open, dict(vars(os))

    def disk_usage(path: str) -> Any:
        os.statvfs = rich["statvfs"]
        try:
            return usage(path)
        finally:
            del os.statvfs

    def no_directories(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        if os.path.isdir(path) and threading.current_thread().name != "shutil":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_file(path, flags, mode, **named)

    def no_library(name: str | None, *arguments: Any, **named: Any) -> Any:
        if name is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        return library(name, *arguments, **named)

    library = ctypes.CDLL
    shutil.disk_usage = disk_usage  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    os.open = no_directories
    ctypes.CDLL = ctypes.PyDLL = no_library  # type: ignore[assignment,misc]
    loop = asyncio.unix_events._UnixSelectorEventLoop
    loop.add_signal_handler = loop.remove_signal_handler = refuse  # type: ignore[method-assign,assignment]


SYSTEM = os.environ.get("ROQUET_WITHOUT", "")
if SYSTEM == "windows":
    be_windows()
if SYSTEM:
    be_poor({"macos": MACOS, "windows": WINDOWS}[SYSTEM])
