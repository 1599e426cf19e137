"""Is this request signed with that secret key? Clients differ in what they sign; each form is tried that the fields make possible.

    4.9.4 and later, C++, Node     every ext field but Signature
    up to 4.9.3                    the same without _UNIQUE_KEY_QUERY, which is no field of the header's class
    Go                             the same without SecurityToken, which it sends and does not sign

What a form leaves out is worth nothing to whoever changes it: the flag of a query by unique key, and a token that nobody reads here.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterator, Mapping

from roquet.wire.signing import SECURITY_TOKEN, SIGNATURE, signed_text

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
LEFT_OUT = (UNIQUE_KEY_QUERY, SECURITY_TOKEN)
SIGNATURE_MAX = 64
"""Characters; HMAC-SHA1 has 28."""
FIELDS_MAX = 256
"""More fields than any request has; sorting a million of them would take seconds, for whoever asks."""


def is_signed(fields: Mapping[str, str], body: bytes, secret_key: bytes) -> bool:
    """In constant time, as far as the secret is concerned."""
    given = fields.get(SIGNATURE, "")
    if not given or len(given) > SIGNATURE_MAX or len(fields) > FIELDS_MAX:
        return False
    try:
        wanted = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return False
    return any(hmac.compare_digest(wanted, hmac.digest(secret_key, text, "sha1")) for text in texts(fields, body))


def texts(fields: Mapping[str, str], body: bytes) -> Iterator[bytes]:
    """What may have been signed, the likeliest first; four at most."""
    yield signed_text(fields, body)
    absent = [name for name in LEFT_OUT if name in fields]
    for name in absent:
        yield signed_text({one: value for one, value in fields.items() if one != name}, body)
    if len(absent) > 1:
        yield signed_text({one: value for one, value in fields.items() if one not in LEFT_OUT}, body)
