"""One run of a stream writes at a time: which run waits for which, until when, and when a long one ends."""

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.private import RUN_KEY_TAG
from dagster_exactly_once.recovery.owners import SinkBusy
from dagster_exactly_once.runs import process
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.runs.tags import (
    TAG_BESIDE,
    TAG_CONTINUES,
    TAG_JOB,
    TAG_PID,
    TAG_READY,
    TAG_ROTATES,
    TAG_SINK,
    TAG_STREAM,
)
from dagster_exactly_once.streaming import single_writer as module
from dagster_exactly_once.streaming.single_writer import PATIENCE_S, Canceled, Rotation, SingleWriter
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.tools.operation.recover import LEAVING_S
from testkit.sensor_facts import STREAM

S = dg.DagsterRunStatus


class Op:
    """The op of a run of the stream, as far as its turn looks at it."""

    def __init__(self, instance, status=S.STARTED, sink_id="s", spec=STREAM, **run):
        self.instance, self.log, self.said = instance, self, []
        run = {"job_name": "stream", "tags": {TAG_STREAM: "stream"}, **run}
        self.run = create_run_for_test(instance, status=status, **run)
        self.writer, self.rotation = SingleWriter(self, spec, sink_id), Rotation(self, 100.0)

    def info(self, text):
        self.said.append(text)

    warning = info

    def tag(self, name):
        return self.instance.get_run_by_id(self.run.run_id).tags.get(name)

    def continued(self, status=S.STARTED, ready=True):
        """Start a run that continues this one."""
        new = Op(self.instance, status, tags={TAG_CONTINUES: self.run.run_id})
        if ready:
            self.instance.add_run_tags(new.run.run_id, {TAG_READY: new.run.run_id})

    def ends(self, status=S.SUCCESS):
        self.instance.handle_new_event(ended(self.run, status))


def ended(run, status):
    kind = {S.SUCCESS: "PIPELINE_SUCCESS", S.FAILURE: "PIPELINE_FAILURE", S.CANCELED: "PIPELINE_CANCELED"}[status]
    event = dg.DagsterEvent(event_type_value=kind, job_name=run.job_name)
    return dg.EventLogEntry(None, "info", "", run.run_id, 0.0, dagster_event=event)


def beside(instance, status, tag=TAG_BESIDE):
    """A run launched beside a recovery of this status, or to continue a run."""
    job, key = (RECOVERY_JOB, {RUN_KEY_TAG: "s/failure/r0"}) if tag == TAG_BESIDE else ("stream", {})
    other = create_run_for_test(instance, job_name=job, status=status, tags={TAG_STREAM: "stream", **key})
    waiting = Op(instance, tags={TAG_STREAM: "stream", tag: key.get(RUN_KEY_TAG, other.run_id)})
    waiting.writer.begin()
    return other, waiting


def test_a_run_of_materialize_keeps_later_runs_in_the_queue_once_it_writes(instance):
    """It is launched without the tag of the stream's job, and a second run would wait in a process of its own."""
    materialized, queued = Op(instance, job_name="__ASSET_JOB", tags={}), Op(instance, tags={TAG_JOB: "by its job"})
    for op in (materialized, queued):
        SingleWriter(op, STREAM, "s", "orders of staging").begin()
        op.ends()
    assert materialized.tag(TAG_JOB) == "orders of staging" and queued.tag(TAG_JOB) == "by its job"
    trial = Op(instance, tags={})
    SingleWriter(trial, STREAM, "trial", "orders of staging").begin()
    assert trial.tag(TAG_JOB) is None  # it tries out a sink of its own, and holds back nobody


def test_a_run_waits_for_no_run_of_another_code_location(instance):
    """Its stream, of the same name on another cluster, never ends."""
    label = {TAG_STREAM: "stream", ".dagster/repository": "__repository__@production"}
    create_run_for_test(instance, job_name="stream", status=S.STARTED, tags=label)
    ours = Op(instance, tags={**label, ".dagster/repository": "__repository__@staging"})
    ours.writer.begin()
    assert ours.tag(TAG_SINK) == "s" and ours.said == []


@pytest.mark.parametrize("tag", [TAG_BESIDE, TAG_CONTINUES])
@pytest.mark.parametrize("status", [S.NOT_STARTED, S.STARTING, S.STARTED, S.CANCELING])
def test_a_query_waits_for_the_recovery_or_the_run_that_it_follows(instance, status, tag):
    """It would fence a long run in the middle of a batch, or be fenced by the recovery and fail at once. Without the
    tag of the sink, the recovery does not take the waiting run for one that writes.
    """
    _, waiting = beside(instance, status, tag)
    assert not waiting.writer.ready() and waiting.tag(TAG_SINK) is None


def test_a_run_that_waits_says_that_it_is_ready(instance):
    """The long run ends only then: a run that never comes must not end the one before it."""
    _, waiting = beside(instance, S.STARTED, TAG_CONTINUES)
    assert waiting.tag(TAG_READY) is None
    waiting.writer.ready()
    assert waiting.tag(TAG_READY) == waiting.run.run_id


@pytest.mark.parametrize("tag", [TAG_BESIDE, TAG_CONTINUES])
def test_a_query_starts_once_what_it_follows_has_ended(instance, tag):
    """From then on the run has the tag of its sink: a recovery that a person launches now must see that it works."""
    other, waiting = beside(instance, S.STARTED, tag)
    assert not waiting.writer.ready()
    instance.handle_new_event(ended(other, S.SUCCESS))
    assert waiting.writer.ready() and waiting.tag(TAG_SINK) == "s"


def test_a_failed_recovery_leaves_the_sink_to_the_start_of_the_run(instance):
    """That recovers the sink too; a run that gave up here would leave readers waiting for one more round."""
    _, waiting = beside(instance, S.FAILURE)
    assert waiting.writer.ready() and "failed; this run recovers" in waiting.said[-1]


@pytest.mark.parametrize("tag", [TAG_BESIDE, TAG_CONTINUES])
def test_a_run_whose_predecessor_a_person_canceled_ends(instance, tag):
    """That person decided that nothing happens to the sink now."""
    _, waiting = beside(instance, S.CANCELED, tag)
    with pytest.raises(Canceled, match="a person canceled run"):
        waiting.writer.ready()
    assert not Canceled.restart_heals and waiting.tag(TAG_SINK) is None


def test_a_run_that_was_deleted_is_not_waited_for(instance):
    other, waiting = beside(instance, S.STARTED)
    instance.delete_run(other.run_id)
    assert waiting.writer.ready()


def test_the_wait_with_an_open_session_has_an_end(instance, monkeypatch):
    """Spark would hold its memory forever beside a recovery that hangs."""
    monkeypatch.setattr(module, "LONGEST_S", 0.0)
    _, waiting = beside(instance, S.STARTED)
    with pytest.raises(SinkBusy, match="still STARTED after 0 s"):
        waiting.writer.ready()


def test_a_re_execution_waits_for_no_recovery_of_the_past(instance):
    """Dagster copies the tags: a person who launches the run again would be refused for one that somebody canceled."""
    create_run_for_test(instance, job_name=RECOVERY_JOB, status=S.CANCELED, tags={RUN_KEY_TAG: "s/failure/r0"})
    again = Op(instance, tags={TAG_STREAM: "stream", TAG_BESIDE: "s/failure/r0"}, parent_run_id="r1", root_run_id="r1")
    again.writer.begin()
    assert again.writer.ready() and again.tag(TAG_SINK) == "s"


class Waited(Exception):
    """Raised in place of the sleep between two looks."""


@pytest.fixture
def no_sleep(monkeypatch):
    def sleep(seconds):
        raise Waited

    monkeypatch.setattr(module.time, "sleep", sleep)


def begun(op):
    op.writer.begin()
    return op


def test_the_later_of_two_runs_waits_for_the_earlier(instance, no_sleep):
    """Without a limit in the Dagster instance both would run, and Kafka would fence the earlier one."""
    first, second = begun(Op(instance)), Op(instance)
    with pytest.raises(Waited):
        second.writer.begin()
    assert f"Run {first.run.run_id[:8]} of stream works " in second.said[0] and " sink s" in second.said[0]
    first.ends()
    begun(second)
    assert second.tag(TAG_SINK) == "s"


def test_a_run_that_waits_for_a_frozen_one_does_not_advise_to_terminate_it(instance, no_sleep, monkeypatch):
    """Mishap: Terminate of a frozen run blocks every start in the code location."""
    stopped = (Frozen(Process("vm", "m", 7, 1.0), State.STOPPED),)
    begun(Op(instance))
    second = Op(instance)
    monkeypatch.setattr(process, "frozen_among", lambda _: stopped)
    with pytest.raises(Waited):
        second.writer.begin()
    assert "HEALTH-FROZEN" in second.said[0] and "do not press Terminate" in second.said[0]


def test_a_run_that_writes_already_comes_first_however_late_it_was_launched(instance, no_sleep):
    """The queue may start runs in any order: an earlier launch must not fence what works."""
    early, late = Op(instance, S.STARTED), Op(instance, S.STARTED)
    tag_run(instance, late.run.run_id, "s", {module.TAG_WRITES: late.run.run_id})
    with pytest.raises(Waited):
        early.writer.begin()
    late.ends()
    begun(early)


def test_of_two_runs_that_begin_at_once_exactly_one_waits(instance, no_sleep):
    """Each waiting for the other, the stream would be down until a person looks."""
    early, late = Op(instance), Op(instance)
    with pytest.raises(Waited):
        late.writer.begin()
    begun(early)


def test_a_re_execution_in_the_queue_blocks_nobody(instance, no_sleep):
    """It has the tags of the run that it repeats, the turn among them."""
    tags = {TAG_STREAM: "stream", TAG_SINK: "s", module.TAG_WRITES: "r1"}
    early = Op(instance)
    late = Op(instance, tags=tags, parent_run_id="r1", root_run_id="r1")
    begun(early)
    with pytest.raises(Waited):
        late.writer.begin()


def test_a_run_whose_process_is_gone_is_not_waited_for(instance, no_sleep):
    """Until a sensor reports it, Dagster shows it as running."""
    first = begun(Op(instance))
    instance.add_run_tags(first.run.run_id, {TAG_PID: "999999999@1"})
    begun(Op(instance))


def test_a_trial_on_a_sink_of_its_own_waits_for_nobody(instance, no_sleep):
    begun(Op(instance))
    trial = begun(Op(instance, sink_id="trial"))
    assert trial.tag(TAG_SINK) == "trial"


def test_a_run_waits_for_the_op_of_a_run_that_dagster_has_given_up_and_then_takes_the_sink(instance, report, no_sleep):
    """Its status is final a quarter of a second after the end of its time; a tag limit of one lets the next run begin
    beside the op that still stops, and fences it in the middle of a batch.
    """

    def given_up(ago_s):
        op = begun(Op(instance))
        report(op.run.run_id, "STEP_START", "x")
        report(op.run.run_id, "PIPELINE_FAILURE", ago_s=ago_s)
        return op

    stops, new = given_up(0.25), Op(instance)
    with pytest.raises(Waited):
        new.writer.begin()
    assert new.tag(TAG_SINK) is None and f"Run {stops.run.run_id[:8]} of stream is FAILURE" in new.said[-1]
    report(stops.run.run_id, "STEP_FAILURE", "x")
    assert begun(new).tag(TAG_SINK) == "s"
    new.ends()
    given_up(LEAVING_S + 1)
    assert begun(Op(instance)).tag(TAG_SINK) == "s"  # the start fences one that hangs


# -- a long run ends when its successor is ready, and not before -----------------------------------------------------


@pytest.fixture
def op(instance):
    return Op(instance)


def test_a_young_run_asks_for_nothing(op):
    assert not op.rotation.due(99.9) and op.tag(TAG_ROTATES) is None


def test_a_long_run_asks_for_the_next_one_and_goes_on_until_that_is_ready(op):
    """Between the end of one and the first batch of the next, records would wait for the start of Spark."""
    assert not op.rotation.due(100.0) and op.tag(TAG_ROTATES) == f"{op.run.run_id}/1"
    op.continued(ready=False)
    assert not op.rotation.due(101.0)
    op.continued()
    assert op.rotation.due(102.0)


def test_a_successor_that_has_ended_is_not_ready(op):
    """Its code may have failed after it had its session: nobody would continue the stream."""
    op.rotation.due(100.0)
    op.continued(S.FAILURE)
    assert not op.rotation.due(101.0)


def test_a_run_without_a_successor_goes_on_and_asks_again_later(op):
    """New code that does not load must not take down a stream that works."""
    op.rotation.due(100.0)
    assert not op.rotation.due(100.0 + PATIENCE_S + 1) and "so this run continues" in op.said[-1]
    assert not op.rotation.due(100.0 + PATIENCE_S + 2) and op.tag(TAG_ROTATES) == f"{op.run.run_id}/1"
    assert not op.rotation.due(100.0 + PATIENCE_S + 101) and op.tag(TAG_ROTATES) == f"{op.run.run_id}/2"
