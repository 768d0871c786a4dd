#!/usr/bin/env bash
# Kafka Connect's default header.converter, SimpleHeaderConverter, guesses a type for the text of each header. A connector
# that takes records of one topic and writes them to another (by toConnectHeader and fromConnectHeader) writes other bytes
# than it read: a number loses its zeros and, as a float of 32 bits, its digits; of a text that begins with a number and a
# colon only the number is left, so "10:20" becomes "10"; a time at midnight becomes a date. No error.
# Release: Kafka Connect 4.4.0 (connect-api). Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-api</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

public class Show {
    public static void main(String[] args) {
        var converter = new SimpleHeaderConverter();
        converter.configure(Map.of());
        for (String text : List.of("order-7", "[7]", "12:30:00.000Z", "00123", "1.10", "1e5", "123456.789", "10:20",
                "12:30:00Z", "5:orders", "2024-01-01T12:00:00.000Z", "2024-01-01T00:00:00.000Z", "{\"price\": 1.10}")) {
            var read = converter.toConnectHeader("topic", "header", text.getBytes(UTF_8));
            var written = new String(converter.fromConnectHeader("topic", "header", read.schema(), read.value()), UTF_8);
            System.out.println(text + " -> " + written + " (" + read.schema().type() + ")");
        }
    }
}
JAVA
(cd "$WORK/jars" && ls connect-*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connect-api-4.4.0.jar
order-7 -> order-7 (STRING)
[7] -> [7] (ARRAY)
12:30:00.000Z -> 12:30:00.000Z (INT32)
00123 -> 123 (INT8)
1.10 -> 1.1 (FLOAT32)
1e5 -> 100000 (INT32)
123456.789 -> 123456.79 (FLOAT32)
10:20 -> 10 (INT8)
12:30:00Z -> 12 (INT8)
5:orders -> 5 (INT8)
2024-01-01T12:00:00.000Z -> 2024-01-01T12:00:00.000Z (INT64)
2024-01-01T00:00:00.000Z -> 2024-01-01 (INT64)
{"price": 1.10} -> {"price":1.1} (MAP)
EXPECTED
what="Connect's default header converter returns other text than it was given, and cuts a number off at a colon"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
