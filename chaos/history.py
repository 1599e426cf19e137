"""What clients did and were told, as lines of JSON that each client writes as it happens; and all of it read back as one history.

    {"at": 12.5, "by": "producer-1", "did": "send", "id": "producer-1-7", "crc": 99, "kind": "plain"}
    {"at": 12.6, "by": "producer-1", "did": "acknowledged", "id": "producer-1-7", "queue": "broker-a/0", "offset": 3, "status": "SEND_OK"}
    {"at": 12.7, "by": "consumer-1", "did": "read", "id": "producer-1-7", "crc": 99, "queue": "broker-a/0", "offset": 3, "group": "readers"}

Times are those of the system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson

PLAIN, DELAYED, COMMITTED, ROLLED_BACK = "plain", "delayed", "committed", "rolled back"
"""Kinds of messages: sent as usual; shown later; of transactions that end so."""


class Place(NamedTuple):
    queue: str
    """broker name/number."""
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}@{self.offset}"


class Send(NamedTuple):
    at: float
    by: str
    crc: int
    kind: str = PLAIN
    not_before: float = 0.0
    """Of a delayed one: when it may be shown at the earliest, by the same clock."""


class Acknowledged(NamedTuple):
    at: float
    place: Place | None
    """None: the message's place is not known yet, as of delayed ones."""
    status: str


class Read(NamedTuple):
    at: float
    by: str
    id: str
    crc: int
    place: Place
    group: str = ""
    """The consumer group that its reader consumes for."""


@dataclass
class Reading:
    """All queues of one node, read from the first to the last message in one go."""

    name: str
    began: float
    must_hold_all: bool
    """Whether everything must be there that was acknowledged before it began."""
    all_delivered: bool = True
    """Whether that holds for delayed messages and those of transactions, too: they come into their queues later, and only by a master."""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The first offset and the one behind the last, by queue, as the node said."""
    found: dict[Place, str] = field(default_factory=dict)


@dataclass
class History:
    sends: dict[str, Send] = field(default_factory=dict)
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by id. Such a message may be stored or not."""
    reads: list[Read] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What the run itself met when all was well again, in sentences."""

    def add(self, event: dict[str, Any]) -> None:
        at, did = event["at"], event["did"]
        if did == "send":
            self.sends[event["id"]] = Send(at, event["by"], event["crc"], event["kind"], event.get("not_before", 0.0))
        elif did == "acknowledged":
            place = Place(event["queue"], event["offset"]) if "queue" in event else None
            self.acknowledged[event["id"]] = Acknowledged(at, place, event["status"])
        elif did == "failed":
            self.failed[event["id"]] = event["why"]
        elif did == "read":
            self._add_read(event, Place(event["queue"], event["offset"]))
        elif did == "began reading":
            self.readings.append(Reading(event["reading"], at, event["must_hold_all"], event["all_delivered"]))
        elif did == "range":
            self._reading(event).ranges[event["queue"]] = (event["first"], event["end"])
        elif did == "trouble":
            self.troubles.append(event["text"])
        else:
            known = "send, acknowledged, failed, read, began reading, range, trouble"
            raise ValueError(f"a history has an event {did!r}, which is none of: {known}")

    def _add_read(self, event: dict[str, Any], place: Place) -> None:
        self.reads.append(Read(event["at"], event["by"], event["id"], event["crc"], place, event.get("group", "")))
        if "reading" in event:
            self._reading(event).found[place] = event["id"]

    def _reading(self, event: dict[str, Any]) -> Reading:
        return next(reading for reading in reversed(self.readings) if reading.name == event["reading"])


class Writer:
    """One client's file. Each event is with the system at once: a client that is killed loses none."""

    def __init__(self, path: Path, by: str) -> None:
        self._file = path.open("ab", buffering=0)
        self._by = by

    def write(self, did: str, **more: object) -> None:
        self._file.write(orjson.dumps({"at": time.monotonic(), "by": self._by, "did": did, **more}) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def read_back(paths: Iterable[Path]) -> History:
    """Of all clients. The last line of a file may be torn: its client was killed."""
    history = History()
    for path in paths:
        *lines, torn = path.read_bytes().split(b"\n")
        for line in lines:
            history.add(orjson.loads(line))
        del torn
    return history
