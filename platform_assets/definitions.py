"""The code location: everything Dagster sees, put together in one place. Loading it imports no pyspark and starts
nothing.
"""

import dagster as dg

from platform_assets.assets.flight_delays import stream_flight_delays
from platform_assets.assets.flights import flights
from platform_assets.constants import run_dir
from platform_assets.jobs import flight_delays_stream, flights_feed
from platform_assets.recovery import recovery
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
from resources.spark import SparkSessionResource
from resources.transactions import TransactionAdmin

defs = dg.Definitions(
    assets=[flights, stream_flight_delays],
    jobs=[flights_feed, flight_delays_stream, recovery],
    executor=dg.in_process_executor,
    resources={
        "kafka": KafkaTransactionalProducerFactory.from_environment(),
        "transactions": TransactionAdmin.from_environment(),
        "spark": SparkSessionResource(work_dir=str(run_dir() / "spark")),
        "checkpoints": CheckpointReader(root=str(run_dir() / "checkpoints")),
    },
)
