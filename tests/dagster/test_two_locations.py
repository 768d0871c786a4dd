"""One module in two code locations of one instance, as staging and production: no sensor and no queue of the one acts
on a run of the other. Both are real, each in a code server of its own, which the host asks as Dagster's daemon does.
"""

import time
from types import SimpleNamespace

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import create_run_for_test, create_test_daemon_workspace_context
from dagster._core.workspace.load_target import CompositeTarget, ModuleTarget
from dagster._utils.tags import TagConcurrencyLimitsCounter as Queue

from dagster_exactly_once.instance import settings
from dagster_exactly_once.names import FAILURE_SENSOR, LIVENESS_SENSOR, RECOVERY_JOB
from dagster_exactly_once.runs.location import location_of
from dagster_exactly_once.runs.tags import TAG_JOB, TAG_NOT_BEFORE, TAG_RECOVERS, TAG_RESTART_OF
from testkit.processes import until
from testkit.stream import ROOT

S = dg.DagsterRunStatus
JOB, SINK = "paid_orders_stream", "paid_orders"
LIMITS = yaml.safe_load(settings())["concurrency"]["runs"]["tag_concurrency_limits"]


class Location:
    """A code location, as the host sees it."""

    def __init__(self, instance, location):
        self.instance, self.location = instance, location
        [self.repository] = location.get_repositories().values()

    def new(self, job, status, tags=None, run_config=None):
        """A run of a job, as the host makes one."""
        found = self.repository.get_full_job(job)
        return create_run_for_test(
            self.instance,
            job_name=job,
            status=status,
            run_config=run_config,
            tags={**found.tags, **(tags or {})},
            remote_job_origin=found.get_remote_origin(),
        )

    def tick(self, sensor):
        """What a tick of a sensor requests, and what it says."""
        found = self.location.get_sensor_execution_data(
            self.instance, self.repository.handle, sensor, None, None, None, None, None
        )
        return list(found.run_requests or ()), found.skip_message or ""


@pytest.fixture(scope="module")
def both():
    names = ("staging", "production")
    target = CompositeTarget([ModuleTarget("tests.dagster.shop_location", "defs", str(ROOT), name) for name in names])
    with (
        dg.instance_for_test() as instance,
        create_test_daemon_workspace_context(target, instance) as workspace,
    ):
        found = workspace.create_request_context()
        yield SimpleNamespace(
            instance=instance, **{name: Location(instance, found.get_code_location(name)) for name in names}
        )


@pytest.fixture(autouse=True)
def clean(both):
    both.instance.wipe()


def test_production_does_not_wait_in_the_queue_for_staging_which_never_ends(both):
    """It stayed QUEUED for as long as staging ran: for ever."""
    running = both.staging.new(JOB, S.STARTED)
    queue = Queue(LIMITS, both.instance.get_runs())
    assert not queue.is_blocked(both.production.new(JOB, S.QUEUED))
    second = both.staging.new(JOB, S.QUEUED)
    assert queue.is_blocked(second) and second.tags[TAG_JOB] == running.tags[TAG_JOB]


def test_a_failure_is_recovered_and_restarted_by_its_own_location_alone(both):
    """Staging recovered production's failure on its own brokers, and started a stream that a person had stopped."""
    both.staging.new(JOB, S.CANCELED)
    failed = both.production.new(JOB, S.FAILURE).run_id
    assert both.staging.tick(FAILURE_SENSOR)[0] == []
    request, beside = both.production.tick(FAILURE_SENSOR)[0]
    assert (request.job_name, request.tags[TAG_RESTART_OF]) == (RECOVERY_JOB, failed)
    assert (beside.job_name, beside.tags[TAG_RESTART_OF]) == (JOB, failed)

    tags = {**request.tags, "dagster/sensor_name": FAILURE_SENSOR}
    recovery = both.production.new(RECOVERY_JOB, S.SUCCESS, tags, request.run_config)
    assert location_of(both.instance.get_run_by_id(recovery.run_id)) == "__repository__@production"
    assert both.staging.tick(LIVENESS_SENSOR)[0] == []
    due = float(request.tags[TAG_NOT_BEFORE])  # the restart strategy pauses a second, and four ticks may take less
    until("the end of the pause before the restart", lambda: time.time() > due, 5)
    [restart] = both.production.tick(LIVENESS_SENSOR)[0]
    assert restart.tags[TAG_RESTART_OF] == failed


def test_recoveries_of_two_locations_run_at_once(both):
    """A recovery that hangs in staging would keep production down."""
    for location in (both.staging, both.production):
        location.new(JOB, S.FAILURE)
    [ours, _], [theirs, _] = (place.tick(FAILURE_SENSOR)[0] for place in (both.staging, both.production))
    assert ours.tags[TAG_RECOVERS] != theirs.tags[TAG_RECOVERS]
    both.staging.new(RECOVERY_JOB, S.STARTED, ours.tags)
    queue = Queue(LIMITS, both.instance.get_runs(dg.RunsFilter(statuses=[S.STARTED])))
    assert not queue.is_blocked(both.production.new(RECOVERY_JOB, S.QUEUED, theirs.tags))
    assert queue.is_blocked(both.staging.new(RECOVERY_JOB, S.QUEUED, ours.tags))


def test_a_location_says_nothing_of_the_runs_of_another(both):
    run = both.production.new(JOB, S.STARTED)
    said = both.staging.tick(FAILURE_SENSOR)[1]
    assert "no run yet" in said and run.run_id[:8] not in said and "STARTED" not in said
    assert "STARTED" in both.production.tick(FAILURE_SENSOR)[1]


@pytest.mark.long
def test_a_backfill_waits_for_no_other_locations(both):
    """Production's days waited for as long as staging filled its own. The process of a run, which is told its code
    location with the plan, takes the same pool as the queue.
    """
    pools = {}
    for place in (both.staging, both.production):
        job = place.repository.get_full_job("paid_orders_backfill")
        plan = place.location.get_execution_plan(job, {}, None, None, both.instance).execution_plan_snapshot
        name = place.location.name
        assert plan.repository_load_data.code_location_name == name
        [pools[name]] = {step.pool for step in plan.steps}
    assert pools == {name: f"backfill_paid_orders_by_day@{name}" for name in ("staging", "production")}
