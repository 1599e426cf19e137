"""How clients of a run get in: with keys, over TLS, or as they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roquet import Credentials, Tls


@dataclass(frozen=True)
class Entry:
    """`over_tls`: all but Go's client, which has no TLS, encrypt and trust any server."""

    access_key: str = ""
    secret_key: str = ""
    over_tls: bool = False

    def environment(self) -> dict[str, str]:
        """For programs in Go and Python, and the command line."""
        if not self.access_key:
            return {}
        names = ("INTEROP_ACCESS_KEY", "ROQUET_ACCESS_KEY"), ("INTEROP_SECRET_KEY", "ROQUET_SECRET_KEY")
        found = {name: value for both, value in zip(names, (self.access_key, self.secret_key), strict=True) for name in both}
        return found | ({"ROQUET_TLS_INSECURE": "true"} if self.over_tls else {})

    def java(self) -> dict[str, str]:
        """System properties of a Java client."""
        keys = {"interop.accessKey": self.access_key, "interop.secretKey": self.secret_key} if self.access_key else {}
        return keys | ({"tls.enable": "true"} if self.over_tls else {})

    def tools(self, home: Path) -> None:
        """mqadmin's keys, in its home directory."""
        if self.access_key:
            (home / "conf").mkdir(parents=True, exist_ok=True)
            (home / "conf" / "tools.yml").write_text(f"accessKey: {self.access_key}\nsecretKey: {self.secret_key}\n")

    def python(self) -> dict[str, Any]:
        """What our own clients take."""
        keys = Credentials(self.access_key, self.secret_key) if self.access_key else None
        return {"credentials": keys, "tls": Tls(verify=False) if self.over_tls else None}


AS_THEY_ARE = Entry()


def from_environment() -> Entry:
    return Entry(
        os.environ.get("INTEROP_ACCESS_KEY", ""), os.environ.get("INTEROP_SECRET_KEY", ""), os.environ.get("ROQUET_TLS_INSECURE") == "true"
    )
