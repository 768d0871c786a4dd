#!/usr/bin/env bash
# Kafka Connect's transforms on records of JSON without schemas: ExtractField makes a null of a record that lacks the field, and
# in a compacted topic that null deletes the record's key; HoistField makes of a tombstone the value {"v":null}, which deletes
# no key. ValueToKey gives all records without the field one key, so that compaction keeps the last of them alone; MaskField
# adds a null under a name that it does not find. No error. With a schema ExtractField and ValueToKey raise, and MaskField leaves
# the record as it is; InsertField, ReplaceField and Flatten leave a tombstone as it is.
# Release: Kafka Connect 4.4.0 (connect-transforms, connect-json). Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-transforms</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.connect.data.*;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.*;

public class Show {
    static final String FIELDS = "[{\"field\":\"name\",\"type\":\"string\"}]";
    static final String WITH_SCHEMA = "{\"schema\":{\"type\":\"struct\",\"fields\":" + FIELDS + "},\"payload\":%s}";

    static String text(byte[] written) {
        return written == null ? "tombstone" : new String(written, UTF_8);
    }

    /** Read the texts as a worker does, transform the record, and return its key and its value as the worker writes them. */
    static String changed(Transformation<SourceRecord> transform, Map<String, String> settings, boolean schemas, String value) {
        var keys = new JsonConverter();
        var values = new JsonConverter();
        keys.configure(Map.of("schemas.enable", "false"), true);
        values.configure(Map.of("schemas.enable", "" + schemas), false);
        transform.configure(settings);
        try {
            var text = schemas ? WITH_SCHEMA.formatted(value) : value;
            var read = values.toConnectData("t", text == null ? null : text.getBytes(UTF_8));
            var before = new SourceRecord(null, null, "t", null, Schema.STRING_SCHEMA, "k", read.schema(), read.value());
            var after = transform.apply(before);
            values.configure(Map.of("schemas.enable", "false"), false);
            return "key " + text(keys.fromConnectData("t", after.keySchema(), after.key())) + ", value "
                + text(values.fromConnectData("t", after.valueSchema(), after.value()));
        } catch (ConnectException | IllegalArgumentException error) {
            return error.getClass().getSimpleName();
        }
    }

    static void show(Transformation<SourceRecord> transform, Map<String, String> settings, String value) {
        System.out.println(transform.getClass().getName().replaceAll(".*transforms.", "") + " " + new TreeMap<>(settings) + ", value " + value);
        System.out.println("  without a schema: " + changed(transform, settings, false, value));
        System.out.println("  with a schema: " + (value == null ? "as without" : changed(transform, settings, true, value)));
    }

    public static void main(String[] args) {
        String record = "{\"name\":\"a\"}";
        show(new ExtractField.Value<>(), Map.of("field", "name"), record);
        show(new ExtractField.Value<>(), Map.of("field", "after"), record);
        show(new ValueToKey<>(), Map.of("fields", "id"), record);
        show(new MaskField.Value<>(), Map.of("fields", "Name"), record);
        show(new HoistField.Value<>(), Map.of("field", "v"), null);
        show(new InsertField.Value<>(), Map.of("static.field", "v", "static.value", "x"), null);
        show(new ReplaceField.Value<>(), Map.of("renames", "name:v"), null);
        show(new Flatten.Value<>(), Map.of(), null);
    }
}
JAVA
(cd "$WORK/jars" && ls connect-transforms*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connect-transforms-4.4.0.jar
ExtractField$Value {field=name}, value {"name":"a"}
  without a schema: key "k", value "a"
  with a schema: key "k", value "a"
ExtractField$Value {field=after}, value {"name":"a"}
  without a schema: key "k", value tombstone
  with a schema: IllegalArgumentException
ValueToKey {fields=id}, value {"name":"a"}
  without a schema: key {"id":null}, value {"name":"a"}
  with a schema: DataException
MaskField$Value {fields=Name}, value {"name":"a"}
  without a schema: key "k", value {"name":"a","Name":null}
  with a schema: key "k", value {"name":"a"}
HoistField$Value {field=v}, value null
  without a schema: key "k", value {"v":null}
  with a schema: as without
InsertField$Value {static.field=v, static.value=x}, value null
  without a schema: key "k", value tombstone
  with a schema: as without
ReplaceField$Value {renames=name:v}, value null
  without a schema: key "k", value tombstone
  with a schema: as without
Flatten$Value {}, value null
  without a schema: key "k", value tombstone
  with a schema: as without
EXPECTED
what="ExtractField makes a tombstone of a record that lacks the field, and HoistField a record of a tombstone"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
