#!/usr/bin/env bash
# streamz reads a topic in batches up to the offset that the broker names as the end, and waits for a record with a
# value at the last one. Behind a transaction that is the commit marker, which is no record: the transaction's records
# come out when the next transaction's come in, and until then the event loop stands still. A tombstone at the end does
# the same. A tombstone or an empty value is left out, with keys=True as well, and the group's offset moves past it. A
# plain consumer of the same client has all of them at once.
# Releases: streamz 0.6.6, confluent-kafka 2.16.1, Apache Kafka 4.4.0.
# Needs: bash, Java, Maven, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check streamz==0.6.6 confluent-kafka==2.16.1 pandas==2.3.3
"$PY" -m pip list 2>/dev/null | grep -iE 'kafka|streamz'
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>
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
java -cp "$JARS/*" kafka.tools.StorageTool format -t RmluZGluZ3NPZlRoaXNQcg -c "$WORK/kafka.properties" \
    >"$WORK/format.log" 2>&1
java -Xmx512m -cp "$JARS/*" kafka.Kafka "$WORK/kafka.properties" >"$WORK/broker.log" 2>&1 &
PIDS=$!
timeout 90 sh -c 'until grep -q "Kafka Server started" "$0"; do sleep 0.3; done' "$WORK/broker.log"

cat >"$WORK/show.py" <<'PYTHON'
import os
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from streamz import Stream

servers = sys.argv[1]
CASES = {
    "plain": [["1", "2"], ["3"], ["4"]],
    "transactions": [["1", "2"], ["3"], ["4"]],
    "tombstone-inside": [["1", None, "", "2"], ["3"], ["4"]],
    "tombstone-at-the-end": [["1", None], ["3"], ["4"]],
}


def send(topic, values):
    settings = {"bootstrap.servers": servers, "log_level": 0}
    if topic == "transactions":
        producer = Producer({**settings, "transactional.id": "t"})
        producer.init_transactions()
        producer.begin_transaction()
    else:
        producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, "key")
    producer.commit_transaction() if topic == "transactions" else producer.flush()


def plain_consumer(topic):
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while (message := consumer.poll(30)) is not None and not message.error():
        values.append(None if message.value() is None else message.value().decode())
    group = Consumer({"bootstrap.servers": servers, "group.id": topic})
    committed = group.committed([TopicPartition(topic, 0)], timeout=30)
    return f"{values}; committed by streamz: {max(committed[0].offset, 0)}"


def show(topic):
    settings = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    source = Stream.from_kafka_batched(topic, settings, poll_interval=0.2, npartitions=1, keys=True)
    batches = source.sink_to_list()
    for number, values in enumerate(CASES[topic]):
        send(topic, values)
        if number == 0:
            source.start()
        end = time.monotonic() + 6
        while time.monotonic() < end and len(batches) <= number:
            time.sleep(0.1)
        time.sleep(1)
        print(f"  after {values}: {[[record['value'].decode() for record in batch] for batch in batches]}")
    print(f"  plain consumer: {plain_consumer(topic)}")
    sys.stdout.flush()
    os._exit(0)  # the thread of the event loop may never end


if len(sys.argv) == 3:
    show(sys.argv[2])
admin = AdminClient({"bootstrap.servers": servers})
for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in CASES]).values():
    created.result()
command = [sys.executable, *sys.argv]
shown = {topic: subprocess.Popen([*command, topic], stdout=subprocess.PIPE, text=True) for topic in CASES}
for topic, process in shown.items():
    print(f"{topic}:\n{process.communicate(timeout=120)[0]}", end="")
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" >"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
plain:
  after ['1', '2']: [['1', '2']]
  after ['3']: [['1', '2'], ['3']]
  after ['4']: [['1', '2'], ['3'], ['4']]
  plain consumer: ['1', '2', '3', '4']; committed by streamz: 4
transactions:
  after ['1', '2']: []
  after ['3']: [['1', '2']]
  after ['4']: [['1', '2'], ['3']]
  plain consumer: ['1', '2', '3', '4']; committed by streamz: 5
tombstone-inside:
  after ['1', None, '', '2']: [['1', '2']]
  after ['3']: [['1', '2'], ['3']]
  after ['4']: [['1', '2'], ['3'], ['4']]
  plain consumer: ['1', None, '', '2', '3', '4']; committed by streamz: 6
tombstone-at-the-end:
  after ['1', None]: []
  after ['3']: [['1'], ['3']]
  after ['4']: [['1'], ['3'], ['4']]
  plain consumer: ['1', None, '3', '4']; committed by streamz: 4
EXPECTED
what="streamz keeps a transaction's records back until the next one, and leaves out tombstones"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
