#!/usr/bin/env bash
# Kafka Connect's JsonConverter does not compare a value with its schema, and raises for nothing that Jackson can turn into a
# number: "7" under int64 is 0, 1 under boolean is false, 7 under string is null, 3000000000 under int32 is -1294967296.
# Without schemas, an unsigned id of 64 bits is a negative number: 18446744073709551615 is -1, and is written so again.
# Neither errors.tolerance nor a dead letter queue sees any of it.
# Release: Kafka Connect 4.4.0 (connect-json). Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.json.JsonConverter;

public class Show {
    static JsonConverter converter(boolean schemas) {
        var made = new JsonConverter();
        made.configure(Map.of("schemas.enable", schemas), false);
        return made;
    }

    public static void main(String[] args) {
        for (String type : List.of("int32", "int64", "double", "boolean", "string")) {
            var line = new StringBuilder(type + ":");
            for (String payload : List.of("7", "\"7\"", "2.7", "3000000000", "true", "{}")) {
                var json = "{\"schema\": {\"type\": \"" + type + "\", \"optional\": false}, \"payload\": " + payload + "}";
                Object read;
                try {
                    read = converter(true).toConnectData("topic", json.getBytes(UTF_8)).value();
                } catch (DataException refused) {
                    read = "refused";
                }
                line.append(" ").append(payload).append(" -> ").append(read).append(",");
            }
            System.out.println(line.substring(0, line.length() - 1));
        }
        for (String json : List.of("9223372036854775807", "9223372036854775808", "18446744073709551615", "1e400")) {
            var read = converter(false).toConnectData("topic", json.getBytes(UTF_8));
            var written = new String(converter(false).fromConnectData("topic", read.schema(), read.value()), UTF_8);
            System.out.println("without schemas: " + json + " -> " + read.value() + ", written as " + written);
        }
    }
}
JAVA
(cd "$WORK/jars" && ls connect-*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connect-api-4.4.0.jar
connect-json-4.4.0.jar
int32: 7 -> 7, "7" -> 0, 2.7 -> 2, 3000000000 -> -1294967296, true -> 0, {} -> 0
int64: 7 -> 7, "7" -> 0, 2.7 -> 2, 3000000000 -> 3000000000, true -> 0, {} -> 0
double: 7 -> 7.0, "7" -> 0.0, 2.7 -> 2.7, 3000000000 -> 3.0E9, true -> 0.0, {} -> 0.0
boolean: 7 -> false, "7" -> false, 2.7 -> false, 3000000000 -> false, true -> true, {} -> false
string: 7 -> null, "7" -> 7, 2.7 -> null, 3000000000 -> null, true -> null, {} -> null
without schemas: 9223372036854775807 -> 9223372036854775807, written as 9223372036854775807
without schemas: 9223372036854775808 -> -9223372036854775808, written as -9223372036854775808
without schemas: 18446744073709551615 -> -1, written as -1
without schemas: 1e400 -> Infinity, written as "Infinity"
EXPECTED
what="Connect's JsonConverter reads values of another type than the schema's as zero, false or null, and big ids as negative"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
