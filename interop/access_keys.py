"""Access control of Roquet's servers, and signed clients: all that Apache's Java and Go clients can do, mqadmin with its tools.yml, who is
refused; and all languages together, signed and, but for Go's, over TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apache
import client_logs
import go_client
import java_client
import mixed
import mqadmin
import roquet_cluster
from entry import Entry
from java_client import JavaClient
from mqadmin import Command
from report import Reporter, Section, run_program

ADMIN = {"accessKey": "interop-admin", "secretKey": "interop-admin-secret"}
READER = {"accessKey": "interop-reader", "secretKey": "interop-reader-secret"}
ACCOUNTS = f"""\
# whom the servers of this run know
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {ADMIN["accessKey"]}
  secretKey: {ADMIN["secretKey"]}
  admin: true
- accessKey: {READER["accessKey"]}
  secretKey: {READER["secretKey"]}
  defaultTopicPerm: SUB   # it may not send
  defaultGroupPerm: SUB
"""


def commands(broker: str) -> list[Command]:
    """Those about access control; `broker` is its address."""
    account = "-a interop-fresh -s interop-fresh-secret"
    return [
        Command(f"updateAclConfig -b {broker} {account} -t T1=PUB,T2=SUB -g g1=SUB -i DENY -u SUB", (rf"to {broker} success",)),
        Command(f"updateGlobalWhiteAddr -b {broker} -g 10.77.77.*", (rf"to {broker} success",)),
        Command("clusterAclConfigVersion -c DefaultCluster", (r"broker-a",)),
        Command(f"deleteAclConfig -b {broker} -a interop-fresh", (rf"from broker \[?{broker}\]? success|success",)),
    ]


def signed(keys: dict[str, str]) -> dict[str, str]:
    return {f"interop.{name}": value for name, value in keys.items()}


SIGNED = Entry(ADMIN["accessKey"], ADMIN["secretKey"])
SIGNED_OVER_TLS = Entry(ADMIN["accessKey"], ADMIN["secretKey"], over_tls=True)
TOGETHER = ("transaction", "request and reply", "failed by", "shared alike", "lite pull", "reset by", "dead letters")
"""The checks of all languages that are made again with keys and TLS: those with requests that others have not."""


@contextlib.contextmanager
def servers(directory: Path, settings: dict[str, object], *, for_go: bool = False) -> Iterator[tuple[str, roquet_cluster.Broker]]:
    """A name server's address and a broker that let nobody in without a key; their accounts are in `directory`/plain_acl.yml."""
    directory.mkdir(parents=True)
    file = directory / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    guarded: dict[str, object] = {"aclEnable": True, "aclFile": file}
    port = apache.free_port()
    namesrv = f"127.0.0.1:{port}"
    with (
        # Go's admin and pull consumer do not sign what they ask for routes.
        roquet_cluster.NameServer(port, directory / "namesrv", aclRoutesNeedKey=not for_go, **guarded),
        roquet_cluster.Broker(apache.free_port(), namesrv, directory / "broker", tls=None, **settings, **guarded) as broker,
    ):
        yield namesrv, broker


def check_go(section: Section, program: Path, directory: Path, settings: dict[str, object], header: str, finder: JavaClient | None) -> None:
    with servers(directory, settings, for_go=True) as (namesrv, broker):
        go_client.check(section, program, namesrv, broker.address, header, finder, SIGNED)


def check_together(reporter: Reporter, directory: Path, settings: dict[str, object], java: dict[str, JavaClient], go: Path | None) -> None:
    with servers(directory / "servers", settings) as (namesrv, _):
        how = ", signed and over TLS"
        mixed.check(reporter, namesrv, directory, java, go, early_ms=0, expected=[], only=TOGETHER, entry=SIGNED_OVER_TLS, how=how)


def check(
    section: Section, client: JavaClient, directory: Path, settings: dict[str, object], extra: tuple[client_logs.PassedOver, ...] = ()
) -> None:
    with servers(directory, settings) as (namesrv, broker):
        file = directory / "plain_acl.yml"
        for header in java_client.HEADERS:
            command, log = client.command(
                f"signed-{header}", "Interop", "check", namesrv, f"k{client.version[0]}{header[0]}", header=header, properties=signed(ADMIN)
            )
            output, finished = run_program(command)
            phases = section.take(output, finished=finished)
            section.judge(f"signed, {header}: no warning or error in the client's log", java_client.log_problem(log, phases, extra))
        for what, keys in (("no keys", {}), ("an account that may not send", READER)):
            command, _ = client.command(f"refused-{len(keys)}", "Live", namesrv, "refused", properties=signed(keys))
            section.judge(f"{what}: refused", None if refused(partial(run_program, command)) else "it was let in")
        if client.version.startswith("4"):
            administration(section, client, namesrv, f"127.0.0.1:{broker.port}")
            section.judge("the file keeps its comments", None if "# it may not send" in file.read_text() else file.read_text())


def refused(run: partial[tuple[str, bool]]) -> bool:
    """It could not do its work: not create a topic, or not send."""
    output, finished = run()
    return not finished and "live " not in output


def administration(section: Section, client: JavaClient, namesrv: str, broker: str) -> None:
    tools = client.directory / "signed-tools" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True)
    tools.write_text("".join(f"{name}: {value}\n" for name, value in ADMIN.items()))
    mqadmin.run(section, client, namesrv, commands(broker), name="signed-tools")
