"""Certificates for tests, made when they run by the program openssl: authorities, and whom they vouch for."""

from __future__ import annotations

import functools
import itertools
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs the program openssl")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=900)


@dataclass(frozen=True)
class Certificate:
    cert: str
    key: str


class Authority:
    def __init__(self, name: str = "authority") -> None:
        self.place = Path(tempfile.mkdtemp(prefix="roquet-test-tls-"))
        self.file = str(self.place / "authority.pem")
        self._key = str(self.place / "authority.key")
        self._numbers = itertools.count(1)
        openssl(
            "req", "-x509", *NEW_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
            "-keyout", self._key, "-out", self.file,
        )  # fmt: skip

    def issue(self, subject: str = "/CN=server", *, alternative: str = "IP:127.0.0.1", password: str = "") -> Certificate:
        number = next(self._numbers)
        cert, key, request, more = (str(self.place / f"{number}.{kind}") for kind in ("pem", "key", "request", "more"))
        locked: Sequence[str] = ("-passout", f"pass:{password}") if password else ("-nodes",)
        openssl("req", "-new", *NEW_KEY, *locked, "-subj", subject, "-keyout", key, "-out", request)
        Path(more).write_text(f"subjectAltName={alternative}\n")
        openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-set_serial", str(number), "-days", "2",
            "-extfile", more, "-out", cert,
        )  # fmt: skip
        return Certificate(cert, key)


_authority = functools.cache(Authority)
"""One of each name for all tests of a run: making them takes its time."""


def authority(name: str = "authority") -> Authority:
    return _authority(name)


@functools.cache
def issued(subject: str = "/CN=server", by: str = "authority") -> Certificate:
    return authority(by).issue(subject)


def client_context(who: Certificate | None = None, *, trust: str | None = None) -> ssl.SSLContext:
    """As an ordinary client of another language has it."""
    made = ssl.create_default_context(cafile=trust or authority().file)
    if who is not None:
        made.load_cert_chain(who.cert, who.key)
    return made
