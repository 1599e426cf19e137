"""For every Spark that tests start, also in commands that are processes of their own: half the processor time."""

from __future__ import annotations

import os
from pathlib import Path

WORKERS = Path(__file__).resolve().parent / "spark" / "workers"
"""What Python processes of Spark read when they start."""
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:MetaspaceSize=256m"
"""They live for seconds: no time and no memory for a better compiler, and nobody doubts Spark's own classes,
nor looks for those that may go: that was a full collection each time that their room grew."""
LAUNCHER = {"SPARK_LAUNCHER_OPTS": SMALL_JVM}
"""Of the JVM that puts the command of each JVM together."""
CONF = {"SPARK_CONF_DIR": str(WORKERS.with_name("conf"))}
"""With settings of Spark that every session takes."""


ALL = LAUNCHER | CONF | {"SPARK_SUBMIT_OPTS": SMALL_JVM}


def use() -> None:
    os.environ.update(ALL)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(WORKERS) not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(WORKERS), *filter(None, path)])
