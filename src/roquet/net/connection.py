"""How connections to servers are made. Everybody who opens one is given this: the client's faces, admin, the command line, a broker
that registers, Spark's readers and sink."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from roquet.errors import ClientError
from roquet.wire.signing import Credentials


@dataclass(frozen=True, slots=True)
class Tls:
    """How to encrypt. Without `ca_file` the machine's own authorities count; `verify=False` trusts any server."""

    ca_file: str | None = None
    cert_file: str | None = None
    """Who we are, for servers that want to know; the key may be in the same file."""
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises ClientError naming the file that cannot be used."""
        made = ssl.create_default_context()
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        try:
            if self.ca_file is not None:
                made.load_verify_locations(self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ClientError(f"the authorities in {self.ca_file!r} cannot be read: {error}; give a PEM file") from None
        try:
            if self.cert_file is not None:
                made.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            files = " and ".join(repr(one) for one in (self.cert_file, self.key_file) if one)
            raise ClientError(f"the certificate and key in {files} cannot be read: {error}; give PEM files that belong together") from None
        return made


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections to name servers and brokers are made. Producers, consumers and Admin take it as `connection=`."""

    connect_timeout_ms: int = 3_000
    credentials: Credentials | None = None
    """With them every request is signed. Spark's readers and sink do that; the asyncio client refuses them for now."""
    tls: Tls | None = None
    """The same."""

    def __post_init__(self) -> None:
        if not 1 <= self.connect_timeout_ms <= 3_600_000:
            raise ClientError(f"connect_timeout_ms={self.connect_timeout_ms}; allowed are 1 to 3600000")


PLAIN = ConnectionOptions()
