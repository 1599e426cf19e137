"""One exception tree. Every class says what a person can do about it, and the two kinds never mix.

`Refused` is an answer: the peer asked for something we will not do, it gets a response code and a sentence, and the
connection goes on. `Broken` is an end: the bytes can no longer be trusted, so the connection is closed.
"""

from __future__ import annotations


def error_text(error: BaseException) -> str:
    """Its type and its text, as logs and reasons have it; also of an exception whose text cannot be made."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"its text cannot be shown, __str__ raised {type(failure).__name__}"
    return f"{type(error).__name__}: {text}"


class RoquetError(Exception):
    """Anything Roquet raises on purpose."""


class BadSetting(RoquetError, ValueError):
    """A value that does not fit its setting. Says the key, the value and what would fit."""


class Refused(RoquetError):
    """A request that gets an error answer: a response code, and a remark with the value and the limit in it."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code
        self.remark = remark


class Unstorable(Refused):
    """A message that the log could not give back after a restart: never stored, whatever way it came. The text says what to change."""

    def __init__(self, why: str) -> None:
        super().__init__(13, f"the message is illegal: {why}")


class Broken(RoquetError):
    """Bytes that break the protocol. The next boundary is unknowable, so the connection must be closed."""


class Damaged(RoquetError):
    """A file of ours does not hold what it should. The message names the file and what to do."""


class StoreUnavailable(RoquetError):
    """The store takes no writes now: disk full, a failed fsync, or shutting down. The text says which."""


# What a client sees. Each text ends with what to do.


class ClientError(RoquetError):
    """Base of everything the client raises to its user."""


class NotStarted(ClientError):
    """A producer or consumer was used before start() or after close()."""


class InvalidMessage(ClientError, ValueError):
    """The message itself is wrong (empty topic, body too large...). Retrying cannot help; change the message."""


class NoRoute(ClientError):
    """No name server knows the topic, or none of its brokers takes writes."""


class ConnectFailed(ClientError):
    """No connection to a server could be made, or it was lost before the answer came."""


class CallTimeout(ClientError, TimeoutError):
    """No answer within the time allowed. The request may or may not have been carried out."""


class Rejected(ClientError):
    """The server answered with an error code."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        super().__init__(f"{address or 'the server'} answered code {code}: {remark}")
        self.code = code
        self.remark = remark
        self.address = address


class SendFailed(ClientError):
    """Every attempt failed. `attempts` lists (broker name, reason) in order; the message may have been stored by one that timed out."""

    def __init__(self, text: str, attempts: list[tuple[str, str]]) -> None:
        super().__init__(text)
        self.attempts = attempts
