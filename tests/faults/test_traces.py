"""One trace for each batch, with its steps, of a stream whose driver is killed; and the input's trace in the output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from exactly_once.kafka.connection import Connection
from testkit import broker as brokers
from testkit.collector import Collector, Seen
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.processes import until
from testkit.stream import Job

STEPS = ["plan", "write", "confirm", "decide", "complete", "mark"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as listening:
        yield listening


def said(batch: Seen) -> tuple[str, object]:
    """Return the name of a batch, and its outcome."""
    return batch.name, batch.attributes.get("exactly_once.outcome")


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "outcome", "completed", "aborted"), [("decided", "drained", 1, 0), ("all-prepared", "committed", 0, 4)]
)
def test_each_batch_is_one_trace_and_the_next_start_shows_what_it_recovered(
    point: str,
    outcome: str,
    completed: int,
    aborted: int,
    bench: Bench,
    driver: StartDriver,
    collector: Collector,
) -> None:
    """Half a trace of a batch whose driver died; a batch that looks committed twice; a recovery that nobody sees."""
    job = bench.job.having(sink_trace="true")
    killed = driver(environment=collector.environment)
    bench.hold_third_batch(killed, job, point)
    until("the traces of two batches", lambda: len(collector.batches) == 2)
    killed.kill9()

    first, second = collector.batches
    assert [said(batch) for batch in (first, second)] == [("batch 0", "committed"), ("batch 1", "committed")]
    for batch in (first, second):
        assert collector.steps(batch) == STEPS
        about = {name.removeprefix("exactly_once."): value for name, value in batch.attributes.items()}
        assert (about["sink"], about["parts"], about["records"]) == (bench.sink_id, 4, 4 * bench.input.rows)
        assert not batch.failed
    assert collector.steps(collector.step(first, "plan")) == ["claim"], "the first one claims"
    assert collector.steps(collector.step(second, "plan")) == []

    bench.input.add()
    starts = driver(environment=collector.environment)
    starts.complete(job)
    until("the traces of the next start", lambda: len(collector.batches) == 4)
    third, fourth = collector.batches[2:]
    assert [said(batch) for batch in (third, fourth)] == [("batch 2", outcome), ("batch 3", "committed")]
    recover = collector.step(collector.step(collector.step(third, "plan"), "claim"), "recover")
    assert recover.attributes == {"exactly_once.completed_batches": completed, "exactly_once.aborted_parts": aborted}
    assert collector.steps(third) == (STEPS[:2] if outcome == "drained" else STEPS)
    assert collector.steps(fourth) == STEPS
    bench.assert_exactly_once()


@pytest.mark.long
def test_a_collector_that_is_away_costs_no_batch(bench: Bench, driver: StartDriver) -> None:
    """A stream that stops, or a row that is lost, since nobody listens to its traces."""
    bench.input.add(2)
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    driver(environment=away).complete(bench.job.having(sink_trace="true"))
    bench.assert_exactly_once()


@pytest.mark.long
def test_the_trace_of_an_input_record_is_in_the_headers_of_its_output_record(
    bench: Bench, kafka_input: KafkaInput, connection: Connection, driver: StartDriver
) -> None:
    """A trace that ends at the stream, or a secret of the input that goes along with it."""
    parents = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 9)]
    producer = Producer(connection.librdkafka())
    for n, parent in enumerate(parents):
        headers = [("traceparent", parent.encode()), ("tracestate", b"a=1"), ("secret", b"x")]
        producer.produce(kafka_input.topic, f"v{n}", f"k{n}", headers=headers if n else None)
    producer.flush(30)
    source = kafka_input.source(100)
    source["options"]["includeHeaders"] = "true"
    driver().complete(Job(source, bench.job.options, ["key", "value", "headers"], "testkit.transforms:traced"))

    reader = Consumer(
        {**connection.librdkafka(), "group.id": brokers.fresh_name("reader"), "auto.offset.reset": "earliest"}
    )
    reader.subscribe([bench.topic])
    found: dict[bytes, list[tuple[str, bytes]]] = {}

    def all_read() -> bool:
        for message in reader.consume(100, 0.5):
            found[message.value()] = list(message.headers() or [])
        return len(found) == len(parents)

    until("the output", all_read)
    reader.close()
    assert found.pop(b"v0") == []
    assert found == {
        f"v{n}".encode(): [("traceparent", parent.encode()), ("tracestate", b"a=1")]
        for n, parent in enumerate(parents)
        if n
    }
