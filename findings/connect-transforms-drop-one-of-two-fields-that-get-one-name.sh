#!/usr/bin/env bash
# Kafka Connect's transforms on records of JSON without schemas: Flatten makes one name of {"a": {"b": 1}, "a.b": 2}, and
# ReplaceField renames a field to a name that is there already. One of the two values is lost without an error, and which one
# depends on the fields' names alone, since the converter's map has its own order. With a schema both transforms raise.
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
import org.apache.kafka.connect.data.*;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.*;

public class Show {
    /** Read the text as a worker does, transform the record, and print it as the worker writes it. */
    static void show(Transformation<SourceRecord> transform, Map<String, String> settings, String text) {
        var converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), false);
        transform.configure(settings);
        var read = converter.toConnectData("t", text.getBytes(UTF_8));
        var after = transform.apply(new SourceRecord(null, null, "t", read.schema(), read.value()));
        System.out.println(settings + " " + text + " -> " + new String(converter.fromConnectData("t", after.valueSchema(), after.value()), UTF_8));
    }

    static void showStruct(Transformation<SourceRecord> transform, Map<String, String> settings, Struct value) {
        transform.configure(settings);
        try {
            System.out.println("with a schema: " + transform.apply(new SourceRecord(null, null, "t", value.schema(), value)).value());
        } catch (ConnectException error) {
            System.out.println("with a schema: " + error.getClass().getSimpleName());
        }
    }

    public static void main(String[] args) {
        Map<String, String> flat = Map.of("delimiter", "_");
        show(new Flatten.Value<>(), flat, "{\"a_b\":2,\"a\":{\"b\":1}}");
        show(new Flatten.Value<>(), flat, "{\"a\":{\"b\":1},\"a_b\":2}");
        show(new Flatten.Value<>(), flat, "{\"order\":{\"id\":1},\"order_id\":2}");
        show(new Flatten.Value<>(), flat, "{\"price\":{\"net\":1},\"price_net\":2}");
        show(new Flatten.Value<>(), flat, "{\"user\":{\"id\":1},\"user_id\":2}");
        show(new Flatten.Value<>(), flat, "{\"item\":{\"id\":1},\"item_id\":2}");
        var inner = SchemaBuilder.struct().field("b", Schema.INT32_SCHEMA).build();
        var outer = SchemaBuilder.struct().field("a_b", Schema.INT32_SCHEMA).field("a", inner).build();
        showStruct(new Flatten.Value<>(), flat, new Struct(outer).put("a_b", 2).put("a", new Struct(inner).put("b", 1)));
        show(new ReplaceField.Value<>(), Map.of("renames", "userId:user_id"), "{\"userId\":1,\"user_id\":2}");
        show(new ReplaceField.Value<>(), Map.of("renames", "id:user_id"), "{\"id\":1,\"user_id\":2}");
        show(new ReplaceField.Value<>(), Map.of("renames", "orderId:order_id"), "{\"orderId\":1,\"order_id\":2}");
        show(new ReplaceField.Value<>(), Map.of("renames", "a:b"), "{\"a\":1,\"b\":2}");
        show(new ReplaceField.Value<>(), Map.of("renames", "b:a"), "{\"a\":1,\"b\":2}");
        var two = SchemaBuilder.struct().field("a", Schema.INT32_SCHEMA).field("b", Schema.INT32_SCHEMA).build();
        showStruct(new ReplaceField.Value<>(), Map.of("renames", "a:b"), new Struct(two).put("a", 1).put("b", 2));
    }
}
JAVA
(cd "$WORK/jars" && ls connect-transforms*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connect-transforms-4.4.0.jar
{delimiter=_} {"a_b":2,"a":{"b":1}} -> {"a_b":2}
{delimiter=_} {"a":{"b":1},"a_b":2} -> {"a_b":2}
{delimiter=_} {"order":{"id":1},"order_id":2} -> {"order_id":1}
{delimiter=_} {"price":{"net":1},"price_net":2} -> {"price_net":2}
{delimiter=_} {"user":{"id":1},"user_id":2} -> {"user_id":1}
{delimiter=_} {"item":{"id":1},"item_id":2} -> {"item_id":2}
with a schema: SchemaBuilderException
{renames=userId:user_id} {"userId":1,"user_id":2} -> {"user_id":1}
{renames=id:user_id} {"id":1,"user_id":2} -> {"user_id":1}
{renames=orderId:order_id} {"orderId":1,"order_id":2} -> {"order_id":2}
{renames=a:b} {"a":1,"b":2} -> {"b":2}
{renames=b:a} {"a":1,"b":2} -> {"a":2}
with a schema: SchemaBuilderException
EXPECTED
what="Connect's Flatten and ReplaceField drop one of two fields that get one name, and the names decide which"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
