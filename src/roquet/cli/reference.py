"""docs/configuration.md from the settings tables: `make docs` writes it, a test holds that it is fresh."""

from __future__ import annotations

import sys

from roquet.settings import BrokerSettings, NameServerSettings, Settings, Spec, show, table
from roquet.settings_upstream import OF_NO_VERSION

HEAD = """\
# Configuration

Generated from `src/roquet/settings.py` and `src/roquet/settings_upstream.py` by `make docs`. Do not edit by hand.

Files are RocketMQ's own: `key=value` lines under RocketMQ's keys, `#` for comments.
`roquet broker -c FILE` and `roquet namesrv -c FILE` read them; `--set KEY=VALUE` puts one value over the file's; `-p` prints
the settings in force. A value that does not fit, or that asks for something this version does not do, is an error that says
what would fit. A key nobody knows is ignored with a warning, since files of RocketMQ 5 have many; one that is within two
letters of a known key is taken for a slip and is an error: a broker must not run without what was asked for.

"At run time" marks what `roquet config set` (the requests `UPDATE_BROKER_CONFIG` and `UPDATE_NAMESRV_CONFIG`; mqadmin
`updateBrokerConfig`, `updateNamesrvConfig`) may change while the server runs. The rest is refused and changes nothing: paths and
addresses, above all, are never changed from outside.

What was changed at run time holds after a restart too. It is written to the file that was given with `-c`: in its key's
place or at the end, comments and order stay, the file before it is kept as `.bak`. Without `-c`, and for the brokers of
`--shards`, it is written to `config/broker.properties` under `storePathRootDir` (name server: `namesrv/namesrv.properties`
in the data directory), which is read at the start, over the file and under `--set`. When the file cannot be written, the
change holds until the restart, and the answer (code 1) says so.

## Who can connect

RocketMQ listens on every address. Roquet listens where the configuration says that it is reached, and the log says at the start who can
connect:

| configuration | the broker listens on | clients are told |
|---|---|---|
| names no address beyond this machine | 127.0.0.1 | 127.0.0.1 |
| `brokerIP1`, an address of this machine | that address | `brokerIP1` |
| `brokerIP1`, not an address of this machine (NAT, container) | every address | `brokerIP1` |
| `namesrvAddr` beyond this machine, no `brokerIP1` | every address | the address of this host, as in RocketMQ |
| `bindAddress` | that address | `brokerIP1`, else `bindAddress`, else (0.0.0.0) the address of this host |

`bindAddress` is stronger than the others. Where the address that clients are told is not one that the broker listens on, a warning says so.
A name server listens on `bindAddress`, else on 127.0.0.1: RocketMQ's `namesrv.conf` has no key that names an address, so add
`bindAddress=0.0.0.0` to it when brokers and clients are on other machines. The name server of `roquet up` listens where its broker does.
Beyond 127.0.0.1 each server warns at the start, and brokers in `roquet status`, while whoever reaches the port may do everything: until
everybody must show a certificate ([TLS](tls.md)).
"""

UPSTREAM = """\
## Every key of RocketMQ 4.9

The tables below have every key of RocketMQ's BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig,
NamesrvConfig and TLS, and Roquet's own (as served). "Served" does here what it does there; "no effect" is taken, so that an
existing file can be used as it is; "refused" asks for something that this version does not do, and the server does not start.
RocketMQ's own default is always taken, and served settings have the same default, except where it names a place or an
address: `brokerName` (there the host's name), `brokerIP1`, `storePathRootDir`, `kvConfigPath`, `configStorePath`; and except
`tls.client.authServer`, where RocketMQ's default trusts any server.
`bindAddress`, a key of RocketMQ 5, is 0.0.0.0 there. Here a server listens on 127.0.0.1 alone when the configuration names no address
beyond this machine.
"""


def configuration_page() -> str:
    parts = [HEAD, section("Name server", NameServerSettings), section("Broker", BrokerSettings), UPSTREAM]
    parts += [upstream("name server", NameServerSettings), upstream("broker", BrokerSettings), of_no_version()]
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


def upstream(title: str, kind: type[Settings]) -> str:
    """Every key of RocketMQ 4.9, and of its later versions where a file of theirs would be misunderstood."""
    lines = [f"## RocketMQ's keys: {title}", "", "| key | here |", "|---|---|"]
    lines += [f"| `{key}` | {fate(kind, key)} |" for key in sorted(kind.known(), key=str.lower)]
    return "\n".join([*lines, ""])


def fate(kind: type[Settings], key: str) -> str:
    refusal, harmless = kind.refused.get(key), kind.harmless.get(key)
    fates = ["served"] if key in table(kind) else []
    if refusal is not None:
        accepted = " or ".join(f"`{value}`" if value else "(empty)" for value in refusal.accepted)
        fates.append(f"refused unless {accepted}: no {refusal.missing}")
    if harmless is not None:
        fates.append(f"no effect: {harmless.why}")
    return "; ".join(fates)


def of_no_version() -> str:
    rows = [f"| `{key}` | {why} |" for key, why in OF_NO_VERSION.items()]
    return "\n".join(["## Keys that no RocketMQ 4.9 knows", "", "| key | ignored with a warning |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
