"""Payloads that Apache's encoders wrote, and what its own decoders read in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roquet.wire.trace import OUTCOMES, TYPES

PAYLOADS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "payloads.json").read_text())["payloads"]

JAVA_TYPES = dict(zip(("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg", "Order_Msg"), TYPES, strict=True))
NAMES = {"message_id": "unique_id", "offset_message_id": "message_id"}


def name_of(recorded: dict[str, Any]) -> str:
    return f"{recorded['version']} {recorded['name']}"


def as_java_read_it(read: dict[str, Any]) -> dict[str, Any]:
    """What Apache's decoder says, under our names."""
    event = {NAMES.get(name, name): value for name, value in read.items()}
    if "type" in event:
        event["type"] = JAVA_TYPES[event["type"]]
    if "context_code" in event:
        event["outcome"] = OUTCOMES[event.pop("context_code")]
    return {name: None if name in ("tags", "keys") and value in ("null", "") else value for name, value in event.items()}
