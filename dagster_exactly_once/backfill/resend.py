"""The job ``<name>_resend``: sends rejected records again, repaired, each once however often it is tried."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.backfill import spark as in_spark
from dagster_exactly_once.backfill.resent import RejectedSpan, asked, remaining, sent
from dagster_exactly_once.backfill.worker import SparkWorker
from dagster_exactly_once.backfill.writes import SideWrites
from dagster_exactly_once.declare.config import ResendConfig
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import BorrowedSession, SparkSessionResource, opener
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.tags import TAG_STREAM
from dagster_exactly_once.streaming.single_writer import SingleWriter
from dagster_exactly_once.streaming.source import READ_BUDGET_S
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.batch_write import written
from exactly_once.errors import InvalidOption, ProtocolViolation
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Admin, Watermarks


def resend_job(stream: Stream) -> dg.JobDefinition:
    """Make the job."""
    spec, topic = stream.resend_spec, stream.rejected_topic
    targets = ", ".join(stream.source_topics)

    @dg.op(
        name=spec.op,
        description=f"Reads records of {topic}, repairs them if the stream declares how, and sends them to {targets}.",
    )
    def resend(
        context: dg.OpExecutionContext,
        config: ResendConfig,
        spark: dg.ResourceParam[Any],
        kafka: KafkaTransactionalProducerFactory,
        transactions: TransactionAdmin,
    ) -> None:
        with classified():
            writes = SideWrites(context, "The resend", spec.sink_id, kafka.connection(), transactions)
        _Resend(context, stream, config, opener(spark), writes).run()

    @dg.job(
        name=spec.job,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0", TAG_STREAM: spec.name},
        description=(
            f"Sends records of {topic} to {targets} again, those that no run has sent yet unless configured. Each is "
            "sent once, however often this is tried: the commit log keeps the ranges that were sent. Safe to run twice."
        ),
    )
    def job() -> None:
        resend()

    return job


@dataclass(frozen=True)
class _Resend:
    """One run.

    1. Wait for the older runs of the job: two at once could take the same records for unsent.
    2. Leave out the ranges that the commit log of the job's sink has.
    3. Send what is left, partition by partition, each piece by a batch write with an id of its own.
    """

    context: dg.OpExecutionContext
    stream: Stream
    config: ResendConfig
    spark: SparkSessionResource | BorrowedSession
    writes: SideWrites

    def run(self) -> None:
        SingleWriter(self.context, self.stream.resend_spec, self.writes.sink_id).begin()
        with self.writes.at_rest():
            _check_target(self.stream, self.config.to)
            with Admin(self.writes.connection, READ_BUDGET_S) as admin:
                marks = admin.watermarks(self._topic)
                topic_id = admin.topic_ids([self._topic]).get(self._topic, "")
            log = read_log(self.writes.connection, self.writes.sink_id, READ_BUDGET_S)
            done = sent((d.write_id for d in log.decisions), self._topic, topic_id)
            # decided, and parts of it may be lost: only the same write brings them again
            unfinished = sent((d.write_id for d in log.open_decisions), self._topic, topic_id)
            pieces = [*unfinished, *remaining(asked(self.config.offsets, marks), done)]
            self._report(self._send(pieces, marks, topic_id) if pieces else 0)

    @property
    def _topic(self) -> str:
        return self.stream.topics[-1]

    def _send(self, pieces: list[RejectedSpan], marks: dict[int, Watermarks], topic_id: str) -> int:
        total = 0
        with SparkWorker(self.spark.session, self.spark.kill) as worker:
            for piece in pieces:
                write_id = piece.write_id(self._topic, topic_id)
                worker.call(lambda session, piece=piece, name=write_id: self._write(session, piece, marks, name))  # type: ignore[misc]
                decision = written(self.writes.connection, self.writes.sink_id, write_id, READ_BUDGET_S)
                if decision is None:
                    raise ProtocolViolation(
                        f"the commit log of sink {self.writes.sink_id} does not have the write {write_id!r}",
                        "Report this as a bug, with this message",
                        "Ranges logged earlier are sent",
                    )
                partition, (start, end) = piece
                what = f"{self._topic}-{partition}, offsets {start} to {end - 1}"
                self.context.log.info(f"{what}: sent {plural(decision.records, 'record')}.")
                total += decision.records
        return total

    def _write(self, session: object, piece: RejectedSpan, marks: dict[int, Watermarks], write_id: str) -> None:
        stream = self.stream
        assert stream.rejected is not None
        in_spark.send_again(
            session,  # type: ignore[arg-type]
            self.writes.connection,
            self._topic,
            piece,
            marks,
            to=self.config.to,
            sources=stream.source_topics,
            repair=stream.rejected.repair,
            options={**stream.options, **self.writes.options(write_id)},
        )

    def _report(self, records: int) -> None:
        sent_now = f"Sent {plural(records, 'record')} of {self._topic} again."
        said = sent_now if records else "There is no record left to send."
        self.context.log.info(said)
        metadata: dict[str, int | str] = {"records_sent_again": records, "said": said}
        self.context.add_output_metadata(metadata)
        self.context.log_event(dg.AssetObservation(self.stream.outputs[-1].key, metadata=metadata))


def _check_target(stream: Stream, to: str) -> None:
    allowed = [*stream.source_topics, *stream.topics[:-1]]
    if to and to not in allowed:
        raise InvalidOption(
            f"to names {to}, which the stream {stream.name} neither reads nor writes",
            f"Leave it empty, or name one of {', '.join(allowed)}",
            "Nothing was sent",
        )
