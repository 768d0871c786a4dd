"""What a person sees of the records that a stream could not write, on the pages of Dagster."""

import subprocess
import sys

import pytest

from exactly_once_local.ports import HOST, free_port
from testkit.processes import kill_session
from testkit.shop import DEAD, LABELLED, LABELS, label_orders
from testkit.stream import ROOT
from tests.dagster.test_rejected import Shop
from tests.ui.browser import Ui

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ui(page, site, tmp_path_factory):
    """The pages of the shop, after a run of its stream and of its checks."""
    shop = Shop(site)
    shop.send(b"short", b"astray", b"bad", topic=LABELS)
    shop.stream(label_orders)
    shop.run("exactly_once_stream_checks")
    port = free_port()
    web = [sys.executable, "-m", "dagster_webserver", "-h", HOST, "-p", str(port)]
    location = ["-m", "testkit.shop", "-a", "definitions", "-d", str(ROOT)]
    with (site.folder / "web.log").open("w") as log:
        process = subprocess.Popen(
            [*web, *location], cwd=site.folder, env=site.env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield Ui(page, f"http://{HOST}:{port}", tmp_path_factory.mktemp("pictures"))
        finally:
            kill_session(process.pid)


def test_the_page_of_the_dead_letters_says_how_many_there_are_and_why(ui):
    """Guards against rows that nobody misses: the stream goes on, and its own page is green."""
    ui.opens(f"/assets/{DEAD}?view=checks")
    ui.sees("The stream has made 1 dead letter so far; most often (1): ")
    ui.shoot("dead-letters")
    ui.go(f"/assets/{LABELLED}")
    ui.sees(LABELLED)
