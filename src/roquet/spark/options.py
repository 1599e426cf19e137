"""Every option of the source: one table, from which they are read, checked and documented.

The names are those of Spark's Kafka source where it has the same thing. Spark does not tell upper from lower case in
options, so neither do we.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from roquet.errors import ClientError
from roquet.message import MessageQueue
from roquet.spark.places import Wanted

if TYPE_CHECKING:
    from roquet.net.connection import ConnectionOptions
    from roquet.spark.places import Place

EARLIEST, LATEST = -2, -1
"""In JSON in place of an offset, as Kafka has them."""
READER_GROUP = "spark_reader"
"""Under which pulls are made when no groupId is given. One name for all queries: brokers keep an entry for every group they have seen."""


class BadOption(ClientError, ValueError):
    """An option that cannot be used. Says its name, its value and what would do."""


class Option(NamedTuple):
    name: str
    form: str
    """What its value looks like."""
    default: str
    about: str


OPTIONS: tuple[Option, ...] = (
    Option("namesrvAddr", "host:port, several with ;", "", "name servers of the cluster; this or path"),
    Option("path", "directory", "", "a broker's store directory, read without a broker: live, stopped, or written by Apache RocketMQ"),
    Option("subscribe", "names with ,", "", "the topics; this, subscribePattern or assign"),
    Option("subscribePattern", "regular expression", "", "topics whose whole name matches, those created later too; system topics never"),
    Option("assign", 'JSON {"topic": {"broker": [0, 1]}} or {"topic": [0, 1]}', "", "these queues and no others"),
    Option("columns", "all, or names with ,", "ten of them: see Columns", "which columns a read has; a schema says the same"),
    Option("startingOffsets", 'earliest, latest, or JSON {"topic": {"broker": {"0": 123}}}', "batch: earliest; stream: latest",
           "where to begin; in JSON -2 is earliest, -1 latest, and queues that are not named begin at earliest"),
    Option("startingTimestamp", "ms since 1970, 2026-01-31T12:00:00Z, or -10 minutes", "",
           "begin at the first message stored then or later; a time without a zone is UTC"),
    Option("startingOffsetsByTimestamp", 'JSON {"topic": {"broker": {"0": time}}}, {"topic": {"0": time}} or {"topic": time}', "",
           "the same for each queue, with times as startingTimestamp takes them; queues that are not named begin at earliest"),
    Option("startingOffsetsByTimestampStrategy", "latest, error", "latest",
           "of a queue that has no message so new: begin at its end, or fail; for both options above"),
    Option("endingOffsets", 'latest, or JSON {"topic": {"broker": {"0": 123}}}', "latest",
           "where to end (the offset itself is not read); a stream goes no further and waits"),
    Option("endingTimestamp", "as startingTimestamp", "",
           "end before the first message stored then or later; a stream goes no further and waits"),
    Option("endingOffsetsByTimestamp", "as startingOffsetsByTimestamp", "",
           "batch: the same for each queue; those that are not named end at latest"),
    Option("maxOffsetsPerTrigger", "number", "", "stream: messages of one batch at most, shared out by what each queue has"),
    Option("maxBytesPerTrigger", "number, or 64m", "",
           "stream: bytes of one batch at most, as stored; exact from files, by a sample from brokers"),
    Option("minOffsetsPerTrigger", "number", "", "stream: wait for so many messages"),
    Option("maxTriggerDelay", "duration: 90s, 15m, 1h", "15m", "stream: but wait no longer than this"),
    Option("minPartitions", "number", "", "split queues so that there are at least so many tasks"),
    Option("failOnDataLoss", "true, false", "true", "false: when messages are gone before they were read, warn and read what is there"),
    Option("tags", "paid || shipped", "", "only messages with one of these tags; the broker filters"),
    Option("sql", "amount > 5 AND region = 'eu'", "", "only messages whose properties fit; the broker filters (enablePropertyFilter)"),
    Option("groupId", "name", "", "consumer group: pulls are made in its name, and a stream's progress is written to the broker, "
           "so that its lag shows there"),
    Option("accessKey", "text", "", "ACL: who reads"),
    Option("secretKey", "text", "", "ACL: its secret"),
    Option("securityToken", "text", "", "ACL: its token, if it has one"),
    Option("useTLS", "true, false", "false", "encrypt connections to name servers and brokers"),
    Option("tlsCaFile", "file", "the machine's", "authorities that are trusted, PEM"),
    Option("tlsCertFile", "file", "", "our certificate, for servers that want one"),
    Option("tlsKeyFile", "file", "in tlsCertFile", "its key"),
    Option("tlsKeyPassword", "text", "", "password of the key, if it has one"),
    Option("tlsVerify", "true, false", "true", "false: trust any server"),
    Option("broker", "name", "what the store says", "path: name of the broker whose files they are, for the column broker"),
    Option("checkCrc", "true, false", "false", "check every body's checksum; costs about as much as decoding"),
    Option("timeout", "duration", "2m", "how long a broker may be away before a task that reads from it fails"),
    Option("pushdown", "true, false", "false",
           "batch: filters on topic, broker, queue_id, queue_offset and store_time narrow what is read; see its section before you use it"),
)  # fmt: skip

OF_KAFKA = {
    "kafka.bootstrap.servers": "namesrvAddr",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "kafka.security.protocol": "useTLS",
    "kafka.ssl.": "tlsCaFile, tlsCertFile and tlsKeyFile",
    "kafka.sasl.": "accessKey and secretKey",
    "kafkaconsumer.polltimeoutms": "timeout",
    "fetchoffset.": "timeout",
    "includeheaders": "columns",
}
"""How names of Kafka's source begin that have another one here, in lower case as Spark hands them on."""
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999. Brokers refuse what has no room in 64 bits, and not in words that a reader of this table knows."""

_NAMES = {option.name.lower(): option for option in OPTIONS}
_DEFAULTS = {option.name: option.default for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading begins or ends: at the earliest or latest message, at given offsets, or at a time."""

    at: int = EARLIEST
    """EARLIEST or LATEST, for every queue that `offsets` does not name."""
    offsets: tuple[tuple[str, str, int, int], ...] = ()
    """(topic, broker, queue id, offset)"""
    time_ms: int | None = None
    ago_ms: int | None = None
    """A time counted back from when the read begins."""
    times: tuple[tuple[str, str, int | None, Edge], ...] = ()
    """(topic, broker or "" for all, queue id or None for all, when), the most exact last."""
    strict: bool = False
    """A time behind all messages is an error."""

    def time(self, now_ms: int) -> int | None:
        return self.time_ms if self.ago_ms is None else now_ms - self.ago_ms

    def queues(self) -> set[MessageQueue]:
        """Those that are named with an offset."""
        return {MessageQueue(topic, broker, number) for topic, broker, number, _ in self.offsets}


@dataclass(frozen=True, slots=True)
class Where:
    """The options that say where to read. Hashable: a worker keeps one open Place for each."""

    namesrv: str = ""
    path: str = ""
    broker: str = ""
    group: str = READER_GROUP
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_key_password: str = ""
    tls_verify: bool = True
    timeout_s: float = 120.0

    def __repr__(self) -> str:
        return f"<Where {self.path or self.namesrv}>"


@dataclass(frozen=True, slots=True)
class Options:
    """What the source is to do."""

    where: Where
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[tuple[str, str, int], ...] = ()
    """(topic, broker or "" for all, queue id)"""
    starting: Edge | None = None
    """None: what batch or stream has by default."""
    ending: Edge | None = None
    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_max_s: float = 900.0
    partitions_min: int | None = None
    fail_on_data_loss: bool = True
    wanted: Wanted = field(default_factory=Wanted)
    group: str = ""
    """groupId, when one is given."""
    check_crc: bool = False
    pushdown: bool = False
    columns: tuple[str, ...] | None = None
    """What the option of that name chose; None when it is not given."""


def read_options(given: Mapping[str, str]) -> Options:
    """Of a read. Raises BadOption with one sentence that names the option."""
    values = known(given)
    where = _where(values)
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(chosen) != 1:
        raise BadOption(
            f"{' and '.join(chosen)} exclude each other; give one of them"
            if chosen
            else 'nothing says what to read; give the option subscribe (topics), subscribePattern or assign: .option("subscribe", "orders")'
        )
    if "tags" in values and "sql" in values:
        raise BadOption("tags and sql exclude each other; in sql the tag is the property TAGS: TAGS = 'paid' AND ...")
    if "maxTriggerDelay" in values and "minOffsetsPerTrigger" not in values:
        raise BadOption("maxTriggerDelay does nothing without minOffsetsPerTrigger; give that too")
    smallest, largest = _count(values, "minOffsetsPerTrigger"), _count(values, "maxOffsetsPerTrigger")
    if smallest is not None and largest is not None and smallest > largest:
        raise BadOption(f"minOffsetsPerTrigger={smallest} is more than maxOffsetsPerTrigger={largest}; no batch could be both")
    starting = _edge(values, "starting", EARLIEST)
    ending = _edge(values, "ending", LATEST)
    if ending is not None and ending.at == EARLIEST:
        raise BadOption("endingOffsets=earliest would read nothing; expected latest or JSON")
    _check_times(values, starting, ending)
    return Options(
        where=where,
        topics=_topics(values.get("subscribe")),
        pattern=_pattern(values.get("subscribePattern", "")),
        assigned=_assigned(values.get("assign")),
        starting=starting,
        ending=ending,
        rows_max=largest,
        bytes_max=_bytes(values, "maxBytesPerTrigger"),
        rows_min=smallest,
        delay_max_s=_seconds(values, "maxTriggerDelay"),
        partitions_min=_count(values, "minPartitions"),
        fail_on_data_loss=_flag(values, "failOnDataLoss"),
        wanted=Wanted(values.get("tags"), values.get("sql")),
        group=values.get("groupId", ""),
        check_crc=_flag(values, "checkCrc"),
        pushdown=_flag(values, "pushdown"),
        columns=_columns(values.get("columns")),
    )


def where_of(given: Mapping[str, str]) -> Where:
    """Of a place alone, for pipelines: everything that does not say where is left unread, but must be an option."""
    return _where(known(given))


def place_of(where: Where | Mapping[str, str]) -> Place:
    """Opens it; the caller closes it. Raises BadOption."""
    if not isinstance(where, Where):
        where = where_of(where)
    if where.path:
        from roquet.spark.files import FilePlace

        return FilePlace(where.path, where.broker or None)
    from roquet.spark.brokers import BrokerPlace

    return BrokerPlace(where.namesrv, group=where.group, connection=connection_of(where), timeout_s=where.timeout_s)


def connection_of(where: Where) -> ConnectionOptions:
    from roquet.net.connection import ConnectionOptions, Tls
    from roquet.wire.signing import Credentials

    credentials = Credentials(where.access_key, where.secret_key, where.security_token or None) if where.access_key else None
    files = where.tls_ca_file or None, where.tls_cert_file or None, where.tls_key_file or None
    tls = Tls(*files, where.tls_verify, where.tls_key_password or None) if where.tls else None
    return ConnectionOptions(credentials=credentials, tls=tls)


def known(given: Mapping[str, str]) -> dict[str, str]:
    """The given ones under their proper names, blank ones left out. Raises BadOption for one that nobody knows."""
    found: dict[str, str] = {}
    for name, text in given.items():
        option = _NAMES.get(name.lower())
        if option is None:
            raise BadOption(f"the rocketmq source has no option {name}{_hint(name.lower())}")
        if str(text).strip():
            found[option.name] = str(text).strip()
    return found


def _hint(name: str) -> str:
    kafkas = next((ours for begin, ours in OF_KAFKA.items() if name.startswith(begin)), None)
    if kafkas is not None:
        return f", which is Kafka's; here it is {kafkas}: see \"Coming from Kafka's source\" in docs/spark.md"
    near = difflib.get_close_matches(name, _NAMES, n=1)
    return f"; did you mean {_NAMES[near[0]].name}?" if near else f"; there are {', '.join(one.name for one in OPTIONS)}"


def _where(values: Mapping[str, str]) -> Where:
    if "namesrvAddr" in values and "path" in values:
        raise BadOption(
            f"namesrvAddr={values['namesrvAddr']} and path={values['path']} exclude each other; "
            "give namesrvAddr to read from brokers, or path to read a store's files"
        )
    if "namesrvAddr" not in values and "path" not in values:
        raise BadOption("nothing says where to read; give the option namesrvAddr (host:port of a name server) or path (a store directory)")
    if "broker" in values and "path" not in values:
        raise BadOption("broker names the broker whose files are read, so it needs path; to read one broker's queues use assign")
    if "groupId" in values and "path" in values:
        raise BadOption("groupId is kept by brokers, so it needs namesrvAddr; files have no groups")
    if ("accessKey" in values) != ("secretKey" in values):
        raise BadOption("accessKey and secretKey belong together; give both or none")
    tls = _flag(values, "useTLS")
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsKeyPassword", "tlsVerify"):
        if name in values and not tls:
            raise BadOption(f"{name} does nothing without useTLS=true; give that too")
    return Where(
        namesrv=values.get("namesrvAddr", ""),
        path=values.get("path", ""),
        broker=values.get("broker", ""),
        group=values.get("groupId", READER_GROUP),
        access_key=values.get("accessKey", ""),
        secret_key=values.get("secretKey", ""),
        security_token=values.get("securityToken", ""),
        tls=tls,
        tls_ca_file=values.get("tlsCaFile", ""),
        tls_key_password=values.get("tlsKeyPassword", ""),
        tls_cert_file=values.get("tlsCertFile", ""),
        tls_key_file=values.get("tlsKeyFile", ""),
        tls_verify=_flag(values, "tlsVerify"),
        timeout_s=_seconds(values, "timeout"),
    )


# One value each.


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, _DEFAULTS[name])
    if text.lower() not in ("true", "false"):
        raise BadOption(f"{name}={text}: expected true or false")
    return text.lower() == "true"


def _count(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    text = values[name].replace("_", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
        raise BadOption(f"{name}={values[name]}: expected a whole number of at least 1")
    return int(text)


_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _bytes(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    found = re.fullmatch(r"(\d+)\s*([kmg]?)b?", values[name].lower(), re.ASCII)
    if found is None or len(found[1]) > 18 or int(found[1]) < 1:
        raise BadOption(f"{name}={values[name]}: expected a number of bytes, as in 67108864 or 64m")
    return int(found[1]) * _BYTES[found[2]]


_SECONDS = {"ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60}
_SECONDS |= {"h": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400}


def duration_s(text: str) -> float | None:
    """90s, 15m, 1h, 500ms, 10 minutes; None when it is none of these."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower(), re.ASCII)
    if found is None:
        return None
    unit = found[2]
    factor = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    return None if factor is None else float(found[1]) * factor


def _seconds(values: Mapping[str, str], name: str) -> float:
    text = values.get(name, _DEFAULTS[name])
    seconds = duration_s(text)
    if seconds is None or seconds <= 0:
        raise BadOption(f"{name}={text}: expected a duration above 0 with its unit, as in 500ms, 90s, 15m or 1h")
    return seconds


def _topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BadOption(f"subscribe={text}: a name is missing between two commas")
    return tuple(dict.fromkeys(names))


def _columns(text: str | None) -> tuple[str, ...] | None:
    from roquet.spark.columns import chosen

    try:
        return None if text is None else chosen(text)
    except ValueError as error:
        raise BadOption(str(error)) from None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(f"subscribePattern={text}: not a regular expression: {error}") from None
    return text


def _object(name: str, text: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadOption(f"{name}={text}: not JSON ({error}); expected {example}") from None
    if not isinstance(found, dict) or not found:
        raise BadOption(f"{name}={text}: expected {example}")
    for topic, inside in found.items():
        brokers = inside if isinstance(inside, dict) else {}
        empty = [topic] if inside == {} else [f"{topic}/{broker}" for broker, queues in brokers.items() if queues == {}]
        if empty:  # else it would mean nothing, and a topic that is misspelled there would be passed over in silence
            raise BadOption(f"{name}={text}: {empty[0]} names no queue; expected {example}")
    return found


def _number(value: object, low: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= low else None


def _assigned(text: str | None) -> tuple[tuple[str, str, int], ...]:
    if text is None:
        return ()
    example = '{"topic": {"broker": [0, 1]}} or {"topic": [0, 1]}'
    found: set[tuple[str, str, int]] = set()
    for topic, brokers in _object("assign", text, example).items():
        for broker, queues in brokers.items() if isinstance(brokers, dict) else [("", brokers)]:
            numbers = [_number(one, 0) for one in queues] if isinstance(queues, list) else []
            if not numbers or None in numbers:
                raise BadOption(f"assign={text}: the queues of {topic} are not a list of numbers; expected {example}")
            found.update((topic, broker, number) for number in numbers if number is not None)
    return tuple(sorted(found))


def _edge(values: Mapping[str, str], side: str, rest: int) -> Edge | None:
    """`side`: what the names of its options begin with. `rest`: where queues begin or end that JSON does not name."""
    offsets, timestamp, by_time = names = tuple(side + one for one in ("Offsets", "Timestamp", "OffsetsByTimestamp"))
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise BadOption(f"{' and '.join(given)} exclude each other; give one of them")
    strict = side == "starting" and _strict(values, bool({timestamp, by_time} & set(given)))
    if timestamp in values:
        return replace(_time_edge(timestamp, values[timestamp]), strict=strict)
    if by_time in values:
        return Edge(rest, times=times_of(by_time, values[by_time]), strict=strict)
    if offsets not in values:
        return None
    text = values[offsets]
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return Edge(words[text.lower()])
    if not text.startswith("{"):
        raise BadOption(f'{offsets}={text}: expected earliest, latest, or JSON as in {{"topic": {{"broker": {{"0": 123}}}}}}')
    return Edge(rest, offsets_of(offsets, text))


def _strict(values: Mapping[str, str], by_time: bool) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = values.get(name, "latest").lower()
    if text not in ("latest", "error"):
        raise BadOption(f"{name}={text}: expected latest or error")
    if name in values and not by_time:
        raise BadOption(f"{name} does nothing without startingTimestamp or startingOffsetsByTimestamp; give one of them")
    return text == "error"


def times_of(name: str, text: str) -> tuple[tuple[str, str, int | None, Edge], ...]:
    """Time JSON, the most exact last. Raises BadOption under the option's name."""
    example = '{"topic": {"broker": {"0": 1700000000000}}}, {"topic": {"0": 1700000000000}} or {"topic": 1700000000000}'
    found: list[tuple[str, str, int | None, Edge]] = []

    def add(topic: str, broker: str, queue: str | None, when: object) -> None:
        if isinstance(when, bool) or not isinstance(when, int | str) or (queue is not None and not (queue.isascii() and queue.isdigit())):
            raise BadOption(f"{name}={text}: {topic} has {queue}: {when}; expected {example}")
        found.append((topic, broker, None if queue is None else int(queue), _time_edge(name, str(when))))

    for topic, inside in _object(name, text, example).items():
        if not isinstance(inside, dict):
            add(topic, "", None, inside)
            continue
        for key, value in inside.items():
            for queue, when in value.items() if isinstance(value, dict) else [(key, value)]:
                add(topic, key if isinstance(value, dict) else "", queue, when)
    return tuple(sorted(found, key=lambda one: (one[0], one[1], -1 if one[2] is None else one[2])))


def _check_times(values: Mapping[str, str], starting: Edge | None, ending: Edge | None) -> None:
    if starting is None or ending is None:
        return
    begin, end = starting.time(0), ending.time(0)
    alike = (starting.ago_ms is None) == (ending.ago_ms is None)  # else it depends on the moment of the read
    if alike and begin is not None and end is not None and begin > end:
        raise BadOption(
            f"startingTimestamp={values['startingTimestamp']} lies after endingTimestamp={values['endingTimestamp']}; "
            "nothing could be read, exchange the two"
        )


def offsets_of(name: str, text: str) -> tuple[tuple[str, str, int, int], ...]:
    """Offset JSON, sorted. Raises BadOption under the option's name."""
    example = '{"topic": {"broker": {"queue id": offset}}}, offsets from 0, -2 for earliest, -1 for latest'
    found: list[tuple[str, str, int, int]] = []
    for topic, brokers in _object(name, text, example).items():
        for broker, queues in brokers.items() if isinstance(brokers, dict) else [("", None)]:
            if not isinstance(queues, dict):
                raise BadOption(f"{name}={text}: {topic} holds no queues by broker; expected {example}")
            for queue, value in queues.items():
                offset = _number(value, EARLIEST)
                if not queue.isascii() or not queue.isdigit() or offset is None:
                    raise BadOption(f"{name}={text}: {topic}/{broker} has {queue}: {value}; expected {example}")
                found.append((topic, broker, int(queue), offset))
    return tuple(sorted(found))


def _time_edge(name: str, text: str) -> Edge:
    if text.isascii() and text.isdigit():
        if len(text) > 18 or int(text) > TIME_MAX_MS:
            raise BadOption(f"{name}={text}: this is after the year 9999; expected milliseconds since 1970")
        return Edge(LATEST, time_ms=int(text))
    if text.startswith("-"):
        seconds = duration_s(text[1:])
        if seconds is not None:
            return Edge(LATEST, ago_ms=round(seconds * 1_000))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"{name}={text}: expected milliseconds since 1970, a time as in 2026-01-31T12:00:00Z, or one counted back as in -10 minutes"
        ) from None
    return Edge(LATEST, time_ms=round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000))
