"""The expected content of ``flight_delays`` and ``delay_by_hour``, computed from the package with pandas: no Spark, no
Kafka, no code of the sink.

It implements the transformations a second time on purpose: reports and tests compare the two, which shows a mistake in
either.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
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


def expected_hours(count: int, watermark_delay_h: float | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the records of ``delay_by_hour`` after the first ``count`` departures, by window start and airport.

    Parameters
    ----------
    watermark_delay_h : float, optional
        Only the hours that a watermark so far behind the newest departure has closed; by default all.
    """
    table = departures().iloc[:count]
    delays: dict[tuple[str, str], list[int | None]] = {}
    newest = datetime.min
    columns = ("time_hour", "minute", "origin", "dep_time", "dep_delay")
    for hour, minute, origin, dep_time, dep_delay in zip(*(table[c].tolist() for c in columns), strict=True):
        # time_hour is the full hour of the scheduled departure: the window's start
        delays.setdefault((hour, origin), []).append(None if dep_time is None else dep_delay)
        newest = max(newest, _time(hour) + timedelta(minutes=minute))
    hours = {}
    for (hour, origin), found in sorted(delays.items()):
        end = _time(hour) + timedelta(hours=1)
        if watermark_delay_h is not None and end > newest - timedelta(hours=watermark_delay_h):
            continue
        left = [delay for delay in found if delay is not None]
        hours[hour, origin] = {
            "origin": origin,
            "window_start": hour,
            "window_end": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "departures": len(found),
            "cancelled": len(found) - len(left),
            "average_departure_delay_min": sum(left) / len(left) if left else None,
        }
    return hours


def _time(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y-%m-%dT%H:%M:%SZ")
