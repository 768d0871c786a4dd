"""Hours of a stream whose query waits now and then: each is closed once, none is forgotten, on each Spark; and those
that an older version has left open are found and closed.
"""

import json
import signal
from collections import Counter
from datetime import datetime

import dagster as dg
import pytest

from dagster_exactly_once.checks.definitions import WINDOWS_CLOSED
from dagster_exactly_once.recovery.windows import first_noted
from testkit.hours import COUNTED, SOON, VISITS, definitions, visits
from testkit.processes import kill_session, until

pytestmark = pytest.mark.long  # a run that waits, as long as queries wait; its parts are in tests/unit/dagster

#: From the launch of a run to what a test waits for, on a busy machine of two cores.
PATIENCE_S = 120

#: The hours that the stream closes, and those that it left open when it lost its first batch.
ALL, LOST = [f"{n:02}:00" for n in range(11)], [f"{n:02}:00" for n in range(10)]

COMPLETE = dg.AssetKey(visits.completed)


@dg.asset(
    deps=[visits.completed],
    partitions_def=dg.HourlyPartitionsDefinition(start_date="2026-01-31-00:00"),
    automation_condition=dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window()),
)
def downstream():
    """What somebody builds of complete hours."""


@pytest.fixture(scope="module")
def instance(site):
    with dg.DagsterInstance.from_config(str(site.home)) as found:
        yield found


@pytest.fixture(scope="module")
def ran(site, instance):
    """The stream after a run over a topic that was still empty, whose query waited before each batch."""
    site.kafka.create_topics({VISITS: 1})
    config = {"ops": {visits.spec.op: {"config": {"trigger_interval_s": 0.1, "report_interval_s": 1}}}}
    arguments = ("testkit.hours", visits.spec.job, json.dumps(config))
    process = site.launch(*arguments, log=site.log("hours"), EXACTLY_ONCE_SPARK_CONF=SOON)
    try:
        waited = -1
        for times in ([f"{hour:02}:30" for hour in range(10)], ["11:30"], ["11:40"]):
            until("the query to wait", lambda behind=waited: waits_for(site, process) > behind, PATIENCE_S)
            waited = waits_for(site, process)
            send(site, *times)
        until("the rows", lambda: sum(reported(instance, "records_committed")) == 12, PATIENCE_S)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        kill_session(process.pid)


def waits_for(site, process):
    """The newest batch that the query has waited for; -1 before it waited."""
    assert process.poll() is None, site.log("hours").read_text()[-5000:]
    return max((int(path.name.rpartition("-")[2]) for path in site.folder.glob("waits-for-*")), default=-1)


def send(site, *times):
    with site.kafka.producer("visitors") as producer, producer.transaction():
        for time in times:
            at = f"2026-01-31 {time}:00"
            stamp = round(datetime.fromisoformat(f"{at}+00:00").timestamp() * 1000)
            producer.send(VISITS, at.encode(), b"somebody", timestamp_ms=stamp)


def closed(instance):
    records = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=COMPLETE), limit=500).records
    return Counter(r.partition_key[-5:] for r in records)


def reported(instance, name):
    """The values of a number on the output, of all reports."""
    records = instance.fetch_observations(dg.AssetKey(COUNTED), limit=500).records
    return [m[name].value for m in (r.asset_observation.metadata for r in records) if name in m]


def test_a_query_that_waits_at_its_start_and_between_batches_closes_each_hour(ran, instance):
    """Its hours were lost for good: it reports the batch that comes next before there is one, and the real one came
    under an id that was known.
    """
    assert closed(instance) == dict.fromkeys(ALL, 1)
    assert sum(reported(instance, "read")) == 12
    # each batch with its durations, not with those of a trigger that found nothing
    assert len(reported(instance, "sink_duration_ms")) == len(reported(instance, "batch_duration_ms"))
    assert first_noted(instance, COMPLETE) == "2026-01-31-00:00"


@pytest.fixture
def damaged(ran, site, instance, monkeypatch):
    """The stream as the older version left it: its first batch, and with it the first hours, were lost."""
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    instance.wipe_assets([COMPLETE])
    instance.report_runless_asset_event(dg.AssetMaterialization(COMPLETE, partition="2026-01-31-10:00"))
    return instance


def checked(instance):
    """Evaluate the check as its job does."""
    key = dg.AssetCheckKey(COMPLETE, WINDOWS_CLOSED)
    job = dg.define_asset_job("look", selection=dg.AssetSelection.checks(key), executor_def=dg.in_process_executor)
    found = dg.Definitions.merge(definitions(), dg.Definitions(jobs=[job])).resolve_job_def("look")
    [evaluation] = found.execute_in_process(instance=instance).get_asset_check_evaluations()
    return evaluation


def close(instance, succeeds=True, **config):
    """Run the job; returns what it says."""
    op = f"close_windows_{visits.name}"
    done = (
        definitions()
        .resolve_job_def(visits.closes)
        .execute_in_process({"ops": {op: {"config": config}}}, instance=instance, raise_on_error=False)
    )
    assert done.success is succeeds
    if not succeeds:
        return done.failure_data_for_node(op).user_failure_data.metadata["code"].value
    [output] = [e for e in done.all_events if e.is_successful_output]
    return output.step_output_data.metadata["windows"].value


def test_hours_that_an_older_version_left_open_are_found_and_closed_once(damaged):
    """They are never built downstream, and nothing was red."""
    defs = dg.Definitions.merge(definitions(), dg.Definitions(assets=[downstream]))
    cursor = dg.evaluate_automation_conditions(defs=defs, instance=damaged).cursor
    found = checked(damaged)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (found.metadata["code"].value, found.metadata["open_windows"].value) == ("EO-WARN-WINDOWS", 10)

    assert [name[-5:] for name in close(damaged)] == LOST  # a dry run, unless one says otherwise
    assert (closed(damaged), first_noted(damaged, COMPLETE)) == ({"10:00": 1}, "")

    close(damaged, dry_run=False)
    assert closed(damaged) == dict.fromkeys(ALL, 1)
    assert checked(damaged).passed
    asked = dg.evaluate_automation_conditions(defs=defs, instance=damaged, cursor=cursor)
    assert {name[-5:] for name in asked.get_requested_partitions(downstream.key)} >= {*LOST}

    assert close(damaged, dry_run=False) == []
    assert closed(damaged) == dict.fromkeys(ALL, 1)


def test_a_person_says_where_the_events_begin_and_what_is_no_such_hour_is_refused(damaged):
    """Records may be dated by their writer, long after their events: then only a person knows the first hour."""
    for wrong in ("2026-01-31", "2026-01-30-23:00", "2026-01-31-10:30", "2026-01-31-11:00"):
        assert close(damaged, succeeds=False, first=wrong, dry_run=False) == "EO-OPTION"
    assert closed(damaged) == {"10:00": 1}
    close(damaged, first="2026-01-31-07:00", dry_run=False)
    assert closed(damaged) == dict.fromkeys(ALL[7:], 1)
    assert (checked(damaged).passed, first_noted(damaged, COMPLETE)) == (True, "2026-01-31-07:00")
