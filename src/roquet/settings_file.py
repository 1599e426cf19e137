"""Settings files on disk: read at the start, and changed in place when a setting changes at run time."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from roquet.errors import BadSetting
from roquet.properties import edited, parse_properties
from roquet.settings import TLS_FILE
from roquet.system import sync_data, sync_directory

BROKER_FILE = "config/broker.properties"
"""Under storePathRootDir: what was changed at run time, where no file was given."""
NAMESERVER_FILE = "namesrv/namesrv.properties"
"""In the data directory."""


def read_file(path: str | Path) -> dict[str, str]:
    """Raises BadSetting when it cannot be read."""
    try:
        raw = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise BadSetting(f"cannot read the settings file {path}: {error}") from None
    try:
        return parse_properties(raw.decode())
    except UnicodeDecodeError:  # comments in another encoding, most of the time: then as Java reads it
        return parse_properties(raw.decode("latin-1"))


def layered(file: str | None, kept: str, given: Mapping[str, str]) -> dict[str, str]:
    """The file's settings, over them what was changed at run time (`kept`, unless the file names another), over them `given`."""
    pairs = read_file(file) if file else {}
    own = str(Path(file).resolve()) if file else kept
    place = given.get("configStorePath") or pairs.get("configStorePath") or own
    if not (file and os.path.exists(place) and os.path.samefile(place, file)) and os.path.exists(place):
        pairs |= read_file(place)
    pairs = {**pairs, **given}
    return {**of_tls(pairs.get("tls.config.file")), **pairs, "configStorePath": place}


def of_tls(path: str | None) -> dict[str, str]:
    """Upstream's file of TLS settings: the one that is named, or the one at its usual place if there is one. Raises BadSetting."""
    named = path is not None and path != TLS_FILE
    place = TLS_FILE if path is None else path.strip()
    if not place or not (named or os.path.exists(place)):
        return {}
    return {key: value for key, value in read_file(place).items() if key.startswith("tls.") and key != "tls.config.file"}


def keep(path: str, pairs: Mapping[str, str]) -> None:
    """Write these values into the file: in their keys' places, or at its end. All else stays, and the file before it as .bak.

    Atomic, and synced: after a crash it is the one or the other. May block. Raises OSError, and then nothing has changed.
    """
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    before = place.read_bytes() if place.exists() else b""
    if place.exists():
        replace(place.with_name(place.name + ".bak"), before, like=place)
    mark = before[: len(codecs.BOM_UTF8)] if before.startswith(codecs.BOM_UTF8) else b""
    text = before.removeprefix(mark).decode("latin-1")  # every byte comes back as it was, whatever the encoding; what is added is ASCII
    replace(place, mark + edited(text, pairs).encode("latin-1"), like=place)


def replace(place: Path, data: bytes, like: Path) -> None:
    """With the rights of `like`: a file that others may not read must not become one that they may."""
    number, fresh = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            sync_data(file.fileno())
        if like.exists():
            shutil.copymode(like, fresh)
        else:
            os.chmod(fresh, 0o644)
        os.replace(fresh, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    sync_directory(str(place.parent))
