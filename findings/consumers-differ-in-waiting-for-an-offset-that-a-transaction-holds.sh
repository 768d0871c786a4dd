#!/usr/bin/env bash
# A group has committed offset 50; an open transaction of its former member holds offset 100, which will commit. A successor asks
# where to begin. Java's consumer waits, with either isolation level. librdkafka and kafka-python wait only if they read
# committed records (kafka-python's default is the other). aiokafka is told read_committed and begins at 50 at once, as do
# admin clients by default: records 50 to 99 are processed twice, though every transaction did what it should.
# Releases: kafka-clients and broker 4.4.0, confluent-kafka 2.16.1, kafka-python 3.0.12, aiokafka 0.14.0.
# Needs: bash, Java (JDK), Maven, Python 3. Minutes: 1 to 2.
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
cat >"$WORK/Ask.java" <<'JAVA'
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
public class Ask {
    public static void main(String[] args) {
        for (String level : List.of("read_committed", "read_uncommitted")) {
            var consumer = new KafkaConsumer<>(Map.<String, Object>of("bootstrap.servers", args[0], "group.id", "g",
                "isolation.level", level, "enable.auto.commit", "false"), new StringDeserializer(), new StringDeserializer());
            var partition = new TopicPartition("t", 0);
            String answer;
            try {
                answer = "begins at " + consumer.committed(Set.of(partition), Duration.ofSeconds(5)).get(partition).offset();
            } catch (TimeoutException waits) {
                answer = "waits";
            }
            System.out.println("Java " + level + ": " + answer);
        }
        System.exit(0);
    }
}
JAVA
cat >"$WORK/ask.py" <<'PYTHON'
import asyncio
import os
import subprocess
import sys
import aiokafka
import confluent_kafka
import kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
servers, jars, java = sys.argv[1:]
def by_confluent(level):
    c = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "g", "isolation.level": level})
    try:
        return c.committed([confluent_kafka.TopicPartition("t", 0)], timeout=5)[0].offset
    except KafkaException as error:
        assert error.args[0].code() == KafkaError._TIMED_OUT, error

def by_kafka_python(level):
    c = kafka.KafkaConsumer(bootstrap_servers=servers, group_id="g", isolation_level=level, enable_auto_commit=False)
    try:
        return c.committed(kafka.TopicPartition("t", 0), timeout_ms=5000)
    except kafka.errors.KafkaTimeoutError:
        return None
async def ask_aiokafka(level):
    c = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id="g", isolation_level=level, enable_auto_commit=False)
    await c.start()
    try:
        c.assign([aiokafka.TopicPartition("t", 0)])
        return await asyncio.wait_for(c.committed(aiokafka.TopicPartition("t", 0)), 5)
    except asyncio.TimeoutError:
        return None
    finally:
        await c.stop()
by_aiokafka = lambda level: asyncio.run(ask_aiokafka(level))
admin = AdminClient({"bootstrap.servers": servers})
admin.create_topics([NewTopic("t", 1, 1)], operation_timeout=30)["t"].result()
# Wait for the group's coordinator, which a fresh broker has yet to make, by the first commit of the group.
first = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "g"})
for attempt in range(100):
    try:
        first.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 50)], asynchronous=False)
        break
    except KafkaException:
        first.poll(0.2)
producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "former", "transaction.timeout.ms": 600_000})
producer.init_transactions()
producer.begin_transaction()
producer.send_offsets_to_transaction([confluent_kafka.TopicPartition("t", 0, 100)], first.consumer_group_metadata())
subprocess.run(["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", jars, java, servers], check=True)
for name, ask in (("librdkafka", by_confluent), ("kafka-python", by_kafka_python), ("aiokafka", by_aiokafka)):
    for level in ("read_committed", "read_uncommitted"):
        offset = ask(level)
        print(f"{name} {level}: {'waits' if offset is None else f'begins at {offset}'}")
listed = kafka.KafkaAdminClient(bootstrap_servers=servers).list_group_offsets("g")["g"]
print(f"kafka-python's admin client: {next(iter(listed.values())).offset}")
producer.commit_transaction()
for attempt in range(30):  # the marker comes a moment after the commit has returned
    if (offset := by_aiokafka("read_committed")) == 100:
        break
print(f"after the commit, aiokafka read_committed: begins at {offset}")
sys.stdout.flush()
os._exit(0)
PYTHON
"$PY" "$WORK/ask.py" "$KAFKA" "$JARS/*" "$WORK/Ask.java" >"$WORK/seen" 2>"$WORK/ask.log"
cat >"$WORK/expected" <<'EXPECTED'
Java read_committed: waits
Java read_uncommitted: waits
librdkafka read_committed: waits
librdkafka read_uncommitted: begins at 50
kafka-python read_committed: waits
kafka-python read_uncommitted: begins at 50
aiokafka read_committed: begins at 50
aiokafka read_uncommitted: begins at 50
kafka-python's admin client: 50
after the commit, aiokafka read_committed: begins at 100
EXPECTED
what="aiokafka begins at an offset that an open transaction is about to replace, where Java's consumer waits for its end."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
