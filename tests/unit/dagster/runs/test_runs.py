"""Which runs in Dagster's storage belong to which stream: by tags, so that the button Materialize and fifty streams in
one code location change nothing.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.checks.evaluate import NeverBegun, check_begun
from dagster_exactly_once.names import RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.private import REPOSITORY_LABEL_TAG
from dagster_exactly_once.runs.history import Histories, read_history
from dagster_exactly_once.runs.location import location_of
from dagster_exactly_once.runs.operator import is_foreign, is_ours, operator_of, stream_facts
from dagster_exactly_once.runs.runs import MOST_RUNS, NEWEST_RUNS, runs_on
from dagster_exactly_once.runs.tags import (
    TAG_HOST,
    TAG_MACHINE,
    TAG_PID,
    TAG_RECOVERS,
    TAG_RESTART_OF,
    TAG_SIGNED,
    TAG_SINK,
    TAG_STREAM,
)
from exactly_once.coordinator.machine import this_machine
from exactly_once.inspection.findings import Inspection
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim
from exactly_once.tools.diagnosis import SinkFacts, health
from testkit.sensor_facts import STREAM, spec

S = dg.DagsterRunStatus
MATERIALIZE = "__ASSET_JOB"
OTHER = spec("other", "o")


def new(instance, job="stream", status=S.STARTED, tags=None, assets=(), config=None, op="x"):
    """A run; ``tags`` are by default those of the stream's job, ``config`` is that of one op."""
    if tags is None:
        tags = {TAG_STREAM: "stream"} if job == "stream" else {}
    return create_run_for_test(
        instance,
        job_name=job,
        status=status,
        tags=tags,
        asset_selection=frozenset(dg.AssetKey(a.split("/")) for a in assets) or None,
        run_config={"ops": {op: {"config": config}}} if config is not None else {},
    ).run_id


def recover(instance, status=S.SUCCESS, config=None, **tags):
    return new(instance, RECOVERY_JOB, status, tags, config=config, op=RECOVERY_OP)


def summary(instance, stream=STREAM):
    return Histories(instance).summaries([OTHER, STREAM])[stream.sink_id]


def ids(runs):
    return [run.run_id for run in runs]


@pytest.mark.parametrize(
    ("config", "tags", "counts"),
    [
        ({"stream": "stream", "dry_run": True}, {}, False),
        ({"stream": "stream"}, {TAG_PID: "1@1.00"}, False),  # its process has tagged it, and takes no sink
        ({"stream": "stream", "dry_run": False}, {TAG_PID: "1@1.00", TAG_SINK: "s"}, True),
        ({"stream": "stream"}, {TAG_PID: "1@1.00", TAG_SINK: "s"}, True),  # of a version that acted by default
        ({"stream": "stream"}, {}, True),  # queued: nobody knows yet
    ],
)
def test_a_dry_run_is_no_recovery(instance, config, tags, counts):
    """A person who only looks at a failed stream must not keep the sensors from starting it again."""
    new(instance, status=S.FAILURE)
    looked = recover(instance, config=config, **tags)
    assert ids(read_history(instance, STREAM).recoveries) == ([looked] if counts else [])


# -- the runs of a stream --------------------------------------------------------------------------------------------


def test_a_run_that_materialize_started_is_a_run_of_the_stream(instance):
    """Without it, a stream that a person started with that button and that fails stays down: an outage."""
    first = new(instance, status=S.SUCCESS)
    second = new(instance, MATERIALIZE, S.FAILURE, {TAG_STREAM: "stream", TAG_SINK: "s"}, ["shop/out"])
    assert ids(read_history(instance, STREAM).streams) == [second, first]
    assert read_history(instance, OTHER).streams == ()


def test_a_run_of_another_stream_in_the_same_job_is_not_the_stream_s(instance):
    """A recovery of the wrong sink leaves readers of the right one waiting."""
    new(instance, "stream", S.FAILURE, {TAG_STREAM: "other"})
    assert read_history(instance, STREAM).streams == ()


@pytest.mark.parametrize(
    ("tags", "config", "its_own"),
    [
        ({}, None, True),
        ({}, {"sink_id": ""}, True),  # the stream's own
        ({}, {"sink_id": "s"}, True),
        ({}, {"sink_id": "trial"}, False),
        ({TAG_SINK: "trial"}, None, False),
        ({TAG_SINK: "s"}, {"sink_id": ""}, True),
    ],
)
def test_a_run_that_tries_out_another_sink_is_not_supervised(instance, tags, config, its_own):
    """Its failure would cause a recovery of a sink that nothing is wrong with."""
    run = new(instance, status=S.FAILURE, tags={TAG_STREAM: "stream", **tags}, config=config)
    for history in (summary(instance), read_history(instance, STREAM)):
        assert ids(history.streams) == ([run] if its_own else [])


def test_trials_with_another_sink_do_not_push_out_the_stream_s_own_failure(instance):
    """The failure would be forgotten, and the stream stay down."""
    failed = new(instance, status=S.FAILURE)
    for _ in range(NEWEST_RUNS + 1):
        new(instance, status=S.SUCCESS, config={"sink_id": "trial"})
    assert ids(summary(instance).streams) == [failed]


def test_the_runs_of_a_busy_stream_do_not_push_out_the_failure_of_another(instance):
    """The newest runs of all streams are read together: one stream that fails over and over would hide the others."""
    failed = new(instance, status=S.FAILURE)
    for _ in range(2 * NEWEST_RUNS + 1):
        new(instance, OTHER.job, S.FAILURE, {TAG_STREAM: "other"})
    assert ids(summary(instance).streams) == [failed]
    assert len(summary(instance, OTHER).streams) >= 1


def test_a_glance_sees_a_request_for_a_restart_before_sixty_recoveries(instance):
    """The sensor exactly_once_liveness looks no further when a summary shows none: the stream would stay down."""
    failed = new(instance, status=S.FAILURE)
    own = recover(instance, **{TAG_RECOVERS: "s", TAG_RESTART_OF: failed})
    for _ in range(60):
        recover(instance, **{TAG_RECOVERS: "o"})
    assert ids(summary(instance).recoveries) == [own]


def test_a_failure_behind_a_run_whose_process_is_gone_is_seen(instance):
    """With the sensor exactly_once_liveness switched off, the dead run is shown as in progress forever."""
    gone = {TAG_HOST: socket.gethostname(), TAG_MACHINE: this_machine(), TAG_PID: "1@1000.00", TAG_STREAM: "stream"}
    dead, failed = new(instance, tags=gone), new(instance, status=S.FAILURE)
    assert ids(summary(instance).streams) == [failed, dead]


def test_a_run_in_progress_is_seen_however_many_came_after_it(instance):
    """A recovery beside a live driver fences it."""
    works = new(instance)
    for _ in range(MOST_RUNS + 1):
        new(instance, status=S.FAILURE)
    assert works in ids(summary(instance).streams) and works in ids(read_history(instance, STREAM).streams)


def test_a_re_execution_with_another_sink_is_not_the_stream_s_before_it_says_so(instance):
    """It carries the tags of the run that it repeats, and would be supervised and restarted in that run's place."""
    copied = {TAG_STREAM: "stream", TAG_SINK: "s", TAG_SIGNED: "the run that it repeats"}
    new(instance, status=S.FAILURE, tags=copied, config={"sink_id": "trial"})
    assert read_history(instance, STREAM).streams == ()


# -- runs in progress beside the stream's own ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [S.NOT_STARTED, S.STARTING, S.STARTED])
def test_a_materialize_run_that_is_just_starting_holds_back_every_launch(instance, status):
    """In its first seconds it carries no tag; a run launched beside it would fence it or be fenced."""
    run = new(instance, MATERIALIZE, status, assets=["shop/out", "shop/report"])
    assert ids(read_history(instance, STREAM).others) == [run]
    assert ids(summary(instance).others) == [run]


@pytest.mark.parametrize(
    ("status", "tags", "assets"),
    [
        (S.STARTED, {}, ["shop/report"]),
        (S.STARTED, {}, []),
        (S.FAILURE, {}, ["shop/out"]),  # over
        (S.STARTED, {TAG_STREAM: "other"}, ["shop/out", "shop/other"]),  # at work on another stream of its selection
        (S.STARTED, {TAG_SINK: "o"}, ["shop/out"]),
    ],
)
def test_a_run_that_is_not_about_to_work_on_the_sink_holds_back_nothing(instance, status, tags, assets):
    """Else a stream that is down waits for a run that has nothing to do with it."""
    new(instance, MATERIALIZE, status, tags, assets)
    assert read_history(instance, STREAM).others == ()


def test_a_run_of_any_job_that_is_at_work_on_the_sink_holds_back_every_launch(instance):
    repair = new(instance, "checkpoint_repair", tags={TAG_SINK: "s"})
    untagged = new(instance, "stream", S.NOT_STARTED, {})  # launched before its job carried the tag
    assert ids(read_history(instance, STREAM).others) == [untagged, repair]


# -- recoveries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known_by", [{TAG_RECOVERS: "s"}, {TAG_SINK: "s"}])
def test_sixty_recoveries_of_other_streams_do_not_push_out_the_stream_s_own(instance, known_by):
    """The stream would be recovered again and again, and never be started: its recovery would not be found."""
    own = recover(instance, **known_by)
    for _ in range(60):
        recover(instance, **{TAG_RECOVERS: "o"})
    assert ids(read_history(instance, STREAM).recoveries) == [own]
    assert len(read_history(instance, OTHER).recoveries) >= 50


@pytest.mark.parametrize("status", [S.NOT_STARTED, S.CANCELED])
def test_a_recovery_that_a_person_launched_is_known_before_its_first_step(instance, status):
    """It has no tag yet: a sensor's recovery would run beside it, or undo that the person canceled it."""
    own = recover(instance, status, {"stream": STREAM.name})
    assert ids(read_history(instance, STREAM).recoveries) == [own]
    assert read_history(instance, OTHER).recoveries == ()


def test_a_recovery_in_progress_is_seen_however_many_came_after_it(instance):
    """Two recoveries at once are safe, but each of them fences a stream that has just started."""
    own = recover(instance, S.STARTED, {"sink_id": "s"})
    for _ in range(60):
        recover(instance, **{TAG_RECOVERS: "o"})
    new(instance)
    assert ids(summary(instance).recoveries) == [own]


def test_a_recovery_that_a_person_sent_to_another_sink_belongs_to_that_one(instance):
    """A re-execution carries the tags of the sensor's run, whatever its configuration says."""
    sent = recover(instance, config={"sink_id": "o"}, **{TAG_RECOVERS: "s"})
    assert read_history(instance, STREAM).recoveries == ()
    assert ids(read_history(instance, OTHER).recoveries) == [sent]


# -- a start -----------------------------------------------------------------------------------------------------------


def test_a_start_is_counted_from_its_launch_until_its_first_batch(instance):
    """Mishap: "has been starting for 76 s", and 30 s later "for 21 s"; the time in the queue is none of it."""
    run = new(instance, status=S.NOT_STARTED)
    queued = stream_facts(instance, STREAM, replace(read_history(instance, STREAM), now=time.time() + 500), None)
    assert (queued.worker.waits, queued.worker.age_s > 400) == ("NOT_STARTED", True)
    ages = []
    for kind in (dg.DagsterEventType.PIPELINE_STARTING, dg.DagsterEventType.PIPELINE_START):
        instance.report_dagster_event(dg.DagsterEvent(event_type_value=kind.value, job_name="stream"), run_id=run)
        found = read_history(instance, STREAM)
        (launch,) = instance.get_records_for_run(run, of_type=dg.DagsterEventType.PIPELINE_STARTING).records
        now = launch.timestamp + 76 + 30 * len(ages)
        ages.append(stream_facts(instance, STREAM, replace(found, now=now), None).worker.age_s)
    assert ages == pytest.approx([76, 106])
    known = stream_facts(instance, STREAM, replace(found, now=now), None)
    assert health(SinkFacts(Inspection("s"), stream=known)).code == "HEALTH-SLOW-START"


def test_a_check_of_a_stream_that_starts_or_has_failed_says_that_and_not_never_used(instance):
    """Mishap: amber, "never used", of a first run that starts, and of one whose function was wrong."""

    def of():
        with pytest.raises(NeverBegun) as never:
            check_begun(instance, STREAM, LogState())
        return never.value.state.code

    assert of() == "HEALTH-NEVER-USED"
    run = new(instance, status=S.STARTED)
    assert of() == "HEALTH-STARTING"
    instance.report_run_failed(instance.get_run_by_id(run))
    assert of() == "HEALTH-FAILED"


# -- two code locations of one instance, with streams of the same names ----------------------------------------------

STAGING, PRODUCTION = "__repository__@staging", "__repository__@production"


def here(location):
    return {TAG_STREAM: "stream", REPOSITORY_LABEL_TAG: location}


def test_a_location_sees_its_own_runs_and_those_that_no_location_launched(instance):
    """Sensors of staging recovered what had failed in production, and started a stream that a person had stopped."""
    ours, theirs = (new(instance, status=S.FAILURE, tags=here(of)) for of in (STAGING, PRODUCTION))
    by_command = new(instance, status=S.FAILURE)
    for location, its in ((STAGING, ours), (PRODUCTION, theirs)):
        assert ids(read_history(instance, STREAM, location).streams) == [by_command, its]
        assert ids(Histories(instance, location).summaries([STREAM])["s"].streams) == [by_command, its]
    assert ids(read_history(instance, STREAM).streams) == [by_command, theirs, ours]


def test_a_run_of_another_location_that_is_in_progress_holds_back_nothing(instance):
    """A stream that is down would wait for one that never ends."""
    new(instance, tags=here(PRODUCTION))
    new(instance, MATERIALIZE, S.STARTED, {REPOSITORY_LABEL_TAG: PRODUCTION}, ["shop/out"])
    recover(instance, S.STARTED, **{TAG_SINK: "s", REPOSITORY_LABEL_TAG: PRODUCTION})
    found = read_history(instance, STREAM, STAGING)
    assert (found.streams, found.others, found.recoveries) == ((), (), ())


def test_the_runs_of_another_location_do_not_push_out_the_own_ones(instance):
    """The failure would be forgotten, and the stream stay down."""
    failed = new(instance, status=S.FAILURE, tags=here(STAGING))
    tags = {TAG_RECOVERS: f"s@{STAGING}", TAG_RESTART_OF: failed, REPOSITORY_LABEL_TAG: STAGING}
    own = recover(instance, **tags)
    for _ in range(MOST_RUNS + 1):
        new(instance, status=S.FAILURE, tags=here(PRODUCTION))
        recover(instance, **{TAG_RECOVERS: f"s@{PRODUCTION}", REPOSITORY_LABEL_TAG: PRODUCTION})
    found = read_history(instance, STREAM, STAGING)
    assert (ids(found.streams), ids(found.recoveries)) == ([failed], [own])
    glance = Histories(instance, STAGING).summaries([STREAM])["s"]
    assert (ids(glance.streams), ids(glance.recoveries)) == ([failed], [own])


def test_a_recovery_of_an_older_version_is_known_by_its_sink_alone(instance):
    """An upgrade in the middle of a recovery would request a second one."""
    old = recover(instance, **{TAG_RECOVERS: "s", REPOSITORY_LABEL_TAG: STAGING})
    assert ids(read_history(instance, STREAM, STAGING).recoveries) == [old]


def test_a_run_is_of_the_location_that_launched_it(instance):
    """Dagster keeps the label with the run's tags for searches, and does not give it back with them."""
    origin = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("host", 1, location_name="staging"), "__repository__")
    run = create_run_for_test(instance, job_name="stream", remote_job_origin=origin.get_job_origin("stream"))
    [record] = instance.get_run_records(dg.RunsFilter(tags={REPOSITORY_LABEL_TAG: STAGING}))
    assert record.dagster_run.run_id == run.run_id and location_of(record.dagster_run) == STAGING


def test_only_the_runs_of_the_own_location_refuse_a_repair(instance):
    """A recovery of staging was refused for production's run, on a sink of the same name on another cluster."""
    theirs = new(instance, tags={TAG_SINK: "s", REPOSITORY_LABEL_TAG: PRODUCTION})
    assert ids(runs_on(instance, "s", PRODUCTION)) == ids(runs_on(instance, "s")) == [theirs]
    assert runs_on(instance, "s", STAGING) == []


def test_a_claim_is_of_the_location_whose_run_made_it(instance):
    """Two locations on one cluster: the second would fence the first without being asked."""
    run = new(instance, tags=here(PRODUCTION))
    claim = Claim(1, "q", 0, "stream", "host", 1, "/c", operator=operator_of(instance, run))
    assert is_ours(instance, claim, PRODUCTION) and is_ours(instance, claim)
    assert is_foreign(instance, claim, STAGING)
    gone = replace(claim, operator=operator_of(instance, "a run that was deleted"))
    assert is_ours(instance, gone, STAGING)
    assert is_foreign(instance, replace(claim, operator="dagster/other/run"), PRODUCTION)
