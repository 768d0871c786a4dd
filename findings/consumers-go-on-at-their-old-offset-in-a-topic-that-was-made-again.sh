#!/usr/bin/env bash
# A topic is deleted and created again, as people do to empty it, and has more records than before when a running consumer
# fetches next, after its batch. It goes on at its old offset: the first records of the new topic are skipped without an error,
# and the next commit skips them for each later member of the group. No auto.offset.reset helps, not even "none": the offset
# exists. It is so with Java's classic protocol and with librdkafka. Under group.protocol=consumer (KIP-848) the member skips
# them, too, and then gets the new topic as a new partition and starts at its beginning: the records that it had come twice.
# Releases: Apache Kafka 4.4.0 (broker and kafka-clients), confluent-kafka 2.16.1.
# Needs: bash, Java (JDK), Maven, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
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
cat >"$WORK/Again.java" <<'JAVA'
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Again {
    public static void main(String[] args) throws Exception {
        String servers = args[0], protocol = args[1], reset = args[2], topic = protocol + "-" + reset;
        var partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {  // so that "none" has an offset to start at
            admin.alterConsumerGroupOffsets(topic, Map.of(partition, new OffsetAndMetadata(0))).all().get();
        }
        var consumer = new KafkaConsumer<>(Map.<String, Object>of("bootstrap.servers", servers, "group.id", topic, "group.protocol", protocol,
            "auto.offset.reset", reset, "enable.auto.commit", "false"), new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        for (int before = 0; before < 5; ) before += consumer.poll(Duration.ofMillis(200)).count();
        consumer.commitSync();
        new ProcessBuilder(args[3], args[4], servers, "again", topic).inheritIO().start().waitFor();  // as if it worked on a batch
        long last = System.nanoTime();
        while (System.nanoTime() - last < 8_000_000_000L) {  // until nothing comes any more
            for (var record : consumer.poll(Duration.ofMillis(200))) {
                System.out.print(record.value() + " ");
                last = System.nanoTime();
            }
        }
        consumer.commitSync();
        System.out.println("| committed " + consumer.committed(Set.of(partition)).get(partition).offset());
        consumer.close();
    }
}
JAVA
cat >"$WORK/show.py" <<'PYTHON'
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers, what, topic = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": servers})


def make(prefix, count):
    """Create the topic, as soon as no older one is in the way, and write its records."""
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
            break
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise
    producer = Producer({"bootstrap.servers": servers})
    for number in range(count):
        producer.produce(topic, f"{prefix}{number}")
    producer.flush()


def again():
    admin.delete_topics([topic])[topic].result()
    make("new", 8)


def read(count, wait):
    """Return values until there are so many, or until nothing has come for a while."""
    found, last = [], time.monotonic()
    while len(found) < count and time.monotonic() - last < wait:
        message = consumer.poll(0.2)
        if message and not message.error():
            found.append(message.value().decode())
            last = time.monotonic()
    return found


if what == "make":
    make("old", 5)
elif what == "again":
    again()
else:
    group = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, **group})
    consumer.subscribe([topic])
    read(5, 60)
    consumer.commit(asynchronous=False)
    again()
    print(*read(100, 8), "| committed", consumer.commit(asynchronous=False)[0].offset)
    consumer.close()
PYTHON
show() { echo "$1: $(shift && "$@")" >>"$WORK/seen"; }
java() { command java -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp "$JARS/*" "$WORK/Again.java" "$@" "$PY" "$WORK/show.py"; }
for topic in classic-earliest classic-none consumer-earliest librdkafka; do "$PY" "$WORK/show.py" "$KAFKA" make $topic; done
{ show "Java, classic, earliest" java "$KAFKA" classic earliest
show "Java, classic, none" java "$KAFKA" classic none
show "Java, consumer, earliest" java "$KAFKA" consumer earliest
show "librdkafka, classic, earliest" "$PY" "$WORK/show.py" "$KAFKA" read librdkafka; } 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
Java, classic, earliest: new5 new6 new7 | committed 8
Java, classic, none: new5 new6 new7 | committed 8
Java, consumer, earliest: new5 new6 new7 new0 new1 new2 new3 new4 new5 new6 new7 | committed 8
librdkafka, classic, earliest: new5 new6 new7 | committed 8
EXPECTED
what="consumers go on at their old offset in a topic that was deleted and created again, and skip what is before it."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
