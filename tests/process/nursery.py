"""Starts `roquet` commands by forking a process that has imported everything already. A program, not a module of tests.

A start costs a second of imports on a busy core; a test that starts a broker fifty times would spend its life on them. The
child runs `roquet.cli.main.main` as `python -m roquet` does, with its output in a file, and is a process of its own.

    in:   {"argv": [...], "output": path}      out:   {"pid": n}      after its output was opened
          with "errors": a file of their own; "files": as if under `ulimit -n` of that; "env", "cwd": instead of ours
    in:   {"reap": pid}                        out:   {"status": n}      after the caller saw it end; negative: the signal
    end of input                               what still runs is killed
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from typing import Any

import roquet.admin
import roquet.cli.main
import roquet.client.producer
import roquet.client.push_consumer
import roquet.embed
import roquet.programs
import roquet.system
import roquet.wire.arrays


def start(wanted: dict[str, Any]) -> int:
    output = os.open(wanted["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    errors = os.open(wanted["errors"], os.O_WRONLY | os.O_APPEND) if wanted.get("errors") else os.dup(output)
    pid = os.fork()
    if pid:
        os.close(output)
        os.close(errors)
        return pid
    code = 70
    try:
        os.setsid()
        # Line by line, so that a test may read along; the end of our input is not the child's.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        if wanted.get("files") is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted["files"],) * 2)
        if wanted.get("env") is not None:
            os.environ.clear()
            os.environ.update(wanted["env"])
        if wanted.get("cwd") is not None:
            os.chdir(wanted["cwd"])
        code = roquet.cli.main.main(wanted["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        os._exit(code)


def serve() -> None:
    children: set[int] = set()
    for line in sys.stdin:
        wanted = json.loads(line)
        if "reap" in wanted:
            _, status = os.waitpid(wanted["reap"], 0)
            children.discard(wanted["reap"])
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            pid = start(wanted)
            children.add(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def import_the_rest() -> None:
    """What commands load at first use, so that no child has to: their options, the event loop, numpy."""
    roquet.cli.main.build_parser()
    roquet.system.fast_loop()
    roquet.wire.arrays.load()
    gc.freeze()


if __name__ == "__main__":
    import_the_rest()
    print("{}", flush=True)
    serve()
