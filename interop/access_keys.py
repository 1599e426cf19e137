"""Access control of Roquet's servers, and Apache's signed clients: all that a client can do, mqadmin with its tools.yml, who is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apache
import client_logs
import java_client
import mqadmin
import roquet_cluster
from java_client import JavaClient
from mqadmin import Command
from report import Section, run_program

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


def check(
    section: Section, client: JavaClient, directory: Path, settings: dict[str, object], extra: tuple[client_logs.PassedOver, ...] = ()
) -> None:
    directory.mkdir(parents=True)
    file = directory / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    guarded: dict[str, object] = {"aclEnable": True, "aclFile": file}
    port = apache.free_port()
    namesrv = f"127.0.0.1:{port}"
    with (
        roquet_cluster.NameServer(port, directory / "namesrv", **guarded),
        roquet_cluster.Broker(apache.free_port(), namesrv, directory / "broker", tls=None, **settings, **guarded) as broker,
    ):
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
