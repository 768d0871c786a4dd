"""The health of a stream as an asset check, which the sensor evaluates: red on the asset graph, without a run."""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once.notify import CRITICAL, WARNING
from dagster_exactly_once.runs.history import Classified, StreamHistory
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.incidents import Trouble

#: The name of the check, on the asset of the stream's first output.
HEALTH = "health"

#: The states in which nothing is wrong; those in which a person should look soon. Any other is an error.
_WELL = ("healthy", "idle", "catching up", "starting")
_SOON = ("stopped", "lagging", "slow start", "operated by another")


def evaluation(
    stream: StreamSpec, state: str, sentence: str, history: StreamHistory, measured: float | None = None
) -> dg.AssetCheckEvaluation:
    """Judge the health: the state of the stream's sink, and why its last run failed. ``measured`` is when the
    lag in the sentence was.
    """
    failed = needs_a_person(history)
    run, why = history.stream, history.stream_failure
    said, passed = sentence, state in _WELL
    metadata: dict[str, dg.MetadataValue] = {"state": dg.MetadataValue.text(state)}
    if measured is not None:
        metadata["lag_measured"] = dg.MetadataValue.timestamp(measured)
    if failed and run is not None and why is not None:
        said, passed = f"{sentence} Run {run.name} failed. {_why(why)}", False
        metadata |= {"code": dg.MetadataValue.text(why.code), "way_out": dg.MetadataValue.text(why.way_out)}
    if run is not None:
        metadata["run"] = dg.MetadataValue.dagster_run(run.run_id)
    metadata["transactions"] = dg.MetadataValue.asset(dg.AssetKey.from_user_string(stream.asset))
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey.from_user_string(stream.asset_keys[0]),
        check_name=HEALTH,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if state in _SOON and not failed else dg.AssetCheckSeverity.ERROR,
        description=said,
        metadata=metadata,
    )


def trouble(state: str, lag: int, lag_limit: int, managed: bool = True) -> Trouble | None:
    """Return what a person must know of a state, should it stay; None when nothing.

    Parameters
    ----------
    managed : bool
        Whether this code location runs the stream.
    """
    if state in _WELL or state == "lagging":
        # by the lag alone: between two batches a stream that falls behind may look as if it caught up
        return Trouble("HEALTH-LAGGING", WARNING, lag) if lag > lag_limit else None
    if state == "stopped":  # here a person ended the run, or its failure has a notice of its own; elsewhere, who knows
        return None if managed or lag == 0 else Trouble("HEALTH-STOPPED")
    return Trouble(f"HEALTH-{state.upper().replace(' ', '-')}", WARNING if state in _SOON else CRITICAL)


def _why(why: Classified) -> str:
    """Return the code, the cause and the way out, each once: a message of the sink has all three."""
    return f"{'' if why.cause.startswith(why.code) else f'{why.code}: '}{why.sentences}"


def needs_a_person(history: StreamHistory) -> bool:
    """Return whether the stream's newest run failed, and neither a restart follows nor a person had ended it."""
    why = history.stream_failure
    return why is not None and not why.heals and not why.unwanted
