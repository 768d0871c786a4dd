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
from dagster_exactly_once.declare.rejected import Repair
from dagster_exactly_once.declare.schemas import encodes_values, without_registry
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
    """The records that a run sent, and how many of them Kafka could not take: they are dead letters, once more.

    ``kept`` are those that it left, since they are JSON in place of what their schema takes.
    """

    records: int
    dead: int
    kept: int = 0

    def said(self, topic: str, dead_topic: str | None, repairs: bool = False) -> str:
        """Return it in sentences. ``repairs``: the stream declares how to make a new value."""
        sentences = []
        if self.records or not self.kept:
            sent = f"Sent {plural(self.records - self.dead, 'record')} of {topic} again."
            sentences.append(sent if self.records else "There is no record left to send.")
        if self.dead:
            where = dead_topic or "the dead letters"
            sentences.append(f"{plural(self.dead, 'other')} still cannot be written: see {where}.")
        if self.kept:
            what = "the key" if repairs else "key or value"
            way_out = (
                "repair makes values alone: write them with a producer of yours"
                if repairs
                else "Declare repair=, which returns the value with its schema id"
            )
            sentences.append(
                f"Left {plural(self.kept, 'record')} in {topic}: {what} did not fit its schema, and is JSON. {way_out}."
            )
        return " ".join(sentences)


@dataclass(frozen=True)
class _Resend:
    """One run.

    1. Wait for the older runs of the job: two at once could take the same records for unsent.
    2. Leave out the ranges that the commit log of the job's sink has.
    3. Leave out the dead letters that have JSON in place of what readers of the output take.
    4. Send what is left, partition by partition, each piece by a batch write with an id of its own.
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
            left = remaining(asked(self.config.offsets, marks), done)
            self._report(self._send(unfinished, left, marks, topic_id) if unfinished or left else Sent(0, 0))

    @property
    def _topic(self) -> str:
        return self.config.topic or next(iter(self.stream.resent))

    @property
    def _replaces(self) -> bool:
        """True when what is sent takes the place of a letter: in the output. In the input, it is a new record."""
        to = self.config.to
        return to not in self.stream.source_topics if to else self._sends_dead_letters

    @property
    def _sends_dead_letters(self) -> bool:
        return self._topic == self.stream.dead_topic

    @property
    def _repair(self) -> Repair | None:
        return self.stream.resent[self._topic].repair

    def _send(
        self, unfinished: list[RejectedSpan], left: list[RejectedSpan], marks: dict[int, Watermarks], topic_id: str
    ) -> Sent:
        records = dead = 0
        with SparkWorker(self.spark.session, self.spark.kill) as worker:
            sendable, kept = self._sendable(worker, left, marks) if self._sends_dead_letters else (left, 0)
            for piece in (*unfinished, *sendable):
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
        return Sent(records, dead, kept)

    def _sendable(
        self, worker: SparkWorker[Any], left: list[RejectedSpan], marks: dict[int, Watermarks]
    ) -> tuple[list[RejectedSpan], int]:
        """Return ``left`` without the dead letters that cannot be sent, and how many these are."""
        pieces, count, repairs = list[RejectedSpan](), 0, self._repair is not None
        for piece in left:
            kept = worker.call(
                lambda session, piece=piece: in_spark.kept_in(  # type: ignore[misc]
                    session, self.writes.connection, self._topic, piece, marks, repairs
                )
            )
            pieces += remaining([piece], [RejectedSpan(piece.partition, its.span) for its in kept])
            count += sum(its.records for its in kept)
        return pieces, count

    def _write(self, session: object, piece: RejectedSpan, marks: dict[int, Watermarks], write_id: str) -> None:
        stream = self.stream
        in_spark.send_again(
            session,  # type: ignore[arg-type]
            self.writes.connection,
            self._topic,
            piece,
            marks,
            to=self.config.to,
            sources=() if self._sends_dead_letters else stream.source_topics,
            replaces=self._replaces,
            repair=self._repair,
            encodes=encodes_values(stream.options),
            options=self.writes.options(write_id, without_registry(stream.options)),
        )

    def _report(self, done: Sent) -> None:
        said = done.said(self._topic, self.stream.dead_topic, self._repair is not None)
        self.context.log.info(said)
        metadata: dict[str, int | str] = {"records_sent_again": done.records - done.dead, "said": said}
        if done.kept:
            metadata["records_left"] = done.kept
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
        raise InvalidOption(
            f"the field topic is {config.topic}, but this job does not resend records of {config.topic}",
            f"Leave it empty, or name one of {', '.join(stream.resent)}",
            "Nothing was sent",
        )
    allowed = [*stream.source_topics, *(topic for topic in stream.topics if topic not in stream.letters)]
    if config.to and config.to not in allowed:
        raise InvalidOption(
            f"the field to is {config.to}, but the stream {stream.name} neither reads nor writes that topic",
            f"Leave it empty, or name one of {', '.join(allowed)}",
            "Nothing was sent",
        )


def _targets(stream: Stream, topic: str) -> str:
    """Return where the records of a topic go, in words."""
    return "the output that each was for" if topic == stream.dead_topic else ", ".join(stream.source_topics)
