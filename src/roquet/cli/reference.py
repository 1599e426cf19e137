"""docs/configuration.md from the settings tables: `make docs` writes it, a test holds that it is fresh."""

from __future__ import annotations

import sys

from roquet.settings import IGNORED, BrokerSettings, NameServerSettings, Settings, Spec, show, table

HEAD = """\
# Configuration

Generated from `src/roquet/settings.py` by `make docs`. Do not edit by hand.

Files are RocketMQ's own: `key=value` lines under RocketMQ's keys, `#` for comments.
`roquet broker -c FILE` and `roquet namesrv -c FILE` read them; `--set KEY=VALUE` puts one value over the file's; `-p` prints
the settings in force. A key nobody knows is ignored with a warning that names the nearest known one; a value that does not
fit is an error that says what would.

"At run time" marks what `UPDATE_BROKER_CONFIG` (mqadmin `updateBrokerConfig`) may change while the broker runs. The rest is
refused and changes nothing: paths and addresses, above all, are never changed from outside.
"""


def configuration_page() -> str:
    parts = [HEAD, section("Name server", NameServerSettings), section("Broker", BrokerSettings), ignored()]
    return "\n".join(parts)


def section(title: str, kind: type[Settings]) -> str:
    lines = [f"## {title}", "", "| key | default | allowed | at run time | meaning |", "|---|---|---|---|---|"]
    lines += [row(spec) for spec in table(kind).values()]
    return "\n".join([*lines, ""])


def row(spec: Spec) -> str:
    default = show(spec.default) or "(empty)"
    return f"| `{spec.key}` | `{default}` | {allowed(spec)} | {'yes' if spec.mutable else ''} | {spec.about.replace('|', '&#124;')} |"


def allowed(spec: Spec) -> str:
    if spec.kind is bool:
        return "true, false"
    if spec.kind is int:
        return f"{spec.low} to {spec.high}" if spec.low is not None else "a whole number"
    return ", ".join(spec.choices) or "text"


def ignored() -> str:
    names = ", ".join(f"`{key}`" for key in sorted(IGNORED))
    return (
        "## Accepted and without effect\n\n"
        "Keys of RocketMQ's files that tune threads and memory maps which Roquet does not have, or that belong to parts it does\n"
        f"not have yet. They are taken without a warning, so that an existing file can be used as it is.\n\n{names}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
