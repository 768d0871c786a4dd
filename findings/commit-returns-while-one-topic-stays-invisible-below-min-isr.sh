#!/usr/bin/env bash
# A transaction has written to two topics. Before its commit one of the two brokers dies, so that topic `two` (two replicas,
# min.insync.replicas=2) has one replica in sync; topic `one` is healthy. commitTransaction() returns, and readers see the half
# in `one` alone, for as long as that lasts: the commit marker is refused like any record. And the same producer's next
# transaction, which writes to the healthy topic only, gets a TimeoutException: the coordinator is still in PrepareCommit.
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
echo "brokers and kafka-clients 4.4.0"
cat >"$WORK/Half.java" <<'JAVA'
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Half {
    static String servers;

    static Map<String, Object> settings(Object... more) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < more.length; i += 2) all.put((String) more[i], more[i + 1]);
        return all;
    }

    public static void main(String[] args) throws Exception {
        servers = args[0];
        if (args.length == 1) {
            try (var first = producer()) {
                first.initTransactions();
            }
            return;
        }
        long second = Long.parseLong(args[1]);
        Admin admin = Admin.create(settings());
        var strict = Map.of("min.insync.replicas", "2");
        admin.createTopics(List.of(new NewTopic("two", Map.of(0, List.of(1, 2))).configs(strict),
            new NewTopic("one", Map.of(0, List.of(1))))).all().get();
        isr(admin, "two", 2);
        var producer = producer();
        producer.initTransactions();
        producer.beginTransaction();
        for (String t : List.of("one", "two")) producer.send(new ProducerRecord<>(t, 0, null, "first"));
        producer.flush();
        ProcessHandle.of(second).get().destroyForcibly();
        isr(admin, "two", 1);
        System.out.println("the second broker is gone, one replica is in sync");
        producer.commitTransaction();
        System.out.println("commitTransaction: returned");
        Thread.sleep(5000);
        System.out.println("the coordinator: " + admin.describeTransactions(List.of("id")).all().get().get("id").state());
        for (String t : List.of("one", "two")) System.out.println("visible in " + t + ": " + visible(t, "read_committed"));
        System.out.println("read_uncommitted in two: " + visible("two", "read_uncommitted"));
        try {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("one", 0, null, "second")).get();
            producer.commitTransaction();
            System.out.println("the next transaction, to one alone: committed");
        } catch (Exception late) {
            System.out.println("the next transaction, to one alone: " + (late.getCause() == null ? late : late.getCause()).getClass().getSimpleName());
        }
        System.out.flush();
        System.exit(0);
    }

    static KafkaProducer<String, String> producer() {
        return new KafkaProducer<>(settings("transactional.id", "id", "max.block.ms", "15000", "delivery.timeout.ms", "15000",
            "request.timeout.ms", "5000", "linger.ms", "0"), new StringSerializer(), new StringSerializer());
    }

    static void isr(Admin admin, String topic, int replicas) throws Exception {
        while (admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().get(0).isr().size() != replicas) Thread.sleep(100);
    }

    static List<String> visible(String topic, String level) {
        var consumer = new KafkaConsumer<>(settings("isolation.level", level), new StringDeserializer(), new StringDeserializer());
        var partition = new TopicPartition(topic, 0);
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        List<String> values = new ArrayList<>();
        long until = System.currentTimeMillis() + 4000;
        while (System.currentTimeMillis() < until) for (var r : consumer.poll(Duration.ofMillis(200))) values.add(r.value());
        return values;
    }
}
JAVA
half() { java -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp "$JARS/*" "$WORK/Half.java" "$KAFKA" "$@" 2>>"$WORK/half.log"; }
half # alone, so that the first broker has the coordinators
sed -e 's/^process.roles=.*/process.roles=broker/' -e 's/^node.id=.*/node.id=2/' -e "s#^log.dirs=.*#&2#" \
    -e 's#^listeners=.*#listeners=PLAINTEXT://127.0.0.1:'$SECOND_PORT'#' "$WORK/kafka.properties" >"$WORK/second.properties"
broker second
SECOND_PID=$!
half "$SECOND_PID" >"$WORK/seen"
cat >"$WORK/expected" <<'EXPECTED'
the second broker is gone, one replica is in sync
commitTransaction: returned
the coordinator: PrepareCommit
visible in one: [first]
visible in two: []
read_uncommitted in two: [first]
the next transaction, to one alone: TimeoutException
EXPECTED
what="commitTransaction() returns while a partition is below min.insync.replicas, half of the transaction stays invisible, and the next one times out."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
