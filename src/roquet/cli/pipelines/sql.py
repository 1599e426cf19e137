"""`roquet pipeline sql`: one statement, a file of them, or a prompt."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, command, pair, positive
from roquet.cli.pipeline import job_options, place_of, place_options, sentence
from roquet.cli.pipelines.rows import ms
from roquet.cli.pipelines.starting import start
from roquet.cli.render import counted, emit, emit_json, note, printable, table
from roquet.errors import RoquetError

if TYPE_CHECKING:
    from roquet.spark.pipelines.sql import Topics

SHOWN_MAX = 1_000
CELL_MAX = 60
PROMPT, MORE = "roquet> ", "   ...> "
HELP = """\
Statements end with ; and may take several lines. Every topic is a table; `quote` names with other letters than a-z, 0-9, _.
Columns: see `describe TOPIC;`. Besides, text is the body as UTF-8, json the body parsed (json.some_field).
  show topics;      what can be queried
  help;  quit;      this; leave (or Ctrl-D)"""


def add_command(commands: Commands) -> None:
    parser = command(
        commands,
        "sql",
        "query topics with Spark SQL, once or at a prompt",
        """
        roquet pipeline sql
        roquet pipeline sql "select tags, count(*) from orders where store_time > now() - interval 1 hour group by tags"
        roquet pipeline sql --store ./data/broker-0 "select json.customer, sum(json.amount) from orders group by 1"
        roquet pipeline sql --schema "orders=customer string, amount double" --json "select json.* from orders limit 10"   an array of rows
        """,
    )
    parser.add_argument("statement", nargs="*", help="one or more statements; without, a prompt (or standard input)")
    place_options(parser)
    parser.add_argument("--archive", metavar="DIR", default=None, help="query an archive (roquet pipeline archive) instead")
    parser.add_argument(
        "--schema", metavar="TOPIC=DDL", type=pair, action="append", default=[], help="of the JSON bodies of a topic; else it is inferred"
    )
    parser.add_argument("--limit", type=positive, default=SHOWN_MAX, metavar="ROWS", help=f"rows shown at most (default: {SHOWN_MAX:,})")
    job_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines.sql import Topics, names_in, need_tables, use_pushdown

    interactive = not arguments.statement and sys.stdin.isatty()
    where = {"archive": arguments.archive} if arguments.archive else place_of(arguments)
    names = names_in(where)
    given = statements(arguments.statement, interactive)
    if not interactive:
        given = iter(need_tables(given, names))
    spark = start("sql", arguments)
    use_pushdown(spark)
    topics = Topics(spark, where, dict(arguments.schema), pushdown=True)
    if interactive:
        note(f"{counted(len(names), 'topic')}; help; says more, quit; leaves")
    document: list[dict[str, Any]] | None = [] if arguments.json and not interactive else None
    code = answer_all(topics, given, arguments, interactive, document)
    if document is not None and code == 0:
        emit_json(document)
    return code


def answer_all(
    topics: Topics, given: Iterable[str], arguments: argparse.Namespace, interactive: bool, document: list[dict[str, Any]] | None
) -> int:
    failed = 0
    for statement in given:
        word = statement.strip().lower()
        if word in ("quit", "exit", "\\q"):
            break
        if word == "help":
            emit(HELP)
        elif word:
            failed += not answer(topics, statement, arguments, document)
            if failed and not interactive:
                return 1
    return 0


def statements(given: list[str], interactive: bool) -> Iterator[str]:
    """One after another, without their semicolons."""
    if given:
        for text in given:
            yield from split(text)
        return
    if not interactive:
        yield from split(sys.stdin.read())
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history at the prompt)
    held = ""
    while True:
        try:
            held += input(MORE if held else PROMPT) + "\n"
        except EOFError:
            return
        except KeyboardInterrupt:
            held = ""
            emit()
            continue
        if held.strip().lower() in ("quit", "exit", "help", "\\q"):
            held += ";"
        if ";" in held:
            *whole, held = split(held, keep_last=True)
            held = held if held.strip() else ""
            yield from whole


def split(text: str, *, keep_last: bool = False) -> list[str]:
    """At semicolons that stand outside quotes."""
    parts, quote, start = [], "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter == ";":
            parts.append(text[start:at])
            start = at + 1
    last = text[start:]
    return [*parts, last] if keep_last or last.strip() else parts


def answer(topics: Topics, statement: str, arguments: argparse.Namespace, document: list[dict[str, Any]] | None = None) -> bool:
    """Run one and show it; False when it failed and the reason was said. With --json its rows go into the document, if there is one."""
    from pyspark.errors import PySparkException

    try:
        if statement.split() and [word.lower() for word in statement.split()] == ["show", "topics"]:
            names, rows, more = ["topic"], [[name] for name in topics.names()], False
        else:
            frame = topics.run(statement)
            names = frame.columns
            found = frame.limit(arguments.limit + 1).collect() if names else []
            rows, more = [list(row) for row in found[: arguments.limit]], len(found) > arguments.limit
    except (PySparkException, RoquetError) as error:
        note(f"roquet: {first_sentence(error)}")
        return False
    if arguments.json:
        objects = [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in rows]
        if document is None:
            emit_json(objects)
        else:
            document.extend(objects)
    elif names:
        emit(table(names, [[cell(value) for value in row] for row in rows]))
    if more or (names and not arguments.json):
        note(counted(len(rows), "row") + (f", and more: --limit {arguments.limit * 10}" if more else ""))
    return True


def first_sentence(error: Exception) -> str:
    """Spark's errors carry the whole plan; the first lines say what is wrong. Of a column that is not there, which there are."""
    from pyspark.errors import PySparkException

    from roquet.spark.columns import no_column
    from roquet.spark.pipelines.sql import JSON, TEXT

    if isinstance(error, PySparkException) and str(error.getCondition()).startswith("UNRESOLVED_COLUMN"):
        name = str((error.getMessageParameters() or {}).get("objectName", "")).replace("`", "")
        if name:
            return f"{no_column('the statement', name)}; besides {TEXT} and {JSON}, the body as text and parsed"
    if isinstance(error, PySparkException) and "\nroquet." in str(error):
        return sentence(str(error))
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith(("'", "+-", ":-"))]
    return "\n  ".join(lines[:3]) or type(error).__name__


def cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime.datetime):
        value = value.isoformat(sep=" ", timespec="milliseconds")
    text = printable(str(plain(value)))
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"


def plain(value: Any) -> Any:
    """For JSON: times as ms since 1970, bytes as text, rows and maps as objects."""
    if isinstance(value, datetime.datetime):
        return ms(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if hasattr(value, "asDict"):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
