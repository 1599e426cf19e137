"""A report: a command that reads a place with Spark and answers in tables, or in JSON for programs."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
from collections.abc import Callable, Iterator

from roquet.cli.options import Commands, command
from roquet.cli.pipeline import job_options, place_options
from roquet.errors import ClientError

log = logging.getLogger(__name__)


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
    parser.set_defaults(run=in_one_sentence()(answer))


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """What Spark raises in here becomes one sentence; the whole of it shows with -v."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):  # not imported for this: it may not be installed
            raise
        log.debug("Spark failed", exc_info=True)
        raise ClientError(sentence(str(error))) from error


def sentence(text: str) -> str:
    """Of what went wrong in a task, our own error if it is one; else the first line, which says most."""
    ours = re.findall(r"^(?:roquet\.[\w.]+): (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ours[-1] if ours else lines[0] if lines else "Spark failed and did not say why; try again with -v"
