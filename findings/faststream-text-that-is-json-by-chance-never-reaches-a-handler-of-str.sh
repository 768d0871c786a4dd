#!/usr/bin/env bash
# A FastStream handler whose parameter is a str, and messages of plain text, as any other producer writes them. A text that
# happens to be JSON is decoded first: 7, 1.50, true and null are no str then, so the handler is not called for them, and the
# group's offset moves on. 007 and order-7 are no JSON and arrive; a text in quotes arrives without them. It is so with
# either client below, and with the default policy as with REJECT_ON_ERROR.
# Releases: faststream 0.7.8, aiokafka 0.14.0, confluent-kafka 2.16.1, Apache Kafka 4.4.0.
# Needs: bash, Java, Maven, Python 3. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check faststream==0.7.8 aiokafka==0.14.0 confluent-kafka==2.16.1
"$PY" -m pip list 2>/dev/null | grep -iE 'kafka|faststream'
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
import importlib
import logging
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from faststream import AckPolicy, FastStream

servers = sys.argv[1]
TEXTS = ["order-7", "7", "007", "true", "null", "1.50", '"quoted"', "end"]
logging.disable(logging.CRITICAL)
admin = AdminClient({"bootstrap.servers": servers})


async def read(module, topic, policy):
    """Return what the handler was called with."""
    broker = importlib.import_module(module).KafkaBroker(servers)
    app, called = FastStream(broker, logger=None), []

    @broker.subscriber(topic, group_id=topic, auto_offset_reset="earliest", ack_policy=policy)
    async def handle(text: str):
        called.append(text)
        if text == "end":
            app.exit()

    await asyncio.wait_for(app.run(), 60)
    return called


for module in ("faststream.kafka", "faststream.confluent"):
    for policy in (AckPolicy.ACK_FIRST, AckPolicy.REJECT_ON_ERROR):
        topic = f"{module}.{policy.value}"
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        producer = Producer({"bootstrap.servers": servers})
        for text in TEXTS:
            producer.produce(topic, text)
        producer.flush()
        print(f"{topic}: called with {asyncio.run(read(module, topic, policy))}")
        consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
        print(f"  committed offset {consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset} of {len(TEXTS)}")
        consumer.close()
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" >"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
faststream.kafka.ack_first: called with ['order-7', '007', 'quoted', 'end']
  committed offset 8 of 8
faststream.kafka.reject_on_error: called with ['order-7', '007', 'quoted', 'end']
  committed offset 8 of 8
faststream.confluent.ack_first: called with ['order-7', '007', 'quoted', 'end']
  committed offset 8 of 8
faststream.confluent.reject_on_error: called with ['order-7', '007', 'quoted', 'end']
  committed offset 8 of 8
EXPECTED
what="FastStream decodes text that is JSON by chance, and never calls a handler of str for it."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
