#!/usr/bin/env bash
# Kafka Connect's transform Cast, which its documentation offers to force a field to a smaller width, keeps the low bits of a
# number that does not fit: 4294967297 is 1 as an int32, 300 is 44 as an int8, a timestamp of 2024 is a negative int32. A double
# loses its fraction or becomes the largest int64. Each text but "true" is false as a boolean, "1" as well as "yes", while the
# number 1 is true. No error; only a number in a text is compared with the type.
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
import java.util.Date;
import java.util.Map;
import org.apache.kafka.connect.data.*;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Cast;

public class Show {
    /** Cast the field of a record that has the schema, or of one without a schema. */
    static void show(Schema schema, Object value, String type) {
        Schema row = schema == null ? null : SchemaBuilder.struct().field("a", schema).build();
        Object before = row == null ? Map.of("a", value) : new Struct(row).put("a", value);
        String words = (schema == null ? "no schema" : schema.name() == null ? schema.type() : schema.name().replaceAll(".*\\.", ""))
            + ", " + (value instanceof String ? '"' + value.toString() + '"' : value instanceof Date d ? d.toInstant() : value);
        try (var cast = new Cast.Value<SourceRecord>()) {
            cast.configure(Map.of("spec", "a:" + type));
            Object after = cast.apply(new SourceRecord(null, null, "t", row, before)).value();
            System.out.println(words + " as " + type + ": " + (after instanceof Struct s ? s.get("a") : ((Map<?, ?>) after).get("a")));
        } catch (DataException error) {
            System.out.println(words + " as " + type + ": DataException");
        }
    }

    public static void main(String[] args) {
        show(Schema.INT64_SCHEMA, 4294967297L, "int32");
        show(Schema.INT64_SCHEMA, -2147483649L, "int32");
        show(Schema.INT32_SCHEMA, 300, "int8");
        show(Schema.FLOAT64_SCHEMA, 3.99, "int32");
        show(Schema.FLOAT64_SCHEMA, 1e20, "int64");
        show(Schema.FLOAT64_SCHEMA, 1e300, "float32");
        show(Timestamp.SCHEMA, new Date(1704067200000L), "int64");
        show(Timestamp.SCHEMA, new Date(1704067200000L), "int32");
        show(null, 4294967297L, "int32");
        show(Schema.STRING_SCHEMA, "4294967297", "int32");
        show(Schema.STRING_SCHEMA, "3.99", "int32");
        show(Schema.STRING_SCHEMA, "true", "boolean");
        show(Schema.STRING_SCHEMA, "yes", "boolean");
        show(Schema.STRING_SCHEMA, "1", "boolean");
        show(Schema.INT32_SCHEMA, 1, "boolean");
    }
}
JAVA
(cd "$WORK/jars" && ls connect-transforms*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connect-transforms-4.4.0.jar
INT64, 4294967297 as int32: 1
INT64, -2147483649 as int32: 2147483647
INT32, 300 as int8: 44
FLOAT64, 3.99 as int32: 3
FLOAT64, 1.0E20 as int64: 9223372036854775807
FLOAT64, 1.0E300 as float32: Infinity
Timestamp, 2024-01-01T00:00:00Z as int64: 1704067200000
Timestamp, 2024-01-01T00:00:00Z as int32: -1034816512
no schema, 4294967297 as int32: 1
STRING, "4294967297" as int32: DataException
STRING, "3.99" as int32: DataException
STRING, "true" as boolean: true
STRING, "yes" as boolean: false
STRING, "1" as boolean: false
INT32, 1 as boolean: true
EXPECTED
what="Connect's Cast keeps the low bits of a number that does not fit, and takes each text but \"true\" for false"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
