"""The output topics, written by one streaming query in one transaction per part."""

from collections.abc import Iterator

import dagster as dg

from platform_assets.classified import classified
from platform_assets.config import Mode, StreamConfig
from platform_assets.constants import (
    EVENT_TIME_TOPIC,
    FLIGHT_DELAYS,
    FLIGHT_DELAYS_REJECTED,
    FLIGHTS,
    GROUP,
    PARTITIONS,
    STREAM_POOL,
)
from platform_assets.flights.query import QueryPlan, start_query
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

#: The op's name in run configuration.
STREAM_OP = "stream_flight_delays"

_DELAYS = dg.AssetSpec(
    FLIGHT_DELAYS,
    deps=[FLIGHTS],
    group_name=GROUP,
    kinds={"kafka", "spark"},
    description=(
        "Kafka topic: departures, cleaned and joined with the names of airline and airports, as JSON keyed by tail "
        "number. "
        "Written exactly once; read it with isolation.level=read_committed."
    ),
)
_REJECTED = dg.AssetSpec(
    FLIGHT_DELAYS_REJECTED,
    deps=[FLIGHTS],
    group_name=GROUP,
    kinds={"kafka", "spark"},
    description=(
        "Kafka topic: events that could not be read, byte for byte, with the reason and their origin in headers. "
        "Written in "
        "the same transactions as flight_delays."
    ),
)


@dg.multi_asset(specs=[_DELAYS, _REJECTED], name=STREAM_OP, pool=STREAM_POOL)
def stream_flight_delays(
    context: dg.AssetExecutionContext,
    config: StreamConfig,
    spark: SparkSessionResource,
    kafka: KafkaTransactionalProducerFactory,
    transactions: TransactionAdmin,
    checkpoints: CheckpointReader,
) -> Iterator[dg.MaterializeResult]:
    """Runs the stream until it is stopped or has caught up; see :class:`ManagedStream`."""
    tag_run(context.instance, context.run.run_id, config.sink_id)
    with classified():
        stream = _prepared(context, config, spark, kafka, transactions, checkpoints)
        last = stream.run()
    context.log.info(last.sentence())
    for key, metadata in _metadata(last).items():
        yield dg.MaterializeResult(asset_key=key, metadata={**metadata, **stream.totals()})


def _prepared(
    context: dg.AssetExecutionContext,
    config: StreamConfig,
    spark: SparkSessionResource,
    kafka: KafkaTransactionalProducerFactory,
    transactions: TransactionAdmin,
    checkpoints: CheckpointReader,
) -> ManagedStream:
    """The stream of this run, ready to start: its topics exist, and what earlier runs have reported is known."""
    connection = kafka.connection()
    start_time_ms(config.start_from)  # refused before anything is made
    kafka.create_topics({FLIGHTS: PARTITIONS}, EVENT_TIME_TOPIC)
    kafka.create_topics({FLIGHT_DELAYS: PARTITIONS, FLIGHT_DELAYS_REJECTED: PARTITIONS})
    checkpoint = config.checkpoint or checkpoints.location(kafka.cluster_id(), config.sink_id)
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
        context.log.info(f"start_from={config.start_from} has no effect: the stream goes on from its checkpoint.")
    elif not goes_on:
        context.log.info(f"There is no checkpoint yet: the stream begins at {config.start_from}.")

    def report(window: Window) -> None:
        context.log.info(window.sentence())
        if window.batches:
            for key, metadata in _metadata(window).items():
                context.log_event(dg.AssetMaterialization(key, metadata=metadata))
        else:
            context.log_event(dg.AssetObservation(FLIGHT_DELAYS, metadata=window.plots(0)))

    return ManagedStream(
        context,
        Supervisor(spark.session, lambda session: start_query(session, connection, plan)),
        StreamObserver(connection, plan.sink_id, FLIGHTS, plan.checkpoint, checkpoints),
        transactions,
        plan.sink_id,
        spark.kill,
        report,
        config.report_interval_s,
    )


def _metadata(window: Window) -> dict[str, dict[str, dg.MetadataValue | int | float]]:
    """For each output topic: the numbers that are plotted, and the table of batches."""
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
    table = {"newest_batches": dg.MetadataValue.table(rows)} if rows else {}
    return {
        FLIGHT_DELAYS: {**window.plots(window.records - window.rejected), **table},
        FLIGHT_DELAYS_REJECTED: {**window.plots(window.rejected), **table},
    }


def _text(duration_ms: int | None) -> str:
    return "" if duration_ms is None else str(duration_ms)
