"""Evaluate a check.

One that cannot be evaluated says so, in place of a failed run and a red "Execution failed".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import dagster as dg

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.runs.failures import diagnose
from exactly_once.diagnosis import Diagnosis, Severity, SinkFacts, health
from exactly_once.diagnosis.facts import StreamFacts
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CheckpointAway,
    CommitLogBlocked,
    ExactlyOnceError,
    InvalidOption,
    NotAuthorized,
)
from exactly_once.inspection.findings import Inspection
from exactly_once.protocol.log_state import LogState

#: They tell nothing of the stream: brokers or the checkpoint's store are away, unknown, or refuse the question, or the
#: open transaction of another client hides the end of the commit log.
CANNOT_READ = (BrokerRefused, BrokerUnreachable, CheckpointAway, CommitLogBlocked, InvalidOption, NotAuthorized)

#: The search for the last finished evaluation of a check looks at this many evaluations.
EARLIER = 10

Check = Callable[..., dg.AssetCheckResult]


class NeverBegun(Exception):
    """The stream has never begun a batch, so there is nothing to check; ``state`` says why."""

    def __init__(self, state: Diagnosis):
        super().__init__(state.text)
        self.state = replace(state, severity=max(state.severity, Severity.WARN, key=lambda s: s.rank))


def evaluated(check: Check) -> Check:
    """Return ``check`` with a result in place of each of the project's own errors."""

    @wraps(check)
    def guarded(*args: Any, **kwargs: Any) -> dg.AssetCheckResult:
        try:
            return check(*args, **kwargs)
        except NeverBegun as never:
            return result(never.state)
        except ExactlyOnceError as error:
            return result(judgements.not_evaluated(diagnose(error), grave=not isinstance(error, CANNOT_READ)))

    return guarded


def check_on(
    stream: Stream, name: str, description: str, asset: dg.AssetKey | None = None
) -> Callable[[Callable[..., dg.AssetCheckResult]], dg.AssetChecksDefinition]:
    """Return the decorator of one check, on the asset of the stream's first output unless ``asset`` names another."""
    made = dg.asset_check(asset=asset or stream.outputs[0].key, name=name, description=description)
    return lambda check: made(evaluated(check))


def earlier_notes(instance: dg.DagsterInstance, asset: dg.AssetKey, name: str) -> dict[str, Any] | None:
    """Return the metadata of the newest finished evaluation of a check that could look; None without one."""
    key = dg.AssetCheckKey(asset, name)
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=EARLIER):
        event = record.event.dagster_event if record.event else None
        data = event.event_specific_data if event else None
        if isinstance(data, dg.AssetCheckEvaluation) and "evaluated" not in data.metadata:
            return {name: value.value for name, value in data.metadata.items()}
    return None


def check_begun(stream: Stream, log: LogState) -> None:
    """Make sure that the stream has begun a batch, with which it claims its sink. Raises NeverBegun."""
    if log.owner is None:
        raise NeverBegun(health(SinkFacts(Inspection(stream.sink_id), stream=StreamFacts(managed=stream.managed))))


def result(verdict: Diagnosis, more: Mapping[str, Any] | None = None) -> dg.AssetCheckResult:
    """Make the result that Dagster shows."""
    codes = {"code": verdict.code, **({"way_out": verdict.remedy} if verdict.remedy else {})}
    return dg.AssetCheckResult(
        passed=verdict.severity is Severity.OK,
        severity=dg.AssetCheckSeverity.ERROR if verdict.severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=verdict.text,
        metadata={**codes, **verdict.evidence, **(more or {})},
    )
