"""What access control answers, Apache's beside Roquet's: each request code that RocketMQ 4.9 checks, asked by everybody, in both forms."""

from __future__ import annotations

import itertools
import json
import re
import socket
from pathlib import Path

import apache
import roquet_cluster
from report import Section

from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer
from roquet.wire.signing import Credentials, sign

ACCOUNTS = """\
accounts:
- {accessKey: admin-key, secretKey: admin-secret, admin: true}
- {accessKey: nobody-key, secretKey: nobody-secret}
- {accessKey: default-key, secretKey: default-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: named-key, secretKey: named-secret, topicPerms: [T=PUB|SUB], groupPerms: [g=SUB]}
- {accessKey: denied-key, secretKey: denied-secret, defaultTopicPerm: PUB|SUB, topicPerms: [T=DENY], groupPerms: [g=DENY]}
"""
GROUP = {"consumerGroup": "g"}
QUEUE = {"topic": "T", "queueId": "0"}
LETTERS = {
    "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1794732520853", "h": "0", "i": "", "j": "0",
    "k": "false", "m": "false",
}  # fmt: skip
LONG = "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties reconsumeTimes".split()
LONG += ["unitMode", "batch"]
TOPIC = {
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
HEARTBEAT = {
    "clientID": "client",
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": "T", "subString": "*"}],
        }
    ],
}  # fmt: skip
REQUESTS: dict[int, tuple[dict[str, str], bytes]] = {
    10: (dict(zip(LONG, LETTERS.values(), strict=True)), b"body"),
    310: (LETTERS, b"body"),
    11: (
        GROUP | QUEUE | {
            "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0",
        },
        b"",
    ),
    12: ({"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}, b""),
    15: (GROUP | QUEUE | {"commitOffset": "0"}, b""),
    34: ({}, json.dumps(HEARTBEAT).encode()),
    35: ({"clientID": "client"} | GROUP, b""),
    36: ({"offset": "0", "group": "g", "delayLevel": "0"}, b""),
    38: (GROUP, b""),
    17: ({"topic": "gone"} | TOPIC, b""),
    25: ({}, b""),
    200: ({}, b'{"groupName":"gone","consumeEnable":true}'),
    207: ({"groupName": "gone"}, b""),
    215: ({"topic": "gone"}, b""),
}  # fmt: skip
ACL = "AclException"


def cases(code: int, binary: bool) -> dict[str, Command]:
    def request(who: str = "") -> Command:
        fields, body = REQUESTS[code]
        made = Command(code, dict(fields), body, binary=binary)
        if who:
            sign(made, Credentials(f"{who}-key", f"{who}-secret"))
        return made

    found = {"no key": request(), "an unknown key": request("stranger")}
    found |= {who: request(who) for who in ("nobody", "denied", "default", "named", "admin")}
    wrong = [request("admin") for _ in range(4)]
    wrong[0].fields["Signature"] = request("nobody").fields["Signature"]
    del wrong[1].fields["Signature"]
    wrong[2].body += b" "
    wrong[3].fields["zz"] = "1"
    return found | dict(zip(("another's signature", "no signature", "the body changed", "a field added"), wrong, strict=True))


def asked(address: str, command: Command, source: str) -> str:
    """The remark of a refusal by access control, without Java's stack; "" when it was let in. Each asks from its own address, since many
    wrong signatures from one are not answered."""
    host, _, port = address.rpartition(":")
    framer = Framer()
    with socket.create_connection((host, int(port)), timeout=apache.PATIENCE_S, source_address=(source, 0)) as line:
        line.sendall(command.encode())
        frames = framer.feed(line.recv(65_536))
        while not frames:
            data = line.recv(65_536)
            if not data:
                return "the connection was closed"
            frames = framer.feed(data)
    remark = re.split(r", org\.apache", decode(frames[0]).remark or "")[0]
    return remark if ACL in remark else ""


def check(section: Section, directory: Path) -> None:
    for name in ("apache", "roquet"):
        (directory / name / "home" / "conf").mkdir(parents=True)
    with roquet_cluster.NameServer(apache.free_port(), directory / "namesrv") as namesrv:
        (directory / "roquet" / "plain_acl.yml").write_text(ACCOUNTS)
        (apache._home(directory / "apache") / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
        with (
            apache.Broker(apache.SERVER, apache.free_port(), namesrv.address, directory / "apache", aclEnable=True) as theirs,
            roquet_cluster.Broker(apache.free_port(), namesrv.address, directory / "roquet", aclEnable=True) as ours,
        ):
            topic = Command(17, {"topic": "T"} | TOPIC)
            sign(topic, Credentials("admin-key", "admin-secret"))
            for server in (theirs, ours):
                section.judge(f"an admin makes a topic at {server.address}", asked(server.address, topic, "127.0.0.1") or None)
            numbers = itertools.count(256)
            for code, binary in itertools.product(REQUESTS, (False, True)):
                different = []
                for what, command in cases(code, binary).items():
                    number = next(numbers)
                    source = f"127.1.{number >> 8}.{number & 255}"
                    apaches, roquets = asked(theirs.address, command, source), asked(ours.address, command, source)
                    if apaches != roquets:
                        different.append(f"{what}: Apache {apaches!r}, Roquet {roquets!r}")
                section.judge(f"request {code}, {'binary' if binary else 'JSON'}: the same answers", "; ".join(different) or None)
