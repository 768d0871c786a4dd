"""The checks that prove an output: ``verified``, which is ``exactly-once verify``, and ``same_as_blue``: a new version
of a stream (green) makes of the input what the old one (blue) makes of it, while it reads along into topics of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

from dagster_exactly_once.checks.evaluate import CheckContext, check_begun, check_on, result
from dagster_exactly_once.checks.judgements import NOT_PROVEN, Metadata, passed, verdict, verified
from dagster_exactly_once.declare.config import ReconcileConfig, VerifyConfig, parameters_from
from dagster_exactly_once.declare.stream import Record, Stream
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.tables import table
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import InvalidOption
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Partition
from exactly_once.tools.diagnosis import Diagnosis, Severity
from exactly_once.tools.verify import Finding, Report, VerifyParameters, verify
from exactly_once.tools.verify.by_origin.against import Version, compare_versions
from exactly_once.tools.verify.by_origin.comparison import Question
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from exactly_once.tools.verify.by_origin.origin import PerInput

VERIFIED = "verified"
SAME_AS_BLUE = "same_as_blue"

#: The code of two versions that make different output of the same input.
DIFFERS = "CHECK-DIFFERS"

#: The number of findings on the page of the check: enough to see what it is; the command lists all.
SHOWN = 20


def verified_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of the stream's first output."""
    return check_on(
        stream,
        VERIFIED,
        f"Reads back what the last batches of {stream.name} wrote (64 unless configured), in every output, and "
        "compares each part with the number, the digest and the place in its decision; searches for records that are "
        "visible without a decision, and for open transactions that nobody will end. Changes nothing. The schedule "
        f"{stream.name}_verify_schedule evaluates it.",
        _verified,
        VerifyConfig,
    )


def _verified(at: CheckContext) -> dg.AssetCheckResult:
    stream, question = at.stream, None
    if at.config.by_origin:
        with classified():
            question = question_of(stream, backfilled=bool(stream.backfill or stream.continues))
    places = {"inputs": stream.source_topics, "topics": stream.topics} if question else {}
    given = parameters_from(
        VerifyParameters, at.config, stream.sink_id, checkpoint=at.location(), origin=question, **places
    )
    report = verify(at.connection, given, stream.others())
    return result(verified(report), _tables(report))


@dataclass(frozen=True)
class DeclaredOrigin:
    """``Checks(origin=...)``, as the checker asks for it: of a stream, and of the ``other`` one for its own topics."""

    stream: Stream
    other: Stream | None = None

    #: A certainty by declaration: a record of another writer has no origin.
    certain = True
    #: No place in the record: only the declaration knows it.
    way = header = ""

    def of(self, where: Partition) -> Callable[[Any], bytes | None]:
        output, partition = where
        stream = self.stream if self.other is None or output in self.stream.topics else self.other

        def text(found: Any) -> bytes | None:
            record = Record(partition, found.offset, found.key, found.value, tuple(found.headers or ()))
            place = stream.place_of(output, record)
            if place is None:
                return None
            (topic, number), offset = place
            return f"{topic}/{number}/{offset}".encode()

        return text

    def __str__(self) -> str:
        return "Checks(origin=...)"


def question_of(
    stream: Stream, order: str = "none", refuse_foreign: bool = False, backfilled: bool = False
) -> Question:
    """Return how the records of a stream name their input; raises InvalidOption where it does not declare that."""
    if not stream.one_to_one:
        raise InvalidOption(
            f"by_origin: {stream.name} does not declare how its records name their input",
            "Declare Checks(origin=...), or leave by_origin out: the commit log proves the last batches without it",
        )
    return Question(DeclaredOrigin(stream), PerInput(), order, refuse_foreign, backfilled)


def _tables(report: Report) -> dict[str, dg.MetadataValue]:
    tables: dict[str, dg.MetadataValue] = {}
    if report.findings:
        rows = [(f.anomaly.value, f.batch, f.what, ", ".join(f.places[:3])) for f in report.findings[:SHOWN]]
        tables["findings"] = table(("anomaly", "batch", "what", "places"), rows)
    if report.unproven:
        tables["unproven"] = table(("parts", "why"), [(f"{n:,}", why) for why, n in report.unproven.items()])
    if report.balance.topics:
        total = report.balance.total
        of_topics = report.balance.topics.items()
        balances = [(topic, f"{b.offsets:,}", *(f"{n:,}" for n in b.counts.values())) for topic, b in of_topics]
        tables["balance"] = table(("topic", "offsets", *total.counts), balances)
        reasons = {"not judged": total.not_judged, "not proven": total.not_proven}
        why = [(f"{n:,}", answer, why) for answer, found in reasons.items() for why, n in found.items()]
        if why:
            tables["neither_right_nor_wrong"] = table(("records", "answer", "why"), why)
    return tables


def same_as_blue_check(green: Stream, blue: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of green's first output."""
    return check_on(
        green,
        SAME_AS_BLUE,
        f"{green.name} makes of each record of {', '.join(green.source_topics)} the same output as {blue.name}: key, "
        f"value and headers in {', '.join(green.topics)} against those in {', '.join(blue.topics)}. Compares the "
        "newest input that both have committed (100,000 offsets unless configured). Warns where the two differ: a new "
        "rule may be the reason.",
        partial(_same_as_blue, blue),
        ReconcileConfig,
    )


def _same_as_blue(blue: Stream, at: CheckContext) -> dg.AssetCheckResult:
    connection, green = at.connection, at.stream

    def version(stream: Stream) -> Version:
        log = read_log(connection, stream.sink_id, READ_BUDGET_S)
        check_begun(at.context.instance, stream.spec, log, at.code_location)
        return Version(stream.sink_id, stream.topics, at.location(stream))

    comparison = compare_versions(
        connection,
        version(blue),
        version(green),
        DeclaredOrigin(green, blue),
        inputs=green.source_topics,
        last=at.config.offsets,
        values=False,  # Dagster would keep them, and show them to whoever opens the page
        budget_s=READ_BUDGET_S,
    )
    return result(same_as(comparison, green.sink_id), _differences(comparison.findings))


def same_as(comparison: ComparisonResult, green: str) -> Diagnosis:
    """Judge what the comparison with the sink ``found.sink_id`` says of the sink ``green``. Pure."""
    blue, unproven = comparison.sink_id, sum(comparison.unproven.values())
    if not comparison.counts.get("input"):
        return passed(f"Nothing to compare yet: {green} and {blue} have committed no input in common")
    records = plural(comparison.counts["input"], "input record")
    sample = f"{records} in {comparison.offsets:,} offsets that both have committed"
    metadata: Metadata = {
        "sampled": sample,
        "input_records_compared": comparison.counts["input"],
        "output_records_read": comparison.read,
        "records_unproven": unproven,
        **{name.replace(" ", "_"): count for name, count in comparison.counts.items() if name != "input"},
    }
    if comparison.findings:
        sums = {f.anomaly.value: comparison.counts[f.anomaly.value] for f in comparison.findings}
        sentence = (
            f"The output of {green} differs from that of {blue}: "
            f"{', '.join(f'{count:,} {name}' for name, count in sums.items())}, for example "
            f"{comparison.findings[0].places[0]}. Compared: {sample}"
        )
        remedy = f"To see the values, run exactly-once verify {green} --against {blue} with --origin and --checkpoint"
        return verdict(DIFFERS, Severity.WARN, sentence, remedy, **metadata)
    if not comparison.counts["same"]:
        sentence = f"None of the {sample} could be compared: {next(iter(comparison.unproven), '')}"
        return verdict(NOT_PROVEN, Severity.WARN, sentence, **metadata)
    also = f"; {unproven:,} others could not be compared" if unproven else ""
    return passed(f"The same output as {blue} for {sample}{also}", **metadata)


def _differences(findings: tuple[Finding, ...]) -> dict[str, dg.MetadataValue]:
    rows = [(f.anomaly.value, f.what, ", ".join(f.examples), ", ".join(f.places[:5])) for f in findings]
    return {"findings": table(("anomaly", "what", "examples", "places"), rows)} if rows else {}
