"""Measures the downtime of a stream after kill -9 of its process, with the sensors' default intervals, and beside it
what a new run of the same query takes with Spark's own sink.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.failover_location import SPARKS_JOB, SPARKS_OUTPUT, SPARKS_REJECTED
from dagster_exactly_once.names import CHECKS_JOB, RECOVERY_JOB
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.admin import Admin
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from platform_assets.constants import PARTITIONS
from platform_assets.flights.names import SINK_ID, STREAM_JOB
from testkit.processes import until
from testkit.site import Site
from testkit.story import Story
from testkit.webserver import Dagster

#: A stream that is not running again by then will not restart.
BACK_S = 300.0

#: How long a stream runs before the kill: its first, slow batches are over by then.
WORKS_S = 10.0


@dataclass(frozen=True)
class FailoverRun:
    """Seconds, from one event to the next.

    Attributes
    ----------
    reported : float
        From the kill until Dagster shows the run as FAILURE.
    noticed : float
        Until the sensor asked for a recovery.
    queued : float
        Until the recovery's process was at work.
    recovered : float
        Until it succeeded.
    wanted : float
        Until the sensor asked for the new run of the stream.
    launched : float
        Until the new run was at work.
    streamed : float
        Until the commit log holds its first decision.
    sparks_own : float
        With Spark's own sink, whose run was killed just before, with its JVM: from before the request for the next run
        until a look, every 0.2 s, finds a new record.
    cold, sparks_cold : float
        From a person's launch of a stream that nothing of before is left of but its checkpoint, until a look, every 0.2
        s, finds a new decision; and the same until it finds a record of Spark's own sink.
    """

    reported: float
    noticed: float
    queued: float
    recovered: float
    wanted: float
    launched: float
    streamed: float
    sparks_own: float
    cold: float
    sparks_cold: float

    @property
    def detection(self) -> float:
        """The time from the kill to the request for a recovery."""
        return self.reported + self.noticed

    @property
    def recovery(self) -> float:
        """The time from that request to the recovery's success."""
        return self.queued + self.recovered

    @property
    def start(self) -> float:
        """The time from the recovery's success to the first new decision."""
        return self.wanted + self.launched + self.streamed

    @property
    def total(self) -> float:
        """The time from the kill to the first new decision."""
        return self.detection + self.recovery + self.start

    @property
    def goal(self) -> float:
        """The downtime that this project has set itself: detection, Spark's own restart, and two seconds."""
        return self.detection + self.sparks_own + 2.0


def measure(folder: Path, repeats: int) -> list[FailoverRun]:
    """Kill a stream ``repeats`` times. Each kill is the first failure in a row, so the restart strategy uses its first
    pause.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with EmbeddedBroker(folder / "broker") as broker:
        site = Site(folder, broker.bootstrap_servers)
        with Dagster(site, "benchmarks.failover_location") as dagster, Story(site, dagster) as story:
            story.config = {}  # a person's launch, with the report interval as delivered
            story.feed.send(100)
            factory = KafkaTransactionalProducerFactory(bootstrap_servers=broker.bootstrap_servers)
            factory.create_topics({SPARKS_OUTPUT: PARTITIONS, SPARKS_REJECTED: PARTITIONS})
            story.terminate(story.start())
            runs = [_round(story, dagster) for _ in range(repeats)]
    shutil.rmtree(folder, ignore_errors=True)
    return runs


def _round(story: Story, dagster: Dagster) -> FailoverRun:
    token, asked, launched = _newest(story), time.monotonic(), time.time()
    run = dagster.launch(STREAM_JOB, story.config)  # by a person, which begins a new streak of failures
    until("the first decision of a launch", lambda: _newest(story) > token, BACK_S, 0.2)
    cold = time.monotonic() - asked
    until("the checks of a start to end, which take processors", lambda: _checked(dagster, launched), BACK_S, 1.0)
    time.sleep(WORKS_S)
    token = _newest(story)
    killed = time.time()
    dagster.kill_run(run)
    until(f"the stream to run again; see {dagster.site.folder}", lambda: _newest(story) > token, BACK_S, 0.2)
    decisions = read_log(story.site.connection, SINK_ID).decisions
    decided = min(d.decided_ms for d in decisions if d.token > token) / 1000
    (failed,) = [r for r in dagster.runs(STREAM_JOB) if r["runId"] == run]
    recovery, new = dagster.runs(RECOVERY_JOB)[0], dagster.runs(STREAM_JOB)[0]
    dagster.terminate(new["runId"])
    dagster.wait_for(new["runId"], "CANCELED", 60)
    moments = [
        killed,
        failed["endTime"],
        recovery["creationTime"],
        recovery["startTime"],
        recovery["endTime"],
        new["creationTime"],
        new["startTime"],
        decided,
    ]
    seconds = [later - earlier for earlier, later in pairwise(moments)]
    sparks_own, sparks_cold = _sparks_own(story, dagster)
    seconds += [sparks_own, cold, sparks_cold]
    return FailoverRun(*seconds)


def _sparks_own(story: Story, dagster: Dagster) -> tuple[float, float]:
    """Return how long a restart takes behind kill -9, and before that a launch."""
    with Admin(story.site.connection) as admin:

        def ends() -> int:
            return sum(w.high for w in admin.watermarks(SPARKS_OUTPUT).values())

        def launched() -> float:
            asked, before = time.monotonic(), ends()
            run = dagster.launch(SPARKS_JOB)
            until("a record of Spark's own sink", lambda: ends() > before, BACK_S, every_s=0.2)
            took = time.monotonic() - asked
            time.sleep(WORKS_S)
            dagster.kill_run(run, tree=True)
            return took

        cold = launched()
        return launched(), cold


def _checked(dagster: Dagster, launched: float) -> bool:
    """Return whether the checks have ended that a sensor requests when a stream begins to work."""
    since = [run for run in dagster.runs(CHECKS_JOB) if run["creationTime"] > launched]
    return bool(since) and not dagster.live(CHECKS_JOB)


def _newest(story: Story) -> int:
    """Return the newest claim that has decided a batch."""
    return max(d.token for d in read_log(story.site.connection, SINK_ID).decisions)
