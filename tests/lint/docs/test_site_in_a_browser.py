"""What the site of ``make docs`` looks like in a browser."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mkdocs.config import load_config

from tests.ui.browser import ARGUMENTS, REQUIRED, chromium

pytestmark = pytest.mark.long

CONFIG = Path(__file__).parents[3] / "dev" / "tools" / "mkdocs.yml"
#: A telephone's.
NARROW = {"width": 390, "height": 844}
#: A diagram is drawn, or a search has an answer, within this.
LIMIT_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if os.environ.get(REQUIRED) != "1":
        pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the site is served. The browser first: without one there is nothing to build."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-f", str(CONFIG), "-d", str(folder)], check=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("page", ["ARCHITECTURE", "docs/dagster"])
def test_a_diagram_is_drawn(page: str, browser: Any, url: str) -> None:
    """Mishap: a semicolon in a message, at which Mermaid ends a statement: readers saw the source of the diagram."""
    tab = browser.new_page()
    tab.goto(f"{url}/{page}.html")
    tab.wait_for_selector("div.mermaid", timeout=LIMIT_MS)
    assert tab.locator("pre.mermaid").count() == 0
    tab.close()


def test_no_page_is_wider_than_a_telephone(browser: Any, url: str) -> None:
    """Guards against a table or a block that moves the whole text aside."""
    tab = browser.new_page(viewport=NARROW)
    wide = []
    for page in (path for path in paths(load_config(str(CONFIG)).nav)):
        tab.goto(f"{url}/{page.replace('README', 'index').removesuffix('.md')}.html")
        if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(page)
    tab.close()
    assert wide == []


def paths(nav: Any) -> Iterator[str]:
    """The pages of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from paths(below)


@pytest.mark.parametrize("code", ["EO-FENCED", "EO-TOO-LONG", "SPARK-INPUT-LOST"])
def test_a_search_for_a_code_finds_its_entry_first(code: str, browser: Any, url: str) -> None:
    """The person on call types the code, and takes the first answer."""
    tab = browser.new_page()
    tab.goto(url)
    tab.fill(".md-search__input", code)
    found = tab.locator(".md-search-result__item h1").first
    found.wait_for(timeout=LIMIT_MS)
    tab.wait_for_function(
        "code => document.querySelector('.md-search-result__item h1')?.innerText === code", arg=code, timeout=LIMIT_MS
    )
    tab.close()
