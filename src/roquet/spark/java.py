"""Spark needs a Java runtime: finding one, and saying what to do when there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from roquet.errors import ClientError

NEWEST_SURE, OLDEST = 21, 17
"""Releases of Java that Spark 4 runs on; newer ones are tried."""


class NoJava(ClientError):
    """Nothing here can run Spark."""


def find_java() -> tuple[str, int]:
    """(path of the java program, its release), from JAVA_HOME, else from PATH. Raises NoJava."""
    home = os.environ.get("JAVA_HOME", "").strip()
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no java on PATH"
        raise NoJava(f"Spark needs Java {OLDEST} or newer, and there is {where}. {advice()}")
    release = release_of(subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr)
    if release < OLDEST:
        raise NoJava(f"Spark needs Java {OLDEST} or newer, {found} is release {release or 'unknown'}. {advice()}")
    return found, release


def release_of(text: str) -> int:
    """Out of what `java -version` prints: 17 of "17.0.15", 8 of "1.8.0_392"; 0 when it says nothing like that."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def advice() -> str:
    if shutil.which("apt-get"):
        return "Install one: apt-get install default-jre-headless, or point JAVA_HOME to one."
    return "Install one (any OpenJDK build will do), or point JAVA_HOME to one."
