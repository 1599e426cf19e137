"""JSON Schemas of the types that handlers and publishers name: the same types that `shapes` reads."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import re
import types
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

from roquet.app.payloads import classes_in, model_library
from roquet.app.shapes import MAPPINGS, SEQUENCES, filled, hints_of, is_needed

Schema = dict[str, Any]
REF = "#/components/schemas/"

SIMPLE: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Decimal: {"type": ["string", "number"], "format": "decimal"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": "number", "description": "seconds"},
    UUID: {"type": "string", "format": "uuid"},
    Path: {"type": "string"},
}


class Schemas:
    """Schemas of classes are kept under their names, once each; others stand where they are used."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def of(self, annotation: Any) -> Schema:
        """The schema of a JSON value of this type."""
        libraries = {model_library(kind) for kind in classes_in(annotation)} - {""}
        if libraries == {"pydantic"}:
            return self._pydantic(annotation)
        if libraries == {"msgspec"}:
            return self._msgspec(annotation)
        return self._of(annotation)

    def _of(self, annotation: Any) -> Schema:
        if isinstance(annotation, typing.NewType):
            return self._of(annotation.__supertype__)
        if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
            return {}
        if annotation in SIMPLE:
            return dict(SIMPLE[annotation])
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
            return self._of(inner[0])
        if origin is Union or origin is types.UnionType:
            return {"anyOf": [self._of(kind) for kind in inner]}
        if origin is Literal:
            return {"enum": list(inner)}
        return self._container(annotation, origin or annotation, inner)

    def _container(self, annotation: Any, origin: Any, inner: tuple[Any, ...]) -> Schema:
        if origin is tuple and inner and inner[-1] is not Ellipsis:
            return {"type": "array", "items": [self._of(kind) for kind in inner], "minItems": len(inner), "maxItems": len(inner)}
        if origin in SEQUENCES or origin is tuple:
            made: Schema = {"type": "array", "items": self._of(inner[0]) if inner else {}}
            return {**made, "uniqueItems": True} if origin in (set, frozenset, collections.abc.Set) else made
        if origin in MAPPINGS:
            return {"type": "object", "additionalProperties": self._of(inner[1]) if inner else {}}
        return self._named(annotation, origin, inner)

    # -- classes

    def _named(self, annotation: Any, kind: Any, inner: tuple[Any, ...]) -> Schema:
        if annotation not in self._names:
            name = self._names[annotation] = self._free_name(annotation)
            self.components[name] = {}  # for one that holds itself
            self.components[name] = self._class(kind, inner)
        return {"$ref": REF + self._names[annotation]}

    def _free_name(self, annotation: Any) -> str:
        words = [getattr(get_origin(annotation) or annotation, "__name__", "Type")]
        words += [getattr(one, "__name__", "Any") for one in get_args(annotation)]
        name = safe("_".join(words))
        number = 2
        while name in self.components:  # another class of this name, of another module
            name = safe("_".join(words)) + f"_{number}"
            number += 1
        return name

    def _class(self, kind: Any, inner: tuple[Any, ...]) -> Schema:
        if issubclass(kind, enum.Enum):
            return about(kind, {"title": kind.__name__, "enum": [member.value for member in kind]})
        needed: list[str] = []
        properties: dict[str, Schema] = {}
        hints = hints_of(kind)
        if dataclasses.is_dataclass(kind):
            variables = dict(zip(getattr(kind, "__parameters__", ()), inner, strict=False))
            for field in dataclasses.fields(kind):
                if field.init:
                    properties[field.name] = self._of(filled(hints[field.name], variables))
                    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                        needed.append(field.name)
        elif typing.is_typeddict(kind):
            for name, hint in hints.items():
                properties[name] = self._of(hint)
                if is_needed(kind, name, hint):
                    needed.append(name)
        else:  # a NamedTuple
            properties = {name: self._of(hints.get(name, Any)) for name in kind._fields}
            needed = [name for name in kind._fields if name not in kind._field_defaults]
        made: Schema = {"title": kind.__name__, "type": "object", "properties": properties}
        return about(kind, {**made, "required": needed} if needed else made)

    def _pydantic(self, annotation: Any) -> Schema:
        import pydantic

        schema: Schema = pydantic.TypeAdapter(annotation).json_schema(ref_template=REF + "{model}")
        self.components.update(schema.pop("$defs", {}))
        return self._kept(annotation, schema)

    def _msgspec(self, annotation: Any) -> Schema:
        import msgspec

        [schema], components = msgspec.json.schema_components([annotation], ref_template=REF + "{name}")
        self.components.update(components)
        return schema

    def _kept(self, annotation: Any, schema: Schema) -> Schema:
        """A model's own schema goes under its name, too."""
        if not isinstance(annotation, type) or "$ref" in schema:
            return schema
        name = safe(annotation.__name__)
        self.components[name] = schema
        return {"$ref": REF + name}


def about(kind: Any, schema: Schema) -> Schema:
    """With the class's own docstring; not the one that Python makes for a dataclass."""
    text = (vars(kind).get("__doc__") or "").strip()
    if text and not text.startswith(f"{kind.__name__}("):
        return {**schema, "description": " ".join(text.split())}
    return schema


def safe(name: str) -> str:
    """As the keys of components may be."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", name) or "_"
