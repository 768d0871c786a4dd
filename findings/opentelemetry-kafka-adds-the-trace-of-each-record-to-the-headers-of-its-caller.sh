#!/usr/bin/env bash
# OpenTelemetry's instrumentations of confluent-kafka and aiokafka write the trace of a record into the list of
# headers that the caller has passed, behind what is there. A list that is used again, as a constant is, grows by a
# traceparent with each record, and the consumer follows the first of them: each record belongs to the trace of the
# first one. A record that is passed on with its headers has two, and the next consumer follows the older one, past
# the service that passed it on. No error anywhere.
# Releases: opentelemetry-sdk 1.45.1 with the instrumentations 0.66b1, confluent-kafka 2.16.1 and its librdkafka's
# mock broker, aiokafka 0.14.0. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check opentelemetry-sdk==1.45.1 confluent-kafka==2.16.1 \
    aiokafka==0.14.0 opentelemetry-instrumentation-{confluent-kafka,aiokafka}==0.66b1

cat >"$WORK/show.py" <<'PYTHON'
import asyncio
import importlib.metadata

import aiokafka
import confluent_kafka
from opentelemetry import trace
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PACKAGES = ("confluent-kafka", "aiokafka")
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
mock = confluent_kafka.Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1})
broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
SERVERS = f"{broker.host}:{broker.port}"
for instrumentor in (ConfluentKafkaInstrumentor, AIOKafkaInstrumentor):
    instrumentor().instrument()


async def confluent(topic, lists, onwards):
    producer = confluent_kafka.Producer({"bootstrap.servers": SERVERS})
    for headers in lists:
        producer.produce(topic, "x", partition=0, headers=headers)
    producer.flush()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": SERVERS, "group.id": "g"})
    for name, count in ((topic, len(lists)), (onwards, 1)):
        consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
        for _ in range(count):
            while not (message := consumer.poll(30)) or message.error():
                pass
            yield name, message.headers()
        if name == topic:
            producer.produce(onwards, "x", partition=0, headers=message.headers())
            producer.flush()
    consumer.close()


async def aio(topic, lists, onwards):
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=SERVERS)
    await producer.start()
    for headers in lists:
        await producer.send_and_wait(topic, b"x", partition=0, headers=headers)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest")
    await consumer.start()
    for name, count in ((topic, len(lists)), (onwards, 1)):
        consumer.assign([aiokafka.TopicPartition(name, 0)])
        for _ in range(count):
            message = await asyncio.wait_for(consumer.getone(), 60)
            yield name, message.headers
        if name == topic:
            await producer.send_and_wait(onwards, b"x", partition=0, headers=list(message.headers))
    await consumer.stop()
    await producer.stop()


async def main():
    for package, client in zip(PACKAGES, (confluent, aio)):
        constant = [("source", b"shop")]
        for name, lists in (("new lists", [[("source", b"shop")] for _ in range(3)]), ("one list", [constant] * 3)):
            exporter.clear()
            topic = f"{package}-{name.replace(' ', '-')}"
            records = client(topic, lists, topic + "-2")
            seen = [[key for key, _ in headers].count("traceparent") async for _, headers in records]
            spans = exporter.get_finished_spans()
            sent = [span.context.span_id for span in spans if span.kind is trace.SpanKind.PRODUCER]
            followed = []
            for span in spans:
                for before in [link.context for link in span.links] or [span.parent]:
                    if span.kind is trace.SpanKind.CONSUMER and before and before.span_id in sent:
                        followed.append(sent.index(before.span_id) + 1)
            print(f"{package}, {name}: traceparents {seen[:3]}, passed on: {seen[3]}")
            print(f"  the consumers follow the records {followed[:3]}, and for the one passed on {followed[3:]}")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("opentelemetry-sdk", *PACKAGES)))
asyncio.run(main())
PYTHON
timeout 200 "$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
opentelemetry-sdk 1.45.1 confluent-kafka 2.16.1 aiokafka 0.14.0
confluent-kafka, new lists: traceparents [1, 1, 1], passed on: 2
  the consumers follow the records [1, 2, 3], and for the one passed on [3]
confluent-kafka, one list: traceparents [1, 2, 3], passed on: 4
  the consumers follow the records [1, 1, 1], and for the one passed on [1]
aiokafka, new lists: traceparents [1, 1, 1], passed on: 2
  the consumers follow the records [1, 2, 3], and for the one passed on [3]
aiokafka, one list: traceparents [1, 2, 3], passed on: 4
  the consumers follow the records [1, 1, 1], and for the one passed on [1]
EXPECTED
what="OpenTelemetry writes the trace of each record into the caller's list of headers, and follows the first"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
