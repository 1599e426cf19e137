"""One golden frame of each client's usual send: those that a broker gets all day, and must serve at the least cost.

Recorded ones (tests/vectors) are from Apache's Java clients 4.9.7 and 5.5.0. The others are built: Go from the fields and properties
that rocketmq-client-go v2 writes, C++ and Node from what is known of their headers (numbers and booleans in place of texts), ours by our
own client's encoder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from roquet.client.core.send_command import SendCommand, SendTemplate
from roquet.wire.batch import join_batch
from roquet.wire.frame import encode_frame
from tests.wire.golden_frames import golden

TOPIC, GROUP, TRACES = "VecTopic", "vec_group", "RMQ_SYS_TRACE_TOPIC"
KEY = "7F00000100002A9F0000000000000001"


def recorded(number: int) -> bytes:
    return golden()[number].data


def again(number: int, more: dict[str, str] | None = None, *, binary: bool | None = None) -> bytes:
    """A recorded one with further fields, or others."""
    command = golden()[number].command
    fields = command.fields | (more or {})
    return replace(command, fields=fields, binary=command.binary if binary is None else binary).encode()


def written(head: dict[str, Any], body: bytes = b"body") -> bytes:
    return encode_frame(0, orjson.dumps(head), body)


def parts(end: str = "") -> bytes:
    return join_batch([(0, b"body %d" % n, f"UNIQ_KEY\x01{n:032X}\x02WAIT\x01true{end}".encode()) for n in range(3)])


def go() -> bytes:
    fields = {
        "batch": "false", "bornTimestamp": "1794732520853", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "flag": "0",
        "maxReconsumeTimes": "0", "producerGroup": "g", "properties": f"UNIQ_KEY\x01{KEY}\x02TAGS\x01a\x02KEYS\x01k\x02", "queueId": "1",
        "reconsumeTimes": "0", "sysFlag": "0", "topic": TOPIC, "unitMode": "false",
    }  # fmt: skip
    return written({"code": 10, "language": "GO", "version": 317, "opaque": 7, "flag": 0, "remark": "", "extFields": fields})


def go_batch() -> bytes:
    fields = {
        "a": "g", "b": TOPIC, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1794732520853", "h": "0", "i": "", "j": "0", "k": "false",
        "l": "0", "m": "true",
    }  # fmt: skip
    head = {"code": 320, "language": "GO", "version": 317, "opaque": 7, "flag": 0, "remark": "", "extFields": fields}
    return written(head, parts("\x02"))


def cpp(properties: str = f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02", batch: bool = False) -> bytes:
    fields = {
        "AccessKey": "", "OnsChannel": "", "Signature": "", "a": "g", "b": TOPIC, "c": "TBW102", "d": 4, "e": 1, "f": 0,
        "g": "1794732520853", "h": 0, "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip
    head = {"code": 310, "extFields": fields, "flag": 0, "language": "CPP", "opaque": 7, "remark": "", "version": 333}
    return written(head, parts() if batch else b"body")


def node() -> bytes:
    fields = {
        "a": "g", "b": TOPIC, "c": "TBW102", "d": 8, "e": 1, "f": 0, "g": 1794732520853, "h": 0,
        "i": f"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01{KEY}\x02WAIT\x01true", "j": 0, "k": False,
    }  # fmt: skip
    return written({"code": 310, "language": "JAVA", "opaque": 7, "flag": 0, "version": 121, "extFields": fields})


def ours(properties: str = f"TAGS\x01a\x02UNIQ_KEY\x01{KEY}\x02WAIT\x01true", batch: bool = False, topic: str = TOPIC) -> bytes:
    template = SendTemplate("g", topic, "broker-a", default_topic="TBW102", default_queues=8, batch=batch)
    return SendCommand(template, 0, 0, 1_794_732_520_853, 0, properties, parts() if batch else b"body").encode()


def ours_to_the_retry_topic() -> bytes:
    return ours(topic=f"%RETRY%{GROUP}")


def java_back_to_the_retry_topic() -> bytes:
    """A message that was consumed twice already."""
    return again(15, {"b": f"%RETRY%{GROUP}", "e": "0", "j": "2", "l": "16"})


SIGNED = {"AccessKey": "rocketmq2", "Signature": "bQ2dBnOqvyRvsEVT2x9p5rC8HfE="}
TRACE_KEYS = {"b": TRACES, "e": "0", "i": "KEYS\x01" + " ".join(f"{n:032X}" for n in range(20)) + f"\x02UNIQ_KEY\x01{KEY}\x02WAIT\x01true"}

USUAL: dict[str, bytes] = {
    "Java 4.9, JSON, recorded": recorded(15),
    "Java 4.9, JSON, oneway, recorded": recorded(19),
    "Java 4.9, JSON, batch, recorded": recorded(20),
    "Java 4.9, binary, recorded": recorded(103),
    "Java 4.9, binary, oneway, recorded": recorded(107),
    "Java 4.9, binary, batch, recorded": recorded(108),
    "Java 5.5, JSON, recorded": recorded(276),
    "Java 5.5, JSON, oneway, recorded": recorded(278),
    "Java 5.5, JSON, batch, recorded": recorded(279),
    "Java 5.5, binary": again(276, binary=True),
    "Java 5.5, binary, batch": again(279, binary=True),
    "Java 4.9 with an access key, JSON": again(15, SIGNED),
    "Java 4.9 with an access key, binary": again(103, SIGNED),
    "Java 4.9, a batch with an access key, binary": again(108, SIGNED),
    "Java 4.9, its traces, JSON": again(15, TRACE_KEYS),
    "Java 4.9, its traces, binary": again(103, TRACE_KEYS),
    "Java 4.9 to a retry topic": java_back_to_the_retry_topic(),
    "Go": go(),
    "Go, batch": go_batch(),
    "C++": cpp(),
    "C++ without properties": cpp(properties=""),
    "C++, batch": cpp(properties="", batch=True),
    "Node": node(),
    "ours": ours(),
    "ours, batch": ours(properties="WAIT\x01true", batch=True),
    "ours to a retry topic": ours_to_the_retry_topic(),
}
