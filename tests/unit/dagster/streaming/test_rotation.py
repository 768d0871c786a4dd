"""A long run ends when its successor is ready, and not before."""

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.runs.tags import TAG_CONTINUES, TAG_READY, TAG_ROTATES
from dagster_exactly_once.streaming.single_writer import PATIENCE_S, Rotation

S = dg.DagsterRunStatus


class Op:
    """The op of a long run."""

    def __init__(self, instance):
        self.instance, self.log, self.said = instance, self, []
        self.run = create_run_for_test(instance, job_name="stream", status=S.STARTED)
        self.rotation = Rotation(self, 100.0)

    def info(self, text):
        self.said.append(text)

    warning = info

    @property
    def asks(self):
        return self.instance.get_run_by_id(self.run.run_id).tags.get(TAG_ROTATES)

    def successor(self, status=S.STARTED, ready=True):
        run = create_run_for_test(
            self.instance, job_name="stream", status=status, tags={TAG_CONTINUES: self.run.run_id}
        )
        if ready:
            self.instance.add_run_tags(run.run_id, {TAG_READY: run.run_id})


@pytest.fixture
def op():
    with dg.DagsterInstance.ephemeral() as instance:
        yield Op(instance)


def test_a_young_run_asks_for_nothing(op):
    assert not op.rotation.due(99.9) and op.asks is None


def test_a_long_run_asks_for_the_next_one_and_goes_on_until_that_is_ready(op):
    """Between the end of one and the first batch of the next, records would wait for the start of Spark."""
    assert not op.rotation.due(100.0) and op.asks == f"{op.run.run_id}/1"
    op.successor(ready=False)
    assert not op.rotation.due(101.0)
    op.successor()
    assert op.rotation.due(102.0)


def test_a_successor_that_has_ended_is_not_ready(op):
    """Its code may have failed after it had its session: nobody would continue the stream."""
    op.rotation.due(100.0)
    op.successor(S.FAILURE)
    assert not op.rotation.due(101.0)


def test_a_run_without_a_successor_goes_on_and_asks_again_later(op):
    """New code that does not load must not take down a stream that works."""
    op.rotation.due(100.0)
    assert not op.rotation.due(100.0 + PATIENCE_S + 1) and "so this run continues" in op.said[-1]
    assert not op.rotation.due(100.0 + PATIENCE_S + 2) and op.asks == f"{op.run.run_id}/1"
    assert not op.rotation.due(100.0 + PATIENCE_S + 101) and op.asks == f"{op.run.run_id}/2"
