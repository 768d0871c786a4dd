"""The check ``verified``: ``exactly-once verify`` on a stream's first output, with its job and schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.checks.evaluate import check_on, result
from dagster_exactly_once.checks.judgements import verified
from dagster_exactly_once.declare.config import VerifyConfig
from dagster_exactly_once.declare.origin import Record
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.private import UnresolvedAssetJobDefinition
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.tables import table
from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Partition
from exactly_once.verify import Report, verify
from exactly_once.verify.by_origin.comparison import Question
from exactly_once.verify.by_origin.origin import PerInput

VERIFIED = "verified"

#: The first findings are on the page of the check: enough to see what it is; the command lists all.
SHOWN = 20

#: When the schedule of a stream without ``verify_cron`` runs, once a person has switched it on.
NIGHTLY = "0 3 * * *"


def verified_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of the stream's first output."""

    @check_on(
        stream,
        VERIFIED,
        f"Reads back what the last batches of {stream.name} wrote (64 unless configured), in every output, and "
        "compares each part with the number, the digest and the place in its decision; searches for records that are "
        "visible without a decision, and for open transactions that nobody will end. Changes nothing. The schedule "
        f"{stream.name}_verify_schedule evaluates it.",
    )
    def verified_(
        config: VerifyConfig, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
    ) -> dg.AssetCheckResult:
        with classified():
            question = (
                question_of(stream, backfilled=bool(stream.backfill or stream.continues)) if config.by_origin else None
            )
        connection = kafka.connection()
        report = verify(
            connection,
            stream.sink_id,
            checkpoint=checkpoint_of(connection, stream.sink_id, kafka, checkpoints),
            batches=config.batches,
            outputs=stream.others(),
            origin=question,
            inputs=stream.source_topics if question else (),
            topics=stream.topics if question else (),
            settle_s=config.settle_s,
        )
        verdict = verified(report)
        return result(verdict, _tables(report))

    return verified_


def verify_job(stream: Stream, check: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    """Make the job that evaluates the check alone."""
    return dg.define_asset_job(
        f"{stream.name}_verify",
        selection=dg.AssetSelection.checks(check),
        executor_def=dg.in_process_executor,
        description=f"Evaluates the check {VERIFIED} of {stream.name}; materializes nothing and does not start Spark.",
    )


def verify_schedule(stream: Stream, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Make the schedule of the job: on if the stream declares when, else off until a person turns it on."""
    declared = stream.checks.verify_cron if stream.checks is not None else None
    status = dg.DefaultScheduleStatus.RUNNING if declared else dg.DefaultScheduleStatus.STOPPED
    return dg.ScheduleDefinition(
        job=job,
        cron_schedule=declared or NIGHTLY,
        default_status=status,
        description=f"Evaluates the check {VERIFIED} of {stream.name}. Off until a person turns it on, unless the "
        "stream declares Checks(verify_cron=...).",
    )


@dataclass(frozen=True)
class DeclaredOrigin:
    """``Checks(origin=...)``, as the checker asks for it."""

    stream: Stream

    #: A record of another writer has no origin, by the declaration.
    certain = True
    #: Only the declaration knows where it stands.
    header = ""

    def of(self, where: Partition) -> Callable[[Any], bytes | None]:
        output, partition = where

        def text(found: Any) -> bytes | None:
            record = Record(partition, found.offset, found.key, found.value, tuple(found.headers or ()))
            place = self.stream.place_of(output, record)
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
    """Return how the records of a stream name their input, as it declares; see :class:`Question` for the others.

    Raises
    ------
    InvalidOption
        The stream does not declare it.
    """
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
