"""Settings files on disk: read at the start, and changed in place when a setting changes at run time."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from roquet.properties import edited, parse_properties
from roquet.settings import BadSetting
from roquet.system import sync_directory

BROKER_FILE = "config/broker.properties"
"""Under storePathRootDir: what was changed at run time, where no file was given."""
NAMESERVER_FILE = "namesrv/namesrv.properties"
"""In the data directory."""


def read_file(path: str | Path) -> dict[str, str]:
    """Raises BadSetting when it cannot be read."""
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"cannot read the settings file {path}: {error}") from None


def layered(file: str | None, kept: str, given: Mapping[str, str]) -> dict[str, str]:
    """The file's settings, over them what was changed at run time (`kept`, unless the file names another), over them `given`."""
    pairs = read_file(file) if file else {}
    own = str(Path(file).resolve()) if file else kept
    place = given.get("configStorePath") or pairs.get("configStorePath") or own
    if not (file and os.path.exists(place) and os.path.samefile(place, file)) and os.path.exists(place):
        pairs |= read_file(place)
    return {**pairs, **given, "configStorePath": place}


def keep(path: str, pairs: Mapping[str, str]) -> None:
    """Write these values into the file: in their keys' places, or at its end. All else stays, and the file before it as .bak.

    Atomic, and synced: after a crash it is the one or the other. May block. Raises OSError, and then nothing has changed.
    """
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    before = place.read_bytes().decode() if place.exists() else ""
    if place.exists():
        replace(place.with_name(place.name + ".bak"), before, like=place)
    replace(place, edited(before, pairs), like=place)


def replace(place: Path, text: str, like: Path) -> None:
    """With the rights of `like`: a file that others may not read must not become one that they may."""
    number, fresh = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with open(number, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
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
