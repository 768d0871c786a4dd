#!/usr/bin/env bash
# Kafka Connect's TimestampConverter and a text with six digits behind the second, as Python, Spark and databases write it.
# Its format has an S for each digit, and the six digits are taken for milliseconds: 00:00:00.999999 is 00:16:39.999. With
# SSS in the format it is the same; one digit, .9, is 9 milliseconds. The 31st of February is the 2nd of March, and text
# behind the format is ignored. No error in any case.
# Release: Kafka Connect 4.4.0 (connect-transforms). Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-transforms</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import java.time.Instant;
import java.util.Map;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.transforms.TimestampConverter;

public class Show {
    static void show(String format, String text) {
        var converter = new TimestampConverter.Value<SinkRecord>();
        converter.configure(Map.of("field", "at", "target.type", "unix", "format", format));
        var converted = converter.apply(new SinkRecord("topic", 0, null, null, null, Map.of("at", text), 0));
        var at = Instant.ofEpochMilli((Long) ((Map<?, ?>) converted.value()).get("at"));
        System.out.println(text + " by " + format + " -> " + at);
    }

    public static void main(String[] args) {
        show("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "2024-01-01T00:00:00.999Z");
        show("yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "2024-01-01T00:00:00.000999Z");
        show("yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "2024-01-01T00:00:00.999999Z");
        show("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "2024-01-01T00:00:00.999999Z");
        show("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "2024-01-01T00:00:00.9Z");
        show("yyyy-MM-dd", "2024-02-31");
        show("yyyy-MM-dd", "2024-01-01T23:59:59");
    }
}
JAVA
(cd "$WORK/jars" && ls connect-*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connect-api-4.4.0.jar
connect-transforms-4.4.0.jar
2024-01-01T00:00:00.999Z by yyyy-MM-dd'T'HH:mm:ss.SSS'Z' -> 2024-01-01T00:00:00.999Z
2024-01-01T00:00:00.000999Z by yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z' -> 2024-01-01T00:00:00.999Z
2024-01-01T00:00:00.999999Z by yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z' -> 2024-01-01T00:16:39.999Z
2024-01-01T00:00:00.999999Z by yyyy-MM-dd'T'HH:mm:ss.SSS'Z' -> 2024-01-01T00:16:39.999Z
2024-01-01T00:00:00.9Z by yyyy-MM-dd'T'HH:mm:ss.SSS'Z' -> 2024-01-01T00:00:00.009Z
2024-02-31 by yyyy-MM-dd -> 2024-03-02T00:00:00Z
2024-01-01T23:59:59 by yyyy-MM-dd -> 2024-01-01T00:00:00Z
EXPECTED
what="Connect's TimestampConverter takes microseconds for milliseconds, and moves a time by up to 17 minutes"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
