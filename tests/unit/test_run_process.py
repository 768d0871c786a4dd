"""Whether the process of a run lives: an id is not enough, and a dead run must not hold its pool forever."""

import os
import socket
import subprocess
import sys

import dagster as dg
import psutil
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.resources.run_process import (
    TAG_HOST,
    TAG_PID,
    TAG_SINK,
    fail_dead_runs,
    process_of,
    runs_on,
    tag_run,
)

HERE = socket.gethostname()


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def started(instance, tags, status=dg.DagsterRunStatus.STARTED):
    return create_run_for_test(instance, status=status, tags=tags).run_id


def of_this_process(**changes):
    began = psutil.Process().create_time()
    return {TAG_SINK: "s", TAG_HOST: HERE, TAG_PID: f"{os.getpid()}@{began:.2f}", **changes}


def gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_of_a_living_process_is_alive(instance):
    run = started(instance, {})
    tag_run(instance, run, "s")
    (found,) = runs_on(instance, "s")
    assert (found.run_id, found.pid, found.alive) == (run, os.getpid(), True)
    assert runs_on(instance, "other") == []


def test_an_id_that_was_given_to_another_process_is_not_the_run(instance):
    started(instance, of_this_process(**{TAG_PID: f"{os.getpid()}@1000.00"}))
    assert [r.alive for r in runs_on(instance, "s")] == [False]


def test_of_another_machine_nothing_is_known(instance):
    started(instance, of_this_process(**{TAG_HOST: "elsewhere"}))
    assert [r.alive for r in runs_on(instance, "s")] == [None]


def test_a_re_execution_is_not_taken_for_the_dead_process_that_it_repeats(instance):
    """Dagster copies the tags: a person who starts a killed run again would see it reported dead within seconds."""
    killed = started(instance, {})
    tag_run(instance, killed, "s")
    instance.add_run_tags(killed, {TAG_PID: f"{gone()}@1000.00"})
    again = started(instance, instance.get_run_by_id(killed).tags)
    found = {r.run_id: r.alive for r in runs_on(instance, "s")}
    assert found == {killed: False, again: None}
    tag_run(instance, again, "s")
    assert process_of(instance.get_run_by_id(again)).alive is True


def test_dead_runs_are_reported_and_all_others_left_alone(instance):
    alive = started(instance, of_this_process())
    elsewhere = started(instance, of_this_process(**{TAG_HOST: "elsewhere"}))
    over = started(instance, {}, dg.DagsterRunStatus.SUCCESS)
    dead = started(instance, of_this_process(**{TAG_PID: f"{gone()}@1000.00"}))
    never_began = started(instance, {}, dg.DagsterRunStatus.STARTING)
    assert set(fail_dead_runs(instance)) == {dead, never_began}
    status = {r.run_id: r.status for r in instance.get_runs()}
    assert status[dead] == status[never_began] == dg.DagsterRunStatus.FAILURE
    assert status[alive] == status[elsewhere] == dg.DagsterRunStatus.STARTED
    assert status[over] == dg.DagsterRunStatus.SUCCESS
    assert fail_dead_runs(instance) == []
