"""The tour with Spark runs, draws its plots, and its page has the code that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import notebook

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "tour.py"
PAGE = ROOT / "docs" / "tour.md"
CELLS = notebook.cells(SOURCE.read_text())
CODE = [cell.source for cell in CELLS if not cell.text]
PLOTS = {"throughput": 0.1, "lag": 0.1, "latency": 0.01}
"""Their names, and how much of their width each group's colour reaches at least: more than its line in the legend."""
PATIENCE_S = 1_200
"""A whole Spark session, on a machine that may be busy; about 30 s on a quiet one."""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a short tour that was run here."""
    from roquet.spark.java import NoJava, find_java

    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("tour")
    scratch = directory / "scratch"
    scratch.mkdir()
    page = directory / "tour.md"
    command = [sys.executable, str(ROOT / "docs" / "notebook.py"), str(SOURCE), str(page)]
    env = {**os.environ, "TOUR_SECONDS": "3", "TMPDIR": str(scratch)}
    ran = subprocess.run(command, env=env, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not list(scratch.glob("roquet-*")), "the tour left its files behind"
    return page


def outputs(page: str) -> dict[str, str]:
    """What each code cell printed."""
    found = re.findall(r"^```python\n(.*?)\n```$(?:\n\n```text\n(.*?)\n```$)?", page, re.DOTALL | re.MULTILINE)
    return dict(found)


def pictures(page: Path) -> set[str]:
    """Names of those that it shows."""
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\.png\)", page.read_text())
    assert len(links) == len(set(links))
    assert {link.split("/")[0] for link in links} == {page.stem}
    return {link.split("/")[1] for link in links}


def is_a_plot(path: Path) -> bool:
    """With something drawn for both groups, and not only in the legend."""
    import numpy as np
    from matplotlib.image import imread

    image = np.asarray(imread(path), dtype=float)[..., :3]
    height, width, _ = image.shape
    red, blue = image[..., 0] - image[..., 2] > 0.3, image[..., 2] - image[..., 0] > 0.3
    reach = min(int(colour.any(axis=0).sum()) for colour in (red, blue))
    return bool(width >= 600 and height >= 300 and reach >= width * PLOTS[path.stem])


def test_every_cell_runs_and_those_that_print_have_their_output(tour: Path) -> None:
    text = tour.read_text()
    assert notebook.code_of(text) == CODE
    for code, printed in outputs(text).items():
        shows = re.search(r"^(?:print\(|.*\.(?:show|printSchema)\()", code, re.MULTILINE) and "plt.subplots" not in code
        assert bool(printed.strip()) >= bool(shows), code


def test_what_the_tour_counts_agrees(tour: Path) -> None:
    text = tour.read_text()
    counts = re.search(r"([\d,]+) orders sent, ([\d,]+) billed, ([\d,]+) mailed", text)
    assert counts is not None
    sent, billed, mailed = (int(count.replace(",", "")) for count in counts.groups())
    assert sent == billed == mailed > 200
    tags = re.findall(r"^\| *(paid|open|cancelled)\| *(\d+)\|$", text, re.MULTILINE)
    assert sum(int(count) for _, count in tags) == sent
    for group, measure in (("shop", "send"), ("billing", "wait"), ("mailing", "wait"), ("mailing", "consume")):
        assert re.search(rf"^\|orders\| *{group}\| *{measure}\| *{sent}\|", text, re.MULTILINE), (group, measure)
    assert f"first run: {sent:,} rows" in text
    assert "second run: 0 rows" in text
    assert "the same as from the brokers: True" in text
    assert re.search(r"^\|\d{4}-\d\d-\d\dT[\d:.]+Z *\|\d+", text, re.MULTILINE), "no window was closed"


def test_every_plot_of_the_tour_is_drawn(tour: Path) -> None:
    assert pictures(tour) == set(PLOTS)
    for name in PLOTS:
        assert is_a_plot(tour.with_suffix("") / f"{name}.png"), name


def test_the_page_has_the_text_and_the_code_of_the_tour() -> None:
    text = PAGE.read_text()
    assert notebook.code_of(text) == CODE, "run `make tour`"
    for cell in CELLS:
        if cell.text:
            assert cell.source in text, "run `make tour`"


def test_the_page_shows_plots_that_are_there_and_small() -> None:
    assert pictures(PAGE) == set(PLOTS) == {path.stem for path in (ROOT / "docs" / "tour").iterdir()}
    for path in (ROOT / "docs" / "tour").iterdir():
        assert is_a_plot(path), path.name
        assert path.stat().st_size < 60 * 1024


@pytest.mark.parametrize("page", ["here", "committed"])
def test_the_page_names_no_directory_of_the_machine_that_wrote_it(page: str, request: pytest.FixtureRequest) -> None:
    text = (PAGE if page == "committed" else request.getfixturevalue("tour")).read_text()
    printed = "\n".join(outputs(text).values())
    assert not re.findall(r"/(?:tmp|work|root|home|var)/", printed)


# The writer of the page


def test_a_file_is_cut_into_cells_and_each_knows_its_line() -> None:
    text = "# before\n# %% [markdown]\n# # Title\n#\n# words\n\n# %%\na = 1\n\nb = 2\n\n"
    assert notebook.cells(text) == [notebook.Cell(True, "# Title\n\nwords", 3), notebook.Cell(False, "a = 1\n\nb = 2", 8)]


def test_cells_share_their_names_and_keep_what_they_print() -> None:
    done = list(notebook.run(notebook.cells("# %%\na = 20\n# %%\nprint(a + 1)\n"), "cells.py"))
    assert [one.printed for one in done] == ["", "21\n"]


def test_an_error_of_a_cell_tells_its_line_in_the_file() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(notebook.run(notebook.cells("# %%\na = 0\n# %%\n\n1 / a\n"), "cells.py"))
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_page_has_code_output_and_pictures_in_their_order() -> None:
    code = notebook.Cell(False, "draw()", 1)
    drawn = notebook.Picture("lag", "Lag", b"")
    text = notebook.page([notebook.Done(notebook.Cell(True, "Words.", 1)), notebook.Done(code, "done  \n", [drawn])], "tour")
    assert text == "Words.\n\n```python\ndraw()\n```\n\n```text\ndone\n```\n\n![Lag](tour/lag.png)\n"
    assert notebook.code_of(text) == ["draw()"]
