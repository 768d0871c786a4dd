"""PostgreSQL as Dagster's storage, with the settings of deploy/dagster/dagster.yaml: the real daemon, the real web
server and real runs read and write runs, events, ticks and cursors there.
"""

from __future__ import annotations

import shutil

import pytest

from dagster_exactly_once.runs.tags import TAG_RESTART_OF
from exactly_once.commitlog.commit_log import read_log
from platform_assets.flights.names import SINK_ID, STREAM_JOB
from testkit.postgres import PASSWORD
from testkit.processes import until
from testkit.site import Site
from testkit.story import PATIENCE_S, Story
from testkit.stream import ROOT
from testkit.webserver import Dagster

pytestmark = pytest.mark.long


@pytest.fixture
def database(own_postgres):
    """A server with an empty database for Dagster."""
    own_postgres.start()
    own_postgres.sql("CREATE DATABASE dagster")
    return own_postgres


@pytest.fixture
def postgres_site(database, bootstrap_servers, tmp_path, monkeypatch):
    settings = {
        "DAGSTER_PG_HOST": "127.0.0.1",
        "DAGSTER_PG_PORT": str(database.port),
        "DAGSTER_PG_DB": "dagster",
        "DAGSTER_PG_USERNAME": "postgres",
        "DAGSTER_PG_PASSWORD": PASSWORD,
    }
    for name, value in settings.items():  # for this process too, which reads the tags of runs
        monkeypatch.setenv(name, value)
    site = Site(tmp_path, bootstrap_servers)
    shutil.copy(ROOT / "deploy/dagster/dagster.yaml", site.home)
    return site


def test_the_stream_and_its_sensors_work_on_postgres_as_on_sqlite(database, postgres_site):
    """A storage that answers a query for tags, events or cursors differently would be found out by the first failure of
    a stream in production: killed, it would stay down, or be started twice.
    """
    site = postgres_site

    def count(statement):
        [(found,)] = database.sql(statement, database="dagster")
        return found

    with Dagster(site) as dagster, Story(site, dagster) as story:
        story.feed.send(500)
        killed = story.start()
        dagster.kill_run(killed, tree=True)
        recovery, new = story.await_restart(killed)
        assert dagster.tags(new)[TAG_RESTART_OF] == killed
        dagster.wait_for(recovery, "SUCCESS", PATIENCE_S)
        # Of the database alone: which instance this is, what has been seen, and where each sensor stands.
        instance_id = count("SELECT run_storage_id FROM instance_info")
        assert read_log(site.connection, SINK_ID).owner.operator == f"dagster/{instance_id}/{new}"
        dagster.kill("daemon")
        ticks = count("SELECT count(*) FROM job_ticks")
        dagster.start("daemon")
        until("ticks of the new daemon", lambda: count("SELECT count(*) FROM job_ticks") > ticks + 4, PATIENCE_S)
        story.await_progress()
        assert len(dagster.runs(STREAM_JOB)) == 2 and len(story.recoveries(killed)) == 1
        story.assert_exactly_once()
        story.terminate(new)
        story.assert_settled()
    assert count("SELECT count(*) FROM runs") >= 3 and count("SELECT count(*) FROM event_logs") > 0
    assert list(site.home.rglob("*.db")) == [], "nothing went to SQLite"
