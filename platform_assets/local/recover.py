"""`python -m platform_assets.cli recover`: the recovery job in a terminal."""

from __future__ import annotations

import dagster as dg
from rich.console import Console

from dagster_exactly_once.names import RECOVERY_JOB, RECOVERY_OP
from platform_assets.flights.names import TRANSACTIONS
from platform_assets.flights.streams import flight_delays
from platform_assets.local.environment import Environment
from platform_assets.local.job_process import running, why_failed

_CONFIG = {"ops": {RECOVERY_OP: {"config": {"stream": flight_delays.name, "reason": "requested in a terminal"}}}}


def run_recovery(environment: Environment, console: Console) -> int:
    """Run the job and print its findings and results; returns 0 when the sink is at rest."""
    with dg.DagsterInstance.get() as instance:
        with running(environment, instance, RECOVERY_JOB, _CONFIG, console.print) as process:
            while not process.wait(1.0):
                pass
        if not process.succeeded:
            console.print(f"[bold red]Failed:[/] {why_failed(instance, process)}")
            return 1
        records = instance.fetch_materializations(dg.AssetKey(TRANSACTIONS), limit=1).records
        entry = records[0].event_log_entry.asset_materialization if records else None
        for name, value in (entry.metadata if entry else {}).items():
            console.print(f"  {name.removeprefix('recovery_')}: {value.value}")
    return 0
