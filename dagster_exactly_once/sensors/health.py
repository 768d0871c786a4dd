"""The health of a stream as an asset check, which the sensor evaluates: red on the asset graph, without a run."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg

from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.diagnosis import Diagnosis, Severity, SinkFacts, Thresholds, health, state_of

#: The name of the check, on the asset of the stream's first output.
HEALTH = "health"

#: States that need nobody, unless they are errors: the stream was never started, or a person has ended its run.
_AT_REST = ("HEALTH-NEVER-USED", "HEALTH-STOPPED")


def calm(state: Diagnosis) -> bool:
    """Return whether a person may skip a stream in this state."""
    return state.severity is Severity.OK or (state.code in _AT_REST and state.severity is Severity.WARN)


def evaluation(
    stream: StreamSpec, state: Diagnosis, more: str, run: Run | None, measured: float | None = None
) -> dg.AssetCheckEvaluation:
    """Make the check's evaluation: the state of the stream, and the sentences of a tick that follow (``more``).

    Parameters
    ----------
    run : Run or None
        The newest run of the stream.
    measured : float or None
        When the lag in the sentence was.
    """
    metadata = described(state)
    if measured:
        metadata["lag_measured"] = dg.MetadataValue.timestamp(measured)
    if run is not None:
        metadata["run"] = dg.MetadataValue.dagster_run(run.run_id)
    metadata["transactions"] = dg.MetadataValue.asset(dg.AssetKey.from_user_string(stream.asset))
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey.from_user_string(stream.asset_keys[0]),
        check_name=HEALTH,
        passed=state.severity is Severity.OK,
        severity=dg.AssetCheckSeverity.ERROR if state.severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=f"{state.text}{more}",
        metadata=metadata,
    )


def described(state: Diagnosis) -> dict[str, dg.MetadataValue]:
    """Return the state of a stream as metadata: its name, its code, what ends it, and why the newest run failed."""
    found = {"state": state_of(state.code), "code": state.code, "way_out": state.remedy}
    found["failure"] = state.evidence.get("failure", "")
    return {name: dg.MetadataValue.text(text) for name, text in found.items() if text}


def trouble(facts: SinkFacts, limits: Thresholds) -> Diagnosis | None:
    """Return what a person must know of a stream's state, should it stay; None when nothing.

    By the lag alone whether it lags: between two batches a stream that falls behind may look as if it caught up. A
    failed run has a notice of its own.
    """
    assert facts.stream is not None
    state = health(replace(facts, stream=replace(facts.stream, last_lag=None)), limits)
    silent = calm(state) or state.code.startswith(("HEALTH-FAILED", "HEALTH-CHECKPOINT-"))
    return None if silent else state
