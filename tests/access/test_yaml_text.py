"""plain_acl.yml: upstream's own file, broken ones, and changes that keep what people wrote."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest

from roquet.access.accounts import may_less
from roquet.access.permissions import Permission
from roquet.access.yaml_text import (
    AccountChange,
    BadAcl,
    Version,
    merged,
    parse,
    parse_keys,
    with_account,
    with_white_addresses,
    without_account,
)

SAMPLE = """\
# who may do what
globalWhiteRemoteAddresses:
- 10.10.103.*   # the office
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY   # never
  - topicB=PUB|SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY

- accessKey: rocketmq2
  secretKey: "12345678"
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


ACCOUNT = "accounts:\n- accessKey: account1\n  secretKey: secret12\n"


def test_upstreams_sample_means_what_it_means_there() -> None:
    found = parse(SAMPLE, "plain_acl.yml")
    one, two = found.accounts["RocketMQ"], found.accounts["rocketmq2"]
    assert (one.secret_key, one.admin, one.white) == (b"12345678", False, None)
    assert two.admin
    assert two.white is not None
    assert one.resources["topicB"].permission == Permission.PUB | Permission.SUB
    assert one.resources["%RETRY%groupA"].permission == Permission.DENY
    assert [pattern.text for pattern in found.white] == ["10.10.103.*", "192.168.0.*"]
    assert found.version == Version()


def test_the_line_that_decides_is_named() -> None:
    account = parse(SAMPLE, "plain_acl.yml").accounts["RocketMQ"]
    denied = account.decides("topicA", Permission.SUB)
    assert not denied.allowed
    assert "plain_acl.yml, line 14" in denied.why
    default = account.decides("other", Permission.SUB)
    assert not default.allowed
    assert "defaultTopicPerm is DENY (plain_acl.yml, line 11)" in default.why
    assert account.decides("%RETRY%any", Permission.SUB).allowed
    assert account.decides("topicB", Permission.PUB).allowed
    assert parse(SAMPLE, "f").accounts["rocketmq2"].decides("anything", Permission.PUB).allowed


def test_no_default_opens_topics_that_hold_messages_of_all_others() -> None:
    text = "accounts:\n- accessKey: reader12\n  secretKey: secret12\n  defaultTopicPerm: SUB\n"
    account = parse(text, "f").accounts["reader12"]
    assert account.decides("orders", Permission.SUB).allowed
    for topic in (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_ROQUET_CHANGES",
        "RMQ_SYS_TRACE_TOPIC",
    ):
        assert not account.decides(topic, Permission.SUB).allowed
        named = parse(text + f"  topicPerms:\n  - {topic}=SUB\n", "f").accounts["reader12"]
        assert named.decides(topic, Permission.SUB).allowed
    assert account.decides("RMQ_SYS_TRACE_TOPIC", Permission.PUB).allowed, "everybody writes traces"


def test_replies_of_others_are_sent_by_default_and_read_by_nobody_who_is_not_named() -> None:
    text = "accounts:\n- accessKey: reader12\n  secretKey: secret12\n  defaultTopicPerm: PUB|SUB\n"
    account = parse(text, "f").accounts["reader12"]
    assert account.decides("DefaultCluster_REPLY_TOPIC", Permission.PUB).allowed, "who answers a request sends there"
    decision = account.decides("DefaultCluster_REPLY_TOPIC", Permission.SUB)
    assert not decision.allowed
    assert "no default opens it, a line of its own would" in decision.why
    groups = parse(text + "  defaultGroupPerm: SUB\n", "f").accounts["reader12"]
    assert groups.decides("%RETRY%of_REPLY_TOPIC", Permission.SUB).allowed, "a group of such a name is a group"
    named = parse(text + "  topicPerms:\n  - DefaultCluster_REPLY_TOPIC=SUB\n", "f").accounts["reader12"]
    assert named.decides("DefaultCluster_REPLY_TOPIC", Permission.SUB).allowed


def test_dead_letters_are_read_by_those_who_may_read_for_their_group() -> None:
    text = "accounts:\n- accessKey: reader12\n  secretKey: secret12\n  defaultTopicPerm: PUB|SUB\n"
    account = parse(text + "  groupPerms:\n  - own=SUB\n  - denied=DENY\n", "f").accounts["reader12"]
    assert account.decides("%DLQ%own", Permission.SUB).allowed
    for group in ("other", "denied", ""):
        decision = account.decides(f"%DLQ%{group}", Permission.SUB)
        assert not decision.allowed
        assert f"no line for topic %DLQ%{group}, so SUB on the group decides: " in decision.why
    assert "group denied has DENY (f, line 7)" in account.decides("%DLQ%denied", Permission.SUB).why
    everywhere = parse(text + "  defaultGroupPerm: SUB\n", "f").accounts["reader12"]
    assert everywhere.decides("%DLQ%other", Permission.SUB).allowed
    lines = "  topicPerms:\n  - '%DLQ%other=SUB'\n  - '%DLQ%own=DENY'\n  groupPerms:\n  - own=SUB\n"
    named = parse(text + lines, "f").accounts["reader12"]
    assert named.decides("%DLQ%other", Permission.SUB).allowed, "a line of its own decides"
    assert not named.decides("%DLQ%own", Permission.SUB).allowed


ALL = "  topicPerms:\n  - orders=PUB|SUB\n  groupPerms:\n  - readers=SUB\n"
READS_ALL = ALL + "  defaultTopicPerm: SUB\n"


@pytest.mark.parametrize(
    ("before", "now", "less"),
    [
        (ALL, "  admin: false\n# a comment\n" + ALL, False),
        (ALL, ALL.replace("readers", "others"), True),
        (ALL, ALL.replace("PUB|SUB", "SUB"), True),
        (ALL, ALL.replace("PUB|SUB", "DENY"), True),
        (ALL.replace("PUB|SUB", "SUB"), ALL, False),
        (ALL, READS_ALL, False),
        (READS_ALL, ALL, True),
        (READS_ALL, READS_ALL.replace("  groupPerms", "  - invoices=SUB\n  groupPerms"), False),
        (READS_ALL, READS_ALL.replace("  groupPerms", "  - invoices=DENY\n  groupPerms"), True),
        (ALL + "  defaultGroupPerm: SUB\n", ALL + "  defaultGroupPerm: DENY\n", True),
        (ALL, "  admin: true\n", False),
        ("  admin: true\n", "", True),
        ("  admin: true\n", "  admin: true\n" + ALL, True),
        ("  admin: true\n", "  admin: true\n  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: PUB|SUB\n" + ALL, True),
        ("", "  whiteRemoteAddress: 10.0.0.1\n", False),
        ("  whiteRemoteAddress: 10.0.0.1\n", "  whiteRemoteAddress: 10.0.0.2\n", True),
        ("  whiteRemoteAddress: 10.0.0.1\n", "\n  whiteRemoteAddress: 10.0.0.1\n", False),
    ],
)  # fmt: skip
def test_whether_an_account_may_less_than_before(before: str, now: str, less: bool) -> None:
    first, second = (parse(ACCOUNT + text, "f").accounts["account1"] for text in (before, now))
    assert may_less(first, second) == less
    assert may_less(first, None)
    assert may_less(first, replace(second, secret_key=b"another1"))


def test_deny_wins_beside_others() -> None:
    account = parse("accounts:\n- accessKey: account1\n  secretKey: secret12\n  topicPerms:\n  - orders=PUB|DENY\n", "f").accounts[
        "account1"
    ]
    assert not account.decides("orders", Permission.PUB).allowed


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("accounts: [", 1),
        ("- a", 1),
        ("just words", 1),
        ("accounts:\n- accessKey: x\n  secretKey: secret12\n", 2),
        ("accounts:\n- secretKey: secret12\n", 2),
        ("accounts:\n- accessKey: account1\n", 2),
        ("accounts:\n- accessKey: account1\n  secretKey: 01234567\n", 3),
        ("accounts:\n- accessKey: account1\n  secretKey: 1.5e10000\n", 3),
        (ACCOUNT + "  admin: perhaps\n", 4),
        (ACCOUNT + "  defaultTopicPerm: WRITE\n", 4),
        (ACCOUNT + "  topicPerms:\n  - orders\n", 5),
        (ACCOUNT + "  topicPerms:\n  - orders=PUX\n", 5),
        (ACCOUNT + "  topicPerms:\n  - orders=PUB\n  - orders=SUB\n", 6),
        (ACCOUNT + "  topicPerms: orders=PUB\n", 4),
        (ACCOUNT + "  topicPerm:\n  - orders=PUB\n", 5),
        (ACCOUNT + "  whiteRemoteAddress: 10.0.0\n", 4),
        (ACCOUNT + "- accessKey: account1\n  secretKey: another1\n", 4),
        ("globalWhiteRemoteAddresses:\n- 10.0.0.*\n- nowhere\n", 3),
        ("accounts: {}\n", 1),
        ("a: 1\na: 2\n", 2),
    ],
)
def test_a_broken_file_is_refused_with_its_line_and_without_its_secrets(text: str, line: int) -> None:
    with pytest.raises(BadAcl) as caught:
        parse(text, "plain_acl.yml")
    assert str(caught.value).startswith(f"plain_acl.yml, line {line}: ")
    assert "secret12" not in str(caught.value)
    assert "01234567" not in str(caught.value)


SECRETS = [
    "*secret12",
    "!secret12",
    "&secret12 x",
    "%secret12",
    "@secret12",
    "`secret12",
    "'secret12",
    "se: cret12: x",
    "[secret12",
    "\tsecret12",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_yaml_cannot_read_is_not_quoted(secret: str) -> None:
    for read in (lambda text: parse(text, "f"), lambda text: parse_keys(text.removeprefix("accounts:\n- "), "f")):
        with pytest.raises(BadAcl) as caught:
            read(f"accounts:\n- accessKey: account1\n  secretKey: {secret}\n")
        assert "cret12" not in "".join(traceback.format_exception(caught.value)), secret


@pytest.mark.parametrize(
    "more", ["other:\n  token: secret12\n  token: secret12\n", "other: !!int secret12\n", "other: !!timestamp secret12\n"]
)
def test_what_cannot_be_rewritten_is_not_quoted(more: str) -> None:
    with pytest.raises(BadAcl) as caught:
        with_account(SAMPLE + more, "f", AccountChange("RocketMQ", admin=True), 1)
    assert "secret12" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("text", ["", "# nothing\n", "accounts:\n", "globalWhiteRemoteAddresses: []\n"])
def test_an_empty_file_has_no_accounts(text: str) -> None:
    assert not parse(text, "f").accounts


def test_two_files_must_not_have_the_same_account() -> None:
    with pytest.raises(BadAcl, match="has an account already"):
        merged([parse(ACCOUNT, "a.yml"), parse(ACCOUNT, "b.yml")])


def test_no_secret_is_in_a_repr() -> None:
    assert "12345678" not in repr(parse(SAMPLE, "f"))
    assert "secret12" not in repr(AccountChange("account1", "secret12"))


def test_changes_keep_comments_and_count_the_version() -> None:
    text = with_account(SAMPLE, "f", AccountChange("newcomer", "s3cret-key", topics=("orders=PUB",)), 1_000)
    text = with_account(text, "f", AccountChange("RocketMQ", admin=True, topics=("topicA=DENY", "topicC=SUB")), 2_000)
    text = without_account(text, "f", "rocketmq2", 3_000)
    text = with_white_addresses(text, "f", ["10.10.103.*", "::1"], 4_000)
    for comment in ("# who may do what", "# the office", "# never", "# the group should convert to retry topic"):
        assert comment in text
    found = parse(text, "f")
    assert found.version == Version(4, 4_000)
    assert set(found.accounts) == {"RocketMQ", "newcomer"}
    assert found.accounts["RocketMQ"].admin
    assert found.accounts["RocketMQ"].secret_key == b"12345678"
    assert set(found.accounts["RocketMQ"].resources) == {"topicA", "topicC", "%RETRY%groupA"}
    assert [one.text for one in found.white] == ["10.10.103.*", "::1"]


@pytest.mark.parametrize(
    "secret", ["12345678", "0123456789", "true-ish", "null    ", "a: b # c", "'quoted'\"", "- dashes", "日本語の秘密鍵"]
)
def test_whatever_a_secret_is_it_comes_back_as_it_was(secret: str) -> None:
    text = with_account("", "f", AccountChange("account1", secret), 1)
    assert parse(text, "f").accounts["account1"].secret_key == secret.encode()


def test_a_change_that_could_not_be_used_is_refused() -> None:
    with pytest.raises(BadAcl, match="no permission"):
        with_account(SAMPLE, "f", AccountChange("RocketMQ", topics=("a=PUX",)), 1)
    with pytest.raises(BadAcl, match="secretKey is missing"):
        with_account(SAMPLE, "f", AccountChange("newcomer"), 1)
    with pytest.raises(BadAcl, match="there is no account"):
        without_account(SAMPLE, "f", "nobody12", 1)
    with pytest.raises(BadAcl, match="no part of an address"):
        with_white_addresses(SAMPLE, "f", ["1.2.3.x"], 1)


def test_the_keys_of_tools_yml_are_read() -> None:
    assert parse_keys("accessKey: rocketmq2\nsecretKey: 12345678\n", "tools.yml") == ("rocketmq2", "12345678", None)
    with pytest.raises(BadAcl, match="secretKey is missing"):
        parse_keys("accessKey: rocketmq2\n", "tools.yml")
