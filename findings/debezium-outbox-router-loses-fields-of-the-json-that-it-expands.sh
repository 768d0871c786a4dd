#!/usr/bin/env bash
# Debezium's outbox event router with table.expand.json.payload, which makes a structure of the JSON in the outbox table's column.
# The fields of an array's elements are put together, but those of an object, or a list of objects, inside of the elements are
# taken from one element alone: what another element has beside them is lost, be it the first or the last. A field whose value is
# an empty array is left out, also with table.json.payload.null.behavior=optional_bytes, which keeps nulls. Numbers with a fraction
# are doubles: 1.10 is 1.1, and an amount of 19 digits another one. No error and no warning; the events are published so.
# Without the option each event has the text as it stands in the column.
# Release: Debezium 3.6.1.Final (debezium-connect-plugins). Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>io.debezium</groupId><artifactId>debezium-connector-postgres</artifactId>
    <version>3.6.1.Final</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>4.3.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-transforms</artifactId><version>4.3.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/Show.java" <<'JAVA'
import io.debezium.transforms.outbox.EventRouter;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

public class Show {
    static final Schema TEXT = Schema.STRING_SCHEMA;
    static final Schema ROW = SchemaBuilder.struct().optional().field("id", TEXT).field("aggregatetype", TEXT)
        .field("aggregateid", TEXT).field("type", TEXT)
        .field("payload", SchemaBuilder.string().name("io.debezium.data.Json").optional().build()).build();
    static final Schema SOURCE = SchemaBuilder.struct().field("ts_ms", Schema.OPTIONAL_INT64_SCHEMA).build();
    static final Schema CHANGE = SchemaBuilder.struct().name("shop.outbox.Envelope").field("before", ROW).field("after", ROW)
        .field("source", SOURCE).field("op", TEXT).field("ts_ms", Schema.OPTIONAL_INT64_SCHEMA).build();

    /** Route the insert of a row that has the JSON as its payload, and return the event as Connect's JSON converter writes it. */
    static String route(Map<String, String> settings, String json) {
        try (var router = new EventRouter<SourceRecord>(); var converter = new JsonConverter()) {
            converter.configure(Map.of("schemas.enable", "false"), false);
            router.configure(settings);
            var row = new Struct(ROW).put("id", "1").put("aggregatetype", "order").put("aggregateid", "7").put("type", "placed")
                .put("payload", json);
            var change = new Struct(CHANGE).put("after", row).put("op", "c").put("ts_ms", 1L)
                .put("source", new Struct(SOURCE).put("ts_ms", 1L));
            var event = router.apply(new SourceRecord(Map.of(), Map.of(), "shop.outbox", 0, null, null, CHANGE, change));
            return new String(converter.fromConnectData(event.topic(), event.valueSchema(), event.value()));
        }
    }

    public static void main(String[] args) {
        var expand = Map.of("table.expand.json.payload", "true", "table.json.payload.null.behavior", "optional_bytes");
        String[] payloads = {
            "{\"lines\":[{\"id\":1,\"gift\":true},{\"id\":2}]}",
            "{\"lines\":[{\"item\":{\"id\":1,\"color\":\"red\"}},{\"item\":{\"id\":2}}]}",
            "{\"lines\":[{\"item\":{\"id\":1}},{\"item\":{\"id\":2,\"color\":\"red\"}}]}",
            "{\"lines\":[{\"item\":{\"isbn\":\"a\"}},{\"item\":{\"ean\":\"b\"}}]}",
            "{\"lines\":[{\"taxes\":[{\"vat\":19}]},{\"taxes\":[{\"duty\":5}]}]}",
            "{\"id\":7,\"coupons\":[]}",
            "{\"id\":7,\"coupons\":null}",
            "{\"id\":7,\"coupons\":[\"A\"]}",
            "{\"total\":1.10}",
            "{\"total\":12345678901234567.89}",
        };
        for (String json : payloads) {
            String routed = route(expand, json);
            System.out.println("payload " + json + "\n  event " + (routed.equals(json) ? "the same" : routed));
        }
        String json = payloads[1];
        boolean same = route(Map.of(), json).equals('"' + json.replace("\"", "\\\"") + '"');
        System.out.println("without the option: " + (same ? "the text as it is" : route(Map.of(), json)));
    }
}
JAVA
(cd "$WORK/jars" && ls debezium-connect-plugins*.jar) >"$WORK/seen"
java -cp "$WORK/jars/*" "$WORK/Show.java" >>"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
debezium-connect-plugins-3.6.1.Final.jar
payload {"lines":[{"id":1,"gift":true},{"id":2}]}
  event {"lines":[{"id":1,"gift":true},{"id":2,"gift":null}]}
payload {"lines":[{"item":{"id":1,"color":"red"}},{"item":{"id":2}}]}
  event {"lines":[{"item":{"id":1}},{"item":{"id":2}}]}
payload {"lines":[{"item":{"id":1}},{"item":{"id":2,"color":"red"}}]}
  event {"lines":[{"item":{"id":1}},{"item":{"id":2}}]}
payload {"lines":[{"item":{"isbn":"a"}},{"item":{"ean":"b"}}]}
  event {"lines":[{"item":{"ean":null}},{"item":{"ean":"b"}}]}
payload {"lines":[{"taxes":[{"vat":19}]},{"taxes":[{"duty":5}]}]}
  event {"lines":[{"taxes":[{"duty":null}]},{"taxes":[{"duty":5}]}]}
payload {"id":7,"coupons":[]}
  event {"id":7}
payload {"id":7,"coupons":null}
  event the same
payload {"id":7,"coupons":["A"]}
  event the same
payload {"total":1.10}
  event {"total":1.1}
payload {"total":12345678901234567.89}
  event {"total":1.2345678901234568E16}
without the option: the text as it is
EXPECTED
what="Debezium's outbox router loses fields and digits of the JSON that it expands"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
