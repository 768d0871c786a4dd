#!/usr/bin/env bash
# A read-process-write loop (poll, transaction, sendOffsetsToTransaction with consumer.groupMetadata(), commit) is paused in
# the middle of a batch for longer than its session. Another member takes the partition and commits. The loop wakes up and
# works on for some seconds. With group.protocol=classic its commit is refused. With group.protocol=consumer (KIP-848) the
# consumer has meanwhile rejoined in its own thread, with no call of poll(): groupMetadata() has the new epoch, and the commit
# of the batch that it had lost succeeds: duplicates, each in a transaction that is right by itself.
# Release: Apache Kafka 4.4.0 (broker and kafka-clients). Needs: bash, Java (JDK), Maven, Python 3. Minutes: 1 to 2.
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
echo "kafka-clients and broker 4.4.0"
# Sessions of six seconds in both protocols, so that the pause can be short.
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
group.initial.rebalance.delay.ms=0
group.consumer.session.timeout.ms=6000
group.consumer.min.session.timeout.ms=6000
group.consumer.heartbeat.interval.ms=1000
group.consumer.min.heartbeat.interval.ms=1000
PROPERTIES
java -cp "$JARS/*" kafka.tools.StorageTool format -t RmluZGluZ3NPZlRoaXNQcg -c "$WORK/kafka.properties" >"$WORK/format.log" 2>&1
java -Xmx512m -cp "$JARS/*" kafka.Kafka "$WORK/kafka.properties" >"$WORK/broker.log" 2>&1 &
PIDS=$!
timeout 90 sh -c 'until grep -q "Kafka Server started" "$0"; do sleep 0.3; done' "$WORK/broker.log"

cat >"$WORK/Loop.java" <<'JAVA'
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** One member: its batch takes as long as told, and it ends when told how many offsets the group has. */
public class Loop {
    static Map<String, Object> settings(String servers, Object... more) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < more.length; i += 2) all.put((String) more[i], more[i + 1]);
        return all;
    }
    public static void main(String[] args) throws Exception {
        String servers = args[0], protocol = args[1], name = args[2];
        String in = protocol + "-in", out = protocol + "-out";
        if (name.equals("prepare")) { prepare(servers, in, out); return; }
        if (name.equals("read")) { read(servers, out); return; }
        int steps = Integer.parseInt(args[3]);
        Map<String, Object> reading = settings(servers, "group.id", protocol, "group.protocol", protocol,
            "isolation.level", "read_committed", "auto.offset.reset", "earliest", "enable.auto.commit", "false");
        if (protocol.equals("classic")) reading.putAll(Map.of("session.timeout.ms", "6000", "heartbeat.interval.ms", "1000"));
        var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        var producer = new KafkaProducer<>(settings(servers, "transactional.id", protocol + "-" + name),
            new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        consumer.subscribe(List.of(in));
        ConsumerRecords<String, String> batch;
        do batch = consumer.poll(Duration.ofMillis(500)); while (batch.isEmpty());
        producer.beginTransaction();
        for (var record : batch) producer.send(new ProducerRecord<>(out, record.value() + " by " + name));
        producer.flush();
        System.out.println(name + " has written its batch, generation " + consumer.groupMetadata().generationId());
        for (int i = 0; i < steps; i++) Thread.sleep(100);  // work: what is left of it at the pause is done after it
        int generation = consumer.groupMetadata().generationId();
        String end;
        try {
            producer.sendOffsetsToTransaction(batch.nextOffsets(), consumer.groupMetadata());
            producer.commitTransaction();
            end = "COMMITTED";
        } catch (CommitFailedException refused) {
            producer.abortTransaction();
            end = "REFUSED";
        }
        System.out.println(name + " " + end + ", generation " + generation);
        if (name.equals("B")) while (true) consumer.poll(Duration.ofMillis(200));  // it stays a member until it is ended
        System.exit(0);
    }
    static void prepare(String servers, String in, String out) throws Exception {
        try (Admin admin = Admin.create(settings(servers))) {
            admin.createTopics(List.of(new NewTopic(in, 1, (short) 1), new NewTopic(out, 1, (short) 1))).all().get();
        }
        try (var producer = new KafkaProducer<>(settings(servers), new StringSerializer(), new StringSerializer())) {
            for (String value : List.of("r0", "r1")) producer.send(new ProducerRecord<>(in, value));
        }
    }
    static void read(String servers, String out) {
        var consumer = new KafkaConsumer<>(settings(servers, "isolation.level", "read_committed"),
            new StringDeserializer(), new StringDeserializer());
        var partition = new TopicPartition(out, 0);
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        long end = consumer.endOffsets(List.of(partition)).get(partition);
        List<String> values = new ArrayList<>();
        while (consumer.position(partition) < end) for (var record : consumer.poll(Duration.ofMillis(200))) values.add(record.value());
        System.out.println(values);
    }
}
JAVA
javac -cp "$JARS/*" -d "$WORK/classes" "$WORK/Loop.java" >"$WORK/javac.log" 2>&1
loop() { exec java -Xmx128m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$JARS/*:$WORK/classes" Loop "$KAFKA" "$@"; }
# says FILE WORDS: wait until a line of the file has the words.
says() { timeout 90 sh -c 'until grep -q "$1" "$0"; do sleep 0.3; done' "$1" "$2"; }
for protocol in classic consumer; do
    (loop "$protocol" prepare)
    (loop "$protocol" A 150) >"$WORK/$protocol-A.log" 2>&1 & a=$!
    PIDS+=" $a"
    says "$WORK/$protocol-A.log" "has written"
    kill -STOP "$a"
    (loop "$protocol" B 0) >"$WORK/$protocol-B.log" 2>&1 & b=$!
    PIDS+=" $b"
    says "$WORK/$protocol-B.log" "COMMITTED"
    kill -CONT "$a"
    says "$WORK/$protocol-A.log" "A [CR]"
    cat "$WORK/$protocol-A.log" "$WORK/$protocol-B.log"
    kill "$b"
    echo "$protocol: the one that woke up: $(sed -n 's/^A \([A-Z]*\),.*/\1/p' "$WORK/$protocol-A.log")" >>"$WORK/seen"
    echo "$protocol: $( (loop "$protocol" read) | tr -d '[],' | xargs -n 3 | sort | paste -sd, )" >>"$WORK/seen"
done
cat >"$WORK/expected" <<'EXPECTED'
classic: the one that woke up: REFUSED
classic: r0 by B,r1 by B
consumer: the one that woke up: COMMITTED
consumer: r0 by A,r0 by B,r1 by A,r1 by B
EXPECTED
what="a KIP-848 consumer that was fenced during a batch commits this batch after another member did, and a classic one is refused."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
