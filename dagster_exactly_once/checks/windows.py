"""The check ``windows_closed``: no window of event time stays open behind newer ones that are closed."""

import dagster as dg

from dagster_exactly_once.checks.evaluate import check_on, result
from dagster_exactly_once.checks.judgements import passed, verdict
from dagster_exactly_once.declare.complete import in_ranges
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.recovery.windows import Windows, windows_of
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.diagnosis import Diagnosis, Severity
from exactly_once.inspection.words import are, plural

WINDOWS_CLOSED = "windows_closed"

#: A window is left open; the metadata of the check has it.
CODE = "EO-WARN-WINDOWS"


def windows_closed_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of complete windows."""
    assert stream.complete is not None
    every = stream.complete.every

    @check_on(
        stream,
        WINDOWS_CLOSED,
        f"Each {every} of {stream.completed} is closed, from the first one with events to the newest closed one. Fails "
        f"for {every}s that are certainly missing; warns where only the time stamps of the input's oldest records say "
        f"so. The job {stream.closes} closes them.",
        asset=dg.AssetKey(stream.completed),
    )
    def windows_closed(
        context: dg.AssetCheckExecutionContext,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
    ) -> dg.AssetCheckResult:
        return result(closed_up_to_now(windows_of(context.instance, stream, kafka, checkpoints), stream.closes))

    return windows_closed


def closed_up_to_now(windows: Windows, job: str) -> Diagnosis:
    """Judge whether windows stay open that no run comes back to; ``job`` closes them. Pure."""
    every = windows.declared.every
    if not windows.reported:
        return passed(f"No {every} is closed yet")
    oldest, missing = min(windows.reported), windows.left_open()
    if not missing:
        closed = f"Each {every} from {windows.noted or oldest} to {max(windows.reported)} is closed."
        unknown = f"Nobody noted where the events begin: if earlier, the job {job} closes what is missing."
        return passed(closed if windows.noted else f"{closed} {unknown}")
    certain = bool(windows.noted) or missing[-1] > oldest
    evidence = "" if certain else ", and by its time stamps the input has records from before the oldest closed one"
    sentence = (
        f"{plural(len(missing), every)} {are(len(missing))} open behind newer ones that are closed, and no run of the "
        f"stream comes back to them: {in_ranges(windows.declared, missing)}{evidence}"
    )
    remedy, severity = f"Run the job {job}, first as a dry run", Severity.ERROR if certain else Severity.WARN
    return verdict(CODE, severity, sentence, remedy, open_windows=len(missing), first_open=missing[0])
