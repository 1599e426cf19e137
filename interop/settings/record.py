"""Writes tests/vectors/settings-4.9.7.json: every setting of Apache's servers with its default, and the names of those of 5.5.0.

    python interop/settings/record.py > tests/vectors/settings-4.9.7.json

Asked twice, on a machine with 2 and with 64 processors and with two homes: a default that differs is null in the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import apache

CLASSES = {
    "BrokerConfig": "org.apache.rocketmq.common.BrokerConfig",
    "MessageStoreConfig": "org.apache.rocketmq.store.config.MessageStoreConfig",
    "NettyServerConfig": "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "NettyClientConfig": "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    "NamesrvConfig": "org.apache.rocketmq.common.namesrv.NamesrvConfig",
}
TLS = "org.apache.rocketmq.remoting.netty.TlsSystemConfig"
OF_THIS_HOST = ("brokerIP1", "brokerIP2", "brokerName")
STARTUP = {"BrokerConfig": {"listenPort": "10911"}, "NamesrvConfig": {"listenPort": "9876"}}
"""What BrokerStartup and NamesrvStartup set before they read the file."""

Defaults = dict[str, dict[str, str | None]]


def ask(version: str, processors: int, home: str) -> Defaults:
    server = "rocketmq-broker", "rocketmq-namesrv"
    jars = ":".join(apache.classpath(f"{name}:{version}") for name in (server if version == apache.SERVER else server[:1]))
    program = ["java", f"-XX:ActiveProcessorCount={processors}", f"-Duser.home={home}", "-cp", jars]
    source = str(Path(__file__).with_name("RecordSettings.java"))
    said = subprocess.run([*program, source, *CLASSES.values(), TLS], capture_output=True, text=True, check=True).stdout
    found: Defaults = {}
    for line in said.splitlines():
        kind, _, rest = line.partition("\t")
        key, _, default = rest.partition("\t")
        found.setdefault(kind, {})[key] = None if default == "null" or key in OF_THIS_HOST else default
    return found


def main() -> None:
    one, other = ask(apache.SERVER, 2, "/one"), ask(apache.SERVER, 64, "/other")
    defaults: Defaults = {
        kind: {key: value if other[kind][key] == value else None for key, value in sorted(pairs.items())} for kind, pairs in one.items()
    }
    said = ask(apache.SERVER_5, 2, "/one")
    of_5 = sorted({key for kind in CLASSES for key in said.get(kind, {}) if key})
    text = {"of": f"Apache RocketMQ {apache.SERVER}", "defaults": defaults, "startup": STARTUP, f"keys of {apache.SERVER_5}": of_5}
    print(json.dumps(text, indent=1))


if __name__ == "__main__":
    main()
