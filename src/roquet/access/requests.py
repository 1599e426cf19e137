"""Requests about accounts (50, 51, 53, 54), as brokers and name servers take them: what is to be changed in the files, and what is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from roquet.access.accounts import Account, Rules
from roquet.access.permissions import in_words, is_group
from roquet.access.source import Edit
from roquet.access.yaml_text import AccountChange, with_account, with_white_addresses, without_account
from roquet.wire.calls import access as calls
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.names import RETRY_PREFIX

OFF = "access control is off: set aclEnable=true in the broker's file"
MASKED = "******"


@dataclass(frozen=True, slots=True)
class Change:
    access_key: str
    """Whose file is changed; "": the first one."""
    words: str
    """What it changes, for the log."""
    edit: Edit
    failed: int
    """The code that says that nothing was changed."""


def change_of(command: Command, rules: Rules, now_ms: int) -> Change:
    """What a request of these codes changes. Raises Refused when it does not say."""
    if command.code == RequestCode.UPDATE_AND_CREATE_ACL_CONFIG:
        header = calls.UPDATE_AND_CREATE_ACL_CONFIG.read_header(command)
        key = header.access_key
        account = AccountChange(
            key,
            header.secret_key or None,
            header.white_remote_address,
            header.admin,
            header.default_topic_perm or None,
            header.default_group_perm or None,
            listed(header.topic_perms),
            listed(header.group_perms),
        )
        return Change(key, f"account {key}", partial(with_account, change=account, now_ms=now_ms), calls.UPDATE_FAILED)
    if command.code == RequestCode.DELETE_ACL_CONFIG:
        key = calls.DELETE_ACL_CONFIG.read_header(command).access_key
        # Servers may share a file: another one has perhaps deleted it there already.
        edit = partial(without_account, access_key=key, now_ms=now_ms, gone_is_fine=key in rules.accounts)
        return Change(key, f"account {key}, deleted", edit, calls.DELETE_FAILED)
    addresses = listed(calls.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG.read_header(command).global_white_addrs) or ()
    return Change("", "global white list", partial(with_white_addresses, addresses=addresses, now_ms=now_ms), calls.WHITE_FAILED)


def failed_code(code: int) -> int:
    """What is answered to a request of these codes that cannot be carried out."""
    return {
        int(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG): calls.UPDATE_FAILED, int(RequestCode.DELETE_ACL_CONFIG): calls.DELETE_FAILED,
    }.get(code, calls.WHITE_FAILED)  # fmt: skip


def listed(text: str | None) -> tuple[str, ...] | None:
    """Of texts with commas between them, as RocketMQ's tools send them."""
    return None if text is None else tuple(one.strip() for one in text.split(",") if one.strip())


def config_of(rules: Rules) -> calls.AclConfig:
    """54. RocketMQ gave every secret to whoever asked (CVE-2024-23321): here they are masked, and an admin must ask."""
    return calls.AclConfig([one.text for one in rules.white], [described(one) for one in rules.accounts.values()])


def described(account: Account) -> calls.PlainAccessConfig:
    topics = [f"{name}={in_words(one.permission)}" for name, one in account.resources.items() if not is_group(name)]
    groups = [f"{name.removeprefix(RETRY_PREFIX)}={in_words(one.permission)}" for name, one in account.resources.items() if is_group(name)]
    return calls.PlainAccessConfig(
        account.access_key,
        MASKED,
        "" if account.white is None else account.white.text,
        account.admin,
        None if account.default_topic is None else in_words(account.default_topic.permission),
        None if account.default_group is None else in_words(account.default_group.permission),
        topics,
        groups,
    )


def config_with_secrets(rules: Rules) -> calls.AclConfig:
    """Never to be shown, logged, or sent as it is: for a new broker of the cluster."""
    told = [replace(described(one), secret_key=one.secret_key.decode()) for one in rules.accounts.values()]
    return calls.AclConfig([one.text for one in rules.white], told)


def with_copies(text: str, file: str, accounts: Iterable[calls.PlainAccessConfig], white: Sequence[str], now_ms: int) -> str:
    """The text with these accounts, and with this white list unless it is empty. Raises BadAcl when the result could not be used."""
    for one in accounts:
        account = AccountChange(
            one.access_key,
            one.secret_key,
            one.white_remote_address or None,
            one.admin or None,
            one.default_topic_perm,
            one.default_group_perm,
            tuple(one.topic_perms) or None,
            tuple(one.group_perms) or None,
        )
        text = with_account(text, file, account, now_ms)
    return with_white_addresses(text, file, white, now_ms) if white else text


def in_short(rules: Rules) -> str:
    admins = sum(1 for _ in rules.admins())
    return f"{len(rules.accounts)} accounts, {admins} of them admins, {len(rules.white)} addresses on the white list"
