"""Dagster's pages in a real Chromium: how to find one, and what a person does on each page."""

import contextlib
import os
import re
import shutil
from pathlib import Path

import pytest

from testkit.processes import until
from tests.ui.pictures import FOLDER, PICTURES, taken

#: As distributions name it.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZE = {"width": 1400, "height": 900}

#: Set by the script of the continuous integration: there a missing browser is a failure.
REQUIRED = "CI_REQUIRES_BROWSER"
#: A folder for the pictures of the README; without it they go to the test's own.
SCREENSHOTS = "EXACTLY_ONCE_SCREENSHOTS"

#: For anything to show that is there already. Pages load their data after they show.
SOON_S = 60.0


def chromium():
    """The path of a browser; without one the test is skipped, or fails where a browser is required."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    missing = f"no browser on the PATH: none of {', '.join(NAMES)}"
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(missing)
    pytest.skip(missing)


#: Takes a folder out of all text of a page.
WITHOUT_FOLDER = """folder => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder + "/", "");
}"""


class Ui:
    """The web server at ``url``, seen on one page of a browser."""

    def __init__(self, page, url, folder):
        from playwright.sync_api import expect

        self.page = page
        self.url = url
        self.folder = Path(os.environ.get(SCREENSHOTS) or folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.expect = expect
        page.set_default_timeout(SOON_S * 1000)
        expect.set_options(timeout=SOON_S * 1000)

    def go(self, path):
        """Open a page."""
        self.page.goto(f"{self.url}{path}", wait_until="domcontentloaded")

    def opens(self, path, within=SOON_S):
        """Open a page of a server that has just been started."""
        from playwright.sync_api import Error

        def answers():
            with contextlib.suppress(Error):
                self.go(path)
                return True

        until(f"a server at {self.url}", answers, within)

    def location(self, path):
        """Open a page of the code location."""
        self.go(f"/locations/__repository__@platform_assets/{path}")

    def sees(self, text, within=SOON_S, exact=False):
        """Wait until a text shows."""
        self.expect(self.page.get_by_text(text, exact=exact).first).to_be_visible(timeout=within * 1000)

    def button(self, name, of=None, exact=False):
        return (of or self.page).get_by_role("button", name=name, exact=exact)

    def shoot(self, name):
        """Make a picture of what shows, once it shows what it must."""
        for text in PICTURES[name]:
            self.sees(text)
        self.snap(name)
        taken(self.folder, name)

    def snap(self, name):
        """Make a picture as it is, without this machine's folders. Charts are drawn a moment after their data came, and
        nothing says when.
        """
        self.page.wait_for_timeout(1_500)
        self.page.evaluate(WITHOUT_FOLDER, str(FOLDER.parents[1]))
        self.page.screenshot(path=self.folder / f"{name}.png", animations="disabled")

    def launch(self, job, config, picture=None):
        """Type a configuration into the launchpad of a job, and launch it; returns the run's id."""
        self.location(f"jobs/{job}/playground")
        self.expect(self.button("Launch Run")).to_be_visible()
        self.page.locator(".CodeMirror").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(config)
        self.sees("No errors")
        self.expect(self.button("Launch Run")).to_be_enabled()
        if picture:
            self.shoot(picture)
        self.button("Launch Run").click()
        self.page.wait_for_url("**/runs/*")
        return self.page.url.rpartition("/")[2]

    def terminate(self, run):
        """Terminate a run from its page, and answer the question whether that is meant."""
        self.go(f"/runs/{run}")
        self.button("Terminate").click()
        dialog = self.page.get_by_role("dialog")
        self.expect(dialog.get_by_text("1 run will be terminated")).to_be_visible()
        self.button("Terminate 1 run", dialog).click()

    def backfill(self, asset, days):
        """Launch a backfill for a range of days from the page of an asset."""
        self.go(f"/assets/{asset}")
        self.button("Materialize").first.click()
        # the departures came from the test, not from a run, which is what Dagster asks about
        self.button("Confirm").click()
        dialog = self.page.get_by_role("dialog")
        self.select_days(days, dialog)
        self.expect(dialog.get_by_text(f"{len(days)} partitions")).to_be_visible()
        self.expect(dialog.get_by_text("Backfills all partitions in a single run")).to_be_visible()
        self.shoot("backfill-launch")
        self.button("Launch backfill", dialog).click()
        self.sees("Created backfill")

    def select_days(self, days, of=None):
        """Type a range of days where an asset's partitions are chosen."""
        box = (of or self.page).get_by_placeholder("ex: 2013-01-01")
        box.fill(f"[{days[0]}...{days[-1]}]")
        box.press("Enter")

    def open_event(self, asset, sentence, most=20):
        """Open the newest event of an asset whose description has ``sentence``: the list shows nothing but times."""
        self.go(f"/assets/{asset}?view=events")
        self.sees("Observed")
        moments = self.page.get_by_text(re.compile(r"^[A-Z][a-z]{2} \d+, "))
        for n in range(min(most, moments.count())):
            moments.nth(n).click()
            with contextlib.suppress(AssertionError):
                return self.sees(sentence, within=2)
        raise AssertionError(f"none of the newest {most} events of {asset} says {sentence!r}")

    def toggle(self, sensor, on):
        """Click the switch on the page of a sensor, and see it change."""
        self.location(f"sensors/{sensor}")
        self.sees("Running")  # the label of the switch, on or off
        switch = self.page.get_by_role("checkbox")
        self.expect(switch).to_have_count(1)
        self.expect(switch).to_be_enabled()
        self.expect(switch).to_be_checked(checked=not on)
        switch.locator("xpath=..").click()  # what shows is a picture beside the real box
        self.expect(switch).to_be_checked(checked=on)
