"""The real input: complete, in time order, and the same bytes at every reading, or a feed could not go on where it
ended.
"""

import json
from itertools import islice, pairwise

import pytest

from exactly_once_local.duel.departures import DEPARTURES, airline_names, airport_names, departures, events
from platform_assets.flights.expected import expected_delays


@pytest.mark.long
def test_every_departure_becomes_one_event_in_time_order():
    times, sequences, without_key = [], [], 0
    for event in events():
        times.append(event.timestamp_ms)
        sequences.append(event.sequence)
        without_key += event.key is None
    assert len(departures()) == DEPARTURES == len(sequences)
    assert sequences == list(range(DEPARTURES))
    assert all(a <= b for a, b in pairwise(times))
    assert without_key == 2_512  # cancelled before an aircraft was assigned


def test_the_events_from_the_middle_are_the_same_bytes_as_before():
    start = 123_456
    assert list(islice(events(start), 100)) == list(islice(events(), start, start + 100))


def test_an_event_names_its_place_and_its_aircraft():
    first = next(events())
    body = json.loads(first.value)
    assert body["sequence"] == 0
    assert first.key == body["tailnum"].encode()
    assert body["time_hour"].endswith("Z") and isinstance(body["dep_time"], int)


def test_codes_have_names_save_four_airports():
    assert set(departures()["carrier"]) <= airline_names().keys()
    assert set(departures()["dest"]) - airport_names().keys() == {"BQN", "PSE", "SJU", "STT"}


def test_the_expected_output_keeps_unknown_names_and_times_as_null():
    by_dest = {}
    for key, body in islice(expected_delays(), 2_000):
        by_dest.setdefault(body["dest"], (key, body))
    key, body = by_dest["SJU"]
    assert body["dest_name"] is None and body["origin_name"] and key == body["tailnum"]
    cancelled = next(body for _, body in expected_delays() if body["status"] == "cancelled")
    assert cancelled["departure_delay_min"] is None and cancelled["air_time_min"] is None
