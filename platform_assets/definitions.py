"""The code location: everything Dagster sees, put together in one place. Loading it imports no pyspark and starts
nothing.
"""

import dagster as dg

from dagster_exactly_once import exactly_once_definitions
from platform_assets.constants import run_dir
from platform_assets.flights.asset import flights, flights_feed
from platform_assets.flights.streams import delay_by_hour, flight_delays
from resources.deployment import resources
from sensors.notices import notifier

defs = dg.Definitions.merge(
    exactly_once_definitions(flight_delays, delay_by_hour, notify=notifier()),
    dg.Definitions(
        assets=[flights],
        jobs=[flights_feed],
        executor=dg.in_process_executor,
        resources=resources(run_dir()),
    ),
)
