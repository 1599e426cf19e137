"""Handlers and publishers as one program: `from roquet.app import App`. The page is docs/app.md."""

from roquet.app.app import App
from roquet.app.bindings.files import BadBindings
from roquet.app.bindings.output import Output
from roquet.app.handlers import Handler
from roquet.app.parameters import Attempt, DependencyFailed, Depends, Header, Reject
from roquet.app.payloads import BadPayload, Unsendable
from roquet.app.publishing import Publisher

__all__ = [
    "App",
    "Attempt",
    "BadBindings",
    "BadPayload",
    "DependencyFailed",
    "Depends",
    "Handler",
    "Header",
    "Output",
    "Publisher",
    "Reject",
    "Unsendable",
]
