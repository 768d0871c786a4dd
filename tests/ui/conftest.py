"""A site with Dagster, a stream's story and a browser, for one module."""

import os
from pathlib import Path

import pytest

from testkit.story import BEFORE, Story
from testkit.webserver import Dagster
from tests.dagster.conftest import site  # noqa: F401
from tests.ui.browser import ARGUMENTS, REQUIRED, SIZE, Ui, chromium

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """First of all: a time budget that ends before all long tests were run must not leave out these."""
    items.sort(key=lambda item: FOLDER not in item.path.parents)


@pytest.fixture(scope="module")
def page():
    if os.environ.get(REQUIRED) != "1":
        pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser.new_page(viewport=SIZE, locale="en-US", timezone_id="UTC")
        finally:
            browser.close()


@pytest.fixture(scope="module")
def dagster(page, site):  # noqa: F811  # the browser first: without one there is nothing to start
    with Dagster(site) as running:
        yield running


@pytest.fixture(scope="module")
def story(dagster):
    with Story(dagster.site, dagster, BEFORE) as told:
        yield told


@pytest.fixture(scope="module")
def ui(page, dagster, tmp_path_factory):
    return Ui(page, dagster.url, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def picture_of_a_failure(request, ui):
    """What the page showed when a test failed, beside the other pictures."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        ui.snap(f"failed-{request.node.name}")
        print(f"see {ui.folder}")
