"""Where the rules come from: files of the shell, or something else in a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from roquet.access.accounts import Rules
from roquet.access.yaml_text import Version

Edit = Callable[[str, str], str]
"""(a file's text, its name) -> the new text. Raises BadAcl."""


class AclSource(Protocol):
    def read(self) -> Rules:
        """All rules, now. Raises BadAcl or OSError; then there is nothing to start with. May block."""

    def look(self) -> Rules | None:
        """The rules, when files have changed since they were looked at; None: they have not. Raises BadAcl or OSError, once for each change
        that cannot be used. May block."""

    def change(self, access_key: str, edit: Edit) -> Rules:
        """Change the file that has this account, or the first one. Atomic. Raises BadAcl or OSError, and then nothing has changed. May
        block."""

    def versions(self) -> Mapping[str, Version]:
        """Of each file that was read."""
