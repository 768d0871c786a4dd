"""The outputs of a stream filled for days before the stream began, one exactly-once write for each day."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from dagster_exactly_once.backfill import spark as in_spark
from dagster_exactly_once.backfill.days import Day, before_stream, days_found, next_day, start_ms, write_id
from dagster_exactly_once.backfill.worker import SparkWorker
from dagster_exactly_once.backfill.writes import SideWrites
from dagster_exactly_once.declare.config import BackfillConfig, StreamConfig
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.resources.spark import BorrowedSession, SparkSessionResource, opener
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.runs.tags import TAG_STREAM
from dagster_exactly_once.streaming.outputs import create_outputs
from dagster_exactly_once.streaming.source import READ_BUDGET_S
from dagster_exactly_once.streaming.spans import Spans, worth_reading
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.batch_write import written
from exactly_once.errors import CheckpointUnusable, ProtocolViolation
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Decision


def days_of(stream: Stream) -> dg.DailyPartitionsDefinition:
    """Return the days that the stream's backfill covers."""
    assert stream.backfill is not None
    end = next_day(stream.backfill.end) if stream.backfill.end else None
    return dg.DailyPartitionsDefinition(start_date=stream.backfill.start, end_date=end)


def backfill_asset(stream: Stream) -> dg.AssetsDefinition:
    """Make the asset of the days; its key is ``<name>_by_day``."""
    spec = dg.AssetSpec(
        stream.by_day,
        deps=stream.source_keys,
        group_name=stream.outputs[0].group_name,
        owners=stream.outputs[0].owners,
        tags=stream.outputs[0].tags,
        kinds={"kafka", "spark"},
        partitions_def=days_of(stream),
        skippable=True,  # the op reports each day when it is done, not all of them at its end
        description=(
            f"The records of a UTC day in {', '.join(stream.topics)}, up to where the stream {stream.name} first "
            "started; the stream writes the rest. Each day is written exactly once, however many attempts it takes. A "
            "range of days is one run."
        ),
    )
    config_class = _config_class(stream)

    @dg.multi_asset(
        specs=[spec],
        name=stream.backfill_spec.op,
        pool=f"backfill_{stream.by_day}",
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def backfill(
        context: dg.AssetExecutionContext,
        config: config_class,  # type: ignore[valid-type]
        spark: dg.ResourceParam[Any],
        kafka: KafkaTransactionalProducerFactory,
        transactions: TransactionAdmin,
        checkpoints: CheckpointReader,
    ) -> Iterator[dg.MaterializeResult]:
        with classified():
            connection = kafka.connection()
        sink_id = stream.backfill_spec.sink_id
        writes = SideWrites(context, "The backfill", sink_id, connection, transactions)
        work = _Backfill(context, stream, config.stream, connection, kafka, opener(spark), writes)  # type: ignore[attr-defined]
        work.run(checkpoints, config.checkpoint)  # type: ignore[attr-defined]
        yield from ()  # Dagster would take a function that only returns to have made all of its days

    return backfill


def _config_class(stream: Stream) -> type[BackfillConfig]:
    """Return a config with the backfill's own fields, and those of the stream that its transformation reads."""
    described = Field(default=stream.config(), description="What the stream's transformation reads.")
    return create_model(f"{stream.name}_backfill", __base__=BackfillConfig, stream=(stream.config, described))


def input_of(stream: Stream) -> str:
    """Return the input topic: a declaration with a backfill names one."""
    [topic] = stream.source_topics
    return topic


def backfill_share(
    stream: Stream, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader, checkpoint: str
) -> Spans:
    """Return the backfill's share of the input, given the stream's checkpoint ("": the one that it last used).

    Raises NoBoundary, CheckpointUnusable, BrokerUnreachable or UnknownTopic.
    """
    connection, topic = kafka.connection(), input_of(stream)
    location = checkpoint or checkpoint_of(connection, stream.sink_id, kafka, checkpoints)
    began = checkpoints.first_offsets(location).get(topic, {})
    if not began and read_log(connection, stream.sink_id, READ_BUDGET_S).owner is not None:
        raise CheckpointUnusable(
            f"the stream has run, but its checkpoint {location} is missing, so where the stream began is unknown",
            "Run the backfill where the checkpoint can be read, or restore the checkpoint",
        )
    with Admin(connection, READ_BUDGET_S) as admin:
        return before_stream(began, admin.watermarks(topic))


@dataclass(frozen=True)
class _Backfill:
    """One run: writes the days of the run that are not written yet; :mod:`.days` defines the shares.

    1. Skip the days in the commit log; if it has all of them, do not start Spark.
    2. Find the records of the other days in the backfill's share of the input, in one pass.
    3. Write day by day, and report each day when it is committed.
    """

    context: dg.AssetExecutionContext
    stream: Stream
    config: StreamConfig
    connection: Connection
    kafka: KafkaTransactionalProducerFactory
    spark: SparkSessionResource | BorrowedSession
    writes: SideWrites

    def run(self, checkpoints: CheckpointReader, checkpoint: str) -> None:
        context = self.context
        tags = {TAG_STREAM: self.stream.backfill_spec.name}
        tag_run(context.instance, context.run.run_id, self.writes.sink_id, tags)
        with self.writes.at_rest():
            share = backfill_share(self.stream, self.kafka, checkpoints, checkpoint)
            create_outputs(self.kafka, self.stream)
            self._fill(share)

    def _fill(self, share: Spans) -> None:
        keys = sorted(self.context.partition_keys)
        log = read_log(self.connection, self.writes.sink_id, READ_BUDGET_S)
        before = {key: decision for key in keys if (decision := log.write(self._write_id(key))) is not None}
        for key, decision in before.items():
            self._report(key, decision.records, f"{key} was written before, {decision.records:,} records.", decision)
        todo = [key for key in keys if key not in before]
        if not todo:
            return
        spans = self._worth_reading(share, todo[0])
        if all(span.empty for span in spans.values()):
            for key in todo:
                self._report(key, 0, f"{key}: the live stream owns all input from that day on; nothing to write.")
            return
        self._write(todo, spans, share)

    def _write(self, todo: Sequence[str], spans: Spans, share: Spans) -> None:
        topic = input_of(self.stream)
        with SparkWorker(self.spark.session, self.spark.kill) as worker:
            found = worker.call(lambda session: in_spark.find_days(session, self.connection, topic, todo, spans))
            for day in days_found(todo, found, share):
                if day.records:
                    worker.call(lambda session, day=day: self._write_day(session, day))  # type: ignore[misc]
                    said = f"{day.key}: wrote {day.records:,} records."
                    self._report(day.key, day.records, said, self._proven(day))
                else:
                    said = f"{day.key}: no record of that day lies before the live stream's start; nothing to write."
                    self._report(day.key, 0, said)

    def _write_day(self, session: object, day: Day) -> None:
        stream, config = self.stream, self.config
        options = self.writes.options(self._write_id(day.key), stream.sink_options(config.checked_sink_options()))
        in_spark.write_day(
            session,  # type: ignore[arg-type]
            self.connection,
            topic=input_of(stream),
            outputs=stream.row_topics,
            day=day,
            transform=lambda events: stream.records({input_of(stream): events}, config),
            options=options,
            rejected=stream.rejected_topic,
            trace_headers=stream.trace_headers,
        )

    def _write_id(self, day: str) -> str:
        return write_id(self.stream.by_day, day)

    def _worth_reading(self, share: Spans, first_day: str) -> Spans:
        with Admin(self.connection, READ_BUDGET_S) as admin:
            return worth_reading(share, admin.offsets_since(input_of(self.stream), start_ms(first_day)))

    def _proven(self, day: Day) -> Decision:
        """Return the decision of a day that was just written."""
        decision = written(self.connection, self.writes.sink_id, self._write_id(day.key), READ_BUDGET_S)
        if decision is None or (self.stream.one_to_one and decision.records != day.records):
            have = "nothing" if decision is None else f"{decision.records:,} records"
            raise ProtocolViolation(
                f"{day.key} has {day.records:,} records in the input, but the commit log says that {have} was written",
                "Report this as a bug, with this message",
                "Days reported earlier are complete",
            )
        return decision

    def _report(self, day: str, records: int, said: str, decision: Decision | None = None) -> None:
        self.context.log.info(said)
        metadata: dict[str, int | str] = {"records_written": records, "said": said}
        if decision is not None:
            metadata |= {
                "records_written": decision.records,
                "transactions": decision.part_count,
                "write_id": decision.write_id,
            }
        self.context.log_event(dg.AssetMaterialization(self.stream.by_day, partition=day, metadata=metadata))
