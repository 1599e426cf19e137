"""Joins the commands, and turns every expected failure into a sentence and an exit code.

Exit codes: 0 it worked; 1 it did not, and standard error says why and what to do; 2 the command line itself is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from roquet import __version__
from roquet.cli.render import note, printable
from roquet.errors import BadSetting, CallTimeout, ConnectFailed, NoRoute, RoquetError
from roquet.system import fast_loop

COMMANDS = {
    "servers": ("up", "namesrv", "broker"), "topics": ("topic",), "groups": ("group",), "send": ("send", "cancel"), "consume": ("consume",),
    "query": ("query",), "trace": ("trace",), "dead_letters": ("dead-letters",), "outbox": ("outbox",), "status": ("status",),
    "config": ("config",), "cluster": ("cluster",), "ha": ("ha",), "acl": ("acl", "audit"), "pipeline": ("pipeline",),
    "completion": ("completion",), "apps": ("run", "docs"),
}  # fmt: skip
"""Modules, in the order of --help, and the commands that each has. One command needs no other module: to make the options of all takes
longer than many a command itself."""

DESCRIPTION = "Roquet: a Python implementation of Apache RocketMQ 4.9. Servers, client and administration in one command."
EXAMPLES = """\
examples:
  roquet up                                   a name server and a broker, data in ./data, until Ctrl-C
  roquet send greetings "hello"               send one message
  roquet consume greetings --from first       show messages as they come
  roquet status                               the cluster at a glance, with its warnings

The name server is -n/--namesrv, else $NAMESRV_ADDR, else 127.0.0.1:9876.
Exit codes: 0 it worked, 1 it failed (standard error says why), 2 wrong usage.
"""


def build_parser(first: str = "") -> argparse.ArgumentParser:
    """`first`: the first word of the command line, when it is known."""
    parser = argparse.ArgumentParser(
        prog="roquet", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"roquet {__version__}")
    parser.set_defaults(run=lambda arguments: parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in [module for module, names in COMMANDS.items() if first in names] or COMMANDS:
        importlib.import_module(f"roquet.cli.{module}").add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    try:
        try:
            return told(argv)
        finally:
            sys.stdout.flush()  # --help leaves by SystemExit
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def told(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser(words[0] if words else "").parse_args(words)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(
        level=logging.DEBUG if getattr(arguments, "verbose", False) else getattr(arguments, "log_level", logging.WARNING),
        handlers=[handler],
    )
    try:
        result = arguments.run(arguments)
        return int((run(result) if inspect.iscoroutine(result) else result) or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except BadSetting as error:
        note(f"roquet: {error}")
        return 2
    except (RoquetError, OSError) as error:
        note(f"roquet: {explain(error)}")
        return 1


class OneLine(logging.Formatter):
    """Names from outside are in log lines: none of them may begin another line, or drive a terminal. Tracebacks keep theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.message.isprintable():
            record.message = printable(record.message)
        return super().formatMessage(record)


def run(work: Coroutine[Any, Any, int | None]) -> int | None:
    """On uvloop where it is installed; everything works without it."""
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        return runner.run(work)


def explain(error: Exception) -> str:
    """The error's own sentence, and what a person at a shell can do about it."""
    text = str(error) or type(error).__name__
    if isinstance(error, ConnectFailed):
        return f"{text}\n  Start one with: roquet up\n  or name another one: -n HOST:PORT (or NAMESRV_ADDR=HOST:PORT)"
    if isinstance(error, CallTimeout):
        return f"{text}\n  Allow more time with: --timeout SECONDS"
    if type(error) is NoRoute:
        return f"{text}\n  What exists: roquet topic list\n  Create it: roquet topic create NAME"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"{text}\n  Something listens there already, perhaps another Roquet or RocketMQ."
            "\n  Choose other ports (roquet up --namesrv-port 0 --broker-port 0 takes free ones; listenPort in a file)."
        )
    return text
