"""The stream as it is operated: launched, watched, terminated, killed and recovered from the UI's own interface.

One story on one cluster, told in order; each test leaves the stream where the next one takes it up.
"""

import os
import signal

import pytest

from exactly_once.checkpoint import read_checkpoint
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.control import Control
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS, SINK_ID, TAG_PID
from platform_assets.report.report import make_report
from resources.transactions import TransactionAdmin
from tests.dagster.webserver import WebServer
from tests.support.processes import until

#: What the README promises.
TERMINATE_S = 15

STREAM = {"ops": {"stream_flight_delays": {"config": {"report_interval_s": 1.0, "max_offsets_per_trigger": 5_000}}}}
SLOW_FEED = {"ops": {"flights": {"config": {"events_per_second": 1_000}}}}
CAUGHT_UP = {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}}


@pytest.fixture(scope="module")
def dagster(site):
    with WebServer(site) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)  # also when only some of the tests are selected
def live_feed(dagster):
    """A run that keeps the input coming: a stream without input has nothing to be interrupted in."""
    return dagster.launch("flights_feed", SLOW_FEED)


@pytest.fixture(scope="module")
def admin(site):
    return TransactionAdmin(bootstrap_servers=site.bootstrap_servers)


def decisions(site):
    return len(read_log(site.connection, SINK_ID).decisions)


def assert_at_rest(site, admin):
    assert admin.list(SINK_ID) == []
    with Control(site.connection) as control:
        for topic in (FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED):
            assert all(w.last_stable == w.high for w in control.watermarks(topic).values()), topic


def materialized(dagster, run_id, asset):
    """The numbers of every materialization of ``asset`` in a run."""
    return [
        {m["label"]: m.get("intValue", m.get("floatValue")) for m in event["metadataEntries"]}
        for event in dagster.events(run_id)
        if event["__typename"] == "MaterializationEvent" and event["assetKey"]["path"] == [asset]
    ]


def start_streaming(site, dagster):
    """A run of the stream that is in the middle of its work."""
    before = decisions(site)
    run = dagster.launch("flight_delays_stream", STREAM)
    dagster.wait_for(run, "STARTED", 60)
    until("some decided batches", lambda: decisions(site) >= before + 3, 120, every_s=0.5)
    return run


def test_terminate_ends_the_stream_as_canceled_with_no_transaction_left_open(site, dagster, admin, live_feed):
    run = start_streaming(site, dagster)
    second = dagster.launch("flight_delays_stream", STREAM)
    until("a report", lambda: materialized(dagster, run, FLIGHT_DELAYS), 60, every_s=0.5)

    assert dagster.status(second) == "QUEUED"  # one run of a stream at a time
    dagster.terminate(second)
    dagster.wait_for(second, "CANCELED", 15)

    dagster.terminate(run)
    took_s = dagster.wait_for(run, "CANCELED", TERMINATE_S)
    print(f"CANCELED after {took_s:.1f} s")
    assert_at_rest(site, admin)


@pytest.mark.long
def test_the_reports_of_a_run_add_up_to_what_was_decided(site, dagster):
    run = start_streaming(site, dagster)
    dagster.terminate(run)
    dagster.wait_for(run, "CANCELED", TERMINATE_S)
    query = (
        'query { runsOrError(filter: {pipelineName: "flight_delays_stream"}) { ... on Runs { results { runId } } } }'
    )
    runs = [r["runId"] for r in dagster.graphql(query)["runsOrError"]["results"]]
    told = [m for r in runs for m in materialized(dagster, r, FLIGHT_DELAYS)]
    (checkpoint,) = (site.folder / "checkpoints").glob(f"*/{SINK_ID}")
    marked = read_checkpoint(
        str(checkpoint)
    ).last_commit  # a stop may leave one decided batch for the next run to report
    settled = [d.records for d in read_log(site.connection, SINK_ID).decisions if d.batch_id <= marked]
    assert sum(m["records_committed"] for m in told) == sum(settled)
    assert {type(m["commit_duration_ms"]) for m in told} == {int}
    assert any(m["commit_duration_ms"] > 0 for m in told)


@pytest.mark.long
def test_a_killed_run_is_recovered_and_a_second_recovery_finds_nothing(site, dagster, admin):
    run = start_streaming(site, dagster)
    until("an open transaction", lambda: admin.list(SINK_ID), 60, every_s=0.05)
    os.kill(int(dagster.tags(run)[TAG_PID].split("@")[0]), signal.SIGKILL)
    until("FAILURE", lambda: dagster.status(run) == "FAILURE", 90, every_s=0.5)

    first = dagster.launch("recovery")
    dagster.wait_for(first, "SUCCESS", 60)
    assert_at_rest(site, admin)
    again = dagster.launch("recovery")
    dagster.wait_for(again, "SUCCESS", 60)
    assert "was at rest" in dagster.tail(again)


@pytest.mark.long
def test_a_recovery_leaves_a_live_stream_alone_unless_it_is_told_to_take_over(site, dagster, admin):
    run = start_streaming(site, dagster)
    polite = dagster.launch("recovery")
    dagster.wait_for(polite, "FAILURE", 60)
    assert f"Run {run}" in str(dagster.events(polite))
    assert dagster.status(run) == "STARTED"

    rude = dagster.launch("recovery", {"ops": {"recover_sink": {"config": {"take_over": True}}}})
    dagster.wait_for(rude, "SUCCESS", 60)
    until("the fenced run's end", lambda: dagster.status(run) == "FAILURE", 60, every_s=0.5)
    (failure,) = [e for e in dagster.events(run) if e["__typename"] == "ExecutionStepFailureEvent"]
    metadata = {m["label"]: m.get("text", m.get("boolValue")) for m in failure["failureMetadata"]["metadataEntries"]}
    assert metadata["code"] == "EO-FENCED" and metadata["restart_heals"] is False and metadata["way_out"]


@pytest.mark.long
def test_after_all_that_every_departure_came_out_exactly_once(site, dagster, live_feed):
    if dagster.status(live_feed) == "STARTED":
        dagster.terminate(live_feed)
        dagster.wait_for(live_feed, "CANCELED", TERMINATE_S)
        with Control(site.connection) as control:
            assert all(w.last_stable == w.high for w in control.watermarks(FLIGHTS).values())
    feed = dagster.launch("flights_feed")
    dagster.wait_for(feed, "SUCCESS", 120)
    last = dagster.launch("flight_delays_stream", CAUGHT_UP)
    dagster.wait_for(last, "SUCCESS", 180)
    report = make_report(site.connection, SINK_ID)
    assert report.problems == [], report.findings.examples
    assert report.findings.records_in == report.findings.out == report.findings.expected
