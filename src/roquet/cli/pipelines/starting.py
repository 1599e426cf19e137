"""Spark for a command: a spinner while it starts, and no more of its log than was asked for."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = "|/-\\"
TURN_S = 0.1


def start(name: str, arguments: argparse.Namespace) -> SparkSession:
    """The session of `roquet pipeline NAME`. Whatever can be wrong with the command line is told before this: it takes seconds."""
    from roquet.spark.session import session

    if not arguments.verbose:
        # Py4J writes the traceback of a Ctrl-C to the root logger; the person who pressed it knows.
        logging.getLogger().addFilter(not_of_py4j)
    with spinner("starting Spark"):
        spark = session(f"roquet {name}", arguments.master, log_level="WARN" if arguments.verbose else "OFF")
    if not arguments.verbose:
        from pyspark.logger import PySparkLogger

        # They print an error that is raised as well, with a hundred lines of Java.
        for one in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(one).setLevel(logging.CRITICAL)
    return spark


def not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextlib.contextmanager
def spinner(label: str) -> Iterator[None]:
    """On a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    # Its own way to the terminal: what stands for standard error changes while the JVM starts.
    terminal, done = os.dup(sys.stderr.fileno()), threading.Event()

    def turn() -> None:
        began, number = time.monotonic(), 0
        with contextlib.suppress(OSError):
            while not done.wait(TURN_S):
                number += 1
                os.write(terminal, f"\r\x1b[K{FRAMES[number % len(FRAMES)]} {label}, {time.monotonic() - began:.0f} s".encode())
            os.write(terminal, b"\r\x1b[K")

    thread = threading.Thread(target=turn, name="spinner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.close(terminal)
