"""The job ``<name>_resend``: sends rejected records and dead letters again, repaired, each once however often it is
tried.

The commit log of the job's own sink keeps the id of each of its writes for good, and the id has the range of offsets.
So a range that is asked for again, alone or as a part of another one, is left out.
"""

from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any, NamedTuple

import dagster as dg

from dagster_exactly_once.backfill.writes import SideWrites, SparkWorker
from dagster_exactly_once.declare.rejected import Repair
from dagster_exactly_once.declare.sink_options import encodes_values, without_registry
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.private import loading_location
from dagster_exactly_once.recovery.operations import JobExtras, SinkRegistry, operation_job
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S
from dagster_exactly_once.resources.spark import BorrowedSession, SparkSessionResource, opener
from dagster_exactly_once.runs.pieces import Pieces
from dagster_exactly_once.runs.tags import NOT_RETRIED, TAG_JOB, TAG_STREAM
from dagster_exactly_once.streaming.ranges import RejectedSpan, asked, remaining, sent
from dagster_exactly_once.streaming.single_writer import SingleWriter
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import InvalidOption
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    parameter,
    reason_parameter,
    sink_parameter,
)


@dataclass(frozen=True, kw_only=True)
class ResendParameters:
    """The parameters of ``<name>_resend``: which records it sends again, and where to."""

    sink_id: str = sink_parameter("The sink of the job.", form="")
    topic: str = parameter(
        "",
        "The topic to read; empty: that of the rejected records, or else that of the dead letters.",
        form="topic",
    )
    offsets: dict[str, str] = parameter(
        MISSING,
        "By partition of that topic, the first and the last offset to send, like {'0': '12-40'}; empty: all records. "
        "What a run has sent before is left out.",
        form="offsets",
        form_default={},
    )
    to: str = parameter(
        "",
        "The topic to send to, an input or an output of the stream; empty: the input that each record came from, to "
        "the same partition, or the output that each dead letter was for.",
        form="to",
    )
    dry_run: bool = parameter(
        False, "Only name the ranges that it would send; change nothing.", form="dry_run", form_default=True
    )
    reason: str = reason_parameter()


@dataclass(frozen=True, kw_only=True)
class ResendContext(OperationContext):
    """The cluster, and the run that sends: ``writes`` through the job's own sink, with ``spark``."""

    spark: SparkSessionResource | BorrowedSession
    writes: SideWrites


def resend_operation(stream: Stream) -> Operation[ResendParameters]:
    """Make the operation: its examination names what is left to send, and its step sends it, from a
    :class:`ResendContext`.
    """
    spec = stream.resend_spec
    what = ", or ".join(f"records of {topic} to {_targets(stream, topic)}" for topic in stream.resent)
    return Operation(
        ResendParameters,
        partial(_examine, stream),
        (OperationStep("send", "Sends what is left, piece by piece.", partial(_send, stream)),),
        job=OperationJob(
            spec.job,
            f"Sends {what}, again: those that no run has sent yet unless configured. Each is sent once, however often "
            "this is tried: the commit log keeps the ranges that were sent. A dry run unless dry_run is switched off. "
            "Safe to run twice.",
            first=spec.op,
            first_text=f"Repairs what it reads if the stream declares how, and sends {what}.",
            passed="",
        ),
        preset={"sink_id": spec.sink_id},
    )


def resend_job(stream: Stream, registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job of the operation; the registry knows its sink."""
    spec = stream.resend_spec

    def within(context: dg.OpExecutionContext, told: OperationContext) -> OperationContext:
        its, again = context.resources, f"launch the job {spec.job} again with the same configuration"
        pieces, connection = Pieces("the range", "; ".join, lambda left: again), its.kafka.connection()
        writes = SideWrites(context, "The resend", spec.sink_id, connection, its.transactions, pieces)
        known = {**vars(told), "connection": connection, "budget_s": READ_BUDGET_S}
        return ResendContext(**known, spark=opener(its.spark), writes=writes)

    tags = {**NOT_RETRIED, TAG_JOB: stream.queue(loading_location(), spec), TAG_STREAM: spec.name}
    return operation_job(resend_operation(stream), registry, JobExtras(("spark", "kafka"), tags, within=within))


class Unsent(NamedTuple):
    """The rest to send of a topic: what an earlier run has begun, and the others; the ends of the topic, its id."""

    topic: str
    topic_id: str
    marks: dict[int, Watermarks]
    unfinished: list[RejectedSpan]
    left: list[RejectedSpan]

    @property
    def pieces(self) -> list[RejectedSpan]:
        """All that is left."""
        return [*self.unfinished, *self.left]

    @property
    def names(self) -> list[str]:
        """All that is left, in words."""
        return [piece.named(self.topic) for piece in self.pieces]


def _unsent(stream: Stream, context: OperationContext, p: ResendParameters) -> Unsent:
    check_topics(stream, p)
    topic = p.topic or next(iter(stream.resent))
    with Admin(context.connection, context.budget_s) as admin:
        marks = admin.watermarks(topic)
        topic_id = admin.topic_ids([topic]).get(topic, "")
    log = read_log(context.connection, p.sink_id, context.budget_s)
    done = sent((d.write_id for d in log.decisions), topic, topic_id)
    # decided, and parts of it may be lost: only the same write brings them again
    unfinished = sent((d.write_id for d in log.open_decisions), topic, topic_id)
    return Unsent(topic, topic_id, marks, unfinished, remaining(asked(p.offsets, marks), done))


def _examine(stream: Stream, context: OperationContext, p: ResendParameters) -> OperationOutcome:
    ranges = _unsent(stream, context, p).names
    does = "Would send" if p.dry_run else "Sends"
    said = f"{does} again what these have: {'; '.join(ranges)}." if ranges else "There is no record left to send."
    return OperationOutcome(p.sink_id, said, {"ranges": ranges}, {"ranges": ranges}, to_do=bool(ranges))


def _send(
    stream: Stream, context: OperationContext, p: ResendParameters, examined: OperationOutcome | None
) -> OperationOutcome:
    """Wait for the older runs of the job, since two at once could take the same records for unsent, and look again."""
    assert isinstance(context, ResendContext)
    writes = context.writes
    SingleWriter(writes.context, stream.resend_spec, p.sink_id).begin()
    with writes.at_rest():
        run = _Resend(stream, p, _unsent(stream, context, p), context.spark, writes)
        done = run.send() if run.unsent.pieces else Sent(0, 0)
        said = done.said(run.unsent.topic, stream.dead_topic, run.repair is not None)
        facts = {"records_sent_again": done.records - done.dead, **({"records_left": done.kept} if done.kept else {})}
        key = stream.key_of(run.unsent.topic)
        writes.context.log_event(dg.AssetObservation(key, metadata={**facts, "said": said}))
    return OperationOutcome(p.sink_id, said, facts, facts, value=done)


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
    """One run: leaves out the dead letters that have JSON in place of what readers of the output take, and sends the
    others, partition by partition, each piece by a batch write with an id of its own.
    """

    stream: Stream
    p: ResendParameters
    unsent: Unsent
    spark: SparkSessionResource | BorrowedSession
    writes: SideWrites

    @property
    def repair(self) -> Repair | None:
        """The function that makes a new value."""
        return self.stream.resent[self.unsent.topic].repair

    @property
    def _replaces(self) -> bool:
        """True when what is sent takes the place of a dead letter: in the output. In the input, it is a new record."""
        return self.p.to not in self.stream.source_topics if self.p.to else self._sends_dead_letters

    @property
    def _sends_dead_letters(self) -> bool:
        return self.unsent.topic == self.stream.dead_topic

    def send(self) -> Sent:
        """Send what is left."""
        topic, topic_id, _, unfinished, left = self.unsent
        records, dead, pieces = 0, 0, self.writes.pieces
        self.writes.log(f"Spark starts, and reads what is left to send of {topic}")
        pieces.left = self.unsent.names
        with SparkWorker(self.spark.session, self.spark.kill) as worker:
            sendable, kept = self._sendable(worker) if self._sends_dead_letters else (left, 0)
            pieces.left = [piece.named(topic) for piece in (*unfinished, *sendable)]
            for piece in (*unfinished, *sendable):
                write_id, what = piece.write_id(topic, topic_id), piece.named(topic)
                starts = {topic: {piece.partition: piece.span.start}}
                self.writes.begin(what, f"The run sends {what}, again", starts, write_id)
                worker.call(lambda session, piece=piece, name=write_id: self._write(session, piece, name))  # type: ignore[misc]
                decision = self.writes.proven(write_id)
                pieces.end()
                self.writes.context.log.info(
                    f"{what}: sent {plural(decision.records - decision.dead_letters, 'record')}."
                )
                records, dead = records + decision.records, dead + decision.dead_letters
        return Sent(records, dead, kept)

    def _sendable(self, worker: SparkWorker[Any]) -> tuple[list[RejectedSpan], int]:
        """Return what is left without the dead letters that cannot be sent, and how many these are."""
        from dagster_exactly_once.backfill.spark import kept_in

        pieces, count, repairs = list[RejectedSpan](), 0, self.repair is not None
        for piece in self.unsent.left:
            kept = worker.call(lambda session, piece=piece: kept_in(self._rows(session, piece), repairs))  # type: ignore[misc]
            pieces += remaining([piece], [RejectedSpan(piece.partition, its.span) for its in kept])
            count += sum(its.records for its in kept)
        return pieces, count

    def _rows(self, session: Any, piece: RejectedSpan) -> Any:
        from dagster_exactly_once.backfill.spark import rejected_rows

        return rejected_rows(session, self.writes.connection, self.unsent.topic, piece, self.unsent.marks)

    def _write(self, session: Any, piece: RejectedSpan, write_id: str) -> None:
        from dagster_exactly_once.backfill.spark import to_send

        options, sources = self.stream.options, () if self._sends_dead_letters else self.stream.source_topics
        rows, encodes = self._rows(session, piece), encodes_values(options)
        records = to_send(rows, self.p.to, sources, self._replaces, self.repair, encodes)
        self.writes.save(records, write_id, without_registry(options))


def check_topics(stream: Stream, p: ResendParameters) -> None:
    """Refuse topics that the job neither reads nor writes. Raises InvalidOption."""
    if p.topic and p.topic not in stream.resent:
        raise InvalidOption(
            f"the field topic is {p.topic}, but this job does not resend records of {p.topic}",
            f"Leave it empty, or name one of {', '.join(stream.resent)}",
            "Nothing was sent",
        )
    allowed = [*stream.source_topics, *(topic for topic in stream.topics if topic not in stream.side_topics)]
    if p.to and p.to not in allowed:
        raise InvalidOption(
            f"the field to is {p.to}, but the stream {stream.name} neither reads nor writes that topic",
            f"Leave it empty, or name one of {', '.join(allowed)}",
            "Nothing was sent",
        )


def _targets(stream: Stream, topic: str) -> str:
    """Return where the records of a topic go, in words."""
    return "the output that each was for" if topic == stream.dead_topic else ", ".join(stream.source_topics)
