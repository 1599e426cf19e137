"""How connections to servers are made. Everybody who opens one is given this: the client's faces, admin, the command line, a broker
that registers, Spark's readers and sink."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from roquet.errors import ClientError
from roquet.net.looks import Looks, looks
from roquet.wire.signing import Credentials

log = logging.getLogger(__name__)

GOODBYE_S = 1.0
"""How long the end of a TLS connection waits for the other end's goodbye."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How to encrypt. Without `ca_file` the machine's own authorities count; `verify=False` trusts any server."""

    ca_file: str | None = None
    cert_file: str | None = None
    """Who we are, for servers that want to know; the key may be in the same file."""
    key_file: str | None = None
    verify: bool = True
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True
    """Whether the certificate must name the address that was connected to, besides being one of `ca_file`'s."""

    def context(self) -> ssl.SSLContext:
        """Raises ClientError naming the file that cannot be used."""
        try:
            # The machine's authorities take 30 ms to read: who trusts any server has no use for them.
            made = ssl.create_default_context(cafile=self.ca_file) if self.verify else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        except (OSError, ValueError) as error:
            raise ClientError(f"the authorities in {self.ca_file!r} cannot be read: {error}; give a PEM file") from None
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.check_hostname = self.verify and self.check_host
        if not self.verify:
            made.verify_mode = ssl.CERT_NONE
        try:
            if self.cert_file is not None:
                made.load_cert_chain(self.cert_file, self.key_file, self._password)
        except (OSError, ValueError) as error:
            files = " and ".join(repr(one) for one in (self.cert_file, self.key_file) if one)
            raise ClientError(f"the certificate and key in {files} cannot be read: {error}; give PEM files that belong together") from None
        return made

    def _password(self) -> str:
        """Without this OpenSSL would ask at the terminal."""
        if not self.key_password:
            raise ClientError(f"the key in {self.key_file or self.cert_file!r} has a password and none was given: key_password=...")
        return self.key_password

    def files(self) -> list[str]:
        """Those that are named."""
        return [name for name in (self.ca_file, self.cert_file, self.key_file) if name]


@lru_cache(maxsize=32)
def shared_context(tls: Tls, looks: Looks) -> ssl.SSLContext:
    """One for all clients that say the same, while their files look the same: a program with many clients reads the authorities once."""
    return tls.context()


class Contexts:
    """What the next connection needs for its TLS. The files are read again when they have changed."""

    def __init__(self, tls: Tls | None) -> None:
        """Raises ClientError when the files cannot be used."""
        self.tls = tls
        self._looks = looks(tls.files()) if tls is not None else ()
        self._context = shared_context(tls, self._looks) if tls is not None else None

    def current(self) -> ssl.SSLContext | None:
        """None: plain."""
        if self.tls is not None and (now := looks(self.tls.files())) != self._looks:
            self._looks = now
            try:
                self._context = shared_context(self.tls, now)
            except ClientError as error:
                log.warning("! files for TLS have changed and are not taken; those before stay in force: %s", error)
        return self._context

    def how(self, host: str) -> dict[str, Any]:
        """What `create_connection` takes besides host and port."""
        context = self.current()
        return {} if context is None else {"ssl": context, "server_hostname": host, "ssl_shutdown_timeout": GOODBYE_S}


def no_encryption(address: str, error: object) -> str:
    """The sentence for a TLS handshake that failed."""
    return f"no encrypted connection to {address}: {error}; does the server speak TLS, and does its certificate fit?"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections to name servers and brokers are made. Producers, consumers and Admin take it as `connection=`."""

    connect_timeout_ms: int = 3_000
    credentials: Credentials | None = None
    """With them every request is signed."""
    tls: Tls | None = None
    """With it every connection is encrypted, to name servers and brokers alike."""

    def over(self, tls: Tls | None) -> ConnectionOptions:
        """The same with this TLS; None: as it is."""
        return self if tls is None else replace(self, tls=tls)

    def signed_by(self, credentials: Credentials | None) -> ConnectionOptions:
        """The same with these keys; None: as it is."""
        return self if credentials is None else replace(self, credentials=credentials)

    def __post_init__(self) -> None:
        if not 1 <= self.connect_timeout_ms <= 3_600_000:
            raise ClientError(f"connect_timeout_ms={self.connect_timeout_ms}; allowed are 1 to 3600000")


PLAIN = ConnectionOptions()
