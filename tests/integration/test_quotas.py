"""A producer that the brokers slow down by a quota: the stream goes on, more slowly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from exactly_once.kafka.connection import Connection
from testkit.broker import fresh_name
from testkit.fixtures import Bench
from testkit.java import running_java
from testkit.stream import SparkDriver

#: Of a value. A part is one request; brokers let a burst of ten seconds pass, and delay the requests behind it.
SIZE = 1_500


@pytest.fixture
def slow_client(connection: Connection) -> Iterator[Any]:
    """Give a client id a quota: ``slow_client(bytes a second)`` returns its name."""
    with running_java() as java:
        util, kafka = java.jvm.java.util, java.jvm.org.apache.kafka
        settings = util.HashMap()
        settings.put("bootstrap.servers", connection.bootstrap_servers)
        admin = kafka.clients.admin.Admin.create(settings)

        def limit(rate: float) -> str:
            name = fresh_name("slow")
            who = util.HashMap()
            who.put("client-id", name)
            change = getattr(kafka.common.quota, "ClientQuotaAlteration$Op")("producer_byte_rate", float(rate))
            entity = kafka.common.quota.ClientQuotaEntity(who)
            alteration = kafka.common.quota.ClientQuotaAlteration(entity, util.List.of(change))
            admin.alterClientQuotas(util.List.of(alteration)).all().get()
            return name

        yield limit
        admin.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("rate", "batches", "at_least_s"),
    [
        pytest.param(10_000, 1, 2, id="for seconds"),
        pytest.param(3_000, 3, 60, marks=pytest.mark.long, id="for minutes"),
    ],
)
def test_a_stream_whose_producer_is_throttled_goes_on_more_slowly(
    rate: int, batches: int, at_least_s: float, slow_client: Any, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a part that takes the brokers' pause for their failure, a transaction that ends by its timeout
    meanwhile, and rows that are sent again when the pause is over.
    """
    bench.input.rows = 45
    bench.input.add(batches)
    job = bench.job.having(kafka_client_id=slow_client(rate))
    job.select[1] = f"rpad(split(value, '[|]')[1], {SIZE}, '.') value"

    began = time.monotonic()
    warm.complete(job, timeout_s=300)

    assert time.monotonic() - began > at_least_s, "no quota was in force"
    bench.assert_exactly([(key, value.ljust(SIZE, ".")) for key, value in bench.input.expected()])
    assert bench.decided_batches() == list(range(batches))
