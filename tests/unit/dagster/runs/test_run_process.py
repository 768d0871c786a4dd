"""Whether the process of a run lives: an id is not enough, and a dead run must not hold its pool forever."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import dagster as dg
import psutil
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.process import fail_dead_runs, process_of, tag_driver, tag_run
from dagster_exactly_once.runs.runs import run_of, runs_on
from dagster_exactly_once.runs.tags import TAG_DRIVER, TAG_HOST, TAG_MACHINE, TAG_PID, TAG_SINK
from dagster_exactly_once.sensors.liveness import verdict
from exactly_once.coordinator.machine import this_machine
from testkit.processes import until
from testkit.sensor_facts import STREAM

HERE = socket.gethostname()


def started(instance, tags, status=dg.DagsterRunStatus.STARTED):
    return create_run_for_test(instance, status=status, tags=tags).run_id


def of_this_process(**changes):
    began = psutil.Process().create_time()
    return {
        TAG_SINK: "s",
        TAG_HOST: HERE,
        TAG_MACHINE: this_machine(),
        TAG_PID: f"{os.getpid()}@{began:.2f}",
        **changes,
    }


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


def test_of_another_process_table_with_this_host_name_nothing_is_known(instance):
    """Containers on the host's network, cloned machines: a healthy run was reported dead, and then recovered."""
    nobody = {TAG_PID: f"{gone()}@1000.00"}
    for machine in ("another", ""):
        started(instance, of_this_process(**{TAG_MACHINE: machine}, **nobody))
    assert [r.alive for r in runs_on(instance, "s")] == [None, None]
    assert fail_dead_runs(instance) == []


def test_a_frozen_driver_of_a_run_is_found_beside_its_healthy_python_process(instance):
    """Mishap: the JVM is stopped, the run's own process is well, and nobody can say why nothing moves."""
    run = started(instance, {})
    tag_run(instance, run, "s")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        tag_driver(instance, run, driver.pid)
        assert [r.frozen for r in runs_on(instance, "s")] == [()]
        driver.send_signal(signal.SIGSTOP)
        until("it is seen", lambda: runs_on(instance, "s")[0].frozen, 10)
        [found] = runs_on(instance, "s")
        assert found.alive is True and [f.process.pid for f in found.frozen] == [driver.pid]
        driver.kill()


def test_a_driver_that_this_process_did_not_start_is_not_looked_for(instance):
    """In cluster mode it is on another host, where its id is another process here."""
    run = started(instance, {})
    tag_run(instance, run, "s")
    tag_driver(instance, run, 1)
    assert instance.get_run_by_id(run).tags[TAG_DRIVER] == "1"
    assert [r.frozen for r in runs_on(instance, "s")] == [()]


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


WORKER = """
import sys, dagster as dg
from dagster_exactly_once.runs.process import tag_run
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    tag_run(instance, sys.argv[2], "orders")
    print("tagged", flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
def test_a_healthy_run_in_another_process_table_of_the_same_host_name_is_not_reported(tmp_path):
    """Mishap: containers on the host's network, cloned machines. The run's process id is another process here, or none:
    the sensor reported the run as failed, a recovery fenced it, and a restart did the same again.
    """
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this system gives no process namespace")
    (tmp_path / "dagster.yaml").write_text("")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        run = create_run_for_test(instance, job_name="orders", status=dg.DagsterRunStatus.STARTED)
        command = [*apart, sys.executable, "-c", WORKER, str(tmp_path), run.run_id]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            assert worker.stdout.readline() == b"tagged\n"
            found = replace(run_of(instance.get_run_record_by_id(run.run_id)), started=1.0)
            assert found.host == socket.gethostname() and found.alive is None
            said = verdict(StreamHistory(901.0), [found], STREAM)
            assert said.dead == () and "does nothing" in said.message
            assert worker.poll() is None
            worker.stdin.close()
