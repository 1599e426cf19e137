"""The Python snippets of the documents: found in one way, whoever runs them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRINTED_ADDRESS = "127.0.0.1:9876"
"""The name server of every snippet."""


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def snippets(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
