#!/usr/bin/env bash
# Kafka Streams' suppress(untilWindowCloses) is said to emit one result of each window, the final one. Over sliding windows it
# emits a result as soon as the time of the stream is the end of the window plus the grace period. At exactly that time the
# aggregate still takes records of the window: each late record that comes then makes suppress emit another final result of the
# window. Times of whole seconds or minutes, as here, often meet that time exactly. EmitStrategy.onWindowClose() waits until the
# time of the stream is greater, and emits one result; over tumbling windows suppress emits one as well. No error is raised.
# Release: Kafka Streams 4.4.0 with its own test driver, without a broker. Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams-test-utils</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import static org.apache.kafka.streams.kstream.Suppressed.BufferConfig.unbounded;

import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateStore;

public class Show {
    static final Duration MINUTE = Duration.ofMinutes(1), TWO = Duration.ofMinutes(2);
    static final SlidingWindows SLIDING = SlidingWindows.ofTimeDifferenceAndGrace(MINUTE, TWO);
    static final TimeWindows TUMBLING = TimeWindows.ofSizeAndGrace(MINUTE, TWO);
    static String folder;

    interface Count { KTable<Windowed<String>, Long> of(KGroupedStream<String, String> stream); }

    /** Return the types of the counts. */
    static <S extends StateStore> Materialized<String, Long, S> longs() {
        return Materialized.with(Serdes.String(), Serdes.Long());
    }

    /** Count records of keys and minutes, and print the results that each record makes the program emit of one window of key a. */
    static void show(String words, Count count, long end, String... records) {
        var builder = new StreamsBuilder();
        count.of(builder.stream("in", Consumed.with(Serdes.String(), Serdes.String())).groupByKey()).toStream()
            .filter((window, n) -> window.window().end() == end * 60000 && window.key().equals("a"))
            .map((window, n) -> KeyValue.pair(window.key(), n)).to("out", Produced.with(Serdes.String(), Serdes.Long()));
        var settings = new Properties();
        settings.putAll(Map.of("application.id", "show", "bootstrap.servers", "none:1", "state.dir", folder));
        System.out.println(words + ":");
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            var out = driver.createOutputTopic("out", new StringDeserializer(), new LongDeserializer());
            for (String record : records) {
                in.pipeInput(record.substring(0, 1), "x", Long.parseLong(record.substring(2)) * 60000);
                driver.advanceWallClockTime(MINUTE);
                System.out.println("  " + record + " emits " + out.readValuesToList());
            }
        }
    }

    public static void main(String[] arguments) {
        folder = arguments[0];
        String[] records = {"a 100", "b 101", "a 100", "b 102", "a 100", "a 100", "b 103", "a 100", "b 104"};
        Count suppress = s -> s.windowedBy(SLIDING).count(longs()).suppress(Suppressed.untilWindowCloses(unbounded()));
        Count close = s -> s.windowedBy(SLIDING).emitStrategy(EmitStrategy.onWindowClose()).count(longs());
        Count tumbling = s -> s.windowedBy(TUMBLING).count(longs()).suppress(Suppressed.untilWindowCloses(unbounded()));
        show("sliding window from 99 to 100, grace 2, suppress", suppress, 100, records);
        show("sliding window from 99 to 100, grace 2, on close", close, 100, records);
        show("tumbling window from 100 to 101, grace 2, suppress", tumbling, 101, records);
    }
}
JAVA
(cd "$WORK/jars" && ls kafka-streams-4*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/state" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
kafka-streams-4.4.0.jar
sliding window from 99 to 100, grace 2, suppress:
  a 100 emits []
  b 101 emits []
  a 100 emits []
  b 102 emits [2]
  a 100 emits [3]
  a 100 emits [4]
  b 103 emits []
  a 100 emits []
  b 104 emits []
sliding window from 99 to 100, grace 2, on close:
  a 100 emits []
  b 101 emits []
  a 100 emits []
  b 102 emits []
  a 100 emits []
  a 100 emits []
  b 103 emits [4]
  a 100 emits []
  b 104 emits []
tumbling window from 100 to 101, grace 2, suppress:
  a 100 emits []
  b 101 emits []
  a 100 emits []
  b 102 emits []
  a 100 emits []
  a 100 emits []
  b 103 emits [4]
  a 100 emits []
  b 104 emits []
EXPECTED
what="suppress of Kafka Streams emits two final results of a sliding window"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
