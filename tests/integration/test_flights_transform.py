"""The transformation on a real Spark session: what is valid, what is rejected and why, and that nothing is shuffled."""

import json
from itertools import islice

import pytest

import exactly_once
from exactly_once import error_headers
from exactly_once_local.duel.departures import airline_names, airport_names, events
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.by_hour import delay_by_hour
from platform_assets.flights.expected import expected_delays
from platform_assets.flights.transform import flight_delays, lookup, parse
from testkit.flights import expected_hours

pytestmark = pytest.mark.long  # make test compares what a whole stream wrote with the package: test_restart.py

VALID = {
    "sequence": 7,
    "time_hour": "2013-01-01T10:00:00Z",
    "minute": 15,
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "dep_time": 517,
    "dep_delay": 2,
    "arr_delay": 11,
}


def source(spark, values, key=b"k"):
    import pyarrow as pa

    rows = pa.table(
        {
            "key": pa.array([key] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array([FLIGHTS] * len(values), pa.string()),
            "partition": pa.array([3] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
        }
    )
    return spark.createDataFrame(rows)


def transform(spark, values):
    """The rows of both topics, as the stream writes them."""
    rows = flight_delays(source(spark, values), lookup(spark, airline_names()), lookup(spark, airport_names()))
    return exactly_once.split(rows, FLIGHT_DELAYS, rejected=FLIGHT_DELAYS_REJECTED)


def hours(spark, values):
    """The records of ``delay_by_hour`` by window start and airport; each comes once."""
    rows = delay_by_hour(parse(source(spark, values)), 1).collect()
    found = {(body["window_start"], body["origin"]): body for body in (json.loads(row.value) for row in rows)}
    assert len(found) == len(rows) and all(row.key.decode() == json.loads(row.value)["origin"] for row in rows)
    return found


def as_bytes(**changes):
    return json.dumps({k: v for k, v in {**VALID, **changes}.items() if v is not ...}).encode()


def test_real_events_become_what_the_package_says(spark):
    count = 3_000
    rows = transform(spark, [e.value for e in islice(events(), count)]).toArrow().to_pylist()
    assert len(rows) == count
    for row, (key, expected) in zip(rows, islice(expected_delays(), count), strict=True):
        body = json.loads(row["value"])
        assert body.pop("src") == {"partition": 3, "offset": expected["sequence"]}
        assert body == expected and list(body) == list(expected)
        assert row["topic"] == FLIGHT_DELAYS and row["headers"] is None
        assert row["key"] == key and row["encoded_key"] is row["encoded_value"] is None


MALFORMED = [
    (None, "no value"),
    (b"", "not a JSON object"),
    (b'{"sequence":0', "not a JSON object"),
    (b"[1,2]", "not a JSON object"),
    (b'"x"', "not a JSON object"),
    (b"null", "not a JSON object"),
    (b"\xff\xfe", "not a JSON object"),
    (b"{}", "time_hour is missing"),
    (as_bytes(carrier=None), "carrier is missing"),
    (as_bytes(dest=...), "dest is missing"),
    (as_bytes(minute=None), "minute is missing"),
    (as_bytes(carrier={"code": "UA"}), "carrier is not a code"),
    (as_bytes(origin="NEWARK"), "origin is not a code"),
    (as_bytes(flight=True), "flight is not a whole number"),
    (as_bytes(flight=99_999_999_999), "flight is not a whole number"),
    (as_bytes(dep_delay=2.5), "dep_delay is not a whole number"),
    (as_bytes(arr_delay="late"), "arr_delay is not a whole number"),
    (as_bytes(minute=75), "minute is not in 0..59"),
    (as_bytes(minute=2_000_000_000), "minute is not in 0..59"),
    (as_bytes(time_hour="2013-13-01T10:00:00Z"), "time_hour is not a time like 2013-01-01T10:00:00Z"),
    (as_bytes(time_hour="yesterday"), "time_hour is not a time like 2013-01-01T10:00:00Z"),
]


def test_malformed_events_are_rejected_byte_for_byte_with_reason_and_origin(spark):
    rows = transform(spark, [value for value, _ in MALFORMED]).toArrow().to_pylist()
    for offset, (row, (value, reason)) in enumerate(zip(rows, MALFORMED, strict=True)):
        headers = {h["key"]: h["value"].decode() for h in row["headers"]}
        assert headers[error_headers.MESSAGE] == reason, value
        assert row["topic"] == FLIGHT_DELAYS_REJECTED
        assert row["encoded_value"] == value and row["encoded_key"] == b"k" and row["value"] is row["key"] is None
        pairs = [(name, text.encode()) for name, text in headers.items()]
        assert error_headers.origin_in(pairs) == (FLIGHTS, 3, offset)


@pytest.mark.parametrize(
    ("changes", "field", "cleaned"),
    [
        ({"carrier": " ua "}, "carrier", "UA"),
        ({"tailnum": ""}, "tailnum", None),
        ({"tailnum": "  "}, "tailnum", None),
        ({"minute": "5"}, "scheduled_departure", "2013-01-01T10:05:00Z"),
        ({"dest": "XXX"}, "dest_name", None),
        ({"carrier": "ZZ"}, "airline", None),
        ({"dep_time": None}, "status", "cancelled"),
        ({"arr_delay": None}, "status", "diverted"),
    ],
)
def test_valid_events_are_cleaned_and_never_dropped(spark, changes, field, cleaned):
    (row,) = transform(spark, [as_bytes(**changes)]).collect()
    body = json.loads(row.value)
    assert row.topic == FLIGHT_DELAYS and body[field] == cleaned
    assert row.key == body["tailnum"]


def test_no_shuffle_stands_between_source_and_sink(spark):
    """A shuffle would lose the order of a key, and the partition of its records."""
    plan = transform(spark, [as_bytes()])._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "Exchange hashpartitioning" not in plan and "SortMergeJoin" not in plan


def test_a_session_in_local_time_is_refused(spark):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with pytest.raises(ValueError, match="UTC"):
            transform(spark, [as_bytes()])
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_the_hours_of_real_events_are_what_the_package_says(spark):
    """A departure in the wrong hour, or in none, would be a loss that no count of records shows."""
    count = 3_000
    found = hours(spark, [e.value for e in islice(events(), count)])
    assert found == expected_hours(count)
    assert sum(h["departures"] for h in found.values()) == count
    assert any(h["cancelled"] for h in found.values())


def test_an_hour_begins_with_its_first_minute_and_ends_before_the_next_one(spark):
    """A departure on the hour must not count twice, or in the hour before."""
    values = [as_bytes(minute=m, time_hour=f"2013-01-01T{h}:00:00Z") for h, m in (("10", 0), ("10", 59), ("11", 0))]
    counts = {start: h["departures"] for (start, _), h in hours(spark, values).items()}
    assert counts == {"2013-01-01T10:00:00Z": 2, "2013-01-01T11:00:00Z": 1}


def test_cancelled_and_malformed_departures_are_in_no_average(spark):
    """A cancelled departure counted as one without delay would make a bad hour look good."""
    values = [as_bytes(dep_delay=10), as_bytes(dep_delay=-5), as_bytes(dep_time=None, dep_delay=None)]
    values += [as_bytes(minute=75), b"{broken", as_bytes(origin="JFK", dep_time=None, dep_delay=None)]
    found = {origin: h for (_, origin), h in hours(spark, values).items()}
    assert found.keys() == {"EWR", "JFK"}
    assert (found["EWR"]["departures"], found["EWR"]["cancelled"]) == (3, 1)
    assert found["EWR"]["average_departure_delay_min"] == 2.5
    assert (found["JFK"]["departures"], found["JFK"]["cancelled"]) == (1, 1)
    assert found["JFK"]["average_departure_delay_min"] is None
