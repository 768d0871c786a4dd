"""A frozen run and the rest of its code location, with a real code server, a real daemon and real signals."""

import contextlib
import threading
import time

import psutil
import pytest
from dagster_graphql import DagsterGraphQLClientError

from dagster_exactly_once.names import LIVENESS_SENSOR
from testkit.processes import until
from testkit.site import Site
from testkit.webserver import Dagster

pytestmark = pytest.mark.long

NOBODY = "127.0.0.1:1"
FROZEN_S = 10.0


class Location(Dagster):
    """The streams of :mod:`tests.dagster.frozen_location`."""

    def __init__(self, site):
        super().__init__(site, "tests.dagster.frozen_location")
        self.env |= {"EXACTLY_ONCE_RESTART_END_FROZEN_AFTER_S": str(FROZEN_S)}

    def freeze(self, run_id):
        """SIGSTOP for the process of a run."""
        process = psutil.Process(self.pid(run_id))
        process.suspend()
        until("it is stopped", lambda: process.status() == psutil.STATUS_STOPPED, 10)
        return process

    def press_terminate(self, run_id):
        """The page shows an error when nothing answers within a minute."""
        with contextlib.suppress(DagsterGraphQLClientError):
            self.terminate(run_id)

    def begin(self, job):
        """Launch a job; return its run once its process has said which it is."""
        run = self.launch(job)
        self.pid(run)
        return run


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    with Location(Site(tmp_path_factory.mktemp("site"), NOBODY)) as running:
        yield running


def test_the_other_streams_go_on_and_the_frozen_run_is_ended_after_the_policys_time(location):
    """Mishap: readers wait behind a stopped driver until a person comes; the streams beside it must not notice."""
    frozen, beside = location.begin("orders"), location.begin("clicks")
    process = location.freeze(frozen)
    location.wait_for(location.launch("other"), "SUCCESS", 60)
    told = f"kill -9 {process.pid}"
    until("a tick names it", lambda: any(told in said for said in location.said(LIVENESS_SENSOR)), 60, every_s=1)
    location.wait_for(frozen, "FAILURE", 90)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert any("HEALTH-FROZEN" in said and told in said for said in location.said(LIVENESS_SENSOR))
    assert location.status(beside) == "STARTED"
    location.wait_for(location.launch("other"), "SUCCESS", 60)
    location.terminate(beside)
    location.wait_for(beside, "CANCELED", 60)


def test_a_terminated_frozen_run_blocks_every_start_until_the_sensor_lets_it_go_on(location):
    """Mishap: Terminate of one frozen run. Dagster sets an event of the run under the lock that every start needs, and
    waits for the run to take it: no stream of the code location starts, no recovery, until it runs again.
    """
    location.switch(LIVENESS_SENSOR, False)
    frozen = location.begin("orders")
    process = location.freeze(frozen)
    pressing = threading.Thread(target=location.press_terminate, args=(frozen,))
    pressing.start()
    until("it is asked to end", lambda: location.status(frozen) == "CANCELING", 30)
    waiting = location.launch("other")
    until("its start is tried", lambda: location.status(waiting) == "STARTING", 30)
    time.sleep(10)  # nothing tells that a start does not come: others take 2 s
    assert location.status(waiting) == "STARTING" and process.status() == psutil.STATUS_STOPPED

    location.switch(LIVENESS_SENSOR, True)
    location.wait_for(frozen, "CANCELED", 45)
    location.wait_for(waiting, "SUCCESS", 45)
    pressing.join(60)
    location.wait_for(location.launch("other"), "SUCCESS", 60)
