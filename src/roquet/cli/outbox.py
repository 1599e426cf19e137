"""`roquet outbox`: what waits in an outbox, trying it again, giving it up, and a relay."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roquet.cli.options import DRY_RUN, YES, Commands, cluster_options, command, confirmed, connection_of, noun, positive
from roquet.cli.render import TableColumn, announce, answer, column_json, column_table, counted, duration, emit, emit_json, moment, note
from roquet.errors import BadSetting, ClientError

if TYPE_CHECKING:
    from roquet.outbox import Outbox, Row
    from roquet.outbox.database import Database
    from roquet.outbox.rows import Choice

VARIABLE = "ROQUET_DATABASE"
SHOWN_MAX = 20
NO_URL = (
    "this is no URL of a database; expected is dialect+driver://user:password@host:port/name, where a password's @ is written %40,"
    " its : %3A and its / %2F"
)
NO_OPTION = "the driver does not take what is behind the ? of the URL"


def add_commands(commands: Commands) -> None:
    examples = """
        roquet outbox list --database sqlite:///shop.db
        roquet outbox retry --failing --database postgresql+psycopg://shop@localhost/shop
        """
    nouns = noun(commands, "outbox", "messages in a database that are not published yet (needs roquet[sql])", examples)

    listing = command(
        nouns,
        "list",
        "show what waits in an outbox, oldest first, and why",
        """
        roquet outbox list --database sqlite:///shop.db
        roquet outbox list --failing --key order-17 --json
        roquet outbox list --sent --count 100             what was published and is still kept
        """,
    )
    choice_options(listing)
    listing.add_argument("--sent", action="store_true", help="those that were published, instead of those that wait")
    listing.add_argument("--count", type=positive, default=SHOWN_MAX, metavar="N", help=f"how many to show (default: {SHOWN_MAX})")
    database_options(listing)
    listing.set_defaults(run=list_rows)

    again = command(
        nouns,
        "retry",
        "let relays try messages again now, and not after their pause",
        """
        roquet outbox retry 17 18 --database sqlite:///shop.db
        roquet outbox retry --failing                     all that failed; $ROQUET_DATABASE says where
        roquet outbox retry --topic orders --dry-run
        """,
    )
    drop = command(
        nouns,
        "drop",
        "delete messages that wait: they will never be published",
        """
        roquet outbox drop 17 --database sqlite:///shop.db --dry-run
        roquet outbox drop 17 --yes                       what waited behind it goes on
        """,
    )
    for parser, run in ((again, run_retry), (drop, run_drop)):
        parser.add_argument("ids", nargs="*", type=positive, metavar="ID", help="the rows' numbers, which list shows")
        parser.add_argument("--all", action="store_true", help="all that wait")
        choice_options(parser)
        for names, about in (DRY_RUN, *((YES,) if parser is drop else ())):
            parser.add_argument(*names, **about)
        database_options(parser)
        parser.set_defaults(run=run)

    relay = command(
        nouns,
        "relay",
        "publish what is committed in an outbox, until Ctrl-C; several may run",
        """
        roquet outbox relay --database postgresql+psycopg://shop@localhost/shop
        roquet outbox relay --database sqlite:///shop.db --create
        """,
    )
    relay.add_argument("--group", default="roquet_outbox", metavar="NAME", help="the producer group (default: roquet_outbox)")
    relay.add_argument("--create", action="store_true", help="make the tables first if they are not there")
    relay.add_argument("--alarm-after", type=positive, default=10, metavar="N", help="log an error after so many failures (default: 10)")
    database_options(relay, json=False)
    cluster_options(relay)
    relay.set_defaults(run=run_relay)


def choice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", metavar="KEY", help="only messages with this key")
    parser.add_argument("--topic", metavar="TOPIC", help="only messages to this topic")
    parser.add_argument("--failing", action="store_true", help="only messages that failed at least once")


def database_options(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    parser.add_argument(
        "--database", metavar="URL", help=f"as SQLAlchemy writes it (default: ${VARIABLE}; better there, if it holds a password)"
    )
    parser.add_argument("--table", default="roquet_outbox", metavar="NAME", help="the outbox's table (default: roquet_outbox)")
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON for programs")
        parser.add_argument("-v", "--verbose", action="store_true", help="log more to standard error")


@asynccontextmanager
async def opened(arguments: argparse.Namespace) -> AsyncIterator[tuple[Outbox, Database]]:
    """The outbox and its database. Whatever goes wrong with that becomes a sentence."""
    url = arguments.database or os.environ.get(VARIABLE, "").strip()
    if not url:
        raise BadSetting(f"which database? Give --database URL, or set {VARIABLE}, as in sqlite:///shop.db")
    try:
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        from roquet.outbox import Outbox
        from roquet.outbox.database import Database, shown_url
    except ImportError as error:
        raise ClientError(f'an outbox needs SQLAlchemy, which is not installed: pip install "roquet[sql]" ({error})') from error
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # whose texts may quote a part of the password
        raise BadSetting(f"--database: {NO_URL}") from None
    if parsed.host and (url.count("@") > 1 or "?" in (parsed.username or "")):  # a part of the password is taken for the host's name
        raise BadSetting(f"--database: {NO_URL}")
    shown = shown_url(parsed)
    try:
        engine = create_async_engine(parsed) if parsed.get_dialect().is_async else create_engine(parsed)
    except NoSuchModuleError as error:
        raise BadSetting(f"--database: {error}") from None
    except (ArgumentError, TypeError, ValueError):
        raise BadSetting(f"--database: {shown}: {NO_OPTION}") from None
    except ImportError as error:
        raise ClientError(
            f"the driver that {parsed.drivername}: names is not installed ({error}); install it, or name another one"
        ) from error
    database = Database(engine)
    try:
        try:
            await database.run(lambda connection: None)
        except (TypeError, ValueError):
            raise BadSetting(f"--database: {shown}: {NO_OPTION}") from None
        except OSError as error:
            raise ClientError(f"{shown}: {error}") from error
        yield Outbox(name=arguments.table), database
    except SQLAlchemyError as error:
        raise ClientError(f"{shown}: {str(error).splitlines()[0]}") from None
    finally:
        if isinstance(engine, AsyncEngine):
            await engine.dispose()
        else:
            engine.dispose()


def choice_of(arguments: argparse.Namespace, **more: Any) -> Choice:
    from roquet.outbox.rows import Choice

    ids = tuple(getattr(arguments, "ids", ()))
    return Choice(ids, arguments.key, arguments.topic, arguments.failing, **more)


def state(row: Row) -> str:
    from roquet.outbox.rows import HELD_MS

    if row.sent_ms:
        return "sent"
    if row.is_leased:
        return "being sent"
    if row.tries:
        return "failing"
    return "held back" if row.next_try_ms > row.created_ms + HELD_MS // 2 else "waiting"


COLUMNS: list[TableColumn[Row]] = [
    TableColumn("ID", "id", lambda row: row.id, str),
    TableColumn("STATE", "state", state),
    TableColumn("TOPIC", "topic", lambda row: row.topic),
    TableColumn("KEY", "key", lambda row: row.key),
    TableColumn("MESSAGE", "messageId", lambda row: row.message_id),
    TableColumn("BYTES", "size", lambda row: row.size),
    TableColumn("CREATED", "createdMs", lambda row: row.created_ms, moment),
    TableColumn("TRIES", "tries", lambda row: row.tries),
    TableColumn("", "nextTryMs", lambda row: row.next_try_ms),
    TableColumn("", "sentMs", lambda row: row.sent_ms or None),
    TableColumn("ERROR", "error", lambda row: row.error or None),
]


async def list_rows(arguments: argparse.Namespace) -> int:
    from roquet.outbox import rows

    choice = choice_of(arguments, sent=arguments.sent)
    async with opened(arguments) as (outbox, database):
        await database.run(outbox.check)
        table = outbox.table
        found = await database.run(rows.listed, table, choice, arguments.count)
        count = await database.run(rows.counted, table, choice)
        failing = await database.run(rows.counted, table, rows.Choice(failing=True))
        waiting = await database.run(rows.counted, table, rows.Choice())
        oldest = await database.run(rows.oldest_age_ms, table)
    if arguments.json:
        emit_json({"waiting": waiting, "failing": failing, "oldestMs": oldest, "rows": column_json(COLUMNS, found)})
        return 0
    if found:
        emit(column_table(COLUMNS, found))
    if count > len(found):
        note(f"and {counted(count - len(found), 'more row')}; --count N shows more")
    since = "" if oldest is None else f", the oldest for {duration(oldest / 1000)}"
    emit(f"{counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}{since}; {failing:,} failed before")
    return 0


async def run_retry(arguments: argparse.Namespace) -> int:
    from roquet.outbox import rows

    return await change(arguments, rows.retry, "try", "tried", "again now")


async def run_drop(arguments: argparse.Namespace) -> int:
    from roquet.outbox import rows

    return await change(arguments, rows.drop, "drop", "dropped", "for good")


async def change(arguments: argparse.Namespace, work: Callable[..., list[Row]], verb: str, past: str, how: str) -> int:
    """Plan, ask where it cannot be undone, and do it, a portion of the rows at a time."""
    from roquet.outbox import rows

    choice = choice_of(arguments)
    if (choice == rows.Choice()) != arguments.all:
        note("roquet: give --all, or choose rows (ID..., --key, --topic, --failing), but not both")
        return 2
    async with opened(arguments) as (outbox, database):
        await database.run(outbox.check)
        table = outbox.table
        ids = await database.run(rows.ids_of, table, choice)
        count = len(ids)
        planned = await database.run(rows.listed, table, replace(choice, ids=tuple(ids[:SHOWN_MAX])), SHOWN_MAX) if ids else []
        missing = sorted(set(choice.ids) - set(ids))
        if missing:
            more = f" and {len(missing) - SHOWN_MAX:,} more" if len(missing) > SHOWN_MAX else ""
            note(f"roquet: no such row waits: {', '.join(map(str, missing[:SHOWN_MAX]))}{more}")
        facts: dict[str, Any] = {"dryRun": arguments.dry_run, "chosen": count, "done": 0, "busy": 0, "rows": column_json(COLUMNS, planned)}
        if arguments.dry_run or not count:
            if count and not arguments.json:
                emit(column_table(COLUMNS, planned))
            answer(arguments, facts, f"would {verb} {counted(count, 'message')} {how}" if arguments.dry_run else "nothing was chosen")
            return 1 if missing or not count else 0
        if verb == "drop" and not confirmed(arguments, f"Drop {counted(count, 'message')}? They will never be published."):
            return 1
        for first in range(0, count, rows.PORTION):
            portion = await database.run(work, table, replace(choice, ids=tuple(ids[first : first + rows.PORTION])))
            free = [row for row in portion if not row.is_leased]
            await database.run(rows.let_go, table, [row.lane for row in free])  # also what a relay held back at the same moment
            facts["busy"] += len(portion) - len(free)
            facts["done"] += len(free)
    answer(
        arguments,
        facts,
        f"{counted(facts['done'], 'message')} will be tried {how}" if verb == "try" else f"dropped {counted(facts['done'], 'message')}",
    )
    if facts["busy"]:
        note(f"roquet: a relay works on {counted(facts['busy'], 'message')} now; left alone. Look again with: roquet outbox list")
    return 1 if missing or facts["busy"] else 0


async def run_relay(arguments: argparse.Namespace) -> int:
    async with opened(arguments) as (outbox, database):
        from roquet.client import Producer
        from roquet.outbox import Relay
        from roquet.outbox.database import shown_url

        making = outbox.create(database.engine) if arguments.create else None
        if making is not None:
            await making
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
                loop.add_signal_handler(number, ended.set)
        producer = Producer(arguments.group, arguments.namesrv, connection=connection_of(arguments))
        async with producer, Relay(outbox, database.engine, producer, alarm_after=arguments.alarm_after) as relay:
            where = shown_url(database.plain.url)
            announce(f"relay: from {where}, table {arguments.table}, to {arguments.namesrv}. Ctrl-C stops it.")
            await ended.wait()
        announce(f"relay: stopped; {counted(relay.published, 'message')} published, {counted(relay.failures, 'attempt')} failed")
    return 0
