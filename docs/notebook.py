"""A file of cells as a page: the text of each cell or its code, what it printed, and what it drew.

    python docs/notebook.py examples/tour.py docs/tour.md

Cells begin with `# %%`, those of text with `# %% [markdown]`: Jupyter and editors know these files as notebooks, and Python
runs them from top to bottom. A figure becomes a PNG beside the page, in a folder of the page's name; its label
(plt.subplots(num=...)) is the file's name, the title of its axes the text for those who cannot see it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MARK = re.compile(r"^# %%( \[markdown\])?\s*$")


class Cell(NamedTuple):
    text: bool
    """Words for people; else code."""
    source: str
    line: int
    """Where it begins in its file, counted from 1."""


class Picture(NamedTuple):
    name: str
    title: str
    png: bytes


class Done(NamedTuple):
    """A cell that was run."""

    cell: Cell
    printed: str = ""
    pictures: Sequence[Picture] = ()


def cells(text: str) -> list[Cell]:
    """Those of a file; what stands before the first mark belongs to none."""
    found: list[tuple[bool, int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        mark = MARK.match(line)
        if mark:
            found.append((mark[1] is not None, number + 1, []))
        elif found:
            found[-1][2].append(line)
    return [cell(is_text, line, lines) for is_text, line, lines in found]


def cell(is_text: bool, line: int, lines: Sequence[str]) -> Cell:
    source = "\n".join(map(words, lines) if is_text else lines)
    blank = len(source) - len(source.lstrip("\n"))
    return Cell(is_text, source.strip("\n"), line + blank)


def words(comment: str) -> str:
    return comment.removeprefix("#").removeprefix(" ")


def run(every: Sequence[Cell], name: str) -> Iterator[Done]:
    """Each cell in its turn, all in one namespace. An error of a cell is raised, with its line in the file."""
    names: dict[str, Any] = {"__name__": "__main__", "__file__": name}
    for one in every:
        if one.text:
            yield Done(one)
            continue
        code = compile("\n" * (one.line - 1) + one.source, name, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # running it is the purpose
        yield Done(one, printed.getvalue(), pictures())


def pictures() -> list[Picture]:
    """What was drawn since the last time."""
    from matplotlib import pyplot as plt

    found = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        found.append(Picture(str(figure.get_label()), figure.axes[0].get_title(loc="left"), png.getvalue()))
    plt.close("all")
    return found


def page(done: Sequence[Done], folder: str) -> str:
    """As Markdown. `folder`: where its pictures are."""
    parts: list[str] = []
    for one, printed, drawn in done:
        parts.append(one.source if one.text else f"```python\n{one.source}\n```")
        if printed.strip():
            lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
            parts.append(f"```text\n{lines}\n```")
        parts += [f"![{picture.title}]({folder}/{picture.name}.png)" for picture in drawn]
    return "\n\n".join(parts) + "\n"


def code_of(page: str) -> list[str]:
    """The code cells of a page."""
    return re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run a file of cells and write it with all its output as a page.")
    parser.add_argument("source", type=Path, help="the file of cells")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    given = parser.parse_args(arguments)
    source, to = given.source.resolve(), given.page.resolve()  # cells may change the directory

    import matplotlib

    matplotlib.use("agg")
    warnings.filterwarnings("ignore", message=".*non-interactive.*")  # plt.show() is for who runs the file by hand
    done = []
    began = time.monotonic()
    for one in run(cells(source.read_text()), str(source)):
        done.append(one)
        if not one.cell.text:
            print(f"{time.monotonic() - began:6.1f} s  {source.name}:{one.cell.line}", file=sys.stderr)
    folder = to.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    for one in done:
        for picture in one.pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png)
    to.write_text(page(done, folder.name))


if __name__ == "__main__":
    main()
