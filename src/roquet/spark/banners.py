"""What the JVM and Spark's worker processes write to standard error at every start and end, and what says nothing is left out.

The JVM writes most of it before a setting could reach it, so its standard error is a pipe that is read here for as long as it runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator

BANNERS = re.compile(
    rb"WARNING: (Using incubator modules|package jdk\.|A (restricted|terminally)|.* has been called by|Use --enable-native|Please consider)"
    rb"|Using Spark's default log4j profile|Setting default log level to|To adjust logging level use sc\.setLogLevel"
    rb"|.*(NativeCodeLoader|Unable to load native-hadoop|SparkStringUtils: Truncated)|Picked up (_JAVA|JAVA_TOOL|JDK_JAVA)_OPTIONS"
)
TRACEBACK = b"Traceback (most recent call last):"
FROM_DAEMON = re.compile(rb'\s+File ".*pyspark/daemon\.py"')


@contextlib.contextmanager
def without_banners() -> Iterator[None]:
    """A JVM that starts in here has a filtered standard error."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=_forward, args=(reader, kept), name="roquet-spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 2)


def _forward(reader: int, kept: int) -> None:
    with open(reader, "rb") as lines, contextlib.suppress(OSError):  # nobody reads it any more
        for text in telling(lines):
            os.write(kept, text)
    os.close(kept)


def telling(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Those that tell something. A worker that ends while the JVM has gone already is no news, and its traceback is none."""
    held: list[bytes] = []
    for line in lines:
        if held:
            held.append(line)
            if line[:1].isspace():
                continue
            places = [one for one in held if one.lstrip().startswith(b"File ")]
            if not (line.startswith(b"BrokenPipeError") and places and all(FROM_DAEMON.match(one) for one in places)):
                yield b"".join(held)
            held = []
        elif line.startswith(TRACEBACK):
            held.append(line)
        elif not BANNERS.match(line):
            yield line
    yield b"".join(held)
