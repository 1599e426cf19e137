"""The files of access control on disk: found, read, watched, and rewritten without losing what a crash could take.

aclFile                                    that file, or all *.yml of that directory
$ROCKETMQ_HOME/conf                        plain_acl.yml and acl/*.yml
the directory of the server's own file     the same
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from roquet.access.accounts import Place, Rules, credentials_of
from roquet.access.source import Edit
from roquet.access.yaml_text import AclFile, BadAcl, Version, merged, parse, parse_keys
from roquet.errors import BadSetting
from roquet.settings import BrokerSettings
from roquet.settings_file import replace
from roquet.wire.signing import Credentials

log = logging.getLogger("roquet.access")

PLAIN = "plain_acl.yml"
MORE = "acl"
TOOLS = "tools.yml"
SIZE_MAX = 16 * 1024 * 1024

Looks = tuple[tuple[str, int, int, int], ...]
"""Of each file its name, size, time of change and number: what differs when it was written."""


class AclFiles:
    """State: what was read last, and how the files looked then."""

    def __init__(self, places: list[Path]) -> None:
        """`places`: a file, or directories with plain_acl.yml and acl/*.yml; the first that has any counts."""
        self.places = places
        self._lock = threading.Lock()  # two threads of the background may look and change at once
        self._files: dict[str, AclFile] = {}
        self._used: Looks = ()
        self._seen: Looks = ()
        self._warned: set[str] = set()

    def read(self) -> Rules:
        with self._lock:
            return self._read_now()

    def look(self) -> Rules | None:
        """A file that somebody is writing is not read: it must look the same twice."""
        with self._lock:
            looks = self._looks()
            seen, self._seen = self._seen, looks
            if looks == self._used or looks != seen:
                return None
            self._used = looks
            return self._read(looks)

    def change(self, access_key: str, edit: Edit) -> Rules:
        with self._lock:
            self._read_now()
            names = list(self._files)
            name = next((one for one in names if access_key in self._files[one].accounts), names[0])
            text = edit(read_text(name), name)
            merged((self._files | {name: parse(text, name)}).values())  # refused before anything is written
            place = Path(os.path.realpath(name))
            replace(place, text.encode(), like=place)
            return self._read_now()

    def _read_now(self) -> Rules:
        looks = self._looks()
        rules = self._read(looks)
        self._used = self._seen = looks
        return rules

    def versions(self) -> Mapping[str, Version]:
        return {name: file.version for name, file in self._files.items()}

    def _read(self, looks: Looks) -> Rules:
        if not looks:
            looked = ", ".join(map(str, self.places))
            raise BadSetting(f"aclEnable=true, and there is no file of accounts: looked for {looked}. Write one, or name it in aclFile")
        files: dict[str, AclFile] = {}
        for name, *_ in looks:
            files[name] = parse(read_text(name), name)
            self._warn_of_readers(name)
        rules = merged(files.values())
        if not rules.accounts and not rules.white:
            raise BadAcl(Place(looks[0][0], 1), "no account and no address of a white list: nobody could ask for anything")
        self._files = files
        return rules

    def _looks(self) -> Looks:
        for place in self.places:
            found = [(str(path), *how_it_looks(path)) for path in files_at(place)]
            if found:
                return tuple(found)
        return ()

    def _warn_of_readers(self, name: str) -> None:
        if name not in self._warned and os.name == "posix" and os.stat(name).st_mode & stat.S_IROTH:
            self._warned.add(name)
            log.warning("%s has secrets and may be read by everybody on this machine: chmod 600 it", name)


def files_at(place: Path) -> Iterator[Path]:
    """The file itself; of a directory its plain_acl.yml and acl/*.yml, or, where it has neither, all its *.yml."""
    if place.is_file():
        yield place
        return
    main, more = place / PLAIN, place / MORE
    if main.is_file():
        yield main
    directory = more if main.is_file() or more.is_dir() else place
    for path in sorted([*directory.glob("*.yml"), *directory.glob("*.yaml")]):
        if path.is_file() and path.name != TOOLS:
            yield path


def how_it_looks(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def read_text(name: str) -> str:
    """Raises BadAcl or OSError."""
    with open(name, "rb") as file:
        raw = file.read(SIZE_MAX + 1)
    if len(raw) > SIZE_MAX:
        raise BadAcl(Place(name, 1), f"more than {SIZE_MAX} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadAcl(Place(name, line), "this is not UTF-8") from None


def acl_files(acl_file: str, own_file: str) -> AclFiles:
    """Where `aclFile` says; else under ROCKETMQ_HOME, else beside the server's own settings file."""
    if acl_file:
        return AclFiles([Path(acl_file)])
    home = os.environ.get("ROCKETMQ_HOME", "").strip()
    places = [Path(home) / "conf"] if home else []
    return AclFiles([*places, Path(own_file).resolve().parent])


def read_credentials(path: str | Path) -> Credentials:
    """Of a tools.yml. Raises BadAcl or OSError."""
    access_key, secret_key, token = parse_keys(read_text(str(path)), str(path))
    return Credentials(access_key, secret_key, token)


def own_credentials(settings: BrokerSettings) -> Credentials | None:
    """With which a broker of these settings asks other servers. Raises BadAcl, BadSetting or OSError."""
    if settings.acl_credentials_file:
        return read_credentials(settings.acl_credentials_file)
    if not settings.acl_enable:
        return None
    rules = acl_files(settings.acl_file, settings.config_store_path).read()
    return next((credentials_of(account) for account in rules.admins()), None)
