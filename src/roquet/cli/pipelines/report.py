"""A report: a command that reads a place with Spark and answers in tables, or in JSON for programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from roquet.cli.options import Commands, command
from roquet.cli.pipeline import job_options, place_options


def add_report(
    commands: Commands,
    name: str,
    about: str,
    examples: str,
    notes: str,
    options: Callable[[argparse.ArgumentParser], None],
    answer: Callable[[argparse.Namespace], int],
    *,
    store: bool = True,
) -> None:
    """`options` adds the report's own, between those of the place and those of every job; `answer` gives the exit code.

    `store` False: it asks brokers what files do not tell.
    """
    parser = command(commands, name, about, examples)
    assert parser.epilog is not None
    parser.epilog += "\n" + notes.rstrip()
    place_options(parser, store=store)
    options(parser)
    job_options(parser)
    parser.set_defaults(run=answer)
