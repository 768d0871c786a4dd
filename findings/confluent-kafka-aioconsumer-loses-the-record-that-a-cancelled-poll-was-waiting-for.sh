#!/usr/bin/env bash
# confluent-kafka's AIOConsumer: asyncio cancels the await of a poll(), as asyncio.wait_for and asyncio.timeout do
# after their time. The thread behind the await goes on polling, takes the next record that comes, and its result goes
# to nobody: the next poll() returns the record after it. The consumer counts it as delivered, so that the next
# commit() passes it, and nobody in the group gets it again. consume() loses its whole batch so. With poll()'s own
# time-out none is lost, nor is any by aiokafka.
# Releases: confluent-kafka 2.16.1 and its librdkafka's mock broker, aiokafka 0.14.0. Needs: bash, Python 3.11 or
# later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1 aiokafka==0.14.0

cat >"$WORK/show.py" <<'PYTHON'
import asyncio
import importlib.metadata

import aiokafka
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.aio import AIOConsumer

mock = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1})
broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
SERVERS = f"{broker.host}:{broker.port}"
producer = Producer({"bootstrap.servers": SERVERS})


def write(topic, *values):
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush()


async def until_it_comes(wait):
    """Repeat what waits for a record until it returns one, as a consumer's loop does."""
    for _ in range(60):
        if got := await wait():
            return got
    raise TimeoutError("no record came")


async def confluent(topic, patience, call):
    consumer = AIOConsumer({"bootstrap.servers": SERVERS, "group.id": topic, "enable.auto.commit": False})
    await consumer.assign([TopicPartition(topic, 0, 0)])

    async def wait(seconds=4):
        got = await call(consumer, seconds)
        return [m.value().decode() for m in (got if isinstance(got, list) else [got] if got else []) if not m.error()]

    write(topic, "a")
    print(topic + ":", *await until_it_comes(wait))
    print("  nothing is there:", await patience(wait))
    write(topic, "b", "c")
    await asyncio.sleep(1)
    write(topic, "d")
    got = await until_it_comes(wait)
    while got[-1] != "d":
        got += await until_it_comes(wait)
    committed = await consumer.commit(asynchronous=False)
    print("  b, c and d were written, and came:", *got, "- the commit is at", committed[0].offset)
    await consumer.close()


async def aio(topic):
    settings = {"bootstrap_servers": SERVERS, "group_id": topic, "enable_auto_commit": False}
    consumer = aiokafka.AIOKafkaConsumer(auto_offset_reset="earliest", **settings)
    await consumer.start()
    consumer.assign([aiokafka.TopicPartition(topic, 0)])
    write(topic, "a")
    print(topic + ":", (await asyncio.wait_for(consumer.getone(), 60)).value.decode())
    print("  nothing is there:", await cancels(consumer.getone))
    write(topic, "b", "c", "d")
    print("  b, c and d were written, and came:", *[(await consumer.getone()).value.decode() for _ in "bcd"])
    await consumer.stop()


async def cancels(wait):
    try:
        return await asyncio.wait_for(wait(), 0.5)
    except TimeoutError:
        return "TimeoutError"


async def own_timeout(wait):
    return await wait(0.5)


async def main():
    def poll(consumer, seconds):
        return consumer.poll(timeout=seconds)

    def consume(consumer, seconds):
        return consumer.consume(num_messages=2, timeout=seconds)

    await confluent("poll-and-its-own-time-out", own_timeout, poll)
    await confluent("poll-and-wait_for", cancels, poll)
    await confluent("consume-and-wait_for", cancels, consume)
    await aio("aiokafka-and-wait_for")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("confluent-kafka", "aiokafka")))
asyncio.run(main())
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
confluent-kafka 2.16.1 aiokafka 0.14.0
poll-and-its-own-time-out: a
  nothing is there: []
  b, c and d were written, and came: b c d - the commit is at 4
poll-and-wait_for: a
  nothing is there: TimeoutError
  b, c and d were written, and came: c d - the commit is at 4
consume-and-wait_for: a
  nothing is there: TimeoutError
  b, c and d were written, and came: d - the commit is at 4
aiokafka-and-wait_for: a
  nothing is there: TimeoutError
  b, c and d were written, and came: b c d
EXPECTED
what="confluent-kafka's AIOConsumer loses the record that a cancelled poll was waiting for"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
