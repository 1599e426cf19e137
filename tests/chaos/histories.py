"""Histories made by hand: a log that does everything right, and what can be wrong with it."""

from __future__ import annotations

from itertools import count
from random import Random

from chaos.history import DELAYED, PLAIN, Acknowledged, History, Place, Read, Reading, Send

QUEUES = ("broker-a/0", "broker-a/1")
CRC = 7


class Sound:
    """A broker in a dictionary: two producers send, a group reads, and in the end everything is read again."""

    def __init__(self, seed: int = 0, sends: int = 12, unanswered: float = 0.2) -> None:
        self._random = Random(seed)
        self._clock = count()
        self.history = History()
        self.log: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        for number in range(sends):
            self.send(f"producer-{self._random.randrange(2)}-{number}", answered=self._random.random() >= unanswered)

    def now(self) -> float:
        return float(next(self._clock))

    def send(self, id: str, *, answered: bool = True, kind: str = PLAIN, status: str = "SEND_OK") -> Place:
        self.history.sends[id] = Send(self.now(), id.rpartition("-")[0], CRC, kind)
        queue = self._random.choice(QUEUES)
        place = Place(queue, len(self.log[queue]))
        if answered or self._random.random() < 0.5:
            self.log[queue].append(id)
        if answered:
            self.history.acknowledged[id] = Acknowledged(self.now(), None if kind == DELAYED else place, status)
        else:
            self.history.failed[id] = "no answer in time"
        return place

    def read(self, place: Place, id: str, by: str = "consumer-1", group: str = "readers") -> None:
        self.history.reads.append(Read(self.now(), by, id, CRC, place, group))

    def finish(self) -> History:
        for queue, ids in self.log.items():
            for offset, id in enumerate(ids):
                self.read(Place(queue, offset), id)
        for name in ("broker-2", "broker-1, the master"):
            reading = Reading(name, self.now(), True, True, {queue: (0, len(ids)) for queue, ids in self.log.items()})
            reading.found = {Place(queue, offset): id for queue, ids in self.log.items() for offset, id in enumerate(ids)}
            self.history.readings.append(reading)
        return self.history

    def some_place(self) -> Place:
        """Of an acknowledged message that others follow."""
        for queue, ids in self.log.items():
            for offset, id in enumerate(ids[:-1]):
                if id in self.history.acknowledged:
                    return Place(queue, offset)
        raise AssertionError("no acknowledged message is followed by another; take another seed")
