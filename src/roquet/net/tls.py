"""What a server's ports do about TLS, and the certificates they show: made at the start, and made again when the files change.

A new certificate counts for connections from then on; those that are open keep theirs. Files that cannot be used are refused with a
sentence, and the old ones stay in force.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass, field
from functools import partial

from roquet.errors import RoquetError
from roquet.net.looks import looks

log = logging.getLogger("roquet.net")

DISABLED, PERMISSIVE, ENFORCING = "disabled", "permissive", "enforcing"
CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
LOOK_S = 2.0
"""Between looks at the files. They must look the same twice before they are read: somebody may be writing them."""


class BadCertificate(RoquetError):
    """A certificate, a key or authorities that cannot be used. Names the file and what to do."""


@dataclass(frozen=True)
class ServerFiles:
    """Who a server says that it is, and whom it believes. Without `cert_file` it makes a certificate of its own at its first TLS client."""

    cert_file: str = ""
    key_file: str = ""
    """Empty: the key is in `cert_file`."""
    key_password: str = field(default="", repr=False)
    trust_file: str = ""
    client_auth: str = "none"

    def names(self) -> list[str]:
        return [name for name in (self.cert_file, self.key_file, self.trust_file) if name]

    def context(self) -> ssl.SSLContext:
        """Raises BadCertificate. Reads files."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        if self.cert_file:
            load_certificate(made, self.cert_file, self.key_file, self.key_password)
        else:
            load_self_signed(made)
        if self.client_auth != "none":
            load_authorities(made, self.trust_file)
            made.verify_mode = CLIENT_AUTH[self.client_auth]
        return made


def load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str, password: str) -> None:
    """Raises BadCertificate."""
    if problem := unreadable(cert_file) or unreadable(key_file):
        raise BadCertificate(problem)
    try:
        context.load_cert_chain(cert_file, key_file or None, partial(given_password, password, key_file or cert_file))
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        files = " and ".join(repr(name) for name in (cert_file, key_file) if name)
        raise BadCertificate(
            f"the certificate and key in {files} cannot be used: {reason_of(error)}; give PEM files that belong together, "
            "and the password of the key if it has one"
        ) from None


def given_password(password: str, key_file: str) -> str:
    """Without this OpenSSL would ask at the terminal."""
    if not password:
        raise BadCertificate(f"the key in {key_file!r} has a password and none was given; set it (tls.server.keyPassword), or remove it")
    return password


def load_authorities(context: ssl.SSLContext, trust_file: str) -> None:
    """Raises BadCertificate."""
    if problem := unreadable(trust_file):
        raise BadCertificate(problem)
    try:
        context.load_verify_locations(trust_file)
    except (OSError, ValueError) as error:
        raise BadCertificate(f"the authorities in {trust_file!r} cannot be used: {reason_of(error)}; give a PEM file") from None


def load_self_signed(context: ssl.SSLContext) -> None:
    import datetime  # here, since most processes never make one
    import tempfile

    from roquet.net.self_signed import self_signed

    text = self_signed("Roquet, self-signed for trying TLS", datetime.datetime.now(datetime.UTC))
    number, path = tempfile.mkstemp(prefix="roquet-tls-")  # for the owner's eyes only; ssl reads keys from files alone
    try:
        with open(number, "w") as file:
            file.write(text)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)


def unreadable(path: str) -> str:
    """Why this file cannot be read, in a sentence; "" when it can, or none is named."""
    if not path:
        return ""
    try:
        with open(path, "rb"):
            return ""
    except OSError as error:
        return f"{path!r} cannot be read: {error.strerror or error}; name a PEM file that this process may read"


def reason_of(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


class ServerTls:
    """Shared by all ports of one server. State: the context in force, and what its files looked like."""

    def __init__(self, mode: str = DISABLED, files: ServerFiles | None = None) -> None:
        """Raises BadCertificate when files are named that cannot be used."""
        self.mode = mode
        self.files = files or ServerFiles()
        self._context: ssl.SSLContext | None = None
        self._seen = looks(self.files.names())
        self._tried = self._seen
        if mode != DISABLED and self.files.cert_file:
            self._context = self.files.context()

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        if self._context is None:
            self._context = self.files.context()
            log.info("the first TLS client is here; this server shows it a self-signed certificate, which proves nothing (docs/tls.md)")
        return self._context

    async def keep_fresh(self, pause_s: float = LOOK_S) -> None:
        """Until cancelled. Files are looked at, and read, beside the loop."""
        if self.mode == DISABLED or not self.files.names():
            return
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause_s)
            try:
                await loop.run_in_executor(None, self.look)
            except Exception:
                log.exception("! looking at the certificates failed")

    def look(self) -> None:
        """Take changed files, once they rest. May block."""
        before, self._seen = self._seen, looks(self.files.names())
        if self._seen == self._tried or self._seen != before:
            return
        self._tried = self._seen
        try:
            self._context = self.files.context()
        except BadCertificate as error:
            log.warning("! a new certificate is refused, and the old one stays in force: %s", error)
        else:
            log.info("a new certificate is in force for new connections: %s", ", ".join(self.files.names()))


PLAIN_ONLY = ServerTls()

SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def subject_of(certificate: object) -> str:
    """The subject as Java and LDAP write it (RFC 2253): CN=orders,OU=shop,O=Example. "" of none.

    `certificate` is what ssl's getpeercert() gave. Signs that mean something are escaped, so that nobody's name can look like another's.
    """
    names = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return ",".join("+".join(f"{SHORT_NAMES.get(key, key)}={escaped(value)}" for key, value in one) for one in reversed(names))


def escaped(value: str) -> str:
    text = "".join(f"\\{sign}" if sign in ',+"\\<>;=' else sign if sign.isprintable() else control(sign) for sign in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text


def control(sign: str) -> str:
    return "".join(f"\\{byte:02X}" for byte in sign.encode("utf-8", "surrogatepass"))
