"""The code location: everything Dagster sees, put together in one place. Loading it imports no pyspark and starts
nothing.
"""

import dagster as dg

from platform_assets.assets.delay_by_hour import stream_delay_by_hour
from platform_assets.assets.flight_delays import stream_flight_delays
from platform_assets.assets.flight_delays_by_day import backfill_flight_delays
from platform_assets.assets.flights import flights
from platform_assets.checks.definitions import CHECKS
from platform_assets.constants import run_dir
from platform_assets.jobs import (
    delay_by_hour_stream,
    flight_delays_backfill,
    flight_delays_checks,
    flight_delays_stream,
    flights_feed,
)
from platform_assets.recovery.checkpoint import checkpoint_repair
from platform_assets.recovery.job import recovery
from platform_assets.schedules import checks_every_ten_minutes, fill_missing_days
from platform_assets.watch import POLICIES, SENSORS, TRANSACTIONS_ASSETS
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
from resources.spark import SparkSessionResource
from resources.transactions import TransactionAdmin

defs = dg.Definitions(
    assets=[flights, stream_flight_delays, stream_delay_by_hour, backfill_flight_delays, *TRANSACTIONS_ASSETS],
    asset_checks=CHECKS,
    jobs=[
        flights_feed,
        flight_delays_stream,
        delay_by_hour_stream,
        flight_delays_backfill,
        flight_delays_checks,
        recovery,
        checkpoint_repair,
    ],
    schedules=[checks_every_ten_minutes, fill_missing_days],
    sensors=SENSORS,
    executor=dg.in_process_executor,
    resources={
        "kafka": KafkaTransactionalProducerFactory.from_environment(),
        "transactions": TransactionAdmin.from_environment(),
        "spark": SparkSessionResource(work_dir=str(run_dir() / "spark")),
        "checkpoints": CheckpointReader(root=str(run_dir() / "checkpoints")),
        **POLICIES,
    },
)
