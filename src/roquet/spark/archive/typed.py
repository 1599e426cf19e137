"""Properties with a column of their own: text out of the map, and as a number where one was asked for. Vectorised.

A value that is not of the type gives null: one bad producer must not stop an archive. The map still has the text.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from roquet.spark.archive.manifest import ArchiveError
from roquet.spark.columns import BY_NAME, TIME

TYPES: dict[str, tuple[pa.DataType, str]] = {
    "string": (pa.string(), ""),
    "bigint": (pa.int64(), r"^[+-]?[0-9]{1,18}$"),
    "double": (pa.float64(), r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"),
    "boolean": (pa.bool_(), r"^(true|false|True|False|TRUE|FALSE|0|1)$"),
    "timestamp": (TIME, r"^[0-9]{1,15}$"),
}
"""Name -> (Arrow's type, what a text must look like). A timestamp is milliseconds since 1970, as RocketMQ writes times."""


def parse_property(text: str) -> tuple[str, str]:
    """region:string -> ("region", "string"); without a type it is text."""
    name, _, kind = text.rpartition(":") if ":" in text else (text, "", "string")
    if kind not in TYPES:
        raise ArchiveError(f"property {text!r}: {kind!r} is not a type; use one of {', '.join(TYPES)}, as in region:string")
    if not name or any(sign in name for sign in " ,;{}()\n\t=`."):
        raise ArchiveError(f"property {text!r}: {name!r} cannot name a column; blanks, dots and ,;{{}}()= are not allowed there")
    if name.lower() in BY_NAME or name.lower() == "date":
        raise ArchiveError(f"property {name} would clash with the column {name.lower()}, which every archive has")
    return name, kind


def value_of(properties: Any, name: str, kind: str) -> Any:
    """The column of one property."""
    text = pc.map_lookup(properties, pa.scalar(name, pa.string()), "last")
    arrow, looks = TYPES[kind]
    if not looks:
        return text
    text = pc.if_else(pc.match_substring_regex(text, looks), text, pa.scalar(None, pa.string()))
    if kind == "timestamp":
        return pc.cast(pc.cast(text, pa.int64()), pa.timestamp("ms", tz="UTC")).cast(TIME)
    if kind == "bigint":
        text = pc.replace_substring_regex(text, r"^\+", "")
    return pc.cast(text, arrow)


def field_of(name: str, kind: str) -> pa.Field:
    return pa.field(name, TYPES[kind][0])
