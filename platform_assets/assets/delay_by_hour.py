"""The second stream over ``flights``: averages by airport and hour, with state between batches."""

from collections.abc import Iterator
from functools import partial

import dagster as dg

from platform_assets.config import DelayByHourConfig
from platform_assets.constants import DELAY_BY_HOUR, DELAY_BY_HOUR_POOL, FLIGHTS, GROUP
from platform_assets.flights.by_hour import start_by_hour
from platform_assets.flights.run import FlightStream, Tools, run_stream
from platform_assets.streaming.windows import Window
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
from resources.spark import SparkSessionResource
from resources.transactions import TransactionAdmin

#: The op's name in run configuration.
DELAY_BY_HOUR_OP = "stream_delay_by_hour"

_BY_HOUR = dg.AssetSpec(
    DELAY_BY_HOUR,
    deps=[FLIGHTS],
    group_name=GROUP,
    kinds={"kafka", "spark"},
    description=(
        "Kafka topic: departures, cancellations and the average departure delay of each airport of origin and hour "
        "(scheduled, UTC), as JSON keyed by airport. The stream writes each hour once, when the watermark has passed "
        "it. Written exactly once; read it with isolation.level=read_committed."
    ),
)


@dg.multi_asset(specs=[_BY_HOUR], name=DELAY_BY_HOUR_OP, pool=DELAY_BY_HOUR_POOL)
def stream_delay_by_hour(
    context: dg.AssetExecutionContext,
    config: DelayByHourConfig,
    spark: SparkSessionResource,
    kafka: KafkaTransactionalProducerFactory,
    transactions: TransactionAdmin,
    checkpoints: CheckpointReader,
) -> Iterator[dg.MaterializeResult]:
    """Run the stream until it is stopped or has caught up."""
    start = partial(start_by_hour, watermark_delay_h=config.watermark_delay_h)
    flow = FlightStream((DELAY_BY_HOUR,), start, _figures)
    yield from run_stream(context, config, Tools(spark, kafka, transactions, checkpoints), flow)


def _figures(window: Window) -> dict[str, dict[str, int | float]]:
    return {DELAY_BY_HOUR: {**window.plots(window.records), "late_rows": window.late}}
