"""What is in the topics: the same keys and bodies on both sides, in the same queue and order.

A body looks like an order: numbers that differ in every record, then text that is drawn from 16 MiB of it, so that a
compressor finds what it would find in real text and not the same bytes again. One size of body makes one size of record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from frames import FIRST_OPAQUE, KEY_HEAD, SEND_BATCH_MESSAGE, Stream
from load import Outcome, Sender, drive

QUEUES = 4
BATCH_BYTES = 48 << 10  # of bodies in one batch: some Kafka producers' habit, and far below both servers' limits
CHUNK = 100_000  # records made at a time
TEXT_BYTES = 16 << 20
HEAD = b'{"order":"%09d","customer":"%06d","cents":1%06d,"note":"'
KEY = b"order-%09d"
WINDOW = 8  # batches in flight


@dataclass(frozen=True)
class DataSet:
    """So many records of one size, in a topic of its own."""

    name: str
    size: int
    """Bytes of a body."""
    count: int

    @property
    def topic(self) -> str:
        return f"Spark_{self.name.replace(' ', '')}"

    @property
    def batch(self) -> int:
        """Records in a batch."""
        return max(1, BATCH_BYTES // self.size)

    def queue_of(self, index: int) -> int:
        return index // self.batch % QUEUES

    def rounded(self) -> DataSet:
        """With whole batches only: what the load generator can send."""
        return DataSet(self.name, self.size, -(-self.count // self.batch) * self.batch)


def text() -> bytes:
    """16 MiB of words that nobody has heard, the same every time."""
    random = np.random.default_rng(20_240_229)
    letters = np.frombuffer(b"etaoinshrdlcumwfgypbvk", np.uint8)
    words = [letters[random.integers(0, len(letters), size)].tobytes() for size in random.integers(2, 10, 5_000)]
    chosen = random.integers(0, len(words), TEXT_BYTES // 6)
    return b" ".join([words[i] for i in chosen])[:TEXT_BYTES]


def chunks(data: DataSet) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    """(index of the first, keys, bodies), a chunk at a time."""
    filler = text()
    note = data.size - len(HEAD % (0, 0, 0)) - 2
    room = len(filler) - note
    whole = CHUNK // data.batch * data.batch
    for first in range(0, data.count, whole):
        indexes = range(first, min(first + whole, data.count))
        starts = [i * 7_919_003 % room for i in indexes]  # a prime stride: neighbours take text from far apart
        bodies = [
            (HEAD % (i, i * 613 % 1_000_000, i * 7_393 % 1_000_000)) + filler[at : at + note] + b'"}'
            for i, at in zip(indexes, starts, strict=True)
        ]
        yield first, [KEY % i for i in indexes], bodies


# ---------------------------------------------------------------- into Roquet


def batch_frames(stream: Stream, data: DataSet, first: int, keys: list[bytes], bodies: list[bytes]) -> tuple[bytes, int]:
    """Requests of one batch each as a Java client writes them, in one buffer, and the size of each."""
    template = stream._send(SEND_BATCH_MESSAGE, b"WAIT\\u0001true", b"true")
    properties = b"KEYS\x01%b\x02UNIQ_KEY\x01" + KEY_HEAD + b"%012X\x02WAIT\x01true"
    properties_size = len(properties % (keys[0], first))
    # size, magic 0, crc 0, flag 0, body size, body, properties size, properties
    before = struct.pack(">iiiii", 22 + data.size + properties_size, 0, 0, 0, data.size)
    between = struct.pack(">h", properties_size)
    messages = [
        b"".join((before, body, between, properties % (key, first + i))) for i, (key, body) in enumerate(zip(keys, bodies, strict=True))
    ]
    header_size = len(template % (0, FIRST_OPAQUE))
    head = struct.pack(">ii", 4 + header_size + data.batch * len(messages[0]), header_size)
    out = []
    for at in range(0, len(messages), data.batch):
        header = template % (data.queue_of(first + at), FIRST_OPAQUE + (first + at) // data.batch)
        out.append(b"".join((head, header, *messages[at : at + data.batch])))
    return b"".join(out), len(out[0])


def fill_roquet(port: int, data: DataSet) -> None:
    """Sends all of it; raises when one batch is refused."""
    stream, sender, outcome = Stream(data.topic, QUEUES), Sender(port, timeout_s=60.0), Outcome()
    for first, keys, bodies in chunks(data):
        frames, size = batch_frames(stream, data, first, keys, bodies)
        sender.load(memoryview(frames), size, WINDOW)
        drive([sender], outcome, 60.0)
        if outcome.errors:
            raise RuntimeError(f"{outcome.errors} batches of {data.topic} were refused, the first with {outcome.first_error}")
    sender.socket.close()


# ---------------------------------------------------------------- into Kafka


def write_parquet(data: DataSet, directory: Path) -> None:
    """The same records as files, which Spark's own sink then sends to Kafka."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    directory.mkdir(parents=True)
    for first, keys, bodies in chunks(data):
        queues = pa.array([data.queue_of(first + i) for i in range(len(keys))], pa.int32())
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(bodies, pa.binary()), "partition": queues})
        parquet.write_table(table, directory / f"{first:09d}.parquet", compression="none", use_dictionary=False)
