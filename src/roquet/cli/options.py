"""What the commands' options share: the name server, --json, times, yes-or-no questions."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from roquet.cli.render import note
from roquet.client.name_servers import default_name_servers
from roquet.errors import BadSetting

if TYPE_CHECKING:
    from roquet.client import ConnectionOptions, Credentials, Tls

N = TypeVar("N", int, float)

Run = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]
Commands = Any
"""What argparse's add_subparsers returns; its class is private there."""


Argument = tuple[tuple[str, ...], dict[str, Any]]


def argument(*names: str, **about: Any) -> Argument:
    """What argparse's add_argument takes, for a list of them."""
    return names, about


TOPIC = argument("topic", metavar="TOPIC")
GROUP = argument("group", metavar="GROUP")
ON_CLUSTER = argument("--cluster", metavar="NAME", help="only on this cluster's brokers (default: all)")
DRY_RUN = argument("--dry-run", action="store_true", help="show what would happen, and change nothing")
YES = argument("--yes", action="store_true", help="do not ask for confirmation")


def cluster_command(
    commands: Commands, name: str, run: Run, about: str, examples: str, *arguments: Argument, aliases: tuple[str, ...] = ()
) -> argparse.ArgumentParser:
    """A command that talks to a running cluster."""
    parser = command(commands, name, about, examples, aliases=aliases)
    for names, details in arguments:
        parser.add_argument(*names, **details)
    cluster_options(parser)
    parser.set_defaults(run=run)
    return parser


def command(commands: Commands, name: str, about: str, examples: str, *, aliases: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """A command with one line about it and examples under its --help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog="examples:\n" + "\n".join("  " + line.strip() for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        aliases=list(aliases),
    )
    return parser


def noun(commands: Commands, name: str, about: str, examples: str) -> Commands:
    """A command that has commands of its own: roquet topic list."""
    parser = command(commands, name, about, examples)
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def cluster_options(parser: argparse.ArgumentParser) -> None:
    """Of every command that talks to a running cluster."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="HOST:PORT",
        default=default_name_servers(),
        help="name servers, separated by ';', or http://host/path that tells them (default: $NAMESRV_ADDR, else 127.0.0.1:9876)",
    )
    key_options(parser)
    tls_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--timeout", type=positive_seconds, default=5.0, metavar="SECONDS", help="limit for one answer (default: 5)")
    parser.add_argument("-v", "--verbose", action="store_true", help="log requests and answers to standard error")


def connection_of(arguments: argparse.Namespace) -> ConnectionOptions:
    """How every command connects. Here, and nowhere else, an option about that becomes what the client takes."""
    from roquet.client import ConnectionOptions

    return ConnectionOptions(credentials=credentials_of(arguments), tls=tls_of(arguments))


TLS_FILES = {"tls_ca": "ROQUET_TLS_CA", "tls_cert": "ROQUET_TLS_CERT", "tls_key": "ROQUET_TLS_KEY"}
"""Options that name files, and the environment variables that stand for them."""


def tls_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls", action="store_true", help="encrypt all connections (default: $ROQUET_TLS=true; so do the options below)")
    parser.add_argument("--tls-ca", metavar="FILE", help="authorities to trust, PEM (default: $ROQUET_TLS_CA, else the machine's)")
    parser.add_argument("--tls-cert", metavar="FILE", help="our certificate, for servers that want one, PEM (default: $ROQUET_TLS_CERT)")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM (default: $ROQUET_TLS_KEY, else in the same file)")
    parser.add_argument(
        "--tls-insecure", action="store_true", help="trust any server, for self-signed ones (default: $ROQUET_TLS_INSECURE=true)"
    )


def tls_of(arguments: argparse.Namespace) -> Tls | None:
    """None: plain. A key's password comes from $ROQUET_TLS_KEY_PASSWORD alone: a command line is there for everybody to read."""
    from roquet.client import Tls

    files = {name: getattr(arguments, name) or os.environ.get(variable) or None for name, variable in TLS_FILES.items()}
    insecure = arguments.tls_insecure or is_true("ROQUET_TLS_INSECURE")
    if not (arguments.tls or insecure or is_true("ROQUET_TLS") or any(getattr(arguments, name) for name in TLS_FILES)):
        return None
    password = os.environ.get("ROQUET_TLS_KEY_PASSWORD") or None
    return Tls(files["tls_ca"], files["tls_cert"], files["tls_key"], verify=not insecure, key_password=password)


def is_true(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("true", "1", "yes")


def key_options(parser: argparse.ArgumentParser) -> None:
    """Of who asks, where servers have access control."""
    parser.add_argument("--access-key", metavar="KEY", help="sign requests with this key (default: $ROQUET_ACCESS_KEY, else of --tools)")
    parser.add_argument(
        "--secret-key", metavar="SECRET", help="its secret (default: $ROQUET_SECRET_KEY; better there, since others can see command lines)"
    )
    parser.add_argument(
        "--tools", metavar="FILE", help="file with accessKey and secretKey (default: tools.yml in $ROCKETMQ_HOME/conf, as mqadmin has it)"
    )


def credentials_of(arguments: argparse.Namespace) -> Credentials | None:
    """The options; else the environment; else tools.yml; else nothing is signed."""
    access_key = arguments.access_key or os.environ.get("ROQUET_ACCESS_KEY", "").strip()
    secret_key = arguments.secret_key or os.environ.get("ROQUET_SECRET_KEY", "").strip()
    if access_key and secret_key:
        from roquet.client import Credentials

        return Credentials(access_key, secret_key, os.environ.get("ROQUET_SECURITY_TOKEN") or None)
    if access_key or secret_key:
        given, missing = ("--access-key", "--secret-key") if access_key else ("--secret-key", "--access-key")
        variable = missing.removeprefix("--").replace("-", "_").upper()
        raise BadSetting(f"{given} is given without {missing}; give both, or set ROQUET_{variable}")
    home = os.environ.get("ROCKETMQ_HOME", "").strip()
    file = arguments.tools or (os.path.join(home, "conf", "tools.yml") if home else "")
    if not file or (not arguments.tools and not os.path.exists(file)):
        return None
    from roquet.acl_files import read_credentials

    return read_credentials(file)


def timeout_ms(arguments: argparse.Namespace) -> int:
    return int(arguments.timeout * 1000)


def number_of(kind: Callable[[str], N], low: float, high: float, what: str) -> Callable[[str], N]:
    """A type of argparse: numbers from `low` to `high`, which the message calls `what`."""

    def number(text: str) -> N:
        try:
            found = kind(text.replace("_", "").replace(",", ""))
        except ValueError:
            found = None
        if found is None or not text.isascii() or not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return found

    return number


positive = number_of(int, 1, 1 << 62, "a whole number, at least 1")
port = number_of(int, 0, 65_535, "a port: 1 to 65535, or 0 for a free one")
queue_id = number_of(int, 0, 65_535, "a queue: 0 to 65535")
positive_seconds = number_of(float, 1e-9, 86_400, "a number of seconds above 0, at most 86400")
delay_seconds = number_of(float, 1e-9, 1e9, "a number of seconds above 0")


def pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value


def timestamp_ms(text: str) -> int:
    """2024-05-01, 2024-05-01T10:00:00 (local time unless a zone is given), or milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write 2024-05-01, 2024-05-01T10:00:00 or milliseconds since 1970"
        ) from None


def confirmed(arguments: argparse.Namespace, question: str) -> bool:
    """For what cannot be undone: --yes, or a yes typed at a terminal."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        note(f"roquet: {question} Not done: say --yes, since there is no terminal to ask at.")
        return False
    note(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
