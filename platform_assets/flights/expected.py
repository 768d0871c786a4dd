"""What ``flight_delays`` must hold, computed from the package with pandas: no Spark, no Kafka, none of the sink's code.

It states the transformation a second time on purpose. The report compares the two, so that a mistake in one of them
shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from platform_assets.flights.departures import EVENT_FIELDS, airline_names, airport_names, departures


def expected_delays() -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Key and value of the record for each departure, in the order of their sequence numbers.

    The value lacks ``src``, which says where the event lay in ``flights`` and so cannot be known from the package.
    """
    airlines, airports = airline_names(), airport_names()
    table = departures()
    columns = [table[name].tolist() for name in EVENT_FIELDS]
    for sequence, values in enumerate(zip(*columns, strict=True)):
        flight = dict(zip(EVENT_FIELDS, values, strict=True))
        if flight["dep_time"] is None:
            status = "cancelled"
        else:
            status = "diverted" if flight["arr_delay"] is None else "arrived"
        yield (
            flight["tailnum"],
            {
                "sequence": sequence,
                # time_hour is a full hour: 2013-01-01T10:00:00Z
                "scheduled_departure": f"{flight['time_hour'][:14]}{flight['minute']:02}:00Z",
                "carrier": flight["carrier"],
                "airline": airlines.get(flight["carrier"]),
                "flight": flight["flight"],
                "tailnum": flight["tailnum"],
                "origin": flight["origin"],
                "origin_name": airports.get(flight["origin"]),
                "dest": flight["dest"],
                "dest_name": airports.get(flight["dest"]),
                "status": status,
                "departure_delay_min": flight["dep_delay"],
                "arrival_delay_min": flight["arr_delay"],
                "air_time_min": flight["air_time"],
                "distance_miles": flight["distance"],
            },
        )
