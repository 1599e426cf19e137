"""Configuration: one typed table per program, under upstream's own keys.

Every setting is a dataclass field that carries its key, meaning, limits and whether it may change at run time. The file
parser, `--help`, GET/UPDATE_BROKER_CONFIG, the docs page and "did you mean" all read this table and nothing else.

Upstream's other keys are in settings_upstream.py: taken without effect, or refused.

What may change at run time is an allow-list (`mutable=True`), typed and bounded. Paths and addresses are never in it:
upstream's CVE-2023-33246 and CVE-2023-37582 were remote updates of a path.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from roquet import __version__
from roquet.errors import BadSetting, ClientError
from roquet.routing.name_servers import parse_name_servers
from roquet.settings_upstream import (
    BROKER_HARMLESS,
    BROKER_REFUSED,
    NAMESERVER_HARMLESS,
    NAMESERVER_REFUSED,
    OF_NO_VERSION,
    Harmless,
    Refusal,
    plain,
)
from roquet.wire.bodies import camel
from roquet.wire.headers import once_per_class
from roquet.wire.layout import ENTRY, INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, QUEUES_MAX

Value = bool | int | str


@dataclass(frozen=True)
class Spec:
    """What the table knows of one setting."""

    name: str  # ours: listen_port
    key: str  # upstream's: listenPort
    kind: type
    default: Value
    about: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    mutable: bool = False
    check: Callable[[str], object] | None = None
    """Of a text with a form of its own: raises BadSetting when it is not in it."""
    secret: bool = False
    """Never shown: not in answers, not by -p, not in the log."""

    def parse(self, text: str) -> Value:
        text = text.strip()
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise BadSetting(f"{self.key}={text!r}: expected true or false")
            return text.lower() == "true"
        if self.kind is int:
            try:
                number = int(text)
            except ValueError:
                raise BadSetting(f"{self.key}={text!r}: expected a whole number") from None
            if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
                raise BadSetting(f"{self.key}={number}: allowed are {self.low} to {self.high}")
            return number
        if self.choices and text not in self.choices:
            raise BadSetting(f"{self.key}={text!r}: expected one of {', '.join(self.choices)}")
        if self.check is not None:
            self.check(text)
        return text


def setting(default: Value, about: str, *, key: str = "", **more: Any) -> Any:
    """A field of a table. Its upstream key is its name in camel case unless it is given; `more` is the rest of its Spec."""
    spec = Spec("", key, type(default), default, about, **more)
    return field(default=default, repr=not spec.secret, metadata={"spec": spec})


@once_per_class
def table(kind: type) -> dict[str, Spec]:
    """Upstream's key -> Spec, in the order of the class. Not to be changed."""
    named = [(one.name, one.metadata["spec"]) for one in fields(kind) if "spec" in one.metadata]
    specs = [dataclasses.replace(spec, name=name, key=spec.key or camel(name)) for name, spec in named]
    return {spec.key: spec for spec in sorted(specs, key=lambda one: one.key.startswith("tls."))}  # what is common to programs comes last


S = TypeVar("S", bound="Settings")
MASK = "********"
"""In place of a secret."""


@dataclass
class Settings:
    """Base of the tables: reading, writing and changing them."""

    harmless: ClassVar[Mapping[str, Harmless]] = {}
    refused: ClassVar[Mapping[str, Refusal]] = {}

    others: dict[str, str] = field(default_factory=dict)
    """Upstream's settings that were given and have no effect here: they are shown, and kept, as they were given."""

    @classmethod
    def read(cls: type[S], pairs: Mapping[str, str]) -> tuple[S, list[str]]:
        """Settings from key=value pairs, and warnings about keys nobody knows. Raises BadSetting, for what looks like a slip too."""
        cls.check_together(pairs)
        values: dict[str, Any] = {}
        others: dict[str, str] = {}
        warnings: list[str] = []
        for key, text in pairs.items():
            found = cls._understand(key, text)
            if found is not None:
                values[found[0].name] = found[1]
            elif cls.knows(key):
                others[key] = text
            elif key in OF_NO_VERSION:
                warnings.append(f"setting {key!r} is ignored, as RocketMQ 4.9 does: {OF_NO_VERSION[key]}")
            else:
                meant = "" if key in BROKER_HARMLESS else slip(key, cls.known())  # a broker's, in the file of a name server
                if meant:
                    raise BadSetting(f"unknown setting {key!r}; did you mean {meant!r}? Correct it, or remove the line")
                warnings.append(f"unknown setting {key!r} is ignored{did_you_mean(key, cls.known())}")
        return cls(**values, others=others), warnings

    @classmethod
    def check_together(cls, pairs: Mapping[str, str]) -> None:
        """Raises BadSetting for values that contradict each other."""

    @classmethod
    def _understand(cls, key: str, text: str) -> tuple[Spec, Value] | None:
        """A setting of ours and its value; None: not one of ours. Raises BadSetting for a value that does not fit, or asks too much."""
        refusal = cls.refused.get(key)
        if refusal is not None and not refusal.takes(text):
            raise BadSetting(refusal.sentence(key, text, __version__))
        spec = table(cls).get(key)
        return None if spec is None else (spec, spec.parse(text))

    @classmethod
    def known(cls) -> list[str]:
        """All that are known: served, harmless and refused."""
        return list(dict.fromkeys((*table(cls), *cls.harmless, *cls.refused)))

    @classmethod
    def must_know(cls, key: str) -> None:
        """Raises BadSetting for a key that no version has, with the nearest one."""
        if not cls.knows(key) and key not in OF_NO_VERSION:
            raise BadSetting(f"unknown setting {key!r}{did_you_mean(key, cls.known())}; see docs/configuration.md for all of them")

    @classmethod
    def knows(cls, key: str) -> bool:
        return key in cls.harmless or key in cls.refused or key in table(cls)

    def items(self) -> Iterator[tuple[str, str]]:
        """(upstream's key, value as Java writes it): what is served, and what was given besides."""
        for key, spec in table(type(self)).items():
            value = show(getattr(self, spec.name))
            yield key, MASK if spec.secret and value else value
        for key, value in self.others.items():
            yield key, MASK if key.endswith("Password") and value else value

    def every_item(self) -> dict[str, str]:
        """The same with all that upstream shows: its tools read keys that mean nothing here."""
        rest = {key: one.default for key, one in self.harmless.items() if one.default}
        rest |= {key: one.accepted[0] for key, one in self.refused.items() if one.shown}
        return rest | dict(self.items())

    def changes(self, pairs: Mapping[str, str]) -> dict[str, Value]:
        """The new values (by our name) that these remote updates ask for. All or nothing: raises BadSetting at the first refusal.

        What has no effect here is refused too: it would go into the file, where another program may heed it."""
        wanted: dict[str, Value] = {}
        for key, text in pairs.items():
            found = self._understand(key, text)
            if found is None:
                if not self.knows(key):
                    raise BadSetting(f"unknown setting {key!r}{did_you_mean(key, self.known())}")
                if text != self.every_item().get(key, ""):
                    why = f": {self.harmless[key].why}" if key in self.harmless else ""
                    raise BadSetting(f"{key} has no effect here{why}; set it in the file if another server reads that")
                continue
            spec, value = found
            if not spec.mutable and value != getattr(self, spec.name):
                raise BadSetting(f"{key} cannot change at run time; set it in the configuration file and restart")
            wanted[spec.name] = value
        return wanted

    def change(self, values: Mapping[str, Value]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def spelled(self, values: Mapping[str, Value]) -> dict[str, str]:
        """These values under upstream's keys, as Java writes them."""
        return {key: show(values[spec.name]) for key, spec in table(type(self)).items() if spec.name in values}

    def replace(self: S, **values: Any) -> S:
        return dataclasses.replace(self, **values)


SLIP = 2
"""Letters wrong, missing, too many or changed round, up to which an unknown key is taken for a slip of the pen."""


def slip(key: str, known: Iterable[str]) -> str:
    """The known key that somebody meant who wrote this one; "" when it is of its own. flushDiskTyp would silently not be SYNC_FLUSH."""
    limit = SLIP if len(key) > 5 else 1
    given = key.lower()
    alike = ((one, one.lower()) for one in known if abs(len(one) - len(key)) <= limit)
    # Each changed letter leaves at most two that only one of them has: most are not worth the long comparison.
    near = [(distance(given, lower), one) for one, lower in alike if len(set(given) ^ set(lower)) <= 2 * limit]
    best = min(near, default=(limit + 1, ""))
    return best[1] if best[0] <= limit else ""


def distance(one: str, other: str) -> int:
    """Letters to change, add, take out or swap with their neighbour."""
    before: list[int] = []
    last: list[int] = []
    row = list(range(len(other) + 1))
    for down, character in enumerate(one, 1):
        before, last, row = last, row, [down]
        for across, wanted in enumerate(other, 1):
            cost = min(row[-1] + 1, last[across] + 1, last[across - 1] + (character != wanted))
            if before and across > 1 and character == other[across - 2] and one[down - 2] == wanted:
                cost = min(cost, before[across - 2] + 1)
            row.append(cost)
    return row[-1]


def did_you_mean(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def show(value: Value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def hours_of_day(text: str) -> list[int]:
    """deleteWhen as numbers. Raises BadSetting."""
    hours = [word.strip() for word in text[:200].split(";") if word.strip()]
    if len(text) > 200 or any(not (hour.isascii() and hour.isdigit() and int(hour) < 24) for hour in hours):
        raise BadSetting(f"deleteWhen={text[:40]!r}: expected hours from 00 to 23, separated by ';', as in 04;16")
    return [int(hour) for hour in hours]


def one_directory(text: str) -> None:
    """Upstream takes several commit log directories, with commas between. Raises BadSetting."""
    if "," in text:
        what = "has no commit log in several directories; name one, without ','"
        raise BadSetting(f"storePathCommitLog={text[:200]}: Roquet {__version__} {what}")


ADDRESS = re.compile(r"[A-Za-z0-9._-]*|[0-9a-fA-F:.]*(%[A-Za-z0-9._-]+)?")
"""A host name or IPv4, or IPv6. (A port behind an IPv4 is not IPv6: `one_address` sees to that.)"""


def one_address(key: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not ADDRESS.fullmatch(text) or text.count(":") == 1:
            raise BadSetting(
                f"{key}={text[:200]!r}: expected one address or host name, as in 10.0.0.7, without a port; 0.0.0.0 is every one"
            )

    return check


def one_server(key: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        host, _, port = text.rpartition(":")
        if text and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise BadSetting(f"{key}={text[:200]!r}: expected an address and a port, as in 10.0.0.1:10912")

    return check


def one_name(key: str) -> Callable[[str], None]:
    """It stands in properties of messages, where control characters separate names and values, or in files and tables."""

    def check(text: str) -> None:
        if len(text) > 255 or any(character < " " or character == "\x7f" for character in text):
            raise BadSetting(f"{key}={text[:200]!r}: expected a name of at most 255 characters, without control characters")

    return check


def one_broker(key: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if len(text) > 255 or any(character.isspace() or character in ",;" for character in text):
            raise BadSetting(f"{key}={text[:200]!r}: expected the word cluster, or the name of one broker, as in broker-a")

    return check


def name_servers(text: str) -> str:
    """namesrvAddr as the registration takes it: clients' ways of writing it are taken too. Raises BadSetting."""
    try:
        return ";".join(parse_name_servers(text)) if text else ""
    except ClientError as error:
        raise BadSetting(
            f"namesrvAddr={text[:200]!r}: {error}; expected addresses separated by ';', as in 10.0.0.1:9876;10.0.0.2:9876"
        ) from None


FILE_MAX = 0x7FFFFFFF
"""Bytes of a file that Java can still map."""

GIB = 1 << 30
MIB = 1 << 20
TRANSFER_MAX = 4 * MIB - 12
"""Bytes of one transfer to a slave: a Java slave reads into 4 MiB, the header of 12 bytes included."""

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_LEVELS_MAX = 256
DELAY_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DELAY_MS_MAX = 366 * DELAY_UNITS_MS["d"]


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """messageDelayLevel as numbers: the delay of level 1, of level 2, and so on. Raises BadSetting."""
    words = text.split()
    if not 1 <= len(words) <= DELAY_LEVELS_MAX:
        raise BadSetting(f"messageDelayLevel has {len(words)} levels: allowed are 1 to {DELAY_LEVELS_MAX}, as in {DELAY_LEVELS!r}")
    delays = []
    for word in words:
        number = word.rstrip("smhd")
        unit = DELAY_UNITS_MS.get(word[len(number) :], 0)
        if not unit or not number.isascii() or not number.isdigit() or len(number) > 9 or not 0 < int(number) * unit <= DELAY_MS_MAX:
            raise BadSetting(
                f"messageDelayLevel: {word[:40]!r} is no delay; allowed are 1ms to 366d, as a number and one of ms, s, m, h, d"
            )
        delays.append(int(number) * unit)
    return tuple(delays)


def check_role(role: str, broker_id: str) -> None:
    """A master has the id 0, a slave another one. RocketMQ does not start with a slave of id 0. Raises BadSetting."""
    given = f"brokerRole={role} and brokerId={broker_id} contradict each other"
    if role == "SLAVE" and plain(broker_id) == "0":
        raise BadSetting(f"{given}: 0 is the id of a master; give a slave an id from 1 on")
    if role in ("ASYNC_MASTER", "SYNC_MASTER") and plain(broker_id) != "0":
        own = "set brokerId=0, or brokerRole=SLAVE for one that copies the master of its brokerName"
        raise BadSetting(f"{given}: a master has the id 0, and other ids are for slaves; {own}")


TLS_FILE = "/etc/rocketmq/tls.properties"
"""Where upstream looks for the settings of TLS, unless told otherwise."""


@dataclass
class ServerSettings(Settings):
    """What both programs have: access control and TLS. Upstream's settings of TLS are system properties of its Java, or stand in
    tls.config.file; here they may also stand in the file of the server."""

    acl_enable: bool = setting(False, "access control: every request needs a key of the acl files, or an address of their white lists")
    acl_file: str = setting(
        "",
        "file or directory of the accounts; empty: plain_acl.yml and acl/*.yml in $ROCKETMQ_HOME/conf, else beside the file given with -c",
    )
    tls_server_mode: str = setting(
        "permissive", "TLS on all ports: not at all, for clients that begin with it, for everybody",
        key="tls.server.mode", choices=("disabled", "permissive", "enforcing"),
    )  # fmt: skip
    tls_config_file: str = setting(
        TLS_FILE, "file with tls.* settings; those of the server's own file and --set are stronger. It need not exist; empty: none",
        key="tls.config.file",
    )  # fmt: skip
    tls_test_mode_enable: bool = setting(
        True, "for trying it: without tls.server.certPath show a self-signed certificate, and without tls.client.trustCertPath trust any "
        "server", key="tls.test.mode.enable",
    )  # fmt: skip
    tls_server_cert_path: str = setting("", "certificate of this server, PEM; read again when it changes", key="tls.server.certPath")
    tls_server_key_path: str = setting("", "its key, PEM; empty: in tls.server.certPath", key="tls.server.keyPath")
    tls_server_key_password: str = setting("", "password of the key; it is never shown", key="tls.server.keyPassword", secret=True)
    tls_server_trust_cert_path: str = setting("", "authorities of clients' certificates, PEM", key="tls.server.trustCertPath")
    tls_server_need_client_auth: str = setting(
        "none", "whether clients show certificates, which are always verified", key="tls.server.need.client.auth",
        choices=("none", "optional", "require"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_tls(self)


def of_both(pairs: Mapping[str, str]) -> dict[str, str]:
    """Of a broker's settings those that are meant for the name server beside it, too."""
    return {key: value for key, value in pairs.items() if key.startswith("tls.") or key in ("aclEnable", "aclFile")}


def check_tls(settings: ServerSettings) -> None:
    """Raises BadSetting for settings of TLS that contradict each other. Files are looked at when the server starts."""
    if settings.tls_server_mode == "disabled":
        return
    if settings.tls_server_key_path and not settings.tls_server_cert_path:
        raise BadSetting("tls.server.keyPath is set and tls.server.certPath is not: name the certificate that the key belongs to")
    if settings.tls_server_need_client_auth != "none" and not settings.tls_server_trust_cert_path:
        raise BadSetting(
            f"tls.server.need.client.auth={settings.tls_server_need_client_auth} needs tls.server.trustCertPath: a PEM file with the "
            "authorities whose clients are let in"
        )
    if settings.tls_server_mode == "enforcing" and not settings.tls_server_cert_path and not settings.tls_test_mode_enable:
        raise BadSetting(
            "tls.server.mode=enforcing and no certificate: set tls.server.certPath and tls.server.keyPath, or tls.test.mode.enable=true "
            "for a self-signed one"
        )


@dataclass
class NameServerSettings(ServerSettings):
    harmless = NAMESERVER_HARMLESS
    refused = NAMESERVER_REFUSED

    listen_port: int = setting(9876, "port for clients and brokers", low=0, high=65535)
    bind_address: str = setting("", "address to listen on, 0.0.0.0 for every one; empty: 127.0.0.1", check=one_address("bindAddress"))
    kv_config_path: str = setting("", "file that keeps the KV configuration; empty: namesrv/kvConfig.json in the data directory")
    config_store_path: str = setting(
        "", "file that keeps changes at run time; empty: the file given with -c, else namesrv/namesrv.properties in the data directory"
    )
    order_message_enable: bool = setting(False, "return orderTopicConf with routes", mutable=True)
    return_order_topic_config_to_broker: bool = setting(True, "answer a registration with the ORDER_TOPIC_CONFIG table", mutable=True)
    scan_not_active_broker_interval: int = setting(10_000, "ms between scans for expired brokers", low=100, high=3_600_000)
    broker_expiry_ms: int = setting(120_000, "a broker silent for this long is removed", low=1_000, high=3_600_000)
    refuse_changed_broker_address: bool = setting(
        False, "refuse a broker that registers under the name and id of another one that is alive", mutable=True
    )
    server_channel_max_idle_time_seconds: int = setting(120, "close a connection with no traffic for this long", low=1, high=86_400)
    acl_routes_need_key: bool = setting(
        True, "with aclEnable, who asks for the route of a topic needs a key; false: nobody does, as with RocketMQ 4.9, for clients "
        "that do not sign that (pull consumers and admin of Go's client)",
    )  # fmt: skip
    connections_max: int = setting(20_000, "connections accepted at once", low=1, high=1_000_000)
    unfinished_frames_max: int = setting(
        128 * MIB, "bytes of frames that have begun and not ended, of all connections: then some wait or go", low=64 * MIB, high=1 << 40
    )


@dataclass
class BrokerSettings(ServerSettings):
    harmless = BROKER_HARMLESS
    refused = BROKER_REFUSED

    # who and where
    broker_cluster_name: str = setting("DefaultCluster", "cluster this broker belongs to", check=one_name("brokerClusterName"))
    broker_name: str = setting("broker-a", "broker group; one master, any number of slaves share it", check=one_name("brokerName"))
    broker_id: int = setting(0, "0 is the master", low=0, high=1_000_000)
    broker_role: str = setting("ASYNC_MASTER", "role in its group", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"))
    listen_port: int = setting(10911, "port for clients; listenPort - 2 answers too, as upstream's VIP channel", low=0, high=65535)
    bind_address: str = setting(
        "",
        "address to listen on, 0.0.0.0 for every one; empty: brokerIP1, or every one when that is not of this machine; without brokerIP1 "
        "127.0.0.1, or every one when a name server of namesrvAddr is not on this machine",
        check=one_address("bindAddress"),
    )
    broker_ip1: str = setting(
        "",
        "address given to clients; empty: bindAddress, or this host's own when that is 0.0.0.0",
        key="brokerIP1",
        check=one_address("brokerIP1"),
    )
    broker_ip2: str = setting("", "address given to slaves", key="brokerIP2", check=one_address("brokerIP2"))
    namesrv_addr: str = setting("", "name servers, separated by ';'")
    vip_channel_enable: bool = setting(True, "also listen on listenPort - 2")
    config_store_path: str = setting(
        "", "file that keeps changes at run time; empty: the file given with -c, else config/broker.properties under storePathRootDir"
    )
    store_path_root_dir: str = setting("./data/broker", "directory of the store")
    store_path_commit_log: str = setting("", "directory of the commit log; empty: commitlog under storePathRootDir", check=one_directory)
    enable_dleger_commit_log: bool = setting(
        False, "be a member of a DLedger group, which elects its master: brokerRole and brokerId follow", key="enableDLegerCommitLog"
    )
    dleger_group: str = setting("", "name of the DLedger group; empty: brokerName", key="dLegerGroup")
    dleger_peers: str = setting("", "all members of the group, this one too, as in n0-10.0.0.1:40911;n1-10.0.0.2:40911", key="dLegerPeers")
    dleger_self_id: str = setting("", "which of dLegerPeers this member is, as in n0", key="dLegerSelfId")
    dleger_heartbeat_interval: int = setting(
        300,
        "milliseconds between two heartbeats of a leader; after three to four without one its followers elect another. A group with Java "
        "members waits for 6 s whenever one of those leads",
        key="dLegerHeartbeatInterval",
        low=50,
        high=10_000,
    )
    dleger_refuse_strangers: bool = setting(
        True,
        "refuse votes, heartbeats and entries from addresses that dLegerPeers does not name. Members that are named by host name may come "
        "from anywhere. Turn it off where members reach each other through a translation of addresses (NAT)",
        key="dLegerRefuseStrangers",
    )
    preferred_leader_id: str = setting("", "members that should lead when they can, separated by ';'")
    store_path_dledger_commit_log: str = setting(
        "", "directory of the ledger's data files; empty: dledger-<id>/data under storePathRootDir", key="storePathDLedgerCommitLog"
    )
    region_id: str = setting("DefaultRegion", "region named in send answers", check=one_name("regionId"))
    region_in_messages: str = setting(
        "auto",
        "store MSG_REGION and TRACE_ON with each message, as RocketMQ 5.x does: its consumers trace no message without them. auto: "
        "with traceTopicEnable=true. Where traces have a broker of their own, set it to true on the others",
        choices=("auto", "true", "false"),
    )
    trace_on: bool = setting(True, "tell producers that tracing is on")
    connections_max: int = setting(20_000, "connections accepted at once", low=1, high=1_000_000)
    unfinished_frames_max: int = setting(
        128 * MIB, "bytes of frames that have begun and not ended, of all connections: then some wait or go", low=64 * MIB, high=1 << 40
    )
    server_channel_max_idle_time_seconds: int = setting(120, "close a connection with no traffic for this long", low=1, high=86_400)

    # TLS of the connections that the broker opens
    use_tls: bool = setting(
        False, "use TLS towards name servers, master and members; so does tls.enable=true, and tls.server.mode=enforcing", key="useTLS"
    )
    tls_enable: bool = setting(False, "the same as useTLS", key="tls.enable")
    tls_client_cert_path: str = setting("", "certificate that the broker shows, PEM; read again when it changes", key="tls.client.certPath")
    tls_client_key_path: str = setting("", "its key, PEM; empty: in tls.client.certPath", key="tls.client.keyPath")
    tls_client_key_password: str = setting("", "password of the key; it is never shown", key="tls.client.keyPassword", secret=True)
    tls_client_trust_cert_path: str = setting(
        "", "authorities of the servers' certificates, PEM; empty: the machine's own", key="tls.client.trustCertPath"
    )
    tls_client_auth_server: bool = setting(True, "verify the servers' certificates", key="tls.client.authServer")
    tls_client_check_host: bool = setting(
        True, "certificates must name the address that was connected to, besides being of the right authority", key="tls.client.checkHost"
    )

    # access control, of what the broker asks and of what it is sent
    acl_credentials_file: str = setting(
        "",
        "file with accessKey and secretKey, as tools.yml: with these this broker signs what it asks name servers and its master; empty: "
        "with aclEnable=true the first admin of its own accounts",
    )
    acl_replies_need_pub: bool = setting(
        True,
        "replies of request-reply need PUB on <cluster>_REPLY_TOPIC; false: every account may send them, as with RocketMQ 4.9",
        mutable=True,
    )

    # permissions and automatic things
    broker_permission: int = setting(6, "4 read + 2 write", low=0, high=7, mutable=True)
    default_topic_queue_nums: int = setting(8, "queues of TBW102, so at most of an automatic topic", low=1, high=QUEUES_MAX, mutable=True)
    auto_create_topic_enable: bool = setting(True, "create a topic at its first message", mutable=True)
    register_broker: bool = setting(
        True, "tell name servers of this broker; false: it is withdrawn from them, and no client finds it any more", mutable=True
    )
    copy_topics_from: str = setting(
        "",
        "of a new broker: cluster, or the name of another broker of its cluster. Topics, groups and accounts are copied from there before "
        "name servers hear of this one; empty: nothing is copied. A broker that has topics of users is not new",
        check=one_broker("copyTopicsFrom"),
    )
    spread_automatic_topics: bool = setting(
        True,
        "make a topic that its first message made here on the other brokers of the cluster, too, as far as they make topics by themselves; "
        "false: it stays on the broker that got the message, as with RocketMQ",
        mutable=True,
    )
    cluster_topic_enable: bool = setting(True, "a topic named like the cluster may serve as default topic")
    broker_topic_enable: bool = setting(True, "a topic named like the broker may serve as default topic")
    auto_create_subscription_group: bool = setting(True, "create a group at its first use", mutable=True)
    trace_topic_enable: bool = setting(False, "create the trace topic at start")
    msg_trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", "topic of message traces")
    enable_property_filter: bool = setting(False, "allow SQL92 subscriptions", mutable=True)
    filter_support_retry: bool = setting(False, "judge messages of a retry topic by the filter for their first topic", mutable=True)
    filter_data_clean_time_span: int = setting(86_400_000, "ms the SQL filters of a group that left are kept", low=0, high=1 << 40)
    expect_consumer_num_use_filter: int = setting(32, "groups with SQL filters that consumerFilter.json is sized for", low=1, high=10_000)
    max_error_rate_of_bloom_filter: int = setting(20, "percent; sizes the bit maps in consumerFilter.json", low=1, high=99)
    reject_transaction_message: bool = setting(False, "refuse transactional messages", mutable=True)
    store_reply_message_enable: bool = setting(True, "store the replies of request-reply besides passing them on", mutable=True)
    notify_consumer_ids_changed_enable: bool = setting(True, "tell members when their group changes", mutable=True)
    accept_topics_max: int = setting(100_000, "topics this broker holds at most", low=1, high=10_000_000, mutable=True)
    new_names_per_second: int = setting(
        100, "new topics and groups one address may bring a second, ten seconds' worth at once", low=1, high=1_000_000, mutable=True
    )
    accept_groups_max: int = setting(100_000, "groups this broker holds at most", low=1, high=10_000_000, mutable=True)

    # waiting and timing
    long_polling_enable: bool = setting(True, "hold a pull that finds nothing until a message comes", mutable=True)
    short_polling_time_mills: int = setting(1_000, "ms a pull is held when long polling is off", low=1, high=60_000, mutable=True)
    flush_consumer_offset_interval: int = setting(5_000, "ms between writes of consumerOffset.json", low=100, high=600_000, mutable=True)
    flush_delay_offset_interval: int = setting(10_000, "ms between writes of delayOffset.json", low=100, high=600_000, mutable=True)
    message_delay_level: str = setting(DELAY_LEVELS, "delay of each level: a number and ms, s, m, h or d", check=delay_levels_ms)
    register_name_server_period: int = setting(30_000, "ms between registrations", low=10_000, high=60_000, mutable=True)
    register_broker_timeout_mills: int = setting(6_000, "ms a registration may take", low=100, high=60_000, mutable=True)
    channel_expired_timeout_ms: int = setting(
        120_000, "a client silent for this long leaves its groups", low=1_000, high=3_600_000, key="channelExpiredTimeout"
    )
    rebalance_lock_max_live_time: int = setting(60_000, "ms a queue lock lives without renewal", low=1_000, high=3_600_000)
    compressed_register: bool = setting(False, "send the registration body compressed", mutable=True)

    timer_max_delay_sec: int = setting(3_456_000, "seconds ahead that a message may be timed: 40 days", low=1, high=3_456_000, mutable=True)

    # transactions
    transaction_time_out: int = setting(6_000, "ms until a prepared message is asked about", low=0, high=86_400_000, mutable=True)
    transaction_check_max: int = setting(15, "times it is asked about before it is given up", low=1, high=10_000, mutable=True)
    transaction_check_interval: int = setting(60_000, "ms between looks at prepared messages", low=100, high=86_400_000, mutable=True)

    # flow control
    broker_fast_failure_enable: bool = setting(True, "turn sends away under pressure instead of letting them wait", mutable=True)
    wait_time_mills_in_send_queue: int = setting(
        200, "ms the event loop may be late before sends are turned away", low=10, high=600_000, mutable=True
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1_000, "ms a write or fsync of the log may take before sends are turned away", low=10, high=600_000, mutable=True
    )
    send_thread_pool_queue_capacity: int = setting(
        10_000, "sends that may wait for their fsync before more are turned away", low=1, high=10_000_000, mutable=True
    )

    # master and slave
    ha_master_address: str = setting(
        "", "HA address of the master, as in 10.0.0.1:10912, for a slave; empty: name servers tell it", check=one_server("haMasterAddress")
    )
    ha_send_heartbeat_interval: int = setting(
        5_000, "ms without another word after which master and slave tell each other where they are", low=100, high=60_000, mutable=True
    )
    ha_housekeeping_interval: int = setting(
        20_000, "ms after which a silent HA connection is closed", low=1_000, high=3_600_000, mutable=True
    )
    ha_transfer_batch_size: int = setting(
        32_768, "most bytes of the log in one transfer to a slave", low=1, high=TRANSFER_MAX, mutable=True
    )
    ha_slave_fallbehind_max: int = setting(
        256 * MIB, "bytes behind from which on a slave does not count for SYNC_MASTER", low=1, high=1 << 50, mutable=True
    )
    slave_timeout: int = setting(
        3_000, "ms a send to a SYNC_MASTER waits for a slave before FLUSH_SLAVE_TIMEOUT", low=1, high=600_000, mutable=True
    )
    slave_read_enable: bool = setting(False, "send consumers that are far behind to a slave", mutable=True)
    offset_check_in_slave: bool = setting(False, "a slave corrects offsets that its queues do not have", mutable=True)

    # the store
    flush_disk_type: str = setting("ASYNC_FLUSH", "SYNC_FLUSH: answer after fsync", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    sync_flush_timeout: int = setting(5_000, "ms a send waits for its fsync before FLUSH_DISK_TIMEOUT", low=1, high=600_000, mutable=True)
    flush_interval_commit_log: int = setting(500, "ms between fsyncs of the log under ASYNC_FLUSH", low=1, high=60_000, mutable=True)
    flush_interval_consume_queue: int = setting(1_000, "ms between writes of queue entries", low=10, high=60_000, mutable=True)
    mapped_file_size_commit_log: int = setting(GIB, "bytes of one commit log file", low=4_096, high=GIB)
    mapped_file_size_consume_queue: int = setting(
        6_000_000, "bytes of one queue file; rounded up to a multiple of 20", low=20, high=600_000_000
    )
    max_hash_slot_num: int = setting(5_000_000, "hash slots of one index file", low=1, high=100_000_000)
    max_index_num: int = setting(20_000_000, "entries of one index file", low=2, high=100_000_000)
    message_index_enable: bool = setting(True, "index keys, so that messages can be queried by key", mutable=True)
    max_message_size: int = setting(4 * MIB, "largest body in bytes", low=1, high=15 * MIB, mutable=True)
    max_msgs_num_batch: int = setting(64, "most messages one query by key returns", low=1, high=10_000, mutable=True)
    default_query_max_num: int = setting(32, "messages a unique key query returns", low=1, high=10_000, mutable=True)
    max_transfer_bytes_on_message_in_memory: int = setting(262_144, "bytes of one pull answer", low=1, high=15 * MIB, mutable=True)
    max_transfer_count_on_message_in_memory: int = setting(32, "messages of one pull answer", low=1, high=10_000, mutable=True)
    max_transfer_bytes_on_message_in_disk: int = setting(65_536, "bytes of one pull answer far behind", low=1, high=15 * MIB, mutable=True)
    max_transfer_count_on_message_in_disk: int = setting(8, "messages of one pull answer far behind", low=1, high=10_000, mutable=True)
    max_scan_bytes: int = setting(
        4 * MIB,
        "bytes of one answer to a reader that scans a queue, as Spark's does, with 16 of them or fewer; 0: it gets ordinary answers",
        low=0,
        high=15 * MIB,
        mutable=True,
    )
    access_message_in_memory_max_ratio: int = setting(40, "percent of memory that counts as near the tail", low=0, high=100, mutable=True)
    file_reserved_time: int = setting(72, "hours a log file is kept after its last write", low=1, high=100_000, mutable=True)
    delete_when: str = setting("04", "hours of the day at which old files go, separated by ';'", mutable=True, check=hours_of_day)
    disk_max_used_space_ratio: int = setting(75, "percent of disk use above which old files go at any hour", low=10, high=95, mutable=True)
    clean_resource_interval: int = setting(10_000, "ms between looks at disk and retention", low=10, high=600_000)
    clean_file_forcibly_enable: bool = setting(True, "above 85 % delete files of any age", mutable=True)
    check_crc_on_recover: bool = setting(True, "check body checksums while recovering", key="checkCRCOnRecover")

    @classmethod
    def check_together(cls, pairs: Mapping[str, str]) -> None:
        check_role(pairs.get("brokerRole", cls.broker_role).strip(), pairs.get("brokerId", str(cls.broker_id)).strip())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.namesrv_addr = name_servers(self.namesrv_addr)
        self.mapped_file_size_consume_queue = -(-self.mapped_file_size_consume_queue // ENTRY.size) * ENTRY.size
        index_size = INDEX_HEADER.size + INDEX_SLOT * self.max_hash_slot_num + INDEX_ENTRY.size * self.max_index_num
        if index_size > FILE_MAX:
            raise BadSetting(
                f"maxHashSlotNum={self.max_hash_slot_num} and maxIndexNum={self.max_index_num} make index files of {index_size} bytes, and "
                f"{FILE_MAX} is the most: a slot takes {INDEX_SLOT} bytes and an entry {INDEX_ENTRY.size}, so lower one of them"
            )

    @property
    def stores_region(self) -> bool:
        """Whether messages are stored with the region, see region_in_messages."""
        return self.region_in_messages == "true" or (self.region_in_messages == "auto" and self.trace_topic_enable)
