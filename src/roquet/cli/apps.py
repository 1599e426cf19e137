"""`roquet run`, `roquet docs`: apps of roquet.app, as processes, and as a document."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, command, credentials_of, key_options, number_of, positive_seconds, tls_of, tls_options
from roquet.cli.render import announce, emit, emit_json, note
from roquet.errors import BadSetting, RoquetError, error_text
from roquet.supervisor import BOOT_SUCCESS, NeverStarted, Patience, Program, Supervisor
from roquet.system import fast_loop, on_stop_signals

if TYPE_CHECKING:
    from roquet.app import App

log = logging.getLogger(__name__)

WORKERS_MAX = 1_000
STOP_S = 30.0
SPARE_S = 10.0
"""After handlers have had their time: progress is written, hooks run, the group is left."""


def add_commands(commands: Commands) -> None:
    run = command(
        commands,
        "run",
        "run an app (roquet.app) until Ctrl-C or SIGTERM",
        """
        roquet run shop:app
        roquet run shop.handlers:app --workers 4        four processes; one that dies is started again
        roquet run shop:app --reload                    started again when a source file changes
        roquet run shop:app -n 10.0.0.1:9876            other name servers than the app names
        """,
    )
    place_option(run)
    run.add_argument("-n", "--namesrv", metavar="HOST:PORT", help="name servers, separated by ';' (default: the app's, else $NAMESRV_ADDR)")
    run.add_argument(
        "--workers", type=number_of(int, 1, WORKERS_MAX, "a number of processes: 1 to 1000"), default=1, metavar="N",
        help="processes; they share the queues of each topic, so more than a topic has queues are idle (default: 1)",
    )  # fmt: skip
    run.add_argument("--reload", action="store_true", help="start again when a .py file below the directory changes; for development")
    run.add_argument("--reload-dir", action="append", metavar="DIR", help="watch this directory instead (may be repeated)")
    run.add_argument(
        "--stop-timeout", type=positive_seconds, default=STOP_S, metavar="SECONDS",
        help="how long a stop waits for handlers that run; their messages come again then (default: 30)",
    )  # fmt: skip
    key_options(run)
    tls_options(run)
    run.add_argument("-v", "--verbose", action="store_true", help="log more")
    run.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)  # of a parent that holds our standard input
    run.set_defaults(run=run_app, log_level=logging.INFO)

    docs = command(
        commands,
        "docs",
        "print the AsyncAPI 3 document of an app",
        """
        roquet docs shop:app                            YAML
        roquet docs shop:app --json
        """,
    )
    place_option(docs)
    docs.add_argument("--json", action="store_true", help="print JSON in place of YAML")
    docs.add_argument("-v", "--verbose", action="store_true", help="show where the app's module fails")
    docs.set_defaults(run=run_docs)


def place_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="MODULE:APP", help="the module as Python imports it, and the App in it (default: app)")


def loaded(arguments: argparse.Namespace) -> App:
    """Raises BadSetting, which is exit code 2, where the command line names no app."""
    from roquet.app.loading import AppFailed, NoApp, load

    try:
        return load(arguments.place)
    except NoApp as error:
        raise BadSetting(str(error)) from None
    except AppFailed as error:
        if arguments.verbose:
            logging.getLogger("roquet").error("the app cannot be loaded", exc_info=error.__cause__)
        raise


# -- roquet run


def run_app(arguments: argparse.Namespace) -> Any:
    if arguments.worker or (arguments.workers == 1 and not arguments.reload):
        return run_here(arguments)
    return run_workers(arguments)


def run_here(arguments: argparse.Namespace) -> int:
    """In this process. Returns when a signal has ended it."""
    from roquet.client.stopping import run_on

    app = loaded(arguments)
    adjust(app, arguments)
    if arguments.worker:
        threading.Thread(target=stop_with_parent, name="roquet-parent", daemon=True).start()
    try:
        run_on(fast_loop(), app, announcement(app))
    except RoquetError:
        raise
    except Exception as error:
        log.exception("! the app did not start, or did not end well")
        note(f"roquet: {arguments.place} failed: {error_text(error)}")
        return 1
    return 0


def adjust(app: App, arguments: argparse.Namespace) -> None:
    """What the command line says is stronger than what the app says."""
    app.close_wait_ms = int(arguments.stop_timeout * 1000)
    if arguments.namesrv:
        app.namesrv = arguments.namesrv
    credentials, tls = credentials_of(arguments), tls_of(arguments)
    if credentials is not None:
        app.connecting["credentials"] = credentials
    if tls is not None:
        app.connecting["tls"] = tls


def announcement(app: App) -> Any:
    """Started after the app: it says that the app runs."""
    from roquet.client.served import Served

    class Announcement(Served):
        stops_first = True

        async def start(self) -> None:
            groups = ", ".join(sorted({handler.group for handler in app.handlers})) or "none"
            announce(f"The app[{app.title}, process {os.getpid()}] {BOOT_SUCCESS}. handlers: {len(app.handlers)}, groups: {groups}")

        async def close(self) -> None: ...

        async def closed(self) -> None:
            await asyncio.Event().wait()

    return Announcement()


def stop_with_parent() -> None:
    """The end of our standard input is the parent's: however it died, we end as after its SIGTERM."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


# -- workers


class Stop:
    """Ctrl-C and SIGTERM: the first lets handlers finish, the second does not wait."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        on_stop_signals(self._signal)

    def _signal(self, number: signal.Signals) -> None:
        if self.event.is_set():
            note("roquet: not waiting any longer; what the handlers had comes again")
            os._exit(128 + number)  # the workers see it, and do not wait either
        self.event.set()
        note("roquet: stopping, handlers that run may finish (the same signal again does not wait)")


async def run_workers(arguments: argparse.Namespace) -> int:
    from roquet.app.watching import Watch

    stop = Stop().event
    programs = [Program(f"worker-{number}", worker_command(arguments)) for number in range(1, arguments.workers + 1)]
    patience = Patience(stop_deadline_ms=int((arguments.stop_timeout + SPARE_S) * 1000))
    if not arguments.reload:
        return 0 if await Supervisor(programs, say=announce, patience=patience).run(stop) else 1
    once = Patience(stop_deadline_ms=patience.stop_deadline_ms, attempts_before_first_boot=1)
    watch = Watch(arguments.reload_dir or ["."])
    while True:
        changing = asyncio.create_task(watch.change())
        over = asyncio.Event()
        ending = asyncio.create_task(at_first((stop.wait(), changing), over.set))
        clean = True
        try:
            clean = await Supervisor(programs, say=announce, patience=once).run(over)
        except NeverStarted as error:
            note(f"roquet: {error}\nroquet: waiting for a change of the source")
            await over.wait()
        ending.cancel()
        if stop.is_set():
            changing.cancel()
            return 0 if clean else 1
        announce(f"changed: {', '.join((await changing)[:5])}; starting again")


async def at_first(works: Iterable[Any], act: Callable[[], None]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        act()
    finally:
        tasks[0].cancel()


def worker_command(arguments: argparse.Namespace) -> list[str]:
    """The same options for one process. Secrets go through the environment, where others cannot read them."""
    # A source that changes within a second, and keeps its size, would be taken for its compiled form: so with --reload none is written.
    words = [sys.executable, "-uB" if arguments.reload else "-u", "-m", "roquet", "run", arguments.place, "--worker"]
    words += ["--stop-timeout", str(arguments.stop_timeout)]
    for name in ("namesrv", "access_key", "tools", "tls_ca", "tls_cert", "tls_key"):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name.replace('_', '-')}", value]
    words += [f"--{name.replace('_', '-')}" for name in ("tls", "tls_insecure", "verbose") if getattr(arguments, name)]
    if arguments.secret_key is not None:
        os.environ["ROQUET_SECRET_KEY"] = arguments.secret_key
    return words


# -- roquet docs


def run_docs(arguments: argparse.Namespace) -> int:
    from roquet.app.asyncapi import document, yaml_of

    found = document(loaded(arguments))
    if arguments.json:
        emit_json(found)
    else:
        emit(yaml_of(found).rstrip())
    return 0
