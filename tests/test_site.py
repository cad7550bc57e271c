"""The site of docs/: every page has a place in it, every figure a text, and it builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import opencrate

from .browsers import chromium, needs_chromium, watched

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "results" not in page.parts}


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


NOTEBOOKS = sorted(page for page in PAGES if "\nfile_format: mystnb\n" in read(page))


def listed_by(page: str) -> list[str]:
    """The pages in the toctrees of a page."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
    entries = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    names = [re.sub(r".*<(.*)>$", r"\1", entry) for entry in entries]
    return [str((Path(page).parent / f"{name}.md").as_posix()) for name in names]


def test_every_page_is_in_a_toctree_once():
    found, waiting = ["index.md"], ["index.md"]
    while waiting:
        listed = listed_by(waiting.pop())
        found += listed
        waiting += listed
    assert sorted(found) == sorted(PAGES)


def test_tutorials_are_notebooks():
    tutorials = {page for page in PAGES if page.startswith("tutorials/")} - {"tutorials/index.md"}
    assert len(tutorials) >= 5
    assert tutorials <= set(NOTEBOOKS)


def test_the_reference_has_every_public_name():
    reference = "".join(read(page) for page in PAGES if page.startswith("reference/"))
    for module in (opencrate, opencrate.objective, opencrate.operators):
        for name in set(module.__all__) - {"__version__"}:
            assert re.search(rf"\b{re.escape(module.__name__)}\.{name}\b", reference), f"{module.__name__}.{name}"


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_every_figure_of_a_notebook_has_a_text(page):
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
    assert cells
    for cell in cells:
        *_, last = cell.rstrip().splitlines()
        if re.match(r"figure$|figures\.\w+\(", last):
            assert re.search(r"^    alt: .{40}", cell, re.MULTILINE), f"{page}: {last}"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for package in ("sphinx", "furo", "myst_nb", "latex2mathml"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-W", "--keep-going", "-E", str(DOCS), str(out)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


@pytest.mark.slow
@pytest.mark.unhooked
@pytest.mark.timeout(1800)
def test_the_site_builds_without_a_warning(site):
    pages = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")}
    assert pages >= PAGES
    assert "R<sup>c</sup>" in (site / "idea.html").read_text(encoding="utf-8")
    assert "<math" in (site / "idea.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.unhooked
@pytest.mark.timeout(1800)
@needs_chromium
def test_its_pages_fetch_nothing_and_fit_a_telephone(site):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        errors, asked = watched(page)
        for file in sorted(site.rglob("*.html")):
            page.goto(file.as_uri())
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{file.name} is {wider} pixels wider than the screen"
            assert page.evaluate("[...document.images].filter(image => !image.alt).length") == 0, file.name
        assert errors == []
        assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
