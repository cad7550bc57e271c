"""The page in a browser: nothing missing, nothing asked of the network, nothing wider than the screen."""

import pytest

from ..browsers import chromium, needs_chromium, watched

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_opens_from_disk(browser, report, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors, asked = watched(page)
    page.goto(report.as_uri(), wait_until="load")
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    sizes = page.evaluate(
        "[...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width])"
    )
    assert len(sizes) >= 12
    assert all(natural > 0 for natural, _ in sizes)
    assert max(shown for _, shown in sizes) >= 640  # on a phone a figure scrolls rather than shrink beyond reading
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for link in page.query_selector_all("nav a"):
        assert page.query_selector(link.get_attribute("href")) is not None
    assert all(image.get_attribute("alt") for image in page.query_selector_all("img"))
    page.close()
