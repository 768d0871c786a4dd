"""Runs and histories for the tests of verdicts, without Dagster's storage."""

from __future__ import annotations

from typing import Any

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.private import RUN_KEY_TAG
from dagster_exactly_once.runs.failures import Failure, failure
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_ATTEMPT, TAG_NOT_BEFORE, TAG_RESTART_OF

NOW = 100_000.0


def spec(name: str = "stream", sink_id: str = "s") -> StreamSpec:
    """Return a stream; the first one has short names, which the sentences of most tests repeat."""
    job, op = (name, "x") if name == "stream" else (f"{name}_stream", f"stream_{name}")
    out = "out" if name == "stream" else name
    return StreamSpec(
        name=name,
        job=job,
        op=op,
        sink_id=sink_id,
        sources=("in",),
        outputs=(out,),
        asset_keys=(f"shop/{out}",),
        asset=f"{name}_transactions",
    )


STREAM = spec()

HEALS = failure("EO-UNREACHABLE", "no broker answered")
HOPELESS = failure("EO-REWOUND", "the checkpoint was rewound", "Restore it", heals=False)


def run(run_id: str, status: str = "STARTED", *, at: float = NOW - 100, lived: float = 50.0, **rest: Any) -> Run:
    """Return a run of the stream, launched by a person at ``at``."""
    over = status in ("SUCCESS", "FAILURE", "CANCELED")
    rest = {"job": "stream", "alive": None if over else True, **rest}
    return Run(run_id=run_id, status=status, created=at, started=at, ended=at + lived if over else None, **rest)


def restarted(run_id: str, status: str = "STARTED", **rest: Any) -> Run:
    """Return a run of the stream that the sensor launched."""
    return run(run_id, status, tags={"dagster/sensor_name": "exactly_once_liveness", TAG_RESTART_OF: "?"}, **rest)


def recovery(
    run_id: str,
    status: str = "SUCCESS",
    *,
    restart_of: str | None = None,
    person: bool = False,
    attempt: int = 1,
    not_before: float = 0.0,
    key: str = "k",
    **rest: Any,
) -> Run:
    """Return a recovery; of a sensor unless a person launched it."""
    tags = {} if person else {"dagster/sensor_name": "some", RUN_KEY_TAG: key}
    if restart_of:
        tags[TAG_RESTART_OF] = restart_of
        tags |= {} if person else {TAG_ATTEMPT: str(attempt), TAG_NOT_BEFORE: str(not_before)}
    rest = {"at": NOW - 10, "lived": 2.0, **rest}
    return run(run_id, status, job=RECOVERY_JOB, tags=tags, **rest)


def history(*streams: Run, recoveries: tuple[Run, ...] = (), why: Failure | None = HEALS, **rest: Any) -> StreamHistory:
    """Return a history, newest run first; a newest run that failed did so for ``why``."""
    failed = bool(streams) and streams[0].status == "FAILURE"
    return StreamHistory(NOW, streams, recoveries, stream_failure=why if failed else None, **rest)
