"""Where the JVM finds Spark, made so that the Pythons which it starts begin sooner.

Spark puts a zip with the sources of pyspark before everything else on their path. A zip keeps no byte code, so each of them compiles what
it imports: 0.6 s of processor time for every streaming query, and for every kind of worker that a session starts. The same package is
installed beside us, compiled. In a home that is like Spark's own, but has no zip, they find that one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roquet.spark.pythons import WORKERS, spark_runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = "SPARK_HOME"
ZIPPED = "python"
"""What the other home has not."""


class Home:
    """A home that was made, or none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def leave_to(self, spark: SparkSession) -> None:
        """The JVM reads its jars from here until it ends, and then removes it: links first, in the reverse order of this."""
        if self.path is not None:
            file: Any = spark.sparkContext._jvm.java.io.File  # type: ignore[union-attr]
            for each in (self.path, *self.path.iterdir()):
                file(str(each)).deleteOnExit()

    def remove(self) -> None:
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)


@contextlib.contextmanager
def light_home() -> Iterator[Home]:
    """A JVM that starts in here has it, if that is of use and possible. Only for one on this machine: others look for the zip."""
    home = Home(_made())
    if home.path is None:
        yield home
        return
    os.environ[HOME] = str(home.path)
    try:
        yield home
    except BaseException:
        home.remove()
        raise
    finally:
        del os.environ[HOME]


def _made() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    installed = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if installed is None or spark_runs() or HOME in os.environ or not (installed / ZIPPED / "lib" / "pyspark.zip").exists():
        return None
    # The workers must find the same package without the zip: the same Python, and an installed package.
    if os.environ.get(WORKERS) != sys.executable or importlib.util.find_spec("py4j") is None:
        return None
    if installed.parent != Path(sysconfig.get_path("purelib")):
        return None
    made = None
    try:
        made = Path(tempfile.mkdtemp(prefix="roquet-spark-"))
        for each in ("bin", "conf", "jars", "sbin"):
            if (installed / each).exists():
                (made / each).symlink_to(installed / each)
    except OSError:  # no room for it, or no links here
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        return None
    return made
