"""Malformed events: not lost, no reason to stop, and in the same transactions as the valid ones of their batch."""

from itertools import islice

import pytest

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.admin import Admin
from exactly_once_local.duel.departures import events
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.names import SINK_ID
from platform_assets.report.reader import read_committed
from testkit.flights import findings

VALID = 400
MALFORMED = [
    b"{broken",
    b"",
    None,
    b"[1]",
    b"\xff\xfe\x00",
    b'{"carrier":"UA"}',
    b'{"minute":1.5}',
    '{"dest":"Zürich"}'.encode(),
]


@pytest.mark.long
def test_malformed_events_come_out_rejected_beside_the_valid_ones(site):
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    factory.create_topics({FLIGHTS: 4})
    with factory.producer("test-feed") as producer, producer.transaction():
        for n, event in enumerate(islice(events(), VALID)):
            producer.send(FLIGHTS, event.value, event.key)
            if n % 50 == 0:
                producer.send(FLIGHTS, MALFORMED[n // 50], event.key)

    said = site.run("flight_delays_stream", {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}})

    found, faults, examples = findings(site.connection, VALID)
    assert faults == {}, examples
    assert (found.out, found.rejected, found.foreign) == (VALID, len(MALFORMED), len(MALFORMED))
    rejected = list(read_committed(site.connection, FLIGHT_DELAYS_REJECTED))
    assert sorted(map(repr, (x.value for x in rejected))) == sorted(map(repr, MALFORMED))
    assert {dict(x.headers)["reason"] for x in rejected} >= {b"no value", b"not a JSON object", b"time_hour is missing"}
    assert f"{len(MALFORMED)} to {FLIGHT_DELAYS_REJECTED}" in said

    (decision,) = [d for d in read_log(site.connection, SINK_ID).decisions if d.records]
    assert decision.records == VALID + len(MALFORMED)
    assert set(decision.topics) == {FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED}
    assert len(decision.handles) <= 4  # one transaction for each part, whatever topics it writes
    with Admin(site.connection) as admin:
        for topic in (FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED):
            assert all(w.last_stable == w.high for w in admin.watermarks(topic).values())


@pytest.mark.long
def test_a_second_run_finds_nothing_to_do(site):
    before = read_log(site.connection, SINK_ID).decisions
    said = site.run("flight_delays_stream", {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}})
    assert "no batch" in said
    assert read_log(site.connection, SINK_ID).decisions == before
