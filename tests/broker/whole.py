"""A whole broker (`roquet.testing.WholeBroker`), and its requests as a Java client spells them."""

from __future__ import annotations

from roquet.testing import WholeBroker as Whole


def send_fields(topic: str = "T", queue_id: int = 0, properties: str = "UNIQ_KEY\x01U1\x02WAIT\x01true", **more: str) -> dict[str, str]:
    """As a Java 4.9 client spells 310."""
    return {
        "a": "g", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1794732520853", "h": "0", "i": properties,
        "j": "0", "k": "false", "m": "false", "n": "broker-a",
    } | more  # fmt: skip


def long_names(fields: dict[str, str]) -> dict[str, str]:
    """The same as 10 spells it."""
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
        "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "m": "batch", "n": "bname",
    }  # fmt: skip
    return {names[key]: value for key, value in fields.items()}


def pull_fields(topic: str = "T", queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": "*",
        "expressionType": "TAG",
    } | more  # fmt: skip


__all__ = ["Whole", "long_names", "pull_fields", "send_fields"]
