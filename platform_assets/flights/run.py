"""One run of a stream over ``flights`` as a Dagster op, shared by the assets of both streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from exactly_once.checkpoint import check_whole
from exactly_once.kafka.connection import Connection
from platform_assets.classified import classified
from platform_assets.config import Mode, StreamConfig
from platform_assets.constants import EVENT_TIME_TOPIC, FLIGHTS, PARTITIONS
from platform_assets.flights.query import QueryPlan
from platform_assets.flights.start import EARLIEST, start_time_ms
from platform_assets.streaming.managed import ManagedStream
from platform_assets.streaming.observer import StreamObserver
from platform_assets.streaming.supervisor import Supervisor
from platform_assets.streaming.windows import BATCHES_SHOWN, Window
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
from resources.run_process import tag_run
from resources.spark import SparkSessionResource
from resources.transactions import TransactionAdmin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Metadata = dict[str, dg.MetadataValue | int | float]


@dataclass(frozen=True)
class Tools:
    """The resources of a stream's op."""

    spark: SparkSessionResource
    kafka: KafkaTransactionalProducerFactory
    transactions: TransactionAdmin
    checkpoints: CheckpointReader


@dataclass(frozen=True)
class FlightStream:
    """The properties of one stream over ``flights``.

    Attributes
    ----------
    outputs : tuple of str
        The topics that it writes, each an asset; without input, only the first one gets observations.
    start : callable
        Starts the query in a session.
    figures : callable
        Returns the numbers of a window to plot, by output.
    """

    outputs: tuple[str, ...]
    start: Callable[[SparkSession, Connection, QueryPlan], StreamingQuery]
    figures: Callable[[Window], dict[str, dict[str, int | float]]]


def run_stream(
    context: dg.AssetExecutionContext, config: StreamConfig, tools: Tools, flow: FlightStream
) -> Iterator[dg.MaterializeResult]:
    """Run the stream until it is stopped or has caught up; see :class:`ManagedStream`."""
    tag_run(context.instance, context.run.run_id, config.sink_id)
    with classified():
        stream = _prepared(context, config, tools, flow)
        last = stream.run()
    _say(context, last)
    for key, metadata in _metadata(flow, last).items():
        yield dg.MaterializeResult(asset_key=key, metadata={**metadata, **stream.totals()})


def _prepared(
    context: dg.AssetExecutionContext, config: StreamConfig, tools: Tools, flow: FlightStream
) -> ManagedStream:
    """Prepare the stream of this run: create its topics, and find what earlier runs have reported."""
    spark, kafka, checkpoints = tools.spark, tools.kafka, tools.checkpoints
    connection = kafka.connection()
    start_time_ms(config.start_from)  # refuse before creating anything
    kafka.create_topics({FLIGHTS: PARTITIONS}, EVENT_TIME_TOPIC)
    kafka.create_topics(dict.fromkeys(flow.outputs, PARTITIONS))
    checkpoint = config.checkpoint or checkpoints.location(kafka.cluster_id(), config.sink_id)
    check_whole(checkpoint, config.sink_id)  # Spark's own error names no way out
    goes_on = bool(checkpoints.first_offsets(checkpoint))
    plan = QueryPlan(
        config.sink_id,
        checkpoint,
        config.max_offsets_per_trigger,
        config.trigger_interval_s if config.mode is Mode.until_stopped else None,
        EARLIEST if goes_on else config.start_from,
    )
    context.log.info(f"Sink {plan.sink_id}, checkpoint {plan.checkpoint}, mode {config.mode.value}.")
    if goes_on and config.start_from != EARLIEST:
        context.log.info(f"start_from={config.start_from} has no effect: the stream continues from its checkpoint.")
    elif not goes_on:
        context.log.info(f"There is no checkpoint yet: the stream begins at {config.start_from}.")

    def report(window: Window) -> None:
        _say(context, window)
        if window.batches:
            for key, metadata in _metadata(flow, window).items():
                context.log_event(dg.AssetMaterialization(key, metadata=metadata))
        else:
            context.log_event(dg.AssetObservation(flow.outputs[0], metadata=window.plots(0)))

    return ManagedStream(
        context,
        Supervisor(spark.session, lambda session: flow.start(session, connection, plan)),
        StreamObserver(connection, plan.sink_id, FLIGHTS, plan.checkpoint, checkpoints),
        tools.transactions,
        plan.sink_id,
        spark.kill,
        report,
        config.report_interval_s,
    )


def _say(context: dg.AssetExecutionContext, window: Window) -> None:
    context.log.info(window.sentence())
    if window.late:
        context.log.warning(
            f"{window.late:,} rows came behind the watermark and are in no window: input partitions are further apart "
            "than watermark_delay_h. Raise watermark_delay_h; only a new sink id writes the dropped rows."
        )


def _metadata(flow: FlightStream, window: Window) -> dict[str, Metadata]:
    """Return, for each output, the numbers to plot and the table of batches."""
    rows = [
        dg.TableRecord(
            {
                "batch": b.batch_id,
                "records": b.records,
                "rejected": b.rejected,
                "transactions": b.transactions,
                "batch_ms": _text(b.batch_ms),
                "commit_ms": _text(b.commit_ms),
            }
        )
        for b in window.batches[-BATCHES_SHOWN:]
    ]
    table: Metadata = {"newest_batches": dg.MetadataValue.table(rows)} if rows else {}
    return {key: {**figures, **table} for key, figures in flow.figures(window).items()}


def _text(duration_ms: int | None) -> str:
    return "" if duration_ms is None else str(duration_ms)
