"""An instance of Dagster's for tests that need one, and the events that a run reports to it."""

import time

import dagster as dg
import pytest
from dagster._core.execution.plan.objects import StepFailureData

from dagster_exactly_once.private import ErrorSource


@pytest.fixture(scope="module")
def storage():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def instance(storage):
    """An instance without runs; making a new one for each test takes longer."""
    storage.wipe()
    return storage


@pytest.fixture
def report(instance):
    """Report an event of a run of the job ``stream``, or of its ``step``, of so many seconds ago."""

    def report(run_id, kind, step=None, ago_s=0.0):
        data = StepFailureData(None, None, error_source=ErrorSource.INTERRUPT) if kind == "STEP_FAILURE" else None
        event = dg.DagsterEvent(kind, "stream", step_key=step, event_specific_data=data)
        at = time.time() - ago_s
        instance.handle_new_event(dg.EventLogEntry(None, "info", "", run_id, at, step, "stream", event))

    return report
