"""The expected content of ``flight_delays``, computed from the package with pandas: no Spark, no Kafka, no code of the
sink.

It implements the transformation a second time on purpose: reports and tests compare the two, which shows a mistake in
either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exactly_once_local.duel.departures import EVENT_FIELDS, airline_names, airport_names, departures


def expected_delays() -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield key and value of the record for each departure, by sequence number.

    The value lacks ``src``, the event's position in ``flights``, which the package does not know.
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
