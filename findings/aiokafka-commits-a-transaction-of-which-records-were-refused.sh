#!/usr/bin/env bash
# A transaction of three records, of which the broker refuses the second (too large for the topic). Nobody looks at the futures
# that send() gave, as is usual with Java's producer, whose commit then fails. kafka-python and confluent-kafka raise, too.
# aiokafka's commit_transaction() commits what is left, without an error: the first record is visible, the third is lost with
# the second.
# Releases: aiokafka 0.14.0, kafka-python 3.0.12, confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Java, Maven, Python 3.
# Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check aiokafka==0.14.0 kafka-python==3.0.12 confluent-kafka==2.16.1
"$PY" -m pip list 2>/dev/null | grep -i kafka
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

cat >"$WORK/three.py" <<'PYTHON'
import asyncio
import sys

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import KafkaError

servers = sys.argv[1]
values = [b"first", b"second" + b"." * 5000, b"third"]


async def by_aiokafka(topic):
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    await producer.start()
    await producer.begin_transaction()
    sent = []
    for value in values:
        sent.append(await producer.send(topic, value))
        await asyncio.wait([sent[-1]], timeout=30)  # each in a batch of its own; the outcome is not looked at
    await producer.commit_transaction()
    print("  its futures:", [type(f.exception()).__name__ for f in sent])
    await producer.stop()


def by_kafka_python(topic):
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    try:
        for value in values:
            producer.send(topic, value)
            producer.flush()
        producer.commit_transaction()
    finally:
        producer.close(timeout=5)


def by_confluent(topic):
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
        producer.flush()
    producer.commit_transaction()


def visible(topic):
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(10)
        if message is None or message.error():
            break
        found.append(message.value().decode())
    consumer.close()
    return found


admin = AdminClient({"bootstrap.servers": servers})
for name, write in {
    "aiokafka": lambda t: asyncio.run(by_aiokafka(t)),
    "kafka-python": by_kafka_python,
    "confluent-kafka": by_confluent,
}.items():
    admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "1000"})], operation_timeout=30)[name].result()
    try:
        write(name)
        end = "committed"
    except (KafkaError, KafkaException) as error:
        print(f"  {name}: {error!r}")
        end = "raised"
    print(f"SEEN {name}: {end}, visible: {' '.join(visible(name)) or 'nothing'}")
PYTHON
"$PY" "$WORK/three.py" "$KAFKA" 2>"$WORK/three.log" | tee "$WORK/told"
sed -n 's/^SEEN //p' "$WORK/told" >"$WORK/seen"
cat >"$WORK/expected" <<'EXPECTED'
aiokafka: committed, visible: first
kafka-python: raised, visible: nothing
confluent-kafka: raised, visible: nothing
EXPECTED
what="aiokafka commits the rest of a transaction after the broker has refused a record of it, and the other two clients refuse."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
