"""A headless Chromium for the tests of pages, where there is one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
QUIET += ["--disable-component-update", "--no-first-run"]


@contextmanager
def chromium() -> Iterator:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)  # milliseconds: all cores may be busy with other tests
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def watched(page) -> tuple[list[str], list[str]]:
    """Two lists that fill while the page is used: its errors, and the addresses that it asks for."""
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    return errors, asked
