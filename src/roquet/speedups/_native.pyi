"""What the extension has; each says which Python function it stands for."""

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from roquet.store.apply_many import DerivedRun
from roquet.store.queue import ConsumeQueue
from roquet.store.staging import Row
from roquet.wire.frame import Frame

EDITION: int
SOURCES: str
"""A digest of the C files that it was built from (setup.py)."""

def cut_frames(data: bytes, limit: int, /) -> tuple[list[Frame], int, int]:
    """wire.frame.cut_frames."""

Fixed = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, int]
"""(cluster property, store host, its hexadecimal digits, how a JSON answer ends before the opaque, how a binary one begins (code, language,
version), how its fields end, what stands before every record, the largest body)."""

def take_sends(
    frames: list[Frame],
    at: int,
    queues: dict[str, dict[str, ConsumeQueue]],
    diversions: dict[str, Callable[[str, str], tuple[ConsumeQueue, str, int | None] | None]],
    fixed: Fixed,
    log_end: int,
    room: int,
    now_ms: int,
    born_host: bytes,
    /,
) -> tuple[int, int, bytes, bytes, list[tuple[ConsumeQueue, int, bytes]], bytes, int]:
    """broker.plain_send.PlainSends.take, as far as it goes: (where the first frame stands that was not taken, whether it is only that the
    others touch too many queues, records, answers, (queue, its `next`, entries), index.KEYS, how many sends). `room`: bytes of records that
    the log's file still holds."""

def put_messages(
    rows: list[Row], at: int, lead: bytes, log_end: int, room: int, now_ms: int, /
) -> tuple[int, int, bytes, bytes, list[tuple[ConsumeQueue, int, bytes]], bytes, int]:
    """store.staging.Staging.put_rows, as far as it goes; returns what `take_sends` does."""

def pull_shape(form: int, header: bytes, /) -> tuple[bytes, int, int, int] | None:
    """wire.pull_shapes.pull_shape."""

def gather(
    raw: bytes,
    codes: Collection[int] | None,
    number: int,
    count_max: int,
    size_max: int,
    start: int,
    end: int,
    record_max: int,
    view: Callable[[int, int], memoryview],
    span_max: int,
    /,
) -> tuple[bytes, int, int] | None:
    """broker.gather.gather, for up to 64 tag hashes."""

def pull_answer(
    raw: bytes,
    codes: Collection[int] | None,
    number: int,
    count_max: int,
    size_max: int,
    start: int,
    end: int,
    record_max: int,
    view: Callable[[int, int], memoryview],
    span_max: int,
    binary: bool,
    opaque: int,
    first: int,
    last: int,
    /,
) -> tuple[bytes, int, int, int] | None:
    """broker.gather.pull_answer, for at most 64 codes."""

def property_rows(
    data: memoryview, begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], number: int, names: tuple[bytes, ...], /
) -> list[bytes] | None:
    """broker.sql_columns.property_rows, for up to 8 names."""

def join_messages(bodies: list[bytes], texts: list[str], message_ids: list[str], name: str, /) -> bytes | None:
    """wire.batch.join_messages; None where that raises."""

def cut_records(data: bytes, topic: bytes, queue_id: int, /) -> list[tuple[bytes, int, int]] | None:
    """wire.record.cut_records."""

def fill_heads(data: bytes, pos: int, index: int, term: int, /) -> tuple[bytes, bytes]:
    """store.ledger_heads.fill_heads."""

def derive_run(data: bytes, base: int, with_heads: bool, last_ms: int, indexed: bool, /) -> DerivedRun | None:
    """store.apply_many.derive_run, for any number of records in up to 64 queues; delayed and timed ones are left."""

def signed_sends(
    frames: list[Frame], at: int, stop: int, secrets: dict[bytes, bytes], may: set[bytes], broker_name: bytes, /
) -> tuple[int, bytes | None]:
    """access.signed_sends.signed_sends, for up to 32 fields with names in ASCII."""
