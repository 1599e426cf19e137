"""RocketMQ's plain_acl.yml and tools.yml: text to values, and changes to the text that keep its comments and its order.

Texts are read as they stand, with the line of each, before YAML makes numbers of them: a secret of 0123456 is no octal number.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roquet.access.accounts import Account, Granted, Place, Rules
from roquet.access.addresses import AddressPattern, BadPattern, pattern_of
from roquet.access.permissions import BadPermission, permission_of
from roquet.errors import RoquetError
from roquet.wire.names import retry_topic

TEXT_MAX = 4 * 1024 * 1024
ACCOUNTS_MAX = 100_000
KEY_MIN, KEY_MAX = 7, 255
"""RocketMQ wants more than six characters of each key."""
WHOLE = re.compile(r"0|[1-9][0-9]*", re.ASCII)
ACCOUNT_FIELDS = frozenset(
    ("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms")
)


NOT_YAML = "this is not YAML. Look at indentation and colons, and put texts in quotes that begin with * & ! | > % @ ` or have ': ' or ' #'"
"""YAML's own words may quote the file, and a secret with it."""


class BadAcl(RoquetError, ValueError):
    """A file of access control that cannot be used: says file, line and reason, and never a secret."""

    def __init__(self, place: Place, why: str) -> None:
        super().__init__(f"{place}: {why}")


@dataclass(frozen=True, slots=True)
class Version:
    """Of one file, as it counts its changes."""

    counter: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class AclFile:
    """What one file says."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[AddressPattern, ...] = ()
    version: Version = Version()


def merged(files: Iterable[AclFile]) -> Rules:
    """All of them together. Raises BadAcl for an access key that two of them have."""
    accounts: dict[str, Account] = {}
    white: list[AddressPattern] = []
    for one in files:
        for key, account in one.accounts.items():
            if key in accounts:
                raise BadAcl(account.place, f"the access key {key!r} has an account already, in {accounts[key].place}; remove one")
            accounts[key] = account
        white += one.white
    return Rules(accounts, tuple(white))


def parse(text: str, file: str) -> AclFile:
    """Raises BadAcl."""
    document = Document(file)
    root = document.compose(text)
    if root is None:
        return AclFile()
    fields = document.fields(root)
    white = tuple(document.patterns(fields.get("globalWhiteRemoteAddresses")))
    accounts: dict[str, Account] = {}
    for node in document.items(fields.get("accounts"), "accounts"):
        account = document.account(node)
        if account.access_key in accounts:
            first = accounts[account.access_key].place.line
            raise BadAcl(account.place, f"the access key {account.access_key!r} has an account in line {first} already")
        accounts[account.access_key] = account
        if len(accounts) > ACCOUNTS_MAX:
            raise BadAcl(account.place, f"more than {ACCOUNTS_MAX} accounts")
    return AclFile(accounts, white, document.version(fields.get("dataVersion")))


def parse_keys(text: str, file: str) -> tuple[str, str, str | None]:
    """(access key, secret key, security token) of a tools.yml. Raises BadAcl."""
    document = Document(file)
    root = document.compose(text)
    fields = {} if root is None else document.fields(root)
    place = Place(file, 1)
    keys = [document.key(fields.get(name), name, place) for name in ("accessKey", "secretKey")]
    token = fields.get("securityToken")
    return keys[0], keys[1], None if token is None else document.text(token, "securityToken") or None


class Document:
    """Reads the nodes of one file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def compose(self, text: str) -> Any:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        if len(text) > TEXT_MAX:
            raise BadAcl(Place(self.file, 1), f"{len(text)} characters, {TEXT_MAX} is the most")
        try:
            return YAML().compose(io.StringIO(text))
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise BadAcl(Place(self.file, 1 if mark is None else mark.line + 1), NOT_YAML) from None
        except (YAMLError, RecursionError, ValueError):
            raise BadAcl(Place(self.file, 1), NOT_YAML) from None

    def place(self, node: Any) -> Place:
        return Place(self.file, node.start_mark.line + 1)

    def fields(self, node: Any) -> dict[str, Any]:
        if node.id != "mapping":
            raise BadAcl(self.place(node), "expected names with values, as in 'accessKey: RocketMQ'")
        found: dict[str, Any] = {}
        for name, value in node.value:
            text = self.text(name, "a name")
            if text in found:
                raise BadAcl(self.place(name), f"{text[:60]!r} stands twice")
            found[text] = value
        return found

    def text(self, node: Any, what: str) -> str:
        """As it stands; "" of nothing."""
        if node.id != "scalar":
            raise BadAcl(self.place(node), f"{what}: expected one text")
        return "" if str(node.tag).endswith(":null") else str(node.value)

    def items(self, node: Any, what: str) -> Iterator[Any]:
        if node is None or (node.id == "scalar" and not self.text(node, what)):
            return
        if node.id != "sequence":
            raise BadAcl(self.place(node), f"{what}: expected a list, a line with '- ' for each")
        yield from node.value

    def key(self, node: Any, name: str, place: Place) -> str:
        """The text of a key, which no message may show."""
        if node is None:
            raise BadAcl(place, f"{name} is missing")
        text = self.text(node, name)
        plain_number = not node.style and not str(node.tag).endswith(":str")
        if plain_number and not WHOLE.fullmatch(text):
            raise BadAcl(self.place(node), f"{name}: YAML takes it for a number or a truth; put it in quotes")
        if not KEY_MIN <= len(text) <= KEY_MAX or not text.isprintable():
            raise BadAcl(self.place(node), f"{name} has {len(text)} characters; allowed are {KEY_MIN} to {KEY_MAX} that can be printed")
        return text

    def patterns(self, node: Any) -> Iterator[AddressPattern]:
        for one in self.items(node, "globalWhiteRemoteAddresses"):
            pattern = self.pattern(one)
            if pattern is not None:
                yield pattern

    def pattern(self, node: Any) -> AddressPattern | None:
        text = self.text(node, "an address")
        try:
            return pattern_of(text) if text.strip() else None
        except BadPattern as error:
            raise BadAcl(self.place(node), str(error)) from None

    def granted(self, node: Any, text: str) -> Granted:
        try:
            return Granted(permission_of(text), self.place(node))
        except BadPermission as error:
            raise BadAcl(self.place(node), str(error)) from None

    def account(self, node: Any) -> Account:
        place = self.place(node)
        fields = self.fields(node)
        for name in fields.keys() - ACCOUNT_FIELDS:
            known = ", ".join(sorted(ACCOUNT_FIELDS))
            raise BadAcl(self.place(fields[name]), f"{name[:60]!r} is no field of an account; known are {known}")
        access_key = self.key(fields.get("accessKey"), "accessKey", place)
        secret_key = self.key(fields.get("secretKey"), "secretKey", place)
        white = fields.get("whiteRemoteAddress")
        return Account(
            access_key,
            secret_key.encode(),
            place,
            self.truth(fields.get("admin"), "admin"),
            None if white is None else self.pattern(white),
            self.default(fields.get("defaultTopicPerm")),
            self.default(fields.get("defaultGroupPerm")),
            dict(self.resources(fields.get("topicPerms"), "topicPerms", str))
            | dict(self.resources(fields.get("groupPerms"), "groupPerms", retry_topic)),
        )

    def truth(self, node: Any, name: str) -> bool:
        text = "false" if node is None else self.text(node, name).strip().lower()
        if text not in ("true", "false", ""):
            raise BadAcl(self.place(node), f"{name} is {text[:20]!r}, expected true or false")
        return text == "true"

    def default(self, node: Any) -> Granted | None:
        text = "" if node is None else self.text(node, "a permission")
        return self.granted(node, text) if text.strip() else None

    def resources(self, node: Any, what: str, name_of: Callable[[str], str]) -> Iterator[tuple[str, Granted]]:
        seen: set[str] = set()
        for one in self.items(node, what):
            name, equals, permission = self.text(one, what).partition("=")
            name = name.strip()
            if not equals or not name:
                raise BadAcl(self.place(one), f"{what}: expected a name, = and a permission, as in orders=PUB|SUB")
            if name in seen:
                raise BadAcl(self.place(one), f"{what}: {name[:60]!r} stands twice")
            seen.add(name)
            yield name_of(name), self.granted(one, permission)

    def version(self, node: Any) -> Version:
        """RocketMQ keeps it as a list of one; what cannot be read counts as none."""
        try:
            fields = self.fields(next(self.items(node, "dataVersion")))
            return Version(int(self.text(fields["counter"], "counter")), int(self.text(fields["timestamp"], "timestamp")))
        except (StopIteration, KeyError, ValueError):
            return Version()


# Changes


@dataclass(frozen=True, slots=True)
class AccountChange:
    """What is said of an account. None: as it is."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white: str | None = None
    admin: bool | None = None
    default_topic: str | None = None
    default_group: str | None = None
    topics: tuple[str, ...] | None = None
    """Each as topic=PUB|SUB."""
    groups: tuple[str, ...] | None = None

    def values(self) -> dict[str, Any]:
        """By the names in the file."""
        named = {
            "accessKey": self.access_key, "secretKey": self.secret_key, "whiteRemoteAddress": self.white, "admin": self.admin,
            "defaultTopicPerm": self.default_topic, "defaultGroupPerm": self.default_group,
            "topicPerms": None if self.topics is None else list(self.topics),
            "groupPerms": None if self.groups is None else list(self.groups),
        }  # fmt: skip
        return {name: value for name, value in named.items() if value is not None}


def with_account(text: str, file: str, change: AccountChange, now_ms: int) -> str:
    """The text with this account, new or changed. Raises BadAcl when the result could not be used."""

    def edit(root: Any) -> None:
        accounts = _list(root, "accounts")
        account = _find(accounts, change.access_key)
        if account is None:
            accounts.append(change.values())
            return
        for name, value in change.values().items():
            if isinstance(value, list) and isinstance(account.get(name), list):
                _turn_into(account[name], value)
            else:
                account[name] = value

    return _edited(text, file, edit, now_ms)


def without_account(text: str, file: str, access_key: str, now_ms: int, *, gone_is_fine: bool = False) -> str:
    """Raises BadAcl when there is no such account, unless `gone_is_fine`."""
    if gone_is_fine and access_key not in parse(text, file).accounts:
        return text

    def edit(root: Any) -> None:
        accounts = _list(root, "accounts")
        account = _find(accounts, access_key)
        if account is None:
            raise BadAcl(Place(file, 1), f"there is no account {access_key[:KEY_MAX]!r}")
        accounts.remove(account)

    return _edited(text, file, edit, now_ms)


def with_white_addresses(text: str, file: str, addresses: Iterable[str], now_ms: int) -> str:
    def edit(root: Any) -> None:
        _turn_into(_list(root, "globalWhiteRemoteAddresses"), list(addresses))

    return _edited(text, file, edit, now_ms)


def _edited(text: str, file: str, edit: Callable[[Any], None], now_ms: int) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    version = parse(text, file).version  # so that what follows reads a text that can be read
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4_096
    yaml.indent(mapping=2, sequence=2, offset=0)
    try:
        root = yaml.load(text)
    except (YAMLError, RecursionError, ValueError) as error:  # in what is not read above
        why = f"it cannot be rewritten ({type(error).__name__}); leave out what is no part of access control"
        raise BadAcl(Place(file, 1), why) from None
    root = {} if root is None else root
    edit(root)
    root["dataVersion"] = [{"timestamp": now_ms, "counter": version.counter + 1}]
    out = io.StringIO()
    yaml.dump(root, out)
    made = out.getvalue()
    parse(made, file)
    return made


def _list(root: Any, name: str) -> Any:
    if root.get(name) is None:
        root[name] = []
    return root[name]


def _turn_into(items: Any, wanted: list[str]) -> None:
    """In place: what stays keeps its place and its comment, with another permission too."""
    by_name = {one.partition("=")[0]: one for one in wanted}
    for at in reversed(range(len(items))):
        name = str(items[at]).partition("=")[0].strip()
        if name not in by_name:
            del items[at]
        elif items[at] != by_name[name]:
            items[at] = by_name[name]
    for one in wanted:
        if one not in items:
            items.append(one)


def _find(accounts: Any, access_key: str) -> Any:
    return next((one for one in accounts if str(one.get("accessKey")) == access_key), None)
