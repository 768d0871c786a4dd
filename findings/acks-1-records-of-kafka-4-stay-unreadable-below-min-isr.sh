#!/usr/bin/env bash
# A producer with acks=1 writes to a partition of which one of two replicas is in sync, with min.insync.replicas=2. That setting
# is known to concern acks=all alone, and the broker acknowledges at once. But no reader gets the record until a second replica
# is back: below min.insync.replicas the high watermark stands still (seen with eligible.leader.replicas.version 0, too), with no
# error to the producer or the reader.
# Release: Apache Kafka 4.4.0 (brokers and kafka-clients). Needs: bash, Java (JDK), Maven, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1
JARS=$WORK/jars
echo "brokers and kafka-clients 4.4.0"
cat >"$WORK/Unread.java" <<'JAVA'
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Unread {
    public static void main(String[] args) throws Exception {
        Map<String, Object> cluster = Map.of("bootstrap.servers", args[0]);
        Admin admin = Admin.create(cluster);
        admin.createTopics(List.of(new NewTopic("t", Map.of(0, List.of(1, 2))).configs(Map.of("min.insync.replicas", "2")))).all().get();
        inSync(admin, 2);
        ProcessHandle.of(Long.parseLong(args[1])).get().destroyForcibly();
        inSync(admin, 1);
        var sending = new HashMap<>(cluster);
        sending.putAll(Map.of("acks", "1", "enable.idempotence", "false"));
        var producer = new KafkaProducer<>(sending, new StringSerializer(), new StringSerializer());
        long offset = producer.send(new ProducerRecord<>("t", 0, null, "v")).get().offset();
        var consumer = new KafkaConsumer<>(cluster, new StringDeserializer(), new StringDeserializer());
        var partition = new TopicPartition("t", 0);
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        int read = 0;
        long until = System.currentTimeMillis() + 10_000;
        while (read == 0 && System.currentTimeMillis() < until) read += consumer.poll(Duration.ofMillis(200)).count();
        System.out.println("acknowledged at offset " + offset + ", records read within ten seconds: " + read
            + ", end of the partition: " + consumer.endOffsets(List.of(partition)).get(partition));
        System.exit(0);
    }

    static void inSync(Admin admin, int replicas) throws Exception {
        while (admin.describeTopics(List.of("t")).allTopicNames().get().get("t").partitions().get(0).isr().size() != replicas)
            Thread.sleep(100);
    }
}
JAVA
read -r PORT CONTROLLER SECOND_PORT < <(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in "123"]
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
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
PROPERTIES
# broker NAME: format and start what $WORK/NAME.properties describes; $PIDS are the processes, $! the last one.
broker() {
    java -cp "$JARS/*" kafka.tools.StorageTool format -t RmluZGluZ3NPZlRoaXNQcg -c "$WORK/$1.properties" >"$WORK/format.log" 2>&1
    java -Xmx512m -cp "$JARS/*" kafka.Kafka "$WORK/$1.properties" >"$WORK/$1.log" 2>&1 &
    PIDS="${PIDS:-} $!"
    timeout 90 sh -c 'until grep -q "Kafka Server started" "$0"; do sleep 0.3; done' "$WORK/$1.log"
}
broker kafka
sed -e 's/^process.roles=.*/process.roles=broker/' -e 's/^node.id=.*/node.id=2/' -e "s#^log.dirs=.*#&2#" \
    -e 's#^listeners=.*#listeners=PLAINTEXT://127.0.0.1:'$SECOND_PORT'#' "$WORK/kafka.properties" >"$WORK/second.properties"
broker second
SECOND_PID=$!
java -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp "$JARS/*" "$WORK/Unread.java" "$KAFKA" "$SECOND_PID" >"$WORK/seen" 2>"$WORK/unread.log"
cat >"$WORK/expected" <<'EXPECTED'
acknowledged at offset 0, records read within ten seconds: 0, end of the partition: 0
EXPECTED
what="a record that was acknowledged with acks=1 on a partition below min.insync.replicas cannot be read."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
