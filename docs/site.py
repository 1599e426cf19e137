"""Gathers what the site is made of in one directory: docs/ and the documents of the root, the README as its first page.

python docs/site.py build/site-sources

In the checkout documents link to each other from two directories. On the site all stand in one, so `docs/` and `../` go from their links;
links to other files of the checkout (sources, examples) become plain words.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def gather(into: Path) -> None:
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for path in sorted((ROOT / "docs").iterdir()):
        if path.is_dir() and path.name != "__pycache__":
            shutil.copytree(path, into / path.name)
        elif path.suffix in (".svg", ".png"):
            shutil.copy(path, into)
    for path in documents():
        name = "index.md" if path.name == "README.md" else path.name
        (into / name).write_text(on_the_site(path.read_text()), encoding="utf-8")


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def on_the_site(text: str) -> str:
    names = {path.name for path in documents()}

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        place = target.removeprefix("../").removeprefix("docs/")
        if "://" in target or picture or not target:
            return f"{picture}[{words}]({target if '://' in target else place}{anchor})"
        if place not in names:
            return words
        return f"[{words}]({'index.md' if place == 'README.md' else place}{anchor})"

    return LINK.sub(link, text)


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
