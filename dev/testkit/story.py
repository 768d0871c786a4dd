"""A stream in the hands of an operator: what the tests of the UI's interface, of the browser and of survival share."""

from __future__ import annotations

import time
from typing import Any, Self

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.private import RUN_KEY_TAG
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.runs.tags import TAG_ATTEMPT, TAG_BESIDE, TAG_CAUSE, TAG_RESTART_OF
from exactly_once.commitlog.commit_log import read_log
from platform_assets.flights.names import SINK_ID, STREAM_JOB, TRANSACTIONS
from testkit import oracle
from testkit.flights import OUTPUTS, Feed, assert_exactly_once, await_caught_up
from testkit.processes import until
from testkit.site import Site
from testkit.webserver import Dagster

#: What the README promises.
TERMINATE_S = 15

#: Departures before the stream's start, which are the backfill's to write; three whole days of UTC and some more.
BEFORE = 3_000

#: What nobody has promised may take its time: on two cores, other tests run beside this one.
PATIENCE_S = 180

#: From the death of a stream to the next one at work; a busy machine with two cores takes most of it for two starts.
BACK_S = 240


def stream_config(**config: Any) -> dict[str, Any]:
    """Return the run configuration of the stream: a short report interval, as the tests look at reports."""
    return {"ops": {"stream_flight_delays": {"config": {"report_interval_s": 1.0, **config}}}}


class Story:
    """One stream on one site, with a feed, told in order."""

    def __init__(self, site: Site, dagster: Dagster, before: int = 0):
        self.site = site
        self.dagster = dagster
        self.before = before
        self.feed = Feed(site.bootstrap_servers)
        if before:
            self.feed.send(before)
        self.config = stream_config(start_from="latest" if before else "earliest")
        root = str(site.folder / "checkpoints")
        self.checkpoint = CheckpointReader(root=root).location(site.kafka.cluster_id(), SINK_ID)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.feed.__exit__(*error)

    def newest_batch(self) -> int:
        """Return the newest decided batch, -1 before there is one."""
        self.feed.check()
        decisions = read_log(self.site.connection, SINK_ID).decisions
        return max((d.batch_id for d in decisions), default=-1)

    def progressed_since(self, moment: float) -> bool:
        """Return whether a batch was decided after ``moment``, in seconds since the epoch."""
        self.feed.check()
        log = read_log(self.site.connection, SINK_ID)
        return any(d.decided_ms > moment * 1000 for d in log.decisions)

    def await_progress(self, batches: int = 2, timeout_s: float = PATIENCE_S) -> None:
        """Wait for that many decided batches."""
        first = self.newest_batch()
        until("decided batches", lambda: self.newest_batch() >= first + batches, timeout_s, every_s=0.3)

    def start(self) -> str:
        """Launch the stream and wait until it is at work; returns the run's id."""
        run = self.dagster.launch(STREAM_JOB, self.config)
        self.await_work(run)
        return run

    def await_work(self, run: str) -> None:
        """Wait until a run of the stream has its first offsets, then until it decides batches.

        Only then is there input: what is fed before a stream's first start belongs to the backfill.
        """
        self.dagster.wait_for(run, "STARTED", PATIENCE_S)
        checkpoints = CheckpointReader(root="")
        until("the stream's first offsets", lambda: checkpoints.first_offsets(self.checkpoint), PATIENCE_S, every_s=0.3)
        self.feed.trickle()
        self.await_progress()

    def terminate(self, run: str) -> float:
        """Terminate a run; returns the seconds until it was CANCELED."""
        self.dagster.terminate(run)
        return self.dagster.wait_for(run, "CANCELED", TERMINATE_S)

    def await_restart(self, run: str, timeout_s: float = BACK_S) -> tuple[str, str]:
        """Wait for what the sensors do about a run that died; returns the ids of the recovery and of the new run."""
        end = time.monotonic() + timeout_s

        def left() -> float:
            return max(1.0, end - time.monotonic())

        def successors() -> list[str]:
            return [r["runId"] for r in self.dagster.runs(STREAM_JOB, **{TAG_RESTART_OF: run})]

        until("FAILURE", lambda: self.dagster.status(run) == "FAILURE", left(), every_s=0.3)
        until("a recovery", lambda: self.recoveries(run), left(), every_s=0.3)
        until("the new run", successors, left(), every_s=0.3)
        new = successors()[0]
        self.dagster.wait_for(new, "STARTED", left())
        self.await_progress(timeout_s=left())
        return self.recoveries(run)[0]["runId"], new

    def recoveries(self, run: str) -> list[dict[str, Any]]:
        """Return the recoveries that were launched because ``run`` failed."""
        return self.dagster.runs(RECOVERY_JOB, **{TAG_RESTART_OF: run})

    def assert_restarted(self, killed: str, recovery: str, new: str) -> None:
        """Assert that the sensors recovered the sink of a killed run, started the stream again, and said why; and that
        all that was fed came out once.
        """
        self.dagster.wait_for(recovery, "SUCCESS", PATIENCE_S)
        tags = self.dagster.tags(recovery)
        assert tags[TAG_RESTART_OF] == killed and killed[:8] in tags[TAG_CAUSE]
        requested = tags[RUN_KEY_TAG]
        tags = self.dagster.tags(new)
        assert tags[TAG_RESTART_OF] == killed and tags[TAG_ATTEMPT] == "1" and killed[:8] in tags[TAG_CAUSE]
        assert tags[TAG_BESIDE] == requested, "both in one tick"
        assert len(self.recoveries(killed)) == 1
        self.assert_one_stream(new)
        [ended] = self.dagster.recoveries(TRANSACTIONS)
        assert (ended["recovery_by"], ended["recovery_at_rest"]) == ("sensor exactly_once_run_failure", True)
        self.assert_exactly_once()

    def assert_one_stream(self, run: str) -> None:
        """Assert that ``run`` is the one live run of the stream, and nothing else waits to become one."""
        assert [r["runId"] for r in self.dagster.live(STREAM_JOB)] == [run]
        assert self.dagster.live(RECOVERY_JOB) == []

    def assert_exactly_once(self, backfilled: int = 0) -> None:
        """Assert that all that was fed came out once, the stream being at rest or alive.

        What the backfill has not written (all of it, when ``backfilled`` is 0) is missing.
        """
        self.feed.pause()
        await_caught_up(self.site.connection, self.checkpoint)
        assert_exactly_once(self.site.connection, self.feed.sent, self.before - backfilled, bool(backfilled))

    def assert_settled(self) -> None:
        """Assert that nothing of the sink is under way: no open transaction, no reader held back, no open decision."""
        oracle.assert_settled(self.site.connection, SINK_ID, OUTPUTS)
