"""The operator of a sink: the Dagster instance and the run that its driver works for, as its claim says.

A run's status is the truth about the runs of one's own instance, on whatever host they are. About a run of another
instance, or of no instance, this one knows only what the host's process table shows.
"""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from dagster_exactly_once.private import instance_id
from dagster_exactly_once.runs.process import process_of
from exactly_once.protocol.records import Claim

_DAGSTER = "dagster"


def operator_of(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the text that a run of ``instance`` writes into its claims: ``dagster/<instance id>/<run id>``.

    The id belongs to the run storage: all hosts of one instance share it, and no two instances do.
    """
    return f"{_DAGSTER}/{instance_id(instance)}/{run_id}"


def alive_of(instance: dg.DagsterInstance) -> Callable[[Claim], bool | None]:
    """Return what says whether the driver of a claim lives, by the status of its run.

    It returns True and False for runs of ``instance``, and None for every other claim: another instance's, nobody's,
    and that of a run that was deleted.
    """

    def alive(claim: Claim) -> bool | None:
        run = instance.get_run_by_id(_run_of(instance, claim)) if is_ours(instance, claim) else None
        if run is None:
            return None
        return not run.is_finished and process_of(run).alive is not False

    return alive


def is_ours(instance: dg.DagsterInstance, claim: Claim) -> bool:
    """Return whether a run of ``instance`` made a claim."""
    return _run_of(instance, claim) != claim.operator


def is_foreign(instance: dg.DagsterInstance, claim: Claim) -> bool:
    """Return whether somebody else said that the claim is theirs."""
    return bool(claim.operator) and not is_ours(instance, claim)


def _run_of(instance: dg.DagsterInstance, claim: Claim) -> str:
    """Return the id of the run of ``instance`` that made a claim; the claim's whole operator when none did."""
    return claim.operator.removeprefix(operator_of(instance, ""))
