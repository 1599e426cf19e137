"""Spark needs a Java runtime: finding one, installing one where we may, and saying what to do where we may not.

python -m roquet.spark.java               which one is used
python -m roquet.spark.java --install     install one first if there is none (Debian and its kin, as root)
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from roquet.errors import ClientError

OLDEST = 17
"""The release of Java that Spark 4 wants at least."""
PACKAGES = ("openjdk-21-jre-headless", "openjdk-17-jre-headless", "default-jre-headless")
"""What Debian and Ubuntu call it; the first that their release has is taken."""
INSTALL_S = 900


class NoJava(ClientError):
    """Nothing here can run Spark."""


def find_java() -> tuple[str, int]:
    """(path of the java program, its release), from JAVA_HOME, else from PATH. Raises NoJava."""
    home = os.environ.get("JAVA_HOME", "").strip()
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        where = f"JAVA_HOME={home} holds no bin/java" if home else "there is no java on PATH"
        raise NoJava(f"Spark needs Java {OLDEST} or newer, and {where}. {advice()}")
    release = release_of(subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr)
    if release < OLDEST:
        raise NoJava(f"Spark needs Java {OLDEST} or newer, and {found} is release {release or 'unknown'}. {advice()}")
    return found, release


def release_of(text: str) -> int:
    """Out of what `java -version` prints: 17 of "17.0.15", 8 of "1.8.0_392"; 0 when it says nothing like that."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def advice() -> str:
    if os.environ.get("JAVA_HOME", "").strip():
        return "Point JAVA_HOME to one, or unset it to use the one on PATH."
    if shutil.which("apt-get"):
        return "Install one as root with: python -m roquet.spark.java --install; or point JAVA_HOME to one."
    return "Install one (any OpenJDK build will do), or point JAVA_HOME to one."


def may_install() -> bool:
    """Only where it is a matter of one command that cannot ask back, and nobody has chosen a Java already."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and not os.environ.get("JAVA_HOME", "").strip()


def ensure_java(say: Callable[[str], None] = lambda text: None) -> tuple[str, int]:
    """find_java, after installing one if there is none and we may. Raises NoJava."""
    try:
        return find_java()
    except NoJava:
        if not may_install():
            raise
    tried: list[str] = []
    apt_get("update")  # may fail for one source of many; what follows shows whether it matters
    for package in PACKAGES:
        say(f"installing {package} with apt-get")
        problem = apt_get("install", "-y", "--no-install-recommends", package)
        if not problem:
            return find_java()
        tried.append(f"{package}: {problem}")
    raise NoJava(f"Spark needs Java {OLDEST} or newer, and apt-get could not install one ({'; '.join(tried)}). Install one by hand.")


def apt_get(*arguments: str) -> str:
    """What went wrong, in a line; "" when nothing."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, timeout=INSTALL_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return f"not finished after {INSTALL_S} s"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit {done.returncode}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roquet.spark.java", description="Find the Java that Spark will run on.")
    parser.add_argument("--install", action="store_true", help="install one if there is none (needs root and apt-get)")
    try:
        found, release = ensure_java(lambda text: print(text, flush=True)) if parser.parse_args(arguments).install else find_java()
    except NoJava as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{found}, release {release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
