"""The code location: everything Dagster sees, put together in one place. Loading it imports no pyspark and starts
nothing.
"""

import dagster as dg

from dagster_exactly_once import exactly_once_definitions
from exactly_once_local.run_folder import run_folder
from platform_assets.flights.asset import flights, flights_feed
from platform_assets.flights.streams import delay_by_hour, flight_delays
from resources.deployment import resources
from sensors.notices import notifier
from sensors.policies import policies
from sensors.streams import stream_sensors

defs = dg.Definitions.merge(
    exactly_once_definitions(flight_delays, delay_by_hour, sensors=stream_sensors, notify=notifier()),
    dg.Definitions(
        assets=[flights],
        jobs=[flights_feed],
        executor=dg.in_process_executor,
        resources={**resources(run_folder()), **policies()},
    ),
)
