"""The job ``<name>_resend``: sends rejected records and dead letters again, repaired, each once however often it is
tried.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import dagster as dg

from dagster_exactly_once.backfill import spark as in_spark
from dagster_exactly_once.backfill.resent import RejectedSpan, asked, remaining, sent
from dagster_exactly_once.backfill.worker import SparkWorker
from dagster_exactly_once.backfill.writes import SideWrites
from dagster_exactly_once.declare.config import ResendConfig
from dagster_exactly_once.declare.dead_letters import stays
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
    spec = stream.resend_spec
    what = ", or ".join(f"records of {topic} to {_targets(stream, topic)}" for topic in stream.resent)

    @dg.op(
        name=spec.op,
        description=f"Repairs what it reads if the stream declares how, and sends {what}.",
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
            f"Sends {what}, again: those that no run has sent yet unless configured. Each is sent once, however often "
            "this is tried: the commit log keeps the ranges that were sent. Safe to run twice."
        ),
    )
    def job() -> None:
        resend()

    return job


class Sent(NamedTuple):
    """The records that a run sent, and how many of them Kafka could not take: they are dead letters, once more."""

    records: int
    dead: int

    def said(self, topic: str, dead_topic: str | None) -> str:
        """Return it as a sentence, or two."""
        if not self.records:
            return "There is no record left to send."
        sent = f"Sent {plural(self.records - self.dead, 'record')} of {topic} again."
        if not self.dead:
            return sent
        where = dead_topic or "the dead letters"
        return f"{sent} {plural(self.dead, 'other')} cannot be written as before: see {where}."


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
            check_topics(self.stream, self.config)
            with Admin(self.writes.connection, READ_BUDGET_S) as admin:
                marks = admin.watermarks(self._topic)
                topic_id = admin.topic_ids([self._topic]).get(self._topic, "")
            log = read_log(self.writes.connection, self.writes.sink_id, READ_BUDGET_S)
            done = sent((d.write_id for d in log.decisions), self._topic, topic_id)
            # decided, and parts of it may be lost: only the same write brings them again
            unfinished = sent((d.write_id for d in log.open_decisions), self._topic, topic_id)
            pieces = [*unfinished, *remaining(asked(self.config.offsets, marks), done)]
            self._report(self._send(pieces, marks, topic_id) if pieces else Sent(0, 0))

    @property
    def _topic(self) -> str:
        return self.config.topic or next(iter(self.stream.resent))

    @property
    def _replaces(self) -> bool:
        """True when what is sent takes the place of a letter: in the output. In the input, it is a new record."""
        to = self.config.to
        return to not in self.stream.source_topics if to else self._topic == self.stream.dead_topic

    def _send(self, pieces: list[RejectedSpan], marks: dict[int, Watermarks], topic_id: str) -> Sent:
        records = dead = 0
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
                self.context.log.info(f"{what}: sent {plural(decision.records - decision.dead_letters, 'record')}.")
                records, dead = records + decision.records, dead + decision.dead_letters
        return Sent(records, dead)

    def _write(self, session: object, piece: RejectedSpan, marks: dict[int, Watermarks], write_id: str) -> None:
        stream = self.stream
        in_spark.send_again(
            session,  # type: ignore[arg-type]
            self.writes.connection,
            self._topic,
            piece,
            marks,
            to=self.config.to,
            sources=() if self._topic == stream.dead_topic else stream.source_topics,
            replaces=self._replaces,
            repair=stream.resent[self._topic].repair,
            options=self.writes.options(write_id, stream.options),
        )

    def _report(self, done: Sent) -> None:
        said = done.said(self._topic, self.stream.dead_topic)
        self.context.log.info(said)
        metadata: dict[str, int | str] = {"records_sent_again": done.records - done.dead, "said": said}
        self.context.add_output_metadata(metadata)
        self.context.log_event(dg.AssetObservation(self.stream.key_of(self._topic), metadata=metadata))


def check_topics(stream: Stream, config: ResendConfig) -> None:
    """Refuse topics that the job neither reads nor writes.

    Raises
    ------
    InvalidOption
        The configuration names another topic to read, or to send to.
    """
    if config.topic and config.topic not in stream.resent:
        why = stays(stream) if config.topic == stream.dead_topic else ""
        raise InvalidOption(
            f"topic names {config.topic}, whose records this job does not send again{f', since {why}' if why else ''}",
            f"Leave it empty, or name one of {', '.join(stream.resent)}",
            "Nothing was sent",
        )
    allowed = [*stream.source_topics, *(topic for topic in stream.topics if topic not in stream.letters)]
    if config.to and config.to not in allowed:
        raise InvalidOption(
            f"to names {config.to}, which the stream {stream.name} neither reads nor writes",
            f"Leave it empty, or name one of {', '.join(allowed)}",
            "Nothing was sent",
        )


def _targets(stream: Stream, topic: str) -> str:
    """Return where the records of a topic go, in words."""
    return "the output that each was for" if topic == stream.dead_topic else ", ".join(stream.source_topics)
