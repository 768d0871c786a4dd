"""What a person sees of rejected records, dead letters, tables and new versions on the pages of Dagster."""

import contextlib
import subprocess
import sys

import dagster as dg
import pytest

from dagster_exactly_once.names import CHECKS_JOB, SUCCESSOR_JOB
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once_local.ports import HOST, free_port
from testkit.bookings import reading_along, renewed
from testkit.processes import kill_session
from testkit.shop import DEAD, LABELS, UNREADABLE, label_orders
from testkit.stream import ROOT
from tests.dagster.test_rejected import Shop
from tests.dagster.test_several_sources import run
from tests.ui.browser import Ui

pytestmark = pytest.mark.long


@contextlib.contextmanager
def pages(page, site, module, attribute, folder):
    """The web server of a code location."""
    port = free_port()
    web = [sys.executable, "-m", "dagster_webserver", "-h", HOST, "-p", str(port)]
    location = ["-m", module, "-a", attribute, "-d", str(ROOT)]
    with (site.folder / "web.log").open("w") as log:
        process = subprocess.Popen(
            [*web, *location], cwd=site.folder, env=site.env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield Ui(page, f"http://{HOST}:{port}", folder)
        finally:
            kill_session(process.pid)


@pytest.fixture
def ui(request, page, site, tmp_path):
    """The pages of the code location that the test names."""
    module, attribute, made = request.param
    made(site)
    with pages(page, site, module, attribute, tmp_path) as shown:
        yield shown


def labels(site):
    """A run of a stream with a row that Kafka cannot take, and of its checks."""
    shop = Shop(site)
    shop.send(b"short", b"astray", b"bad", topic=LABELS)
    shop.stream(label_orders)
    shop.run("exactly_once_stream_checks")


def versions(site):
    """Runs of a stream and of a new version that reads along, and of their checks."""
    KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers).create_topics({"pay.in": 2})
    for stream, values in (("blue", ["a0"]), ("green", ["a1", "a2", "a3"]), ("blue", [])):
        site.send("pay.in", *values)
        succeeded, said = run(site, stream)
        assert succeeded, said[-3000:]
    with instance_of(site) as instance:
        reading_along().resolve_job_def(CHECKS_JOB).execute_in_process(instance=instance)


@contextlib.contextmanager
def instance_of(site):
    """The site's instance, for jobs that run in this process."""
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(site.home)) as instance:
        for name in ("KAFKA_BOOTSTRAP_SERVERS", "EXACTLY_ONCE_RUN_DIR"):
            patch.setenv(name, site.env[name])
        yield instance


def retired(site):
    """A run of a stream, and of the job that retires it for its new version."""
    KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers).create_topics({"grow.a": 2})
    site.send("grow.a", "a0", "a1")
    succeeded, said = run(site, "young")
    assert succeeded, said[-3000:]
    config = {"ops": {"compare": {"config": {"stream": "growing", "dry_run": False}}}}
    with instance_of(site) as instance:
        done = renewed().resolve_job_def(SUCCESSOR_JOB).execute_in_process(instance=instance, run_config=config)
    site.successor = done.run_id


def lake(site):
    """A run of a stream that writes a table beside its topic."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
    from tests.dagster import test_table

    deltalake.DeltaTable.create(str(site.folder / "lake"), deltalake.Schema.from_arrow(test_table.COLUMNS))
    test_table.run(site, *range(50))


@pytest.mark.parametrize("ui", [("testkit.shop", "definitions", labels)], indirect=True, ids=[""])
def test_the_pages_of_rejected_records_and_of_dead_letters_say_how_many_there_are_and_why(ui):
    """Guards against rows that nobody misses: the stream goes on, and its own page is green."""
    ui.opens(f"/assets/{DEAD}?view=checks")
    ui.sees("1 dead letter waits to be sent again or acknowledged; most often (1): ")
    ui.shoot("dead-letters")
    ui.opens(f"/assets/{UNREADABLE}?view=checks")
    ui.sees("1 rejected record waits to be sent again or acknowledged")
    ui.shoot("rejected")


@pytest.mark.parametrize("ui", [("testkit.lake", "definitions", lake)], indirect=True, ids=[""])
def test_the_page_of_a_table_beside_the_topic_shows_its_rows_and_its_columns(ui):
    """Guards against a table whose state only its own tools show."""
    ui.opens("/assets/lake/orders")
    ui.sees("Column name")
    ui.sees("50", exact=True)
    ui.shoot("table")


@pytest.mark.parametrize("ui", [("testkit.bookings", "renewed", retired)], indirect=True, ids=[""])
def test_the_run_of_the_successor_job_says_where_the_new_version_begins(ui, site):
    """Guards against a person who has retired a stream and does not know how it goes on."""
    ui.opens(f"/runs/{site.successor}")
    ui.shoot("successor")


@pytest.mark.parametrize("ui", [("testkit.bookings", "reading_along", versions)], indirect=True, ids=[""])
def test_the_page_of_a_new_version_says_whether_it_is_the_same_as_the_old_one(ui):
    """Guards against a take-over by a person who does not find the comparison."""
    ui.opens("/assets/paid_shadow?view=checks")
    ui.page.get_by_text("same_as_blue").first.click()
    ui.sees("as paid for 3 input records")
    ui.shoot("same-as-blue")
