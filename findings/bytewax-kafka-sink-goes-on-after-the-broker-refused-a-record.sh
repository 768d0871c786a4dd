#!/usr/bin/env bash
# Bytewax's KafkaSink is said to support at-least-once processing. It waits for its producer's flush() and does not ask whether
# each record has been written: a record that the broker refuses, here one that is larger than the topic's max.message.bytes, is
# gone, and so is each small record that its producer had put in one batch with it. The dataflow goes on and ends without an
# error, its recovery store has the position behind the records, and a run that starts again there does not repeat them. The
# producer that it uses, confluent-kafka, tells a callback of each refusal.
# Releases: bytewax 0.21.1, confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Java, Maven, Python 3.11 or 3.12 with pip.
# Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check bytewax==0.21.1 confluent-kafka==2.16.1
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
import importlib.metadata
import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSource, cluster_main
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

servers, store = sys.argv[1], Path(sys.argv[2])
admin = AdminClient({"bootstrap.servers": servers})
for topic in ("one", "three", "direct"):
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})])[topic].result()
FIRST, LARGE, THIRD, FOURTH = (b"1: small", b"2: large" + b"." * 2000, b"3: small", b"4: small")


def run(topic, size, values):
    """Run the dataflow over the values in batches of a size, from where the last run ended."""
    flow = Dataflow(topic)
    stream = op.input("in", flow, TestingSource(values, size))
    messages = op.map("message", stream, lambda value: KafkaSinkMessage(None, value))
    op.output("out", messages, KafkaSink([servers], topic))
    try:
        cluster_main(flow, [], 0, recovery_config=RecoveryConfig(store / topic), epoch_interval=timedelta(0))
    except Exception as error:
        return type(error).__name__
    return "ended without an error"


def read(topic):
    """Return the beginning of each record in the topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    found = [consumer.poll(30).value()[:8].decode() for _ in range(end)]
    consumer.close()
    return found


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("bytewax", "confluent-kafka")))
for topic, size in (("one", 1), ("three", 3)):
    (store / topic).mkdir(parents=True)
    init_db_dir(store / topic, 1)
    print(f"three records in batches of {size}:", run(topic, size, [FIRST, LARGE, THIRD]))
    print("  the topic has", read(topic))
    print("again from where it ended, with a fourth:", run(topic, size, [FIRST, LARGE, THIRD, FOURTH]))
    print("  the topic has", read(topic))
reports = []
producer = Producer({"bootstrap.servers": servers})
for value in (FIRST, LARGE, THIRD):
    producer.produce("direct", value, on_delivery=lambda error, record: reports.append(error and error.name()))
    producer.flush()
print("confluent-kafka alone reports", reports)
PYTHON
(cd "$JARS" && ls kafka_2.13*.jar) >"$WORK/seen"
"$PY" "$WORK/show.py" "$KAFKA" "$WORK/recovery" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
kafka_2.13-4.4.0.jar
bytewax 0.21.1 confluent-kafka 2.16.1
three records in batches of 1: ended without an error
  the topic has ['1: small', '3: small']
again from where it ended, with a fourth: ended without an error
  the topic has ['1: small', '3: small', '4: small']
three records in batches of 3: ended without an error
  the topic has []
again from where it ended, with a fourth: ended without an error
  the topic has ['4: small']
confluent-kafka alone reports [None, 'MSG_SIZE_TOO_LARGE', None]
EXPECTED
what="Bytewax's KafkaSink goes on, and moves its recovery on, behind a record that the broker refused"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
