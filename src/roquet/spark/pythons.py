"""Which Python Spark runs beside the JVM. Unless told otherwise it is the first python3 on PATH, where Roquet may not be installed:
then format("rocketmq") is DATA_SOURCE_NOT_FOUND. Only what stands in the environment before the JVM starts counts."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from roquet.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("roquet.spark")

WORKERS, DRIVER = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"
ASK_S = 60
PROBE = "import sys; print('%d.%d' % sys.version_info[:2]); import roquet.spark, pyarrow"
"""The version comes first: it is told even where the import fails."""


class WrongPython(ClientError):
    """Spark would run a Python that cannot read topics. Says which, why, and what to set."""


def spark_runs() -> bool:
    """A JVM of this process is there, started by it or by spark-submit."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._gateway is not None


def use_this_python() -> None:
    """For a Spark that this process starts later. What the user has set stays."""
    if spark_runs() or os.environ.get(WORKERS, "").strip():
        return
    os.environ[WORKERS] = sys.executable
    os.environ.setdefault(DRIVER, sys.executable)


def tell_of_running_spark() -> None:
    """What `import roquet.spark` can still do when the session is there already: say in the log that it cannot read topics, and why."""
    module = sys.modules.get("pyspark.core.context")
    context: Any = None if module is None else module.SparkContext._active_spark_context
    if context is None or shutil.which(context.pythonExec) == sys.executable:
        return
    try:
        _need_python_of(context)
    except WrongPython as error:
        log.warning("%s", error)


def ready_python() -> None:
    """For a session that is made next: this Python, or what the user chose if that will do. Raises WrongPython."""
    use_this_python()
    if not spark_runs():
        need_python(os.environ[WORKERS])


def need_session_python(spark: SparkSession) -> None:
    """Asks the Python that this session runs. Raises WrongPython. Of Spark Connect nothing is known here: its server has its own."""
    context: Any = getattr(spark, "_sc", None)
    if context is not None:
        _need_python_of(context)


def _need_python_of(context: Any) -> None:
    # Sources are planned by this one beside the driver, on clusters too.
    need_python(context.pythonExec, path=context._jvm.java.lang.System.getenv("PYTHONPATH"))


def need_python(python: str, *, path: str | None = None) -> None:
    """Raises WrongPython when this program is not there, is another version, or has no Roquet. `path`: its PYTHONPATH, when known."""
    if python == sys.executable:
        return
    if shutil.which(python) is None:
        raise WrongPython(_told(python, "which is not there"))
    environment = os.environ if path is None else {**os.environ, "PYTHONPATH": path}
    ask = [python, "-c", PROBE]
    try:
        # Not in the current directory: modules that lie there are not seen by Spark's workers.
        done = subprocess.run(ask, capture_output=True, text=True, timeout=ASK_S, check=False, env=environment, cwd=os.sep)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WrongPython(_told(python, f"which did not run ({error})")) from None
    version, own = done.stdout.strip(), "{}.{}".format(*sys.version_info[:2])
    if version and version != own:
        raise WrongPython(_told(python, f"which is Python {version}, and this program runs {own}"))
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
        raise WrongPython(_told(python, f"which cannot import roquet ({why})"))


def _told(python: str, why: str) -> str:
    chosen = os.environ.get(WORKERS, "").strip()
    set_wrong = bool(chosen) and chosen != sys.executable
    way = f"unset {WORKERS}, or set it" if set_wrong else "set it"
    # What the user has set is not changed by the import.
    also = "" if set_wrong else ". Or write `import roquet.spark` above the line that makes the session, which does it"
    return (
        f"Spark runs its Python code with {python}, {why}. Before Spark starts, {way} to a Python that has roquet[spark], as this one: "
        f"{WORKERS}={sys.executable}{also}"
    )
