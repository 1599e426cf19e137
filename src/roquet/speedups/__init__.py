"""The optional compiled step: what Python does for a whole read, done in C. `native` is None where there is none.

Everything that it does has its Python function, with the same signature, which is used without it and which tests hold it to, byte for
byte. It keeps no state and changes no object: it gets what came and returns what is to be done. `ROQUET_SPEEDUPS=0` turns it off.

    speedups.h    numbers, texts and buffers, for all of it
    text.c        numbers as text, UTF-8, Java's hash, the checksum of bodies
    json.c        JSON headers, as far as requests need them
    clock.c       what time it is                        clock.py, now_ms and steady_ms
    frames.c      bytes -> frames                        wire/frame.py, cut_frames
    send.c        frames -> staged messages, answers     broker/plain_send.py, PlainSends.take
                  messages that Python chose -> staged   store/staging.py, Staging.put_rows
                  the log -> messages to be put again    broker/stored.py, take_many_apart
    shape.c       a pull's header -> its shape, numbers   wire/pull_shapes.py, pull_shape
    pull.c        queue entries, log -> a pull's answer   broker/gather.py, gather and pull_answer; broker/sql_columns.py, matching
    client.c      messages -> the body of a batch send   wire/batch.py, join_messages
                  a pull's body -> records               wire/record.py, cut_records
    ledger.c      records -> entries of DLedger's log      store/ledger_heads.py, fill_heads
    apply.c       another node's log -> entries, keys      store/apply_many.py, derive_run
    index.c       keys -> entries of an index file         store/index.py, entries_of
    derived.c     what follows from a message's properties  store/fanout.py
    sign.c        frames -> how many are signed sends      access/signed_sends.py, signed_sends
    module.c      the list of all functions
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

SWITCH = "ROQUET_SPEEDUPS"
EDITION = 18
"""As in speedups.h: it rises when a function comes, goes or changes its signature. A checkout may hold an extension built before that."""


def load(switch: str) -> tuple[ModuleType | None, str]:
    """(the extension, ""), or (None, why not). Raises ValueError for a switch that says neither."""
    if switch not in ("", "0", "1"):
        raise ValueError(f"{SWITCH}={switch!r}: 0 turns the compiled step off, 1 or nothing leaves it on")
    if switch == "0":
        return None, f"{SWITCH}=0"
    try:
        _native = importlib.import_module("roquet.speedups._native")
    except ModuleNotFoundError:
        return None, "not built"
    except ImportError as error:  # built for another Python or another machine
        return None, f"cannot be loaded: {error}"
    if _native.EDITION != EDITION:
        return None, f"it is of edition {_native.EDITION}, {EDITION} is needed: build it again (python setup.py build_ext --inplace)"
    return _native, ""


native, why_not = load(os.environ.get(SWITCH, ""))


def in_words() -> str:
    """Which one runs, for the start line and `roquet status`."""
    return "compiled" if native is not None else f"Python ({why_not})"
