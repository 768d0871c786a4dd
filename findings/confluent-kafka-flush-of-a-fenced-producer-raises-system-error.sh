#!/usr/bin/env bash
# A transactional producer was fenced by a newer one of its id, which is what fencing is for, and flushes a record that has a
# delivery callback. Most often flush() raises the documented KafkaException (fatal, _FENCED). At times the fatal error comes
# to the client before the delivery report: the callback then runs with an exception set, and flush() raises a SystemError
# ("returned a result with an exception set"), which `except KafkaException` lets through; the real one is its __cause__.
# Releases: confluent-kafka 2.16.1, broker 4.4.0. Needs: bash, Java (JDK), Maven, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
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
cat >"$WORK/flush.py" <<'PYTHON'
import sys
from collections import Counter

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers, seen = {"bootstrap.servers": sys.argv[1]}, Counter()
admin = AdminClient(servers)
admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
for n in range(60):
    producers = [Producer({**servers, "transactional.id": f"id-{n}"}) for _ in "12"]
    for producer in producers:
        producer.init_transactions(30)  # the second one fences the first
    producers[0].begin_transaction()
    producers[0].produce("t", b"a record", on_delivery=lambda error, message: error.name())
    try:
        producers[0].flush(30)
        seen["returned"] += 1
    except KafkaException as error:
        assert error.args[0].fatal()
        seen["KafkaException"] += 1
    except SystemError as error:
        assert isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].fatal()
        seen["SystemError of a KafkaException"] += 1
print(f"of 60 flushes: {dict(seen)}", file=sys.stderr)
print(*sorted(seen), sep="\n")
PYTHON
"$PY" "$WORK/flush.py" "$KAFKA" >"$WORK/seen" 2>"$WORK/flush.log"
grep "of 60 flushes" "$WORK/flush.log"
cat >"$WORK/expected" <<'EXPECTED'
KafkaException
SystemError of a KafkaException
EXPECTED
what="flush() of a fenced producer raises at times a SystemError in place of its KafkaException."
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
