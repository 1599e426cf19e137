"""What two clusters can be expected to agree in: the lines that a command prints, without times, ids, addresses and measured numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roquet.wire import fastjson

TIME = "<time>"
MASKS: tuple[tuple[str, str], ...] = (
    # what Java prints of itself
    (r"(?m)^\s+at .*\n|^\s+\.\.\. \d+ more\n|^For more information, please visit the url.*\n", ""),
    (r"(?m)^\S+ +(TID: \d+ STATE: \w+|\S+//\S+\(.*\)|\S+@[\d.]+/\S+\(.*\))\n", ""),  # jstack of the consumer
    (r", (?:\w+\.)+\w+\(\w+\.java:\d+\)", ""),  # behind an exception's text
    (r"@[0-9a-f]{5,8}\b", "@<hash>"),
    # times
    (r"\b20\d\d-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:]\d+)?\b", TIME),
    (r"\b20\d{12}(\d{3})?\b|\b1[789]\d{11}\b", TIME),
    (r"\b\d+ days, \d+ hours, \d+ minutes, \d+ seconds", TIME),
    (r"\b\d+ ?ms\b|\b\d+\(ms\)|\[\d+\]ms\b", "<n>ms"),
    (r"(spentTimeMills=|TimeMax\s*: |spent timemills: |DelayTimeMills=)\d+", r"\1<n>"),
    (r"(?m)\b(true|false)(\s+)\d+$", r"\1\2<n>"),  # checkMsgSendRT
    (r"(?m)^(.*Undone\w* \[.*undoneMsgsTotal=)\d+(.*SingleMQ=)\d+", r"\1<n>\2<n>"),  # startMonitoring, while the group is being reset
    # rates, sizes
    (r"(?m)(Tps\s*:).*$", r"\1 <rates>"),
    (r"(?m)(DistributeTime\s*:).*$", r"\1 <counts>"),
    (r"(?<![\d.])\d+\.\d+(E-?\d+)?(?![\d.])", "<n.n>"),
    (r"(?m)\b(CLUSTERING|BROADCASTING)(\s+)\d+(\s+\d+)$", r"\1\2<n>\3"),  # consumerProgress
    (r"\b\d+ (B|KiB|MiB|GiB|TiB)\b", r"<n> \1"),
    (r"(<n(\.n)?>) [KMGT]?i?B\b", "<size>"),
    (r"(Thread\w*|\bcpuNum)(\s*=\s*)\d+", r"\1\2<n>"),  # as many as there are processors
    (r"(commitLogMaxOffset|putMessageSizeTotal)(\s*: )[1-9]\d*", r"\1\2<n>"),  # a trace tells how long something took
    (r"(roquet\w+\s*:).*", r"\1 <own>"),
    # who and where
    (r"(?i)(listenPort\s*=\s*)\d+", r"\1<port>"),
    (r"\bBROKER: <\w>", "BROKER: <one of them>"),
    (r"\b127\.0\.0\.1:\d{4,5}\b", "<client>"),
    (r"\b7F000001[0-9A-F]{24}\b", "<offset id>"),
    (r"\b[0-9A-F]{32}([0-9A-F]{24})?\b", "<unique id>"),
)
COMPILED = [(re.compile(pattern), instead) for pattern, instead in MASKS]


class Names:
    """What is called by a name instead of as it is spelled in one cluster."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = sorted(names.items(), key=lambda item: -len(item[0]))

    def lines(self, text: str) -> list[str]:
        for spelled, name in self._names:
            text = re.sub(rf"(?<![\d.]){re.escape(spelled)}(?!\d)", name, text)
        for pattern, instead in COMPILED:
            text = pattern.sub(instead, text)
        return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def exported(directory: Path) -> str:
    """What a command wrote to files, a line a value."""
    lines: list[str] = []
    for file in sorted(directory.rglob("*.json")):
        lines += [f"{file.name}: {path} = {value}" for path, value in _flat(fastjson.loads(file.read_bytes()))]
    return "\n".join(lines)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in value:
            yield from _flat(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _flat(each, f"{path}[]")
    else:
        yield path, value


def differences(theirs: list[str], ours: list[str], *, ordered: bool) -> tuple[list[str], list[str]]:
    """The lines that only they print, and those that only we print."""
    only_theirs, only_ours = Counter(theirs) - Counter(ours), Counter(ours) - Counter(theirs)
    if ordered and theirs != ours and not only_theirs and not only_ours:
        return ["(another order)"], ["(another order)"]
    return list(only_theirs.elements()), list(only_ours.elements())
