#!/usr/bin/env bash
# Kafka Streams keeps the headers of a record, such as its trace or its tenant, beside what is made of it. A row of a
# stream-stream left or outer join that finds no partner is emitted when a later record moves the time on, and comes
# with the headers of that record, which may be of any key: key a's row has the tenant of key b. The documentation says
# of such rows that their headers are lost. The final results of windows under EmitStrategy.onWindowClose() have the
# later record's headers as well, and dsl.store.format=HEADERS, which stores headers, changes none of it. Key, value
# and timestamp are the row's own. suppress(untilWindowCloses), on the same windows, and a join with a versioned table
# and a grace period wait as well, and emit each row with its own headers.
# Release: Kafka Streams 4.4.0 with its own test driver, without a broker. Needs: bash, Java (JDK), Maven. Minutes:
# 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams-test-utils</artifactId>
<version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import static org.apache.kafka.streams.kstream.Suppressed.BufferConfig.unbounded;

import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

public class Show {
    static final Serde<String> TEXT = Serdes.String();
    static final Duration MINUTE = Duration.ofMinutes(1);
    static final JoinWindows WITHIN = JoinWindows.ofTimeDifferenceWithNoGrace(MINUTE);
    static final StreamJoined<String, String, String> JOINED = StreamJoined.with(TEXT, TEXT, TEXT);
    static String folder, format = "DEFAULT";

    interface Rows { KStream<String, String> of(StreamsBuilder builder, KStream<String, String> left); }

    static <S extends StateStore> Materialized<String, String, S> texts() {
        return Materialized.with(TEXT, TEXT);
    }

    static KStream<String, String> right(StreamsBuilder builder) {
        return builder.stream("right", Consumed.with(TEXT, TEXT));
    }

    static TimeWindowedKStream<String, String> windowed(KStream<String, String> stream) {
        return stream.groupByKey(Grouped.with(TEXT, TEXT)).windowedBy(TimeWindows.ofSizeWithNoGrace(MINUTE));
    }

    static KStream<String, String> plain(KTable<Windowed<String>, String> table) {
        return table.toStream((window, value) -> window.key());
    }

    /** Pass records "topic key value minute" whose header names the tenant of their key, and print what is emitted. */
    static void show(String words, Rows rows, String... records) {
        var builder = new StreamsBuilder();
        rows.of(builder, builder.stream("left", Consumed.with(TEXT, TEXT))).to("out", Produced.with(TEXT, TEXT));
        var settings = new Properties();
        settings.putAll(Map.of("application.id", "show", "bootstrap.servers", "none:1", "state.dir", folder));
        settings.put("dsl.store.format", format);
        System.out.println(words + ":");
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var out = driver.createOutputTopic("out", new StringDeserializer(), new StringDeserializer());
            for (String record : records) {
                String[] parts = record.split(" ");
                var headers = new RecordHeaders().add("tenant", ("tenant-of-" + parts[1]).getBytes());
                var in = driver.createInputTopic(parts[0], new StringSerializer(), new StringSerializer());
                in.pipeInput(new TestRecord<>(parts[1], parts[2], headers, Long.parseLong(parts[3]) * 60000));
                driver.advanceWallClockTime(MINUTE);
                for (var row : out.readRecordsToList()) {
                    System.out.printf("  %s = %s, minute %d, header %s%n", row.key(), row.value(),
                        row.timestamp() / 60000, new String(row.headers().lastHeader("tenant").value()));
                }
            }
        }
    }

    public static void main(String[] arguments) {
        folder = arguments[0];
        String[] pair = {"left a 1 100", "right b 2 110", "left c 3 120"};
        String[] alone = {"left a 1 100", "left b 2 110", "left c 3 120"};
        for (String next : new String[] {"DEFAULT", "HEADERS"}) {
            format = next;
            System.out.println("dsl.store.format " + format);
            show("left join", (b, left) -> left.leftJoin(right(b), (x, y) -> x + "/" + y, WITHIN, JOINED), pair);
            show("outer join", (b, left) -> left.outerJoin(right(b), (x, y) -> x + "/" + y, WITHIN, JOINED), pair);
            show("window, on close", (b, left) -> plain(
                windowed(left).emitStrategy(EmitStrategy.onWindowClose()).reduce((x, y) -> x + y, texts())), alone);
        }
        format = "DEFAULT";
        show("window, suppress", (b, left) -> plain(
            windowed(left).reduce((x, y) -> x + y, texts())
                .suppress(Suppressed.untilWindowCloses(unbounded()))), alone);
        show("left join with a versioned table, grace 5 minutes", (b, left) -> left.leftJoin(
            b.table("right", Materialized.<String, String>as(
                Stores.persistentVersionedKeyValueStore("v", Duration.ofHours(1)))
                .withKeySerde(TEXT).withValueSerde(TEXT)),
            (x, y) -> x + "/" + y, Joined.with(TEXT, TEXT, TEXT, "j", Duration.ofMinutes(5))), alone);
    }
}
JAVA
(cd "$WORK/jars" && ls kafka-streams-4*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/state" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
kafka-streams-4.4.0.jar
dsl.store.format DEFAULT
left join:
  a = 1/null, minute 100, header tenant-of-b
outer join:
  a = 1/null, minute 100, header tenant-of-b
  b = null/2, minute 110, header tenant-of-c
window, on close:
  a = 1, minute 100, header tenant-of-b
  b = 2, minute 110, header tenant-of-c
dsl.store.format HEADERS
left join:
  a = 1/null, minute 100, header tenant-of-b
outer join:
  a = 1/null, minute 100, header tenant-of-b
  b = null/2, minute 110, header tenant-of-c
window, on close:
  a = 1, minute 100, header tenant-of-b
  b = 2, minute 110, header tenant-of-c
window, suppress:
  a = 1, minute 100, header tenant-of-a
  b = 2, minute 110, header tenant-of-b
left join with a versioned table, grace 5 minutes:
  a = 1/null, minute 100, header tenant-of-a
  b = 2/null, minute 110, header tenant-of-b
EXPECTED
what="rows without a partner and final results of windows have the headers of a later record of another key"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
