#!/usr/bin/env bash
# Kafka Streams, session windows with EmitStrategy.onWindowClose(): each session's final result is to be emitted once
# the session is closed, that is when the time of the stream is beyond its end, the gap and the grace period. Its store
# keeps sessions no longer than that, unless it is told to, and drops some of them before they are emitted. Although a
# record comes each minute, none of six sessions is emitted with a gap of one minute, four with one of five minutes,
# and five with a grace period of ten minutes on top. Nothing is raised, and no record counts as dropped. With a longer
# retention of the store, or with suppress(untilWindowCloses) in place of the strategy, each session is emitted.
# Release: Kafka Streams 4.4.0 with its own test driver, without a broker. Needs: bash, Java (JDK), Maven. Minutes: 1.
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
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.SessionStore;

public class Show {
    static final int SESSIONS = 6;
    static final long DAY = 1_000_000L;  // minutes since 1970
    static String folder;

    interface Count { KTable<Windowed<String>, Long> of(SessionWindowedKStream<String, String> sessions); }

    /** Return the types of the counts, and how long their store keeps them unless it decides so itself. */
    static Materialized<String, Long, SessionStore<Bytes, byte[]>> longs(Duration retention) {
        Materialized<String, Long, SessionStore<Bytes, byte[]>> types =
            Materialized.with(Serdes.String(), Serdes.Long());
        return retention == null ? types : types.withRetention(retention);
    }

    /** Let six keys have one session each, beside a clock that ticks each minute, and print how many are emitted. */
    static void show(String words, int gap, int grace, Count count) {
        var windows = SessionWindows.ofInactivityGapAndGrace(Duration.ofMinutes(gap), Duration.ofMinutes(grace));
        var builder = new StreamsBuilder();
        var input = builder.stream("in", Consumed.with(Serdes.String(), Serdes.String()));
        count.of(input.groupByKey().windowedBy(windows)).toStream((window, n) -> window.key())
            .filter((key, n) -> n != null && !key.equals("clock"))
            .to("out", Produced.with(Serdes.String(), Serdes.Long()));
        var settings = new Properties();
        settings.putAll(Map.of("application.id", "show", "bootstrap.servers", "none:1", "state.dir", folder));
        var emitted = new TreeMap<String, List<Long>>();
        double dropped;
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            var out = driver.createOutputTopic("out", new StringDeserializer(), new LongDeserializer());
            for (long minute = 0; minute < SESSIONS * 17 + 20; minute++) {
                in.pipeInput("clock", "x", (DAY + minute) * 60000);
                if (minute % 17 == 0 && minute < SESSIONS * 17) {
                    in.pipeInput("key" + minute / 17, "x", (DAY + minute) * 60000);
                    in.pipeInput("key" + minute / 17, "x", (DAY + minute) * 60000 + 1000);
                }
                driver.advanceWallClockTime(Duration.ofMinutes(1));
                out.readKeyValuesToList().forEach(r ->
                    emitted.computeIfAbsent(r.key, k -> new ArrayList<>()).add(r.value));
            }
            dropped = driver.metrics().entrySet().stream()
                .filter(m -> m.getKey().name().equals("dropped-records-total"))
                .mapToDouble(m -> (double) m.getValue().metricValue()).sum();
        }
        boolean right = emitted.values().stream().allMatch(List.of(2L)::equals);
        System.out.printf("  %s: %d of %d sessions%s, dropped records: %.0f%n", words, emitted.size(), SESSIONS,
            right ? "" : ", with other results", dropped);
    }

    public static void main(String[] arguments) {
        folder = arguments[0];
        Duration day = Duration.ofDays(1);
        for (int[] times : new int[][] {{1, 0}, {5, 0}, {5, 10}}) {
            int gap = times[0], grace = times[1];
            System.out.println("gap " + gap + ", grace " + grace + " minutes:");
            show("on close", gap, grace, s -> s.emitStrategy(EmitStrategy.onWindowClose()).count(longs(null)));
            show("on close, store of a day", gap, grace,
                s -> s.emitStrategy(EmitStrategy.onWindowClose()).count(longs(day)));
            show("suppress", gap, grace, s -> s.count(longs(null)).suppress(Suppressed.untilWindowCloses(unbounded())));
        }
    }
}
JAVA
(cd "$WORK/jars" && ls kafka-streams-4*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/state" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
kafka-streams-4.4.0.jar
gap 1, grace 0 minutes:
  on close: 0 of 6 sessions, dropped records: 0
  on close, store of a day: 6 of 6 sessions, dropped records: 0
  suppress: 6 of 6 sessions, dropped records: 0
gap 5, grace 0 minutes:
  on close: 4 of 6 sessions, dropped records: 0
  on close, store of a day: 6 of 6 sessions, dropped records: 0
  suppress: 6 of 6 sessions, dropped records: 0
gap 5, grace 10 minutes:
  on close: 5 of 6 sessions, dropped records: 0
  on close, store of a day: 6 of 6 sessions, dropped records: 0
  suppress: 6 of 6 sessions, dropped records: 0
EXPECTED
what="final results of session windows are lost under onWindowClose(), although no record is late"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
