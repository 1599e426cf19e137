"""The user's schema against our columns: which are decoded, and in what shape Spark expects them.

Spark compares the schema of a record batch with the user's to the letter: names as the user spelled them, order, and
whether nulls are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from roquet.spark.columns import BY_NAME, MAP, arrow_schema, no_column
from roquet.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType


def check_schema(schema: StructType, columns: tuple[str, ...] | None = None) -> None:
    """Raises BadOption for a column that is not ours, or has another type. `columns`: what the option of that name chose."""
    if not schema.fields:
        raise BadOption("the schema has no columns; leave it out to have the default ones, or name some")
    seen: set[str] = set()
    for field in schema.fields:
        name = field.name.lower()
        if name not in BY_NAME:
            raise BadOption(no_column("the schema", field.name))
        if name in seen:
            raise BadOption(f"the schema names {field.name} twice")
        seen.add(name)
        given, right = field.dataType.simpleString(), BY_NAME[name].sql
        if given != right:
            raise BadOption(f"the schema has {field.name} as {given}; it is {right}; read it so, and cast it afterwards")
    if columns is not None and tuple(field.name.lower() for field in schema.fields) != columns:
        raise BadOption("a schema and the option columns both say which columns to read; give one of them")


@dataclass(frozen=True, slots=True)
class Projection:
    decoded: pa.Schema
    """Our columns, as the decoder makes them."""
    wanted: pa.Schema
    """The same as the user named them."""

    @classmethod
    def of(cls, schema: StructType) -> Projection:
        return cls(arrow_schema([field.name.lower() for field in schema.fields]), pa.schema([wanted_field(one) for one in schema.fields]))

    def shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.wanted.equals(self.decoded):
            return batch
        columns = [column.cast(field.type) for column, field in zip(batch.columns, self.wanted, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)


def wanted_field(field: StructField) -> pa.Field:
    kind = BY_NAME[field.name.lower()].arrow
    if kind == MAP and not getattr(field.dataType, "valueContainsNull", True):
        kind = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return pa.field(field.name, kind, nullable=field.nullable)
