"""`roquet pipeline`: jobs on Spark over topics, stores and archives."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Callable
from importlib import import_module

from roquet.cli.options import Commands, credentials_of, key_options, noun, tls_of, tls_options
from roquet.client.name_servers import default_name_servers
from roquet.errors import ClientError

log = logging.getLogger(__name__)

NAMES: tuple[str, ...] = ("archive", "restore", "sql", "analytics", "dlq", "trace", "lag", "verify", "rebuild")
"""Modules of roquet.cli.pipelines, in the order of --help; each has add_command(commands)."""

EXAMPLES = """
roquet pipeline archive orders --to ./archive      topics to Parquet, exactly once, until now
roquet pipeline sql "select tags, count(*) from orders group by tags"
roquet pipeline verify --store ./data/broker-0     every record, queue and index entry of a store
"""


def add_commands(commands: Commands) -> None:
    pipelines = noun(commands, "pipeline", "jobs on Spark: archive, replay, trace, query (needs roquet[spark])", EXAMPLES)
    for name in NAMES:
        import_module(f"roquet.cli.pipelines.{name}").add_command(pipelines)
    for parser in dict.fromkeys(pipelines.choices.values()):
        parser.set_defaults(run=guarded(parser.get_default("run")))


def guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Every pipeline: without its packages it says so, and what Spark raises becomes a sentence; the whole of it shows with -v."""

    def checked(arguments: argparse.Namespace) -> int:
        from roquet.spark.session import need_packages

        need_packages()
        try:
            return run(arguments)
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
                raise
            log.debug("Spark failed", exc_info=True)
            raise ClientError(f"{sentence(str(error))}\n  The whole of it: the same command with -v") from error

    return checked


def sentence(text: str) -> str:
    """Of what went wrong in a task, our own error if it is one; else the first line, which says most."""
    ours = re.findall(r"^(?:roquet\.[\w.]+): (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ours[-1] if ours else lines[0] if lines else "Spark failed and did not say why"


def place_options(parser: argparse.ArgumentParser, *, store: bool = True) -> None:
    """Where messages are read from: a cluster, or a store's files."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="HOST:PORT",
        default=None,
        help="name servers, separated by ';' (default: $NAMESRV_ADDR, else 127.0.0.1:9876)",
    )
    if store:
        parser.add_argument("--store", metavar="DIR", default=None, help="read the files of this store instead; no broker is needed")
    key_options(parser)
    tls_options(parser)


def job_options(parser: argparse.ArgumentParser) -> None:
    """Of every job."""
    parser.add_argument("--master", metavar="URL", default=None, help="Spark master (default: spark-submit's, else local[*])")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more to standard error")


def place_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The source options that `place_options` gave: what a pipeline function takes as `where`."""
    import os

    if getattr(arguments, "store", None):
        return {"path": os.path.abspath(arguments.store)}
    return cluster_of(arguments, arguments.namesrv or default_name_servers())


def cluster_of(arguments: argparse.Namespace, namesrv: str) -> dict[str, str]:
    """The source options of this cluster, asked with the keys and the TLS of the arguments."""
    import os

    where = {"namesrvAddr": namesrv}
    keys = credentials_of(arguments)
    if keys is not None:
        where |= {"accessKey": keys.access_key, "secretKey": keys.secret_key}
        if keys.security_token:
            where["securityToken"] = keys.security_token
    tls = tls_of(arguments)
    if tls is not None:
        files = {"tlsCaFile": tls.ca_file, "tlsCertFile": tls.cert_file, "tlsKeyFile": tls.key_file}
        where |= {
            "useTLS": "true",
            "tlsVerify": str(tls.verify).lower(),
            **{name: os.path.abspath(file) for name, file in files.items() if file},
        }
        if tls.key_password:
            where["tlsKeyPassword"] = tls.key_password
    return where
