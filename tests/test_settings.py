"""The settings against those of Apache RocketMQ 4.9.7, as its own classes gave them (tests/vectors/settings-4.9.7.json)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roquet import __version__
from roquet.errors import BadSetting
from roquet.settings import BrokerSettings, NameServerSettings, Settings, distance, show, table

RECORDED = json.loads((Path(__file__).parent / "vectors" / "settings-4.9.7.json").read_text())
Kind = type[BrokerSettings] | type[NameServerSettings]

CLASSES: dict[Kind, tuple[str, ...]] = {
    BrokerSettings: ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig", "TlsSystemConfig"),
    NameServerSettings: ("NamesrvConfig", "NettyServerConfig", "TlsSystemConfig"),
}
"""Whose setters the two programs call with their file, and TLS."""


def upstream(kind: Kind) -> dict[str, str | None]:
    """Key -> default; None: there is none, or it names the machine."""
    found: dict[str, str | None] = {}
    for name in CLASSES[kind]:
        found |= RECORDED["defaults"][name]
    found |= RECORDED["startup"][CLASSES[kind][0]]
    return found


SAFER = {"tls.client.authServer": "true"}
"""Where upstream's default lets somebody in, or trusts somebody, who should not be: ours."""

KEYS = [(kind, key) for kind in CLASSES for key in upstream(kind)]
keys = pytest.mark.parametrize(("kind", "key"), KEYS, ids=[f"{kind.__name__}-{key}" for kind, key in KEYS])


def test_the_recording_is_whole() -> None:
    assert {name: len(pairs) for name, pairs in RECORDED["defaults"].items()} == {
        "BrokerConfig": 80, "MessageStoreConfig": 78, "NettyServerConfig": 14, "NettyClientConfig": 14, "NamesrvConfig": 6,
        "TlsSystemConfig": 15,
    }  # fmt: skip


@keys
def test_every_key_of_upstream_is_served_harmless_or_refused(kind: Kind, key: str) -> None:
    served, harmless, refused = key in table(kind), key in kind.harmless, key in kind.refused
    assert served + harmless + refused >= 1, f"{key} is in no table"
    assert not (harmless and (served or refused)), f"{key} is said to have no effect, and in another table to have one"


@keys
def test_the_default_of_every_key_is_upstream_s(kind: Kind, key: str) -> None:
    theirs = upstream(kind)[key]
    if theirs is None:
        pytest.skip("upstream has none, or makes it from the machine")
    if key in table(kind):
        assert show(table(kind)[key].default) == SAFER.get(key, theirs)
    if key in kind.harmless:
        assert kind.harmless[key].default in (theirs, "" if key.startswith("tls.") else theirs)
    if key in kind.refused:
        assert kind.refused[key].accepted[0] == theirs


@pytest.mark.parametrize("kind", CLASSES)
def test_upstream_s_defaults_are_taken_without_a_word(kind: Kind) -> None:
    pairs = {key: default for key, default in upstream(kind).items() if default is not None}
    settings, warnings = kind.read(pairs)
    assert not warnings
    assert settings.every_item().items() >= {key: value for key, value in pairs.items() if not key.startswith("tls.")}.items()


@pytest.mark.parametrize("kind", CLASSES)
def test_every_key_with_a_default_is_in_the_configuration_that_is_answered(kind: Kind) -> None:
    shown = kind().every_item()
    missing = {key for key, default in upstream(kind).items() if default is not None and not key.startswith("tls.")} - shown.keys()
    assert not missing


def test_what_was_given_and_has_no_effect_is_shown_as_it_was_given() -> None:
    settings, warnings = BrokerSettings.read({"sendMessageThreadPoolNums": "16", "dLegerGroup": "g0"})
    assert not warnings
    assert dict(settings.items()).items() >= {"sendMessageThreadPoolNums": "16", "dLegerGroup": "g0"}.items()
    assert settings.replace(broker_name="b").every_item()["sendMessageThreadPoolNums"] == "16"


# Refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fetchNamesrvAddrByAddressServer", "true"), ("filterServerNums", "1"), ("messageStorePlugIn", "org.example.Store"),
        ("disableConsumeIfConsumerReadSlowly", "true"), ("startAcceptSendRequestTimeStamp", "1794732504891"), ("duplicationEnable", "true"),
        ("enableConsumeQueueExt", "true"), ("readOnlyCommitLogStorePaths", "/old"), ("enableLmq", "true"), ("enableMultiDispatch", "true"),
        ("storePathCommitLog", "/a,/b"), ("authenticationEnabled", "true"), ("enableControllerMode", "true"), ("inSyncReplicas", "2"),
    ],
)  # fmt: skip
def test_what_this_version_does_not_do_is_refused_in_one_sentence(key: str, value: str) -> None:
    with pytest.raises(BadSetting) as refused:
        BrokerSettings.read({key: value})
    sentence = str(refused.value)
    assert sentence.startswith(f"{key}={value}: Roquet {__version__} ")
    assert "; " in sentence  # what to do
    assert "\n" not in sentence


@pytest.mark.parametrize(("key", "value"), [("clusterTest", "true"), ("enableControllerInNamesrv", "true")])
def test_a_name_server_refuses_what_it_does_not_do(key: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"^{key}={value}: Roquet {__version__} has no "):
        NameServerSettings.read({key: value})


@pytest.mark.parametrize("kind", CLASSES)
def test_every_refusal_is_a_sentence_with_something_to_do(kind: Kind) -> None:
    for key, refusal in kind.refused.items():
        said = refusal.sentence(key, "x", "0")
        assert said.startswith(f"{key}=x: Roquet 0 has no ")
        assert not refusal.takes("x")
        assert len(said.split("; ")[-1]) > 5


def test_values_are_compared_as_java_reads_them() -> None:
    pairs = {"aclEnable": " False ", "brokerId": "00", "brokerRole": "ASYNC_MASTER", "tls.server.mode": "disabled"}
    assert not BrokerSettings.read(pairs)[1]


@pytest.mark.parametrize("key", ["brokerName", "brokerClusterName", "regionId"])
def test_names_that_would_end_a_property_of_a_message_are_refused(key: str) -> None:
    for name in ("a\x01b", "a\x02", "a\nb", "x" * 256):
        with pytest.raises(BadSetting, match=f"{key}=.*expected a name of at most 255 characters, without control characters"):
            BrokerSettings.read({key: name})
    BrokerSettings.read({key: '\u7ecf \u7eaa "a"'})


# Keys nobody knows


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"), ("flushDiskTpye", "flushDiskType"), ("flushdisktype", "flushDiskType"),
        ("aclEnabled", "aclEnable"), ("autoCreateTopicEnabel", "autoCreateTopicEnable"), ("fileReservedTimes", "fileReservedTime"),
        ("storePathRootdir", "storePathRootDir"), ("brokerip1", "brokerIP1"), ("tls.server.mod", "tls.server.mode"),
    ],
)  # fmt: skip
def test_a_slip_in_a_key_is_refused_with_what_was_meant(written: str, meant: str) -> None:
    with pytest.raises(BadSetting, match=f"unknown setting '{written}'; did you mean '{meant}'"):
        BrokerSettings.read({written: "1"})


def test_a_key_of_its_own_is_a_warning() -> None:
    _, warnings = BrokerSettings.read({"popPollingSize": "1024", "storePathConsumeQueue": "/disk2"})
    assert len(warnings) == 2
    assert warnings[0].startswith("unknown setting 'popPollingSize' is ignored")
    assert warnings[1].endswith("queues are always in consumequeue under storePathRootDir")


@pytest.mark.parametrize("kind", CLASSES)
def test_no_key_of_rocketmq_5_is_taken_for_a_slip(kind: Kind) -> None:
    strange = {key: "77" for key in RECORDED["keys of 5.5.0"] if not kind.knows(key)}
    assert len(kind.read(strange)[1]) == len(strange) > 300


@pytest.mark.parametrize(
    ("one", "other", "letters"), [("", "", 0), ("a", "a", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("abc", "abcd", 1), ("abc", "xbz", 2)]
)
def test_the_distance_of_two_words_counts_letters(one: str, other: str, letters: int) -> None:
    assert distance(one, other) == distance(other, one) == letters


# At run time


@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_but_the_allow_list_changes_at_run_time(kind: Kind) -> None:
    settings: Settings = kind()
    for key in kind.known():
        if key in table(kind) and table(kind)[key].mutable:
            continue
        value = {bool: "false", int: "77"}.get(table(kind)[key].kind, "ASYNC_MASTER") if key in table(kind) else "77"
        if settings.every_item().get(key) == value or (key in table(kind) and show(table(kind)[key].default) == value):
            continue
        with pytest.raises(BadSetting):
            settings.changes({key: value})
    assert settings == kind()


def test_everything_that_is_shown_can_be_sent_back_and_changes_nothing() -> None:
    settings = BrokerSettings()
    settings.change(settings.changes(settings.every_item()))
    assert settings == BrokerSettings()


# Sizes


@pytest.mark.parametrize(("given", "used"), [("20", 20), ("21", 40), ("6000000", 6_000_000), ("1000", 1_000), ("1001", 1_020)])
def test_the_size_of_queue_files_is_rounded_up_to_whole_entries(given: str, used: int) -> None:
    assert BrokerSettings.read({"mappedFileSizeConsumeQueue": given})[0].mapped_file_size_consume_queue == used


def test_index_files_that_nobody_could_map_are_refused() -> None:
    with pytest.raises(BadSetting, match="maxHashSlotNum=100000000 and maxIndexNum=100000000 make index files of 2400000040 bytes"):
        BrokerSettings.read({"maxHashSlotNum": "100000000", "maxIndexNum": "100000000"})


# Addresses


@pytest.mark.parametrize("key", ["brokerIP1", "brokerIP2", "bindAddress"])
@pytest.mark.parametrize("value", ["10.0.0.1:10911", "10.0.0.1,10.0.0.2", "[fd00::5]", "a b", "*", "http://10.0.0.1", "10.0.0.1;10.0.0.2"])
def test_an_address_that_nobody_could_connect_to_is_refused(key: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"{key}=.*expected one address or host name, as in 10.0.0.7, without a port"):
        BrokerSettings.read({key: value})


@pytest.mark.parametrize(
    "value", ["10.0.0.1", "fd00::5", "fe80::1%eth0", "::ffff:10.0.0.1", "host.docker.internal", "rmq_broker", "broker-1", ""]
)
def test_an_address_or_a_name_is_taken(value: str) -> None:
    assert BrokerSettings.read({"brokerIP1": f" {value} "})[0].broker_ip1 == value


@pytest.mark.parametrize("value", ["127.0.0.1:99999", "127.0.0.1:port", ":9876", ";"])
def test_a_name_server_s_address_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadSetting, match=r"namesrvAddr=.*expected addresses separated by ';'"):
        BrokerSettings.read({"namesrvAddr": value})
    with pytest.raises(BadSetting, match="namesrvAddr="):
        BrokerSettings().replace(namesrv_addr=value)


def test_name_servers_are_written_as_clients_write_them() -> None:
    settings, _ = BrokerSettings.read({"namesrvAddr": "10.0.0.1, http://10.0.0.2:9877/ ; 10.0.0.1:9876;"})
    assert settings.namesrv_addr == "10.0.0.1:9876;10.0.0.2:9877"
