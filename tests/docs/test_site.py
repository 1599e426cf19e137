"""The site: every document is on it, and nothing on it leads nowhere. `make site` builds it; here mkdocs is not needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import site
from tests.docs.snippets import ROOT

NAVIGATION = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site") / "sources"
    site.gather(into)
    return into


def test_every_document_is_in_the_navigation(gathered: Path) -> None:
    assert sorted(NAVIGATION) == sorted(path.name for path in gathered.glob("*.md"))


def test_links_and_pictures_of_the_site_lead_somewhere(gathered: Path) -> None:
    count = 0
    for page in gathered.glob("*.md"):
        for _, _, target, _ in site.LINK.findall(page.read_text()):
            if target and "://" not in target:
                assert (gathered / target).is_file(), f"{page.name}: {target}"
                count += 1
    assert count > 60


def test_what_is_not_on_the_site_becomes_plain_words() -> None:
    text = "[run](../examples/tour.py), [README](../README.md#start), [apart](docs/faq.md#a), ![lag](tour/lag.png), [out](https://x.y/z)"
    assert site.on_the_site(text) == "run, [README](index.md#start), [apart](faq.md#a), ![lag](tour/lag.png), [out](https://x.y/z)"


@pytest.mark.parametrize("page", site.documents(), ids=lambda path: path.name)
def test_a_list_or_table_stands_after_an_empty_line_or_a_heading(page: Path) -> None:
    """Else the site takes it for a part of the paragraph before."""
    text = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for before, line in zip(text.splitlines(), text.splitlines()[1:], strict=False):
        if re.match(r"(- |\| )", line):
            assert not before.strip() or re.match(r"(#|\||- | )", before), f"{before!r}\n{line!r}"
