"""Kafka 3.9.1 from Maven Central, one node in KRaft mode, as its own scripts run it; and Spark's connector for it."""

from __future__ import annotations

import contextlib
import fcntl
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apache

VERSION = "3.9.1"
CONNECTOR = "4.2.0"
SERVER_JARS = (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
# The connector's own pom names a token provider that cannot always be had: these four work together, without what they ask for.
CONNECTOR_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", VERSION),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
# bin/kafka-run-class.sh and kafka-server-start.sh
JAVA = ("-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true")  # fmt: skip
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
SENT = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


def connector() -> list[str]:
    """Paths of the jars that Spark's Kafka source and sink are made of, fetched if they are not there yet."""
    target = apache.cache_dir() / "jars" / f"spark-sql-kafka-{CONNECTOR}-with-kafka-clients-{VERSION}"
    with open(apache.cache_dir() / "maven.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(target)
    return sorted(str(path) for path in target.glob("*.jar"))


def _fetch(target: Path) -> None:
    nothing_else = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{nothing_else}</dependency>"
        for group, name, version in CONNECTOR_JARS
    )
    pom = (
        "<project><modelVersion>4.0.0</modelVersion><groupId>roquet</groupId><artifactId>bench</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        Path(scratch, "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "-f", "pom.xml", f"{apache.DEPENDENCY_PLUGIN}:copy-dependencies", "-DoutputDirectory=lib"]
        result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise apache.InteropError(f"mvn could not fetch Spark's connector for Kafka:\n{result.stdout}{result.stderr}")
        Path(scratch, "lib").rename(target)


def settings(port: int, controller: int, directory: Path, partitions: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / "logs",
        "num.partitions": partitions,  # of a topic that is made by its first record
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "broker.session.timeout.ms": 3_600_000,  # it is stopped while the other side is measured, and must not lose its partitions
    }


@contextlib.contextmanager
def kafka(directory: Path, partitions: int) -> Iterator[apache.Server]:
    directory.mkdir(parents=True)
    port = apache.free_port()
    conf = apache.write_settings(directory / "server.properties", settings(port, port + 1, directory, partitions))
    (directory / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.PatternLayout\nlog4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n\n"
        "log4j.logger.kafka.server.KafkaRaftServer=INFO\n"
    )
    java = ["java", *JAVA, f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}", "-cp", apache.classpath(*SERVER_JARS)]
    made = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(conf)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise apache.InteropError(f"Kafka's directory could not be made:\n{made.stdout}{made.stderr}")
    with apache.Server([*java, "kafka.Kafka", str(conf)], name="kafka", port=port, directory=directory) as server:

        def started() -> bool:
            if server.process.poll() is not None:
                raise apache.InteropError(f"Kafka ended with {server.process.returncode} at start:\n{server.log()[-3000:]}")
            return "Kafka Server started" in server.log()

        apache.wait_until(started, "Kafka's start", timeout_s=90.0)
        yield server


def tool(server: apache.Server, main_class: str, *arguments: str, timeout_s: float = 300.0) -> str:
    """One of Kafka's command line programs, and what it prints."""
    command = ["java", "-Xmx256m", "-cp", apache.classpath(*SERVER_JARS), main_class, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=server.directory)
    if result.returncode != 0:
        raise apache.InteropError(f"{main_class} {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def create_topic(server: apache.Server, topic: str, partitions: int) -> None:
    tool(server, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", server.address, "--create", "--topic", topic,
         "--partitions", str(partitions))  # fmt: skip


def stored(server: apache.Server, topic: str) -> int:
    """Records in the topic: the sum of its partitions' ends."""
    lines = tool(server, "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", server.address, "--topic", topic).splitlines()
    return sum(int(line.rpartition(":")[2] or 0) for line in lines if line.startswith(f"{topic}:"))


def send(server: apache.Server, topic: str, count: int, size: int) -> float:
    """Records a second of Kafka's own performance test, batches and all."""
    printed = tool(server, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size",
                   str(size), "--throughput", "-1", "--producer-props", f"bootstrap.servers={server.address}")  # fmt: skip
    found = SENT.findall(printed)
    if not found:
        raise apache.InteropError(f"Kafka's performance test printed no rate:\n{printed}")
    return float(found[-1][1])
