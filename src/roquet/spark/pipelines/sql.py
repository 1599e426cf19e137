"""Every topic is a view: Spark SQL over a cluster, a store's files or an archive.

    select tags, count(*) from orders where store_time > now() - interval 1 hour group by tags
    select json.customer, sum(json.amount) from orders group by all

A view is made when a statement names its topic, and holds only the columns that the statement can mean: a column that a
query uses stands in its text, so the words of the text (all columns where it says `*`) are enough. Beside the source's
columns a view has `text`, the body as UTF-8, and `json`, the body parsed with a schema that was given or is inferred from
a sample.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roquet.errors import ClientError, NoRoute
from roquet.spark.columns import COLUMNS
from roquet.spark.options import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE = 1_000
"""Messages of a topic that a JSON schema is inferred from: the newest."""
TEXT, JSON = "text", "json"

_WORD = re.compile(r"`((?:[^`]|``)+)`|([A-Za-z_][A-Za-z_0-9]*)")
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_COUNT_ALL = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)


class NotJson(ClientError):
    """A query asks for `json` of a topic whose bodies are none."""


@dataclass
class Words:
    """What a statement can mean by its words."""

    names: set[str]
    """As written, for topics: their names tell case."""
    lower: set[str]
    """For columns: theirs do not."""
    everything: bool
    """It says `*` for columns."""
    single: bool = False
    """One plain `select`: no table in it is read twice."""

    @classmethod
    def of(cls, statement: str) -> Words:
        bare = _COUNT_ALL.sub("count(1)", _LITERAL.sub(" ", statement))
        names = {(quoted or plain).replace("``", "`") for quoted, plain in _WORD.findall(bare)}
        # Multiplication reads like it too; that only makes a view wider than it need be.
        plain = [word.lower() for _, word in _WORD.findall(bare)]
        single = plain.count("select") == 1 and not {"with", "join", "table"} & set(plain)
        return cls(names, {name.lower() for name in names}, "*" in bare, single)


def columns_for(words: Words) -> list[str]:
    """The source's columns that a view must have for this statement."""
    wanted = set(words.lower)
    if TEXT in wanted or JSON in wanted:
        wanted.add("body")
    chosen = [column.name for column in COLUMNS if words.everything or column.name in wanted]
    return chosen or ["queue_offset"]


@dataclass
class Topics:
    """The views of one place. `where`: source options naming it, or {"archive": directory}."""

    spark: SparkSession
    where: Mapping[str, str]
    schemas: dict[str, str] = field(default_factory=dict)
    """topic -> DDL of its JSON bodies; filled by inference too."""
    sample: int = SAMPLE
    pushdown: bool = False
    """Let `where store_time > …` and the like narrow what is read. Spark 4.3 keeps pushed filters with the frame, so that a
    frame used a second time with other filters gives wrong rows: only for who uses each result once, and only where a
    statement reads each table once."""

    def names(self) -> list[str]:
        """Topics that can be queried, sorted."""
        return names_in(self.where)

    def run(self, statement: str) -> DataFrame:
        """The statement's result, not computed yet."""
        words = Words.of(statement)
        for topic in self.names():
            if topic in words.names:
                self.view(topic, words)
        return self.spark.sql(statement)

    def view(self, topic: str, words: Words) -> None:
        from pyspark.sql import functions as f

        table = self.table(topic, columns_for(words), pushdown=self.pushdown and words.single)
        if words.everything or TEXT in words.lower:
            table = table.withColumn(TEXT, f.col("body").cast("string"))
        if JSON in words.lower:
            parsed = f.from_json(f.col("body").cast("string"), self.json_schema(topic))
            table = table.withColumn(JSON, parsed)
        table.createOrReplaceTempView("`" + topic.replace("`", "``") + "`")

    def table(self, topic: str, names: list[str], *, pushdown: bool = False) -> DataFrame:
        if "archive" in self.where:
            from roquet.spark.archive.read import read_archive

            return read_archive(self.spark, self.where["archive"], topics=[topic])
        source = self.spark.read.format("rocketmq").options(**self.where, subscribe=topic, pushdown=str(pushdown).lower())
        return source.option("columns", ",".join(names)).load()

    def json_schema(self, topic: str) -> str:
        """As given, or as the newest messages suggest. Raises NotJson when none of them is a JSON object."""
        found = self.schemas.get(topic)
        if found is None:
            found = self.schemas[topic] = self.infer(topic)
        return found

    def infer(self, topic: str) -> str:
        from pyspark.sql import functions as f

        newest = self.table(topic, ["body", "store_time"]).orderBy(f.col("store_time").desc()).limit(self.sample)
        texts = [row[0] for row in newest.select(f.col("body").cast("string")).collect() if row[0] is not None]
        if not texts:
            raise NotJson(f"topic {topic} is empty: no JSON schema can be inferred; give one: --schema '{topic}=id bigint, name string'")
        rows = self.spark.createDataFrame([(text,) for text in texts], "value string")
        merged = self.spark.read.json(rows.rdd.map(lambda row: row[0])).schema
        fields = [one for one in merged.fields if one.name != "_corrupt_record"]
        if not fields:
            raise NotJson(f"none of the {len(texts)} newest messages of {topic} is a JSON object; use `text` or `body` instead of `json`")
        from pyspark.sql.types import StructType

        return StructType(fields).simpleString()


def names_in(where: Mapping[str, str]) -> list[str]:
    """Topics of a place or an archive, sorted. Asks for them now, and needs no Spark."""
    if "archive" in where:
        from roquet.spark.archive.read import opened

        return sorted({file.topic for file in opened(where["archive"]).files.values()})
    place = place_of(where)
    try:
        return place.topics()
    finally:
        place.close()


_TABLE = re.compile(r"\b(?:from|join)\s+(?:`((?:[^`]|``)++)`|([A-Za-z_][A-Za-z_0-9]*+))(?!\s*[.(])", re.IGNORECASE)
_OTHER_FROM = re.compile(r"\b(?:extract|trim|substring|substr|overlay|position)\s*\([^()]*\)|\bdistinct\s+from\b", re.IGNORECASE)
_MADE = re.compile(
    r"\b(?:view|table)\s+(?:if\s+not\s+exists\s+)?`?(\w+)|(?:\bwith|,)\s+(\w+|`[^`]+`)\s*(?:\([^)]*\)\s*)?as\s*\(", re.IGNORECASE
)
_NO_TABLES = {"values", "lateral"}
"""Words that may stand behind `from` and `join` and are no names."""


def need_tables(statements: Iterable[str], topics: Iterable[str]) -> list[str]:
    """The statements, when every table that they plainly name is a topic, or made by one of them. Raises NoRoute.

    What it does not understand it lets pass: Spark says the rest.
    """
    given, there = list(statements), set(topics)
    bare = [_OTHER_FROM.sub(" ", _LITERAL.sub(" ", statement)) for statement in given]
    bare = [text for text in bare if text.split()[:1] not in (["show"], ["SHOW"])]  # from a database
    made = {(view or part).strip("`").lower() for text in bare for view, part in _MADE.findall(text)}
    for text in bare:
        for quoted, plain in _TABLE.findall(text):
            name = quoted.replace("``", "`") or plain
            if name not in there and name.lower() not in made and plain.lower() not in _NO_TABLES:
                near = difflib.get_close_matches(name, there, n=1) or [one for one in sorted(there) if one.lower() == name.lower()]
                raise NoRoute(f"the statement reads {name}, and there is no such topic" + (f"; did you mean {near[0]}?" if near else ""))
    return given


def use_pushdown(spark: SparkSession) -> None:
    """Spark's own switch, without which a source that takes filters fails."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
