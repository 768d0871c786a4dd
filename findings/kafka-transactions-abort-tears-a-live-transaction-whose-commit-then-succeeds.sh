#!/usr/bin/env bash
# An operator takes a slow transaction for a hanging one, and ends it on one partition with `kafka-transactions.sh abort`
# (--topic, --partition, --start-offset; without --producer-id, as the tool says for brokers since 2.8). The coordinator is not
# asked: for it the transaction goes on. The producer writes one more record and commits, without an error from either; a
# read_committed reader sees that last record alone, i.e. a part of one transaction. Also under transaction.version 2.
# Release: Apache Kafka 4.4.0. Needs: bash, Java (JDK), Maven, Python 3. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>4.4.0</version></dependency>
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
cat >"$WORK/Torn.java" <<'JAVA'
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Torn {
    public static void main(String[] args) throws Exception {
        String servers = args[0];
        Admin admin = Admin.create(Map.of("bootstrap.servers", servers));
        admin.createTopics(List.of(new NewTopic("t", 2, (short) 1))).all().get();
        System.out.println("transaction.version: "
            + admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version").maxVersionLevel());
        var producer = new KafkaProducer<>(Map.<String, Object>of("bootstrap.servers", servers, "transactional.id", "slow"),
            new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        producer.beginTransaction();
        for (String value : List.of("first", "second")) for (int p : List.of(0, 1)) producer.send(new ProducerRecord<>("t", p, null, value));
        producer.flush();
        Process tool = new ProcessBuilder("java", "-cp", System.getProperty("java.class.path"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "org.apache.kafka.tools.TransactionsCommand",
            "--bootstrap-server", servers, "abort", "--topic", "t", "--partition", "0", "--start-offset", "0")
            .inheritIO().start();
        System.out.println("the tool: exit " + tool.waitFor());
        System.out.println("the coordinator: " + admin.describeTransactions(List.of("slow")).all().get().get("slow").state());
        for (int p : List.of(0, 1)) producer.send(new ProducerRecord<>("t", p, null, "third")).get();
        producer.commitTransaction();
        System.out.println("commitTransaction: returned");
        for (int p : List.of(0, 1)) System.out.println("visible in partition " + p + ": " + visible(servers, p));
        System.exit(0);
    }

    static List<String> visible(String servers, int number) {
        var consumer = new KafkaConsumer<>(Map.<String, Object>of("bootstrap.servers", servers,
            "isolation.level", "read_committed"), new StringDeserializer(), new StringDeserializer());
        var partition = new TopicPartition("t", number);
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        // Until behind the last marker, which may come a moment after commitTransaction() has returned.
        List<String> values = new ArrayList<>();
        long end = number == 0 ? 5 : 4;
        while (consumer.position(partition) < end)
            for (var record : consumer.poll(Duration.ofMillis(200))) values.add(record.value());
        return values;
    }
}
JAVA
java -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp "$JARS/*" "$WORK/Torn.java" "$KAFKA" >"$WORK/seen" 2>"$WORK/torn.log"
cat >"$WORK/expected" <<'EXPECTED'
transaction.version: 2
the tool: exit 0
the coordinator: Ongoing
commitTransaction: returned
visible in partition 0: [third]
visible in partition 1: [first, second, third]
EXPECTED
what="after an abort of one partition of a live transaction its commit succeeds, and what was written later becomes visible alone."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
