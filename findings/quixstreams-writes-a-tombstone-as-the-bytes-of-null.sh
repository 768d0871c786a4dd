#!/usr/bin/env bash
# A Quix Streams application that reads a topic and writes it to another one, which is compacted. A tombstone (a record without a
# value, which deletes its key) arrives as None and is written as the four bytes of JSON's null: a reader of the new topic finds a
# record that has a value, which is no tombstone to a broker either. The same holds for None out of apply(). A number of more than 64 bits
# and a fraction of many digits are written as a double's on the way. No error; with bytes serializers the records stay as they are.
# Releases: quixstreams 3.28.1, confluent-kafka 2.12.2, Apache Kafka 4.4.0. Needs: bash, Java, Maven, Python 3. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check quixstreams==3.28.1 confluent-kafka==2.12.2
"$PY" -m pip list 2>/dev/null | grep -iE 'kafka|quixstreams'
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
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from quixstreams import Application

servers, folder = sys.argv[1:]
RECORDS = [
    ("a", b'{"price": 1}'),
    ("a", None),
    ("b", b'{"price": 2}'),
    ("b", b'{"price": 12345678901234567890123}'),
    ("c", b'{"price": 1234567890.1234567890}'),
]


def records(topic):
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (message := consumer.poll(30)) is not None and not message.error():
        yield message.key().decode(), message.value()
    consumer.close()


def copy(name, serializer, change=None):
    """Run an application over the whole input, and show what is in its output."""
    settings = {"broker_address": servers, "consumer_group": name, "auto_offset_reset": "earliest", "loglevel": "WARNING"}
    application = Application(state_dir=f"{folder}/{name}", **settings)
    read = application.topic("prices", value_deserializer=serializer)
    frame = application.dataframe(read)
    if change:
        frame = frame.apply(change)
    frame.to_topic(application.topic(name, value_serializer=serializer))
    application.run(count=len(RECORDS), timeout=60)
    print(f"{name}:")
    for key, value in records(name):
        print(f"  {key} {'tombstone' if value is None else value}")


admin = AdminClient({"bootstrap.servers": servers})
topics = [NewTopic("prices", 1, 1)] + [NewTopic(n, 1, 1, config={"cleanup.policy": "compact"}) for n in ("json", "apply", "bytes")]
for created in admin.create_topics(topics).values():
    created.result()
producer = Producer({"bootstrap.servers": servers})
for key, value in RECORDS:
    producer.produce("prices", value, key)
producer.flush()
copy("json", "json")
copy("apply", "json", lambda value: value if value and value["price"] == 1 else None)
copy("bytes", "bytes")
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" "$WORK/state" >"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
json:
  a b'{"price":1}'
  a b'null'
  b b'{"price":2}'
  b b'{"price":1.2345678901234568e+22}'
  c b'{"price":1234567890.1234567}'
apply:
  a b'{"price":1}'
  a b'null'
  b b'null'
  b b'null'
  c b'null'
bytes:
  a b'{"price": 1}'
  a tombstone
  b b'{"price": 2}'
  b b'{"price": 12345678901234567890123}'
  c b'{"price": 1234567890.1234567890}'
EXPECTED
what="Quix Streams writes a tombstone as the bytes of JSON's null, which deletes nothing"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
