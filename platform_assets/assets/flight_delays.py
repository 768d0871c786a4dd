"""The output topics, written by one streaming query in one transaction per part."""

from collections.abc import Iterator

import dagster as dg

from platform_assets.config import StreamConfig
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS, GROUP, STREAM_POOL
from platform_assets.flights.query import start_query
from platform_assets.flights.run import FlightStream, Tools, run_stream
from platform_assets.streaming.windows import Window
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
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
        "Kafka topic: departures, cleaned and joined with the names of airlines and airports, as JSON keyed by tail "
        "number. Written exactly once; read it with isolation.level=read_committed."
    ),
)
_REJECTED = dg.AssetSpec(
    FLIGHT_DELAYS_REJECTED,
    deps=[FLIGHTS],
    group_name=GROUP,
    kinds={"kafka", "spark"},
    description=(
        "Kafka topic: events that could not be parsed, byte for byte, with the reason and their origin in headers. "
        "Written in the same transactions as flight_delays."
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
    """Run the stream until it is stopped or has caught up."""
    flow = FlightStream((FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED), start_query, _figures)
    yield from run_stream(context, config, Tools(spark, kafka, transactions, checkpoints), flow)


def _figures(window: Window) -> dict[str, dict[str, int | float]]:
    return {
        FLIGHT_DELAYS: window.plots(window.records - window.rejected),
        FLIGHT_DELAYS_REJECTED: window.plots(window.rejected),
    }
