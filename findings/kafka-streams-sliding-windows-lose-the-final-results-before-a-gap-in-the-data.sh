#!/usr/bin/env bash
# With EmitStrategy.onWindowClose() a windowed aggregate is to emit the final result of each window when the window closes. For
# sliding windows Kafka Streams does so as long as records keep coming. The record that ends a gap in the data closes all windows
# from before the gap, and none of their results is emitted, then or later. No error is raised, and the metric of dropped records
# stays at 0. With a window and a grace period of one minute each a gap of four minutes is enough, in the default store and in
# memory. With a longer retention of the store the results come, unless the gap is longer than that. The same records in tumbling
# windows, or in sliding windows with suppress(untilWindowCloses), lose no result.
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
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.WindowStore;

public class Show {
    static final Duration MINUTE = Duration.ofMinutes(1);
    static final SlidingWindows SLIDING = SlidingWindows.ofTimeDifferenceAndGrace(MINUTE, MINUTE);
    static final TimeWindows TUMBLING = TimeWindows.ofSizeAndGrace(MINUTE, MINUTE);
    static String folder;

    interface Count { KTable<Windowed<String>, Long> of(KGroupedStream<String, String> stream); }

    /** Return a store of counts with a retention, or with the default one. */
    static Materialized<String, Long, WindowStore<Bytes, byte[]>> store(Duration retention) {
        var store = Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts")
            .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long());
        return retention == null ? store : store.withRetention(retention);
    }

    /** Return the minute in which a window starts, with a plus if it starts in the millisecond behind it. */
    static String label(long start) {
        return start / 60000 + (start % 60000 == 0 ? "" : "+");
    }

    /** Count the records of the minutes, and print which results, start and count, each makes the program emit. */
    static void show(String words, Count count, int... minutes) {
        var builder = new StreamsBuilder();
        var strings = Consumed.with(Serdes.String(), Serdes.String());
        count.of(builder.stream("in", strings).groupByKey()).toStream()
            .map((window, n) -> KeyValue.pair(label(window.window().start()), n))
            .to("out", Produced.with(Serdes.String(), Serdes.Long()));
        var settings = new Properties();
        settings.putAll(Map.of("application.id", "show", "bootstrap.servers", "none:1", "state.dir", folder));
        System.out.println(words + ":");
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            var out = driver.createOutputTopic("out", new StringDeserializer(), new LongDeserializer());
            for (int minute : minutes) {
                in.pipeInput("a", "x", minute * 60000L);
                driver.advanceWallClockTime(MINUTE);
                System.out.print("  " + minute + ": " + new TreeMap<>(out.readKeyValuesToMap()));
            }
            double dropped = driver.metrics().entrySet().stream().filter(m -> m.getKey().name().equals("dropped-records-total"))
                .mapToDouble(m -> (Double) m.getValue().metricValue()).sum();
            System.out.println("\n  dropped records: " + dropped);
        }
    }

    public static void main(String[] arguments) {
        folder = arguments[0];
        Count close = s -> s.windowedBy(SLIDING).emitStrategy(EmitStrategy.onWindowClose()).count(store(null));
        Count memory = s -> s.windowedBy(SLIDING).emitStrategy(EmitStrategy.onWindowClose())
            .count(store(null).withStoreType(Materialized.StoreType.IN_MEMORY));
        Count suppress = s -> s.windowedBy(SLIDING).count(store(null)).suppress(Suppressed.untilWindowCloses(unbounded()));
        Count hour = s -> s.windowedBy(SLIDING).emitStrategy(EmitStrategy.onWindowClose()).count(store(Duration.ofHours(1)));
        Count tumbling = s -> s.windowedBy(TUMBLING).emitStrategy(EmitStrategy.onWindowClose()).count(store(null));
        show("sliding, on close, no gap", close, 100, 101, 102, 103, 104, 105);
        int[] gaps = {100, 101, 110, 111, 200, 1000};
        show("sliding, on close, with gaps", close, gaps);
        show("sliding, on close, store in memory, with gaps", memory, gaps);
        show("sliding, suppress, with gaps", suppress, gaps);
        show("sliding, on close, retention of an hour, with gaps", hour, gaps);
        show("tumbling, on close, with gaps", tumbling, gaps);
        show("sliding, on close, gap of 3", close, 100, 103, 104, 105, 106);
        show("sliding, on close, gap of 4", close, 100, 104, 105, 106, 107);
    }
}
JAVA
(cd "$WORK/jars" && ls kafka-streams-4*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/state" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
kafka-streams-4.4.0.jar
sliding, on close, no gap:
  100: {}  101: {}  102: {99=1}  103: {100=2, 100+=1}  104: {101=2, 101+=1}  105: {102=2, 102+=1}
  dropped records: 0.0
sliding, on close, with gaps:
  100: {}  101: {}  110: {}  111: {}  200: {}  1000: {}
  dropped records: 0.0
sliding, on close, store in memory, with gaps:
  100: {}  101: {}  110: {}  111: {}  200: {}  1000: {}
  dropped records: 0.0
sliding, suppress, with gaps:
  100: {}  101: {99=1}  110: {100=2, 100+=1}  111: {109=1}  200: {110=2, 110+=1}  1000: {199=1}
  dropped records: 0.0
sliding, on close, retention of an hour, with gaps:
  100: {}  101: {}  110: {100=2, 100+=1, 99=1}  111: {}  200: {}  1000: {}
  dropped records: 0.0
tumbling, on close, with gaps:
  100: {}  101: {}  110: {100=1, 101=1}  111: {}  200: {110=1, 111=1}  1000: {200=1}
  dropped records: 0.0
sliding, on close, gap of 3:
  100: {}  103: {99=1}  104: {}  105: {102=1}  106: {103=2, 103+=1}
  dropped records: 0.0
sliding, on close, gap of 4:
  100: {}  104: {}  105: {}  106: {103=1}  107: {104=2, 104+=1}
  dropped records: 0.0
EXPECTED
what="sliding windows of Kafka Streams that emit on close lose the final results before a gap in the data"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
