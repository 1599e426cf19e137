"""--since and --until: a time, or so long ago."""

from __future__ import annotations

import argparse
import re
import time


def time_options(parser: argparse.ArgumentParser, what: str) -> None:
    """`what`: the beginning of both help texts, "stored"."""
    # argparse takes "-1h" for an option unless it looks like a number to it.
    parser._negative_number_matcher = re.compile(r"^-\d.*$")
    parser.add_argument("--since", metavar="TIME", default="", help=f"{what} then or later: -1h, '-10 minutes', 2026-01-31T12:00:00Z or ms")
    parser.add_argument("--until", metavar="TIME", default="", help=f"{what} before then")


def times_of(arguments: argparse.Namespace) -> tuple[int | None, int | None]:
    """--since and --until in ms since 1970. Raises BadOption, a sentence, for what is no time."""
    from roquet.spark.options import BadOption, read_options

    now_ms = round(time.time() * 1000)
    found: list[int | None] = []
    for name in ("since", "until"):
        text = getattr(arguments, name)
        try:
            edge = read_options({"path": ".", "subscribe": "any", "startingTimestamp": text}).starting
        except BadOption as error:
            raise BadOption(str(error).replace("startingTimestamp=", f"--{name} ")) from None
        found.append(None if edge is None else edge.time(now_ms))
    return found[0], found[1]


def text_of(time_ms: int | None) -> str:
    """As the source takes it."""
    return "" if time_ms is None else str(time_ms)
