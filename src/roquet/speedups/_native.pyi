"""What the extension has; each says which Python function it stands for."""

from collections.abc import Callable, Mapping

from roquet.broker.entries_ahead import Place, Ready
from roquet.broker.pull_runs import Answers, Terms
from roquet.broker.stored import Again
from roquet.ports import Read
from roquet.store.apply_many import DerivedRun
from roquet.store.queue import ConsumeQueue
from roquet.store.staging import Row, Staged
from roquet.wire.frame import Frame

EDITION: int
SOURCES: str
"""A digest of the C files that it was built from (setup.py)."""

def now_ms() -> int:
    """clock.now_ms."""

def steady_ms() -> int:
    """clock.steady_ms."""

def cut_frames(data: bytes, limit: int, /) -> tuple[list[Frame], int, int]:
    """wire.frame.cut_frames."""

Fixed = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""(cluster property, store host, its hexadecimal digits, how a JSON answer ends before the opaque, how a binary one begins (code, language,
version), how its fields end, what stands before every record)."""

def take_sends(
    reads: list[Read],
    at: int,
    queues: dict[str, dict[str, ConsumeQueue]],
    diversions: dict[str, Callable[[str, str], tuple[ConsumeQueue, str, int | None] | None]],
    fixed: Fixed,
    body_max: int,
    log_end: int,
    room: int,
    now_ms: int,
    /,
) -> tuple[int, int, bytes, list[tuple[int, bytes]], list[Staged], list[bytes], bytes]:
    """broker.plain_send.PlainSends.take of each read, the first from frame `at` on, as far as it goes: (where the first frame stands that
    was not taken, whether it is only that the others touch too many queues, records, (sends, answers) of each read up to the one with that
    frame, what was staged in each queue, its entries, index.KEYS). `room`: bytes of records that the log's file still holds."""

def put_messages(
    rows: list[Row], at: int, lead: bytes, log_end: int, room: int, now_ms: int, /
) -> tuple[int, int, bytes, None, list[Staged], list[bytes], bytes]:
    """store.staging.Staging.put_rows, as far as it goes; returns what `take_sends` does, without answers."""

def take_many_apart(data: bytes | memoryview, start: int, places: list[int], names: bytes, /) -> list[Again]:
    """broker.stored.take_many_apart; a record with more than 32 properties is unusual."""

def pull_shape(form: int, header: bytes, /) -> tuple[bytes, int, int, int] | None:
    """wire.pull_shapes.pull_shape."""

def gather(
    raw: bytes,
    codes: bytes | None,
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
    """broker.gather.gather."""

def answer_pulls(
    frames: list[Frame],
    at: int,
    ready: dict[bytes, Ready],
    queues: dict[Place, ConsumeQueue],
    terms: Terms,
    stretches: dict[int, memoryview],
    stretch: int,
    view: Callable[[int, int], memoryview],
    span_max: int,
    bytes_max: int,
    /,
) -> Answers:
    """broker.pull_runs.answer_pulls."""

def matching(
    raw: bytes, data: memoryview, start: int, number: int, names: tuple[bytes, ...], decisions: Mapping[bytes, bool], /
) -> list[int] | None:
    """broker.sql_columns.matching, for up to 8 names."""

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

def index_entries(keys: bytes, slots: memoryview, number: int, begin_ms: int, /) -> tuple[bytes, int, int]:
    """store.index.entries_of."""
