"""Names of topics and groups: which are allowed, and which belong to the system.

A topic's name becomes a directory, so this check is also what keeps `../x` out of the file system.
"""

from __future__ import annotations

import re

from roquet.errors import Refused
from roquet.wire.codes import ResponseCode, refused
from roquet.wire.layout import TOPIC_MAX_V1

TOPIC_LENGTH_MAX = TOPIC_MAX_V1
GROUP_LENGTH_MAX = 255
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
REPLY_SUFFIX = "_REPLY_TOPIC"
"""<cluster>_REPLY_TOPIC takes the answers of request-reply."""

DEFAULT_TOPIC = "TBW102"
"""New topics are made in its image; producers ask for its route when a topic has none."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Timed messages wait here, as in 5.x."""
CHANGES_TOPIC = "rmq_sys_ROQUET_CHANGES"
"""Changes of topics and groups in a DLedger group, for the next leader."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
NOT_ALLOWED_SEND_TOPICS = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, TIMER_TOPIC, CHANGES_TOPIC}
)
"""Topics the broker alone writes to."""

TOOLS_GROUP = "TOOLS_CONSUMER"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        TOOLS_GROUP,
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)

ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def check_topic(name: str) -> None:
    """Raises Refused(1) for a name that no topic may have."""
    check(name, "topic", TOPIC_LENGTH_MAX)


def check_group(name: str) -> None:
    """Raises Refused(1) for a name that no group may have."""
    check(name, "group", GROUP_LENGTH_MAX)


def check(name: str, kind: str, limit: int) -> None:
    if not name.strip():
        raise refused(f"The specified {kind} is blank.")
    if len(name) > limit:
        raise refused(f"The specified {kind} is longer than {kind} max length {limit}: {len(name)} characters, {name[:40]!r}...")
    if ALLOWED.fullmatch(name) is None:
        raise refused(f"The specified {kind}[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")


def check_send_topic(name: str) -> None:
    """check_topic, and Refused(16) for a topic that clients must not write to."""
    check_topic(name)
    if name in NOT_ALLOWED_SEND_TOPICS:
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Where a group's failed messages wait to be delivered again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where a group's messages end after the last attempt."""
    return DLQ_PREFIX + group


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)
