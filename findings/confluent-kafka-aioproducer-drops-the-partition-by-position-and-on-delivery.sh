#!/usr/bin/env bash
# The arguments of Producer.produce() are topic, value, key, partition and on_delivery, by position or by name. AIOProducer
# has the same method and takes the same calls, and throws away each argument behind the key that comes by position: the record
# goes to the partition of its key. It throws on_delivery and callback away by name, too: they are never called, neither for a
# record that is written nor for one that the broker refuses, and flush() returns as usual.
# Releases: confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Java, Maven, Python 3. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
"$PY" -m pip list 2>/dev/null | grep -i confluent-kafka >"$WORK/seen"
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1
JARS=$WORK/jars
read -r PORT CONTROLLER < <(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in "12"]
print(*[s.getsockname()[1] for s in held])')
KAFKA=127.0.0.1:$PORT
cat >"$WORK/kafka.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$CONTROLLER
listeners=PLAINTEXT://$KAFKA,CONTROLLER://127.0.0.1:$CONTROLLER
controller.listener.names=CONTROLLER
log.dirs=$WORK/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
PROPERTIES
java -cp "$JARS/*" kafka.tools.StorageTool format -t RmluZGluZ3NPZlRoaXNQcg -c "$WORK/kafka.properties" >"$WORK/format.log" 2>&1
java -Xmx512m -cp "$JARS/*" kafka.Kafka "$WORK/kafka.properties" >"$WORK/broker.log" 2>&1 &
PIDS=$!
timeout 90 sh -c 'until grep -q "Kafka Server started" "$0"; do sleep 0.3; done' "$WORK/broker.log"
cat >"$WORK/show.py" <<'PYTHON'
import asyncio
import inspect
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOProducer

servers = sys.argv[1]
CALLS = {
    "key alone": lambda told: (("a", "k"), {}),
    "partition by name": lambda told: (("b", "k"), {"partition": 3}),
    "partition by position": lambda told: (("c", "k", 3), {}),
    "on_delivery by name": lambda told: (("d", "k"), {"on_delivery": told}),
    "callback by name": lambda told: (("e", "k"), {"callback": told}),
    "on_delivery by position": lambda told: (("f", "k", 3, told), {}),
    "on_delivery, too large for the topic": lambda told: (("g" * 2000, "k"), {"on_delivery": told}),
}


async def write(producer, topic):
    """Make each call, and print to which partition its record went, and what its callback was told."""
    reports = {}
    for name, arguments in CALLS.items():
        reports[name] = []
        given, named = arguments(lambda error, message, told=reports[name]: told.append(error.name() if error else "written"))
        future = producer.produce(topic, *given, **named)
        if inspect.isawaitable(future):
            await future  # its result is another future, which nobody needs who gave a callback
    left = producer.flush()
    left = await left if inspect.isawaitable(left) else left
    print(f"{topic}: flush: {left} left")
    found = read(topic)
    for (name, told), value in zip(reports.items(), "abcdefg"):
        print(f"  {name}: partition {found.get(value, '-')}, callback: {', '.join(told) or '-'}")


def read(topic):
    """Return the partition of each record by the first letter of its value."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
    found, ends = {}, 0
    while ends < 4:
        message = consumer.poll(60)
        if message.error():
            ends += 1
        else:
            found[message.value().decode()[0]] = message.partition()
    consumer.close()
    return found


async def main():
    settings = {"bootstrap.servers": servers, "linger.ms": 0, "batch.num.messages": 1}
    await write(Producer(dict(settings)), "Producer")
    producer = AIOProducer(dict(settings))
    await write(producer, "AIOProducer")
    await producer.close()


admin = AdminClient({"bootstrap.servers": servers})
topics = [NewTopic(name, 4, 1, config={"max.message.bytes": "1000"}) for name in ("Producer", "AIOProducer")]
for made in admin.create_topics(topics).values():
    made.result()
asyncio.run(main())
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" >>"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
confluent-kafka 2.16.1
Producer: flush: 0 left
  key alone: partition 1, callback: -
  partition by name: partition 3, callback: -
  partition by position: partition 3, callback: -
  on_delivery by name: partition 1, callback: written
  callback by name: partition 1, callback: written
  on_delivery by position: partition 3, callback: written
  on_delivery, too large for the topic: partition -, callback: MSG_SIZE_TOO_LARGE
AIOProducer: flush: 0 left
  key alone: partition 1, callback: -
  partition by name: partition 3, callback: -
  partition by position: partition 1, callback: -
  on_delivery by name: partition 1, callback: -
  callback by name: partition 1, callback: -
  on_delivery by position: partition 1, callback: -
  on_delivery, too large for the topic: partition -, callback: -
EXPECTED
what="AIOProducer.produce() throws a partition by position and on_delivery away."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
