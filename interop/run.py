"""Real clients against a running cluster, and stores handed from one broker to another. One line a check.

python interop/run.py [--against roquet|apache|apache-5.5.0] [--json] [--keep] [--accept]
                      [--only java-4.9.8,java-5.5.0,go,mqadmin,mixed,store,replication,dledger,failover,migration,differential,
                              mqadmin-table,spark,tls,keys,traces]
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType

import access_answers
import access_keys
import apache
import differential
import dledger_groups
import go_client
import java_client
import message_traces
import mixed
import moving
import mqadmin
import mqadmin_table
import replication
import report
import spark_acl
import spark_exchange
import store_exchange
import tls
from client_logs import PassedOver
from java_client import JavaClient
from report import Reporter, Section
from store_exchange import ApachePeer, Peer, RoquetPeer

from roquet.errors import ClientError
from roquet.spark.session import need_spark, session

ON_ONE_CLUSTER = ("java-4.9.8", "java-5.5.0", "go", "mqadmin", "mixed")
PARTS = (
    *ON_ONE_CLUSTER,
    "store",
    "replication",
    "dledger",
    "failover",
    "migration",
    "differential",
    "mqadmin-table",
    "spark",
    "tls",
    "keys",
    "traces",
)
PEERS: dict[str, Callable[[], Peer]] = {
    "roquet": RoquetPeer,
    "apache": lambda: ApachePeer(apache.SERVER),
    "apache-5.5.0": lambda: ApachePeer(apache.SERVER_5),
}
Job = tuple[Section, Callable[[Section], None]]

SETTINGS: dict[str, object] = {
    "enablePropertyFilter": True,  # SQL filters
    # Apache turns a request away that has waited 200 ms; with servers and clients on the same few processors that happens.
    "waitTimeMillsInSendQueue": 10_000,
    "waitTimeMillsInPullQueue": 10_000,
    # Brokers look after undecided transactions every second, and not every minute; so often that a slow start is no end.
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 3_000,
    "transactionCheckMax": 100,
}

AT_ONCE = 3  # the clients mostly wait, so there can be more of them than processors

# What a 5.5.0 client asks and a 4.9 server cannot answer (it answers code 3). Ours must.
UNKNOWN_TO_4_9 = [
    ("lite pull", "a 4.9 broker does not know request 361"),
    ("describe a topic", "a 4.9 broker does not know request 351"),
    ("topicStatus", "a 4.9 broker does not know request 351"),
    ("consumerProgress", "a 4.9 broker does not know request 351"),
]
DROPPED_BY_5 = [("clusterList", "mqadmin 4.9 wants a runtime value, getTransferedTps, that 5.x renamed")]
UNKNOWN_TO_4_9_LOG = (PassedOver(r"request type (351|361) not supported|CODE: 3  DESC", "the same, in the client's log"),)
NO_REGION_IN_4_9 = [("java-5.5.0: the consumer's trace", "a 4.9 broker stores no MSG_REGION, and a 5.x consumer traces nothing without it")]
UNKNOWN_TO_4_9_MIXED = [
    ("timed messages", "a 4.9 broker has no timed messages"),
    ("one group: lite pull", "a 4.9 broker does not know request 361"),
]
# Apache 5.x writes decisions down every 3 s only, and asks about those it has not written.
SETTINGS_OF_5 = {"transactionTimeOut": 7_000}
EARLY_IN_5_MS = 1_000  # it counts timed messages by whole seconds, and rounds down
MIXED_WITH_5_LOG = (
    PassedOver(
        r"offset illegal|fix the pull request offset|offset \d+ of .*_reset_.* does not exist, going on",
        "5.x tells no member of a reset: it answers its next pull so",
    ),
    PassedOver(
        r"unknown Response Code: 27, remark: The broker's consumer filter data is not exist", "5.x knows a filter after the first heartbeat"
    ),
)


class Run:
    """One run of the parts that were asked for, against one cluster."""

    def __init__(self, against: str, only: list[str], reporter: Reporter, directory: Path, *, accept: bool = False) -> None:
        self.accept = accept
        self.peer = PEERS[against]()
        self.old = against == "apache"
        self.new = against == "apache-5.5.0"
        self.only = only
        self.reporter = reporter
        self.directory = directory
        self.java: dict[str, JavaClient] = {}
        self.go: Path | None = None

    def prepare(self) -> None:
        """Compile what the parts need; a part whose tools are missing is skipped by name."""
        missing = apache.missing_tools()
        needed = {part.removeprefix("java-") for part in self.only if part.startswith("java-")}
        if {"mqadmin", "mixed", "spark", "tls", "keys", "traces"} & set(self.only):
            needed |= set(java_client.VERSIONS)
        if {"store", "go", "failover", "migration", "mqadmin-table"} & set(self.only):
            needed |= {java_client.VERSIONS[0]}
        if not missing:
            self.java = {version: JavaClient(version, self.directory) for version in sorted(needed)}
        for part in self.only:
            if missing and part not in ("go", "mixed"):
                self._skip(part, f"{', '.join(missing)} missing")
        if {"go", "mixed", "failover", "keys"} & set(self.only):
            if shutil.which("go") is None:
                self._skip("go", "go missing")
            else:
                self.go = go_client.build(self.directory)

    def _skip(self, part: str, why: str) -> None:
        self.reporter.run(Section(part), lambda section: section.skip("all checks", why))

    def against_cluster(self, namesrv: str, broker: str) -> list[Job]:
        """What runs against the one cluster, as sections with their bodies."""
        jobs: list[Job] = []
        for version, client in self.java.items():
            newer = self.old and version == "5.5.0"
            older = self.new and version != "5.5.0"
            expected = UNKNOWN_TO_4_9 if newer else DROPPED_BY_5 if older else []
            extra = UNKNOWN_TO_4_9_LOG if newer else ()
            if f"java-{version}" in self.only:
                for header in java_client.HEADERS:
                    section = Section(f"java-{version}, {header} headers", expected=expected)
                    jobs.append((section, partial(java_client.check, client=client, namesrv=namesrv, header=header, extra=extra)))
            if "mqadmin" in self.only:
                section = Section(f"mqadmin {version}", expected=expected)
                jobs.append((section, partial(mqadmin.check, client=client, namesrv=namesrv, broker=broker, extra=extra)))
        if self.go is not None and "go" in self.only:
            go = partial(go_client.check, program=self.go, finder=self.java.get(java_client.VERSIONS[0]))
            for header in java_client.HEADERS:
                section = Section(f"go v2.1.2, {header} headers")
                jobs.append((section, partial(go, namesrv=namesrv, broker=broker, header=header)))
        return jobs

    def mixed(self, namesrv: str) -> None:
        """Clients of all languages that are there, together."""
        expected = UNKNOWN_TO_4_9_MIXED if self.old else []
        early_ms = EARLY_IN_5_MS if self.new else 0
        mixed.check(
            self.reporter,
            namesrv,
            self.directory / "mixed",
            self.java,
            self.go,
            early_ms=early_ms,
            expected=expected,
            extra=UNKNOWN_TO_4_9_LOG if self.old else MIXED_WITH_5_LOG if self.new else (),
        )

    def of_stores(self) -> list[Job]:
        """The stores, each with a cluster of its own. Apache to Apache proves the check itself."""
        if "store" not in self.only or not self.java:
            return []
        other: Peer = ApachePeer(apache.SERVER)
        ways = [(self.peer, self.peer)] if isinstance(self.peer, ApachePeer) else [(other, self.peer), (self.peer, other)]
        client = self.java[java_client.VERSIONS[0]]
        jobs: list[Job] = []
        for writer, reader in ways:
            for kill in (False, True):
                title = f"store of {writer.name}, {'killed' if kill else 'stopped'}, opened by {reader.name}"
                directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="store-"))
                body = partial(store_exchange.check, client=client, writer=writer, reader=reader, kill=kill, directory=directory)
                jobs.append((Section(title), body))
        return jobs

    def of_pairs(self) -> list[Job]:
        """Master and slave, either of them Apache's. Apache to Apache proves the check itself."""
        if "replication" not in self.only or apache.missing_tools() or self.new:
            return []
        other: Peer = ApachePeer(apache.SERVER)
        ways = [(self.peer, self.peer)] if isinstance(self.peer, ApachePeer) else [(other, self.peer), (self.peer, other), (self.peer,) * 2]
        jobs: list[Job] = []
        for master, slave in ways:
            directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="pair-"))
            body = partial(replication.check, master=master, slave=slave, directory=directory)
            jobs.append((Section(f"{slave.name} follows {master.name}"), body))
        return jobs

    def of_groups(self) -> list[Job]:
        """DLedger groups with members of both. Apache's alone proves the check itself."""
        if "dledger" not in self.only or apache.missing_tools() or self.new:
            return []
        other: Peer = ApachePeer(apache.SERVER)
        groups = [(self.peer,) * 3] if isinstance(self.peer, ApachePeer) else [(other, other, self.peer), (other, self.peer, self.peer)]
        jobs: list[Job] = []
        for peers in groups:
            directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="group-"))
            body = partial(dledger_groups.check, peers=peers, directory=directory, names=self.peer)
            jobs.append((Section(f"a DLedger group of {', '.join(peer.name for peer in peers)}"), body))
        return jobs

    def of_moves(self) -> list[Job]:
        """Clients whose master changes. Apache's servers alone prove the check itself."""
        if not self.java or self.new:
            return []
        client, jobs = self.java[java_client.VERSIONS[0]], list[Job]()
        for title, check in (("the leader is killed", moving.check_leader), ("a slave is made the master", moving.check_promoted)):
            if "failover" in self.only:
                directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="moving-"))
                body = partial(check, peer=self.peer, directory=directory, java=client, go=self.go)
                jobs.append((Section(f"clients of {self.peer.name} go on when {title}"), body))
        if "migration" in self.only:
            directory, old = Path(tempfile.mkdtemp(dir=self.directory, prefix="moving-")), ApachePeer(apache.SERVER)
            migration = partial(moving.check_migration, old=old, new=self.peer, directory=directory, java=client)
            jobs.append((Section(f"a master of {old.name} is replaced by a slave of {self.peer.name}"), migration))
        return jobs

    def of_differences(self) -> list[Job]:
        """The same requests to Apache and to the cluster asked for, compared; each has a cluster of its own."""
        if "differential" not in self.only or apache.missing_tools():
            return []
        section = Section(f"differential, apache-{apache.SERVER} and {self.peer.name}")
        if self.new:
            return [(section, lambda section: section.skip("all checks", "5.5.0 answers differently in many places, and is not compared"))]
        return [(section, partial(differential.check, peer=self.peer, directory=self.directory / "differential", accept=self.accept))]

    def of_keys(self) -> list[Job]:
        """Our servers with access control, and Apache's clients that sign."""
        if "keys" not in self.only or not self.java or isinstance(self.peer, ApachePeer):
            return []
        jobs: list[Job] = []
        for version, client in self.java.items():
            directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="keys-")) / "servers"
            body = partial(access_keys.check, client=client, directory=directory, settings=SETTINGS)
            jobs.append((Section(f"java-{version}, signed"), body))
        for header in java_client.HEADERS:
            if self.go is None:
                break
            directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="keys-")) / "servers"
            finder = self.java[java_client.VERSIONS[0]]
            go = partial(access_keys.check_go, program=self.go, directory=directory, settings=SETTINGS, header=header, finder=finder)
            jobs.append((Section(f"go v2.1.2, signed, {header} headers"), go))
        directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="keys-"))
        jobs.append((Section(f"access control beside apache-{apache.SERVER}"), partial(access_answers.check, directory=directory)))
        return jobs

    def of_traces(self) -> list[Job]:
        """Traces of Java's clients and of ours, each shown by the other's tools."""
        if "traces" not in self.only or not self.java:
            return []
        expected = NO_REGION_IN_4_9 if self.old else []
        directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="traces-"))
        body = partial(message_traces.check, peer=self.peer, clients=self.java, directory=directory, settings=SETTINGS)
        return [(Section(f"traces, {self.peer.name}", expected=expected), body)]

    def together_with_keys(self) -> None:
        """All languages together, signed, and over TLS where the client has it."""
        if "keys" in self.only and self.java and not isinstance(self.peer, ApachePeer):
            directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="together-"))
            access_keys.check_together(self.reporter, directory, SETTINGS, self.java, self.go)

    def of_tls(self) -> list[Job]:
        """Everything over TLS: Apache's clients with our servers, and our client with Apache's."""
        if "tls" not in self.only or not self.java or self.new:
            return []
        jobs: list[Job] = []
        if isinstance(self.peer, ApachePeer):
            directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="tls-"))
            return [(Section(f"our client, {self.peer.name} over TLS"), partial(tls.check_apache, directory=directory))]
        for version, client in self.java.items():
            for certificates in (False, True) if version == java_client.VERSIONS[0] else (False,):
                directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="tls-"))
                title = f"java-{version} over TLS{', with certificates' if certificates else ''}"
                body = partial(tls.check_java, client=client, directory=directory, settings=SETTINGS, certificates=certificates)
                jobs.append((Section(title), body))
        directory = Path(tempfile.mkdtemp(dir=self.directory, prefix="tls-"))
        return [*jobs, (Section(f"our client, apache-{apache.SERVER} over TLS"), partial(tls.check_apache, directory=directory))]

    def of_tables(self) -> list[Job]:
        """Every command of mqadmin against Apache and the cluster asked for, two groups each, compared."""
        if "mqadmin-table" not in self.only or not self.java or self.new:
            return []
        jobs: list[Job] = []
        for keys in (False, True):
            title = f"every command of mqadmin{' with access control' if keys else ''}, apache-{apache.SERVER} and {self.peer.name}"
            directory = self.directory / f"mqadmin-table{'-with-keys' if keys else ''}"
            check = partial(mqadmin_table.check, peer=self.peer, client=self.java[java_client.VERSIONS[0]], directory=directory)
            jobs.append((Section(title), partial(check, keys=keys, accept=self.accept)))
        return jobs

    def spark(self) -> None:
        """Tables and streams, with the cluster asked for and with Apache's: one after the other, in one session."""
        if "spark" not in self.only or not self.java:
            return
        try:
            need_spark()
        except ClientError as missing:
            self._skip("spark", str(missing))
            return
        spark = session("roquet interop", "local[2]")
        others = () if isinstance(self.peer, ApachePeer) else (apache.SERVER, apache.SERVER_5)
        try:
            for peer in (self.peer, *map(ApachePeer, others)):
                slim = peer is not self.peer and peer.name == f"apache-{apache.SERVER_5}"
                body = partial(
                    spark_exchange.check,
                    spark=spark,
                    peer=peer,
                    java={apache.SERVER_5: self.java[apache.SERVER_5]} if slim else self.java,
                    directory=Path(tempfile.mkdtemp(dir=self.directory, prefix="spark-")),
                    timed=peer.name != f"apache-{apache.SERVER}",
                    slim=slim,
                    finder=self.java[java_client.VERSIONS[0]] if peer is self.peer else None,
                    logs=servers_logs if isinstance(peer, RoquetPeer) else None,
                    # plain_acl.yml is of 4.x; of Roquet's servers tests/spark/test_access.py shows the same
                    last=partial(spark_acl.check, peer=peer) if peer.name == f"apache-{apache.SERVER}" else None,
                )
                self.reporter.run(Section(f"spark, {peer.name}{', in short' if slim else ''}"), body)
        finally:
            spark.stop()

    def run(self) -> None:
        """Clients with the requests that are compared beside them, then all languages together, then stores with Spark beside them."""
        self.prepare()
        with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(1) as beside:
            try:
                compared = [beside.submit(self.reporter.run, *job) for job in self.of_differences()]
                if self.java.keys() | ({"go"} if self.go else set()) and set(self.only) & set(ON_ONE_CLUSTER):
                    with (
                        self.peer.name_server(apache.free_port(), self.directory / "namesrv") as namesrv,
                        self.peer.broker(
                            apache.free_port(), namesrv.address, self.directory / "broker", SETTINGS | (SETTINGS_OF_5 if self.new else {})
                        ) as broker,
                    ):
                        jobs = self.against_cluster(namesrv.address, broker.address)
                        for each in [*(pool.submit(self.reporter.run, *job) for job in jobs), *compared]:
                            each.result()
                        if "mixed" in self.only:
                            self.mixed(namesrv.address)
                        if isinstance(self.peer, RoquetPeer):
                            self.reporter.run(Section("roquet's servers"), partial(servers_logs, servers=[namesrv, broker]))
                for each in [
                    *compared,
                    beside.submit(self.spark),
                    *(
                        pool.submit(self.reporter.run, *job)
                        for job in [
                            *self.of_tables(),
                            *self.of_stores(),
                            *self.of_pairs(),
                            *self.of_groups(),
                            *self.of_moves(),
                            *self.of_tls(),
                            *self.of_keys(),
                            *self.of_traces(),
                        ]
                    ),
                ]:
                    each.result()
                self.together_with_keys()
            except BaseException:
                for each_pool in (pool, beside):
                    each_pool.shutdown(wait=False, cancel_futures=True)
                report.kill_programs()
                raise


def servers_logs(section: Section, servers: list[apache.Server]) -> None:
    for server in servers:
        section.judge(f"no error in the log of the {server.name}", report.errors_in(server.log()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Real RocketMQ clients against a running cluster, one line a check.")
    parser.add_argument("--against", choices=PEERS, default="roquet", help="whose servers to check (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, parted by commas (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.add_argument(
        "--accept",
        action="store_true",
        help="write Roquet's explained answers of this run to differential/answers.json and docs/mqadmin.md",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory with stores and logs, and name it")
    options = parser.parse_args()
    only = options.only.split(",")
    unknown = set(only) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)  # an exception, so that servers are stopped on the way out

    signal.signal(signal.SIGTERM, terminate)
    reporter = Reporter(quiet=options.json)
    directory = Path(tempfile.mkdtemp(prefix="roquet-interop-"))
    try:
        Run(options.against, only, reporter, directory, accept=options.accept).run()
    except apache.InteropError as problem:
        message = str(problem)  # kept apart: the name is gone when the lambda runs
        reporter.run(Section("interop"), lambda section: section.fail("cluster", message))
    finally:
        if options.keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(reporter.document(), indent=2) if options.json else reporter.summary())
    return 1 if reporter.count(report.FAIL) else 0


if __name__ == "__main__":
    sys.exit(main())
