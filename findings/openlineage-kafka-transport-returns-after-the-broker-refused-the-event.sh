#!/usr/bin/env bash
# OpenLineage's client for Python with its Kafka transport and flush=true, its default: emit() waits for the broker, which
# refuses the event (larger than the topic takes: many columns or inputs), and returns as it does for the other events. The
# refusal is a line in the log of a delivery callback. The HTTP transport raises for an event that its server refuses with 413.
# Releases: openlineage-python 1.54.0, confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Java, Maven, Python 3.
# Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check openlineage-python==1.54.0 confluent-kafka==2.16.1
"$PY" -m pip list 2>/dev/null | grep -iE 'kafka|openlineage-python'
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
import threading
import uuid
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.transport.http import HttpConfig, HttpTransport
from openlineage.client.transport.kafka import KafkaConfig, KafkaTransport

servers = sys.argv[1]
LIMIT = 1000


class Server(BaseHTTPRequestHandler):
    """Refuses what is larger than the topic takes."""

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        self.rfile.read(size)
        self.send_response(413 if size > LIMIT else 201)
        self.end_headers()

    def log_message(self, *_):
        pass


def event(job, outputs):
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.now(timezone.utc).isoformat(),
        run=Run(runId=str(uuid.uuid4())),
        job=Job(namespace="jobs", name=job),
        producer="https://example.org/findings",
        outputs=[OutputDataset(namespace="tables", name=f"table_{i:03}") for i in range(outputs)],
    )


def emit(name, transport):
    client = OpenLineageClient(transport=transport)
    for job, outputs in (("first", 0), ("large", 50), ("last", 0)):
        try:
            client.emit(event(job, outputs))
            print(f"{name} {job}: emit() returned")
        except Exception as error:
            print(f"{name} {job}: emit() raised {type(error).__name__}")
    print(f"{name}: close() returned {client.close(10)}")


admin = AdminClient({"bootstrap.servers": servers})
admin.create_topics([NewTopic("lineage", 1, 1, config={"max.message.bytes": str(LIMIT)})])["lineage"].result()
emit("Kafka", KafkaTransport(KafkaConfig(config={"bootstrap.servers": servers}, topic="lineage")))
consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True})
consumer.assign([TopicPartition("lineage", 0, 0)])
found = []
while (message := consumer.poll(10)) and not message.error():
    found.append(message.key().decode())
consumer.close()
print("in the topic:", found)
server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
emit("HTTP", HttpTransport(HttpConfig.from_dict({"url": f"http://127.0.0.1:{server.server_port}"})))
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" >"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
Kafka first: emit() returned
Kafka large: emit() returned
Kafka last: emit() returned
Kafka: close() returned True
in the topic: ['run:jobs/first', 'run:jobs/last']
HTTP first: emit() returned
HTTP large: emit() raised HTTPError
HTTP last: emit() returned
HTTP: close() returned True
EXPECTED
what="OpenLineage's Kafka transport returns from emit() as usual after the broker has refused the event."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
