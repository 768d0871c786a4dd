"""Recovery as a job: bring a sink to rest without starting its stream, and say what was found and done."""

import dagster as dg

from exactly_once.recovery import RecoveryReport
from platform_assets.classified import classified
from platform_assets.config import RecoveryConfig
from platform_assets.constants import FLIGHT_DELAYS, RECOVERY_JOB
from platform_assets.run_process import runs_on, tag_run
from resources.transactions import TransactionAdmin


@dg.op(
    description=(
        "Completes the batches that are decided, aborts the transactions that are not, and proves that no reader is "
        "blocked. "
        "Safe to run twice, also at once. Does nothing to a stream that is alive, unless take_over is set."
    )
)
def recover_sink(context: dg.OpExecutionContext, config: RecoveryConfig, transactions: TransactionAdmin) -> None:
    others = [
        r for r in runs_on(context.instance, config.sink_id) if r.run_id != context.run_id and r.alive is not False
    ]
    if others and not config.take_over:
        raise dg.Failure(
            f"Run {others[0].run_id} (process {others[0].pid} on {others[0].host}) works on sink {config.sink_id}. "
            f"Nothing was "
            "changed. Terminate it, or set take_over: it would be fenced.",
            metadata={"run": dg.MetadataValue.dagster_run(others[0].run_id)},
            allow_retries=False,
        )
    tag_run(context.instance, context.run_id, config.sink_id)
    with classified():
        report = transactions.sweep(config.sink_id)
    context.log.info(_sentence(report))
    metadata = {"found_nothing": report.found_nothing, "clean": report.clean, **report.as_metadata()}
    context.add_output_metadata(metadata)
    context.log_event(dg.AssetObservation(FLIGHT_DELAYS, metadata={f"recovery_{k}": v for k, v in metadata.items()}))
    if not report.clean:
        raise dg.Failure(_sentence(report), metadata=metadata, allow_retries=False)


def _sentence(report: RecoveryReport) -> str:
    if report.claim is None:
        return f"Sink {report.sink_id} was never used: nothing to do."
    if report.found_nothing:
        return f"Sink {report.sink_id} was at rest: nothing decided was open, nothing undecided was left."
    completed = [d.batch_id for d in report.completed]
    parts = [
        f"completed batches {completed}" if completed else "no batch was to be completed",
        f"aborted {len(report.aborted)} undecided transactions",
    ]
    if report.left_open:
        ids = ", ".join(d.transactional_id for d in report.left_open)
        parts.append(f"still open: {ids} (a task of a driver that still breathes? run the recovery again)")
    if report.blocked:
        parts.append(f"readers are still blocked on {', '.join(f'{t}-{p}' for t, p in report.blocked)}")
    return f"Sink {report.sink_id}: {'; '.join(parts)}."


@dg.job(
    name=RECOVERY_JOB,
    executor_def=dg.in_process_executor,
    description="Brings a sink to rest: completes what is decided, aborts what is not, proves that no reader is "
    "blocked.",
)
def recovery() -> None:
    recover_sink()
