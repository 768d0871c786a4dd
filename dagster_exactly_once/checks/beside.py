"""The check ``same_as_blue``: a new version of a stream (green) makes of the input what the old one (blue) makes of it,
while it reads along into topics of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.checks.evaluate import check_begun, check_on, result
from dagster_exactly_once.checks.judgements import NOT_PROVEN, Metadata, passed, verdict
from dagster_exactly_once.checks.readers import READ_BUDGET_S
from dagster_exactly_once.checks.verified import DeclaredOrigin
from dagster_exactly_once.declare.config import ReconcileConfig
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.tables import table
from exactly_once.commitlog.commit_log import read_log
from exactly_once.diagnosis import Diagnosis, Severity
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Partition
from exactly_once.verify import Finding
from exactly_once.verify.by_origin.against import AgainstResult, compare_versions
from exactly_once.verify.by_origin.versions import Version

SAME_AS_BLUE = "same_as_blue"

#: The two versions make different output of the same input.
DIFFERS = "CHECK-DIFFERS"


def same_as_blue_check(green: Stream, blue: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of green's first output."""

    @check_on(
        green,
        SAME_AS_BLUE,
        f"{green.name} makes of each record of {', '.join(green.source_topics)} the same output as {blue.name}: key, "
        f"value and headers in {', '.join(green.topics)} against those in {', '.join(blue.topics)}. Compares the "
        "newest input that both have committed (100,000 offsets unless configured). Warns where the two differ: a new "
        "rule may be the reason.",
    )
    def same_as_blue(
        config: ReconcileConfig, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
    ) -> dg.AssetCheckResult:
        connection = kafka.connection()

        def version(stream: Stream) -> Version:
            check_begun(stream, read_log(connection, stream.sink_id, READ_BUDGET_S))
            return Version(stream.sink_id, stream.topics, checkpoint_of(connection, stream.sink_id, kafka, checkpoints))

        found = compare_versions(
            connection,
            version(blue),
            version(green),
            _DeclaredOfBoth(blue, green),
            inputs=green.source_topics,
            last=config.offsets,
            values=False,  # Dagster would keep them, and show them to whoever opens the page
            budget_s=READ_BUDGET_S,
        )
        return result(same_as(found, green.sink_id), _differences(found.findings))

    return same_as_blue


def same_as(found: AgainstResult, green: str) -> Diagnosis:
    """Judge what the comparison with the sink ``found.sink_id`` says of the sink ``green``. Pure."""
    blue, unproven = found.sink_id, sum(found.unproven.values())
    if not found.counts.get("input"):
        return passed(f"Nothing to compare yet: {green} and {blue} have committed no input in common")
    sample = f"{plural(found.counts['input'], 'input record')} in {found.offsets:,} offsets that both have committed"
    metadata: Metadata = {
        "sampled": sample,
        "input_records_compared": found.counts["input"],
        "output_records_read": found.read,
        "records_unproven": unproven,
        **{name.replace(" ", "_"): count for name, count in found.counts.items() if name != "input"},
    }
    if found.findings:
        sums = {f.anomaly.value: found.counts[f.anomaly.value] for f in found.findings}
        sentence = (
            f"The output of {green} differs from that of {blue}: "
            f"{', '.join(f'{count:,} {name}' for name, count in sums.items())}, for example "
            f"{found.findings[0].places[0]}. Compared: {sample}"
        )
        remedy = f"To see the values, run exactly-once verify {green} --against {blue} with --origin and --checkpoint"
        return verdict(DIFFERS, Severity.WARN, sentence, remedy, **metadata)
    if not found.counts["same"]:
        sentence = f"None of the {sample} could be compared: {next(iter(found.unproven), '')}"
        return verdict(NOT_PROVEN, Severity.WARN, sentence, **metadata)
    also = f"; {unproven:,} others could not be compared" if unproven else ""
    return passed(f"The same output as {blue} for {sample}{also}", **metadata)


@dataclass(frozen=True)
class _DeclaredOfBoth:
    """``Checks(origin=...)`` of either stream, for its own topics."""

    blue: Stream
    green: Stream

    #: As of either alone.
    certain = True
    header = ""

    def of(self, where: Partition) -> Callable[[Any], bytes | None]:
        return DeclaredOrigin(self.green if where[0] in self.green.topics else self.blue).of(where)

    def __str__(self) -> str:
        return "Checks(origin=...)"


def _differences(findings: tuple[Finding, ...]) -> dict[str, dg.MetadataValue]:
    rows = [(f.anomaly.value, f.what, ", ".join(f.examples), ", ".join(f.places[:5])) for f in findings]
    return {"findings": table(("anomaly", "what", "examples", "places"), rows)} if rows else {}
