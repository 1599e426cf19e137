"""Dead letters of all groups as one table: counted by reason, looked at, and a selection of them sent again.

    found = letters(spark, {"namesrvAddr": "127.0.0.1:9876"})
    by_reason(found).show()
    plans = redrive(where, chosen(found, Selection(tag="paid", where="properties['region'] = 'eu'")), dry_run=True)

Reading and choosing is Spark's; sending is roquet.admin.dead_letters, with its marks and its lock: the message sent again
has the letter's id as its unique key, its topic is asked for that key before, and so a second run, of this or of
`roquet dead-letters replay`, sends nothing twice and goes on where the first one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roquet.admin.dead_letters import Choice, DeadLetters, Plan, Step
from roquet.errors import ClientError, Rejected, RoquetError
from roquet.message import MessageQueue, Property, ReceivedMessage
from roquet.spark.pipelines.administration import administrator, can_ask, must_ask
from roquet.wire.names import DLQ_PREFIX, dead_letter_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from roquet.admin import Admin

REASON_PROPERTIES = (Property.FAILURE, "x-exception-message", "x-exception-fqcn", "exception", "error", "reason")
"""Properties in which applications say why, the first that a letter has. The first of them is what Roquet's consumers say."""
REASON_MAX = 120
"""Characters of such a text that are a reason: what follows is often different for every message."""

MADE_UP_S = 0.1
SENDING = "sending dead letters again"

SOURCE = "topic broker queue_id queue_offset keys tags properties born_time store_time unique_id message_id reconsume_times".split()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters. What is not given does not matter; all that is given must hold."""

    groups: tuple[str, ...] = ()
    origin_topic: str = ""
    tag: str = ""
    key: str = ""
    where: str = ""
    """A Spark SQL expression over the columns of `letters`."""


# Reading


def letters(
    spark: SparkSession,
    where: Mapping[str, str],
    groups: Collection[str] = (),
    *,
    since: str = "",
    until: str = "",
    body: bool = False,
    attempts: Mapping[str, int] | None = None,
    reason_properties: Collection[str] = REASON_PROPERTIES,
) -> DataFrame:
    """Every dead letter. `since`, `until`: when it became one, as the source's startingTimestamp takes it.

    `attempts`: how often each group tries (`attempts_of`), to tell letters that ran out of attempts from those that a
    consumer gave up at once.
    """
    from roquet.spark.columns import BY_NAME

    topics = topics_with_letters(where, groups)
    names = [*SOURCE, "body"] if body else SOURCE
    ddl = ", ".join(f"{name} {BY_NAME[name].sql}" for name in names)
    if not topics:
        return described(spark.createDataFrame([], ddl), attempts, reason_properties)
    times = {name: text for name, text in (("startingTimestamp", since), ("endingTimestamp", until)) if text}
    options = {**where, **times, "subscribe": ",".join(topics)}
    return described(spark.read.format("rocketmq").options(**options).schema(ddl).load(), attempts, reason_properties)


def topics_with_letters(where: Mapping[str, str], groups: Collection[str] = ()) -> list[str]:
    """The dead letter topics of the place; of these groups, those that have one."""
    from roquet.spark.options import place_of

    place = place_of(where)
    try:
        found = [topic for topic in place.topics() if topic.startswith(DLQ_PREFIX)]
    finally:
        place.close()
    wanted = {dead_letter_topic(group) for group in groups}
    return [topic for topic in found if not wanted or topic in wanted]


def attempts_of(where: Mapping[str, str]) -> dict[str, int]:
    """How often each group tries before it gives up, as brokers have it; nothing where they cannot be asked, or tell it to admins alone."""
    if not can_ask(where):
        return {}

    async def work() -> dict[str, int]:
        async with administrator(where) as admin:
            try:
                return {name: config.retry_max_times for name, config in (await admin.groups()).items()}
            except Rejected:
                return {}

    return asyncio.run(work())


def described(
    source: DataFrame, attempts: Mapping[str, int] | None = None, reason_properties: Collection[str] = REASON_PROPERTIES
) -> DataFrame:
    """Rows of dead letter topics with what they tell: group, origin_topic, origin_message_id, max_attempts, age_s, reason."""
    from pyspark.sql import functions as F

    given = [F.element_at("properties", F.lit(name)) for name in reason_properties]
    limit = F.expr(f"try_cast(properties['{Property.MAX_RECONSUME_TIMES}'] as int)")  # anybody may have written it
    if attempts:
        limits = F.create_map(*(F.lit(part) for pair in sorted(attempts.items()) for part in pair))
        limit = F.coalesce(limit, F.element_at(limits, F.col("group")))
    failed = F.when(F.col("reconsume_times") == 1, "failed once").otherwise(F.format_string("failed %d times", F.col("reconsume_times")))
    reason = (
        F.when(F.col("max_attempts").isNull(), failed)
        .when(F.col("reconsume_times") >= F.col("max_attempts"), F.concat(failed, F.lit(", as often as allowed")))
        .otherwise(F.concat(failed, F.format_string(", its consumer gave up before the %d allowed", F.col("max_attempts"))))
    )
    given_reason = F.substring(F.coalesce(*given, F.lit(None).cast("string")), 1, REASON_MAX)
    return (
        source.withColumn("group", F.expr(f"substr(topic, {len(DLQ_PREFIX) + 1})"))
        .withColumn("origin_topic", F.expr(f"coalesce(properties['{Property.RETRY_TOPIC}'], properties['{Property.DLQ_ORIGIN_TOPIC}'])"))
        .withColumn("origin_message_id", F.expr(f"properties['{Property.ORIGIN_MESSAGE_ID}']"))
        .withColumn("max_attempts", limit)
        .withColumn("age_s", (F.unix_millis(F.current_timestamp()) - F.unix_millis("store_time")) / 1000)
        .withColumn("reason", F.coalesce(given_reason, reason))
    )


def chosen(found: DataFrame, selection: Selection) -> DataFrame:
    """Those that the selection takes. Raises ClientError when its expression is none."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    if selection.groups:
        found = found.where(F.col("group").isin(*selection.groups))
    if selection.origin_topic:
        found = found.where(F.col("origin_topic") == selection.origin_topic)
    if selection.tag:
        found = found.where(F.col("tags") == selection.tag)
    if selection.key:
        found = found.where(F.array_contains(F.split("keys", " "), selection.key))
    if not selection.where:
        return found
    try:
        return found.where(F.expr(selection.where))
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().splitlines()[0]
        columns = ", ".join(found.columns)
        raise ClientError(f"--where {selection.where!r} is no expression over dead letters: {reason}\n  Columns: {columns}") from None


def by_reason(found: DataFrame) -> DataFrame:
    """Counted: a row for each group, origin topic, tag and reason, the most frequent first."""
    from pyspark.sql import functions as F

    keys = ("group", "origin_topic", "tags", "reason")
    counts = found.groupBy(*keys).agg(
        F.count("*").alias("letters"),
        F.min("reconsume_times").alias("reconsume_times_min"),
        F.max("reconsume_times").alias("reconsume_times_max"),
        F.min("store_time").alias("oldest"),
        F.max("store_time").alias("newest"),
    )
    return counts.orderBy(F.desc("letters"), *keys)


def newest(found: DataFrame, count: int) -> DataFrame:
    """To look at."""
    from pyspark.sql import functions as F

    return found.orderBy(F.desc("store_time"), "group", "broker", "queue_id", F.desc("queue_offset")).limit(count)


# Sending again


@dataclass(frozen=True)
class Letters(Choice):
    """A choice that Spark made: offsets by queue."""

    offsets: Mapping[MessageQueue, frozenset[int]] = field(default_factory=dict)

    def takes(self, letter: ReceivedMessage) -> bool:
        return letter.queue_offset in self.offsets.get(letter.queue, ())


@dataclass(slots=True)
class Redriven:
    """What became of one group's letters."""

    group: str
    chosen: int
    plan: Plan = field(default_factory=Plan)
    sent: int = 0
    failed: str = ""
    """Why it stopped before the end."""

    @property
    def left(self) -> list[Step]:
        """Still to send: of a dry run all that would be sent."""
        return self.plan.to_send()

    @property
    def impossible(self) -> list[Step]:
        return [step for step in self.plan.steps if step.why_not]

    @property
    def sent_before(self) -> int:
        """By earlier runs. Letters before the mark were not looked at again, so these count as chosen less what the plan has."""
        return self.chosen - self.sent - len(self.left) - len(self.impossible) if not self.failed or self.plan.steps else 0


class Paced(DeadLetters):
    """At most so many a second, evenly."""

    def __init__(self, admin: Admin, group: str, rate: float | None, *, to: str = "", only_this_group: bool = False) -> None:
        super().__init__(admin, group, to=to, only_this_group=only_this_group)
        self._gap_s = 0.0 if rate is None else 1 / rate
        self._next_s = 0.0

    async def _send(self, letter: ReceivedMessage, target: str) -> int:
        if self._gap_s:
            clock = asyncio.get_running_loop().time
            await asyncio.sleep(self._next_s - clock())
            # A sleep ends late by a little: that is made up for, a longer pause is not.
            self._next_s = max(self._next_s, clock() - MADE_UP_S) + self._gap_s if self._next_s else clock() + self._gap_s
        return await super()._send(letter, target)


def offsets_by_group(selected: DataFrame) -> dict[str, dict[MessageQueue, frozenset[int]]]:
    """Where the chosen letters are."""
    table = selected.select("topic", "broker", "queue_id", "queue_offset").toArrow()
    found: dict[str, dict[MessageQueue, frozenset[int]]] = {}
    grouped = table.group_by(["topic", "broker", "queue_id"]).aggregate([("queue_offset", "list")])
    for row in grouped.to_pylist():
        queue = MessageQueue(row["topic"], row["broker"], row["queue_id"])
        group = queue.topic.removeprefix(DLQ_PREFIX)
        found.setdefault(group, {})[queue] = frozenset(row["queue_offset_list"])
    return dict(sorted(found.items()))


def redrive(
    where: Mapping[str, str],
    offsets: Mapping[str, Mapping[MessageQueue, frozenset[int]]],
    *,
    to: str = "",
    only_this_group: bool = False,
    rate: float | None = None,
    again: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Redriven]:
    """Send these letters (`offsets_by_group`) again, group by group: to the topic each came from, to another, or to the
    group's own retry topic. A dry run only finds out what would be sent. One group's failure does not stop the others."""
    must_ask(where, SENDING)

    async def work() -> list[Redriven]:
        done = []
        async with administrator(where) as admin:
            for group, queues in offsets.items():
                dead = Paced(admin, group, rate, to=to, only_this_group=only_this_group)
                done.append(await _one_group(dead, Letters(offsets=queues), again, dry_run, progress))
        return done

    return asyncio.run(work())


async def _one_group(dead: Paced, choice: Letters, again: bool, dry_run: bool, progress: Callable[[int], None]) -> Redriven:
    result = Redriven(dead.group, sum(map(len, choice.offsets.values())))
    try:
        if dry_run:
            result.plan = await dead.plan(choice, again=again)
            return result
        async with dead:
            result.plan = await dead.plan(choice, again=again)
            outcome = await dead.replay(result.plan, progress)
            result.sent, result.failed = outcome.sent, outcome.failed
    except RoquetError as error:
        result.failed = str(error)
    return result
