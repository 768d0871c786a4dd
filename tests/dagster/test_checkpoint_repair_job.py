"""The job that repairs a checkpoint, on a real broker: what is torn, what it does when asked, and what it writes."""

import json
import socket

import dagster as dg
import psutil
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.declare.config import ANOTHER_SINK
from dagster_exactly_once.runs.history import classify
from dagster_exactly_once.runs.process import tag_run
from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.coordinator.machine import this_machine
from exactly_once.deadline import Deadline
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.records import Claim, Decision
from exactly_once.tools.operation import recover
from platform_assets.definitions import defs
from platform_assets.flights.names import STREAM_JOB
from testkit import broker as brokers
from testkit.dagster_runs import audited
from testkit.dead_sink import DEAD

QUERY = "6f1b9a2e-0000-4000-8000-1234567890ab"


@pytest.fixture(autouse=True)
def servers(bootstrap_servers, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", bootstrap_servers)


class Torn:
    """Two decided batches and a planned one, by an owner that is dead by default."""

    def __init__(self, connection, root, pid=DEAD, started=0.0):
        self.connection, self.root, self.sink_id = connection, root, brokers.fresh_name("sink")
        self.write("metadata", json.dumps({"id": QUERY}))
        log = CommitLog(connection, self.sink_id)
        claim = Claim(1, QUERY, 0, "stream", socket.gethostname(), pid, str(root), started, machine=this_machine())
        log.claim(lambda state: claim, Deadline(30))
        for n in range(3):
            self.write(f"offsets/{n}", self.offsets(n))
            if n < 2:
                self.write(f"commits/{n}", 'v1\n{"nextBatchWatermarkMs":0}')
                text = self.offsets(n)
                log.append(Decision(QUERY, n, 1, (), digest_of(text), 5, 0, offsets=text), Deadline(30))
        log.close()

    def offsets(self, n):
        return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"in":{{"0":{n}}}}}'

    def write(self, name, text=""):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def text(self, name):
        return (self.root / name).read_text()


@pytest.fixture
def torn(connection, tmp_path):
    return Torn(connection, tmp_path / "checkpoint")


def repair(instance, sink_id, **config):
    return defs.resolve_job_def("exactly_once_checkpoint_repair").execute_in_process(
        instance=instance,
        run_config={"ops": {"examine": {"config": {"stream": ANOTHER_SINK, "sink_id": sink_id, **config}}}},
        raise_on_error=False,
    )


def actions(observation):
    return {r.data["file"]: r.data["action"] for r in observation["findings"].records} if observation else {}


def test_by_default_it_only_says_what_is_torn_in_the_checkpoint_of_the_stream(instance, torn):
    """A person on call looks first, and does not know the location by heart."""
    torn.write("offsets/1")
    result = repair(instance, torn.sink_id, reason="a test")
    assert result.success and torn.text("offsets/1") == ""
    [said] = audited(result)
    assert said["checkpoint_repair"] == "dry run" and said["repair_reason"] == "a test"
    assert said["checkpoint"] == str(torn.root) and actions(said) == {"offsets/1": "rebuild"}
    assert [e.step_key for e in result.all_events if e.is_step_skipped] == ["put_right"]
    assert read_log(torn.connection, torn.sink_id).owner.token == 1


@pytest.mark.long
def test_it_repairs_and_says_who_did_what_and_where_the_copies_are(instance, torn):
    torn.write("offsets/1")
    torn.write("metadata")
    result = repair(instance, torn.sink_id, dry_run=False)
    assert result.success
    assert torn.text("offsets/1") == torn.offsets(1) and json.loads(torn.text("metadata")) == {"id": QUERY}
    began, ended = audited(result)
    assert (began["checkpoint_repair"], ended["checkpoint_repair"]) == ("began", "ended")
    assert ended["repair_by"] == "a person" and ended["claim"] == 2 and "done" in ended["sentence"]
    [kept] = (torn.root / "_repairs").iterdir()
    assert ended["kept_in"] == str(kept) and result.run_id in json.loads((kept / "audit.json").read_text())["by"]["who"]
    again = repair(instance, torn.sink_id, dry_run=False)
    assert again.success and "nothing is torn" in audited(again)[0]["sentence"]


@pytest.mark.long
def test_a_batch_is_planned_anew_only_when_that_is_typed_out(instance, torn):
    """The way out of a batch that is too long, from the launchpad; and no default does it."""
    assert repair(instance, torn.sink_id, dry_run=False).success and torn.text("offsets/2")
    dry = repair(instance, torn.sink_id, plan_anew=True)
    typed = audited(dry)[0]["consequence"]
    assert typed == f"plan batch 2 of {torn.sink_id} anew" and torn.text("offsets/2")
    for wrong in ("", "yes", typed.replace("2", "1")):
        result = repair(instance, torn.sink_id, dry_run=False, plan_anew=True, consequence=wrong)
        assert not result.success and torn.text("offsets/2")
        why = classify(instance, result.run_id)
        assert why.code == "EO-REFUSED" and typed in why.remedy
    assert repair(instance, torn.sink_id, dry_run=False, plan_anew=True, consequence=typed).success
    assert not (torn.root / "offsets" / "2").exists()


@pytest.mark.long
def test_what_cannot_be_repaired_fails_with_what_is_known(instance, torn):
    """After a green run, no person would look."""
    torn.write("commits/2")
    result = repair(instance, torn.sink_id, dry_run=False)
    assert not result.success
    why = classify(instance, result.run_id)
    assert (why.code, why.heals) == ("EO-CHECKPOINT", False) and "commits/2" in why.sentence
    assert repair(instance, torn.sink_id).success  # a dry run only says so


@pytest.mark.long
def test_nothing_is_changed_while_somebody_works_on_the_sink_unless_told_to_take_over(
    instance, connection, tmp_path, torn, monkeypatch
):
    """Files that change below a stream at work: a run of Dagster's, or a driver that Dagster does not know."""
    monkeypatch.setattr(recover, "LEAVING_S", 0.0)
    me = psutil.Process()
    unknown = Torn(connection, tmp_path / "unknown", me.pid, me.create_time())
    run = create_run_for_test(instance, job_name=STREAM_JOB, status=dg.DagsterRunStatus.STARTED)
    tag_run(instance, run.run_id, torn.sink_id)
    fence = f"fence the driver {me.pid} on {socket.gethostname()}"
    for busy, typed in ((torn, ""), (unknown, fence)):
        busy.write("commits/1")
        result = repair(instance, busy.sink_id, dry_run=False)
        assert not result.success and classify(instance, result.run_id).code == "EO-SINK-BUSY"
        assert busy.text("commits/1") == ""
        assert repair(instance, busy.sink_id, dry_run=False, take_over=True, fence=typed).success
        assert not (busy.root / "commits" / "1").exists()
