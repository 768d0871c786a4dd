#!/usr/bin/env bash
# A number that has outgrown a field of Avro's type int: fastavro, and confluent-kafka's AvroSerializer over it, write it with as
# many bytes as it takes, without an error. Python's readers return the whole number, so that a test of the producer sees
# nothing; Apache's decoder for Java returns another one: 4294967303 is 7, 3000000000 is
# 852516352. Under ["null", "int"] fastavro refuses the same number, and Apache's package refuses it under both.
# Releases: fastavro 1.13.1, confluent-kafka 2.16.1, avro 1.12.1 of Python and Java. Needs: bash, Java (JDK), Maven, Python 3.
# Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check 'confluent-kafka[avro,schemaregistry]==2.16.1' fastavro==1.13.1 avro==1.12.1
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.avro</groupId><artifactId>avro</artifactId><version>1.12.1</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.17</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import io
import json
import sys

import avro.errors
import avro.io
import avro.schema
import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

NUMBERS = (2147483647, 2147483648, 4294967303, 3000000000, -2147483649)
HEADER = 5  # a zero byte and the schema's id, which a registry's serializer writes before the record


def schema(kind):
    return {"type": "record", "name": "Order", "fields": [{"name": "id", "type": kind}]}


def with_fastavro(kind, number):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema(kind), {"id": number})
    return out.getvalue()


def with_confluent(kind, number):
    serializer = AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://numbers"}), json.dumps(schema(kind)))
    return serializer({"id": number}, SerializationContext("orders", MessageField.VALUE))[HEADER:]


def with_avro(kind, number):
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(schema(kind)))).write({"id": number}, avro.io.BinaryEncoder(out))
    return out.getvalue()


def tried(write, kind, number):
    try:
        return write(kind, number)
    except (ValueError, avro.errors.AvroTypeException):
        return None


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("fastavro", "confluent-kafka", "avro")), file=sys.stderr)
for number in NUMBERS:
    written = with_fastavro("int", number)
    plain = avro.schema.parse(json.dumps(schema("int")))
    read = [
        fastavro.schemaless_reader(io.BytesIO(written), schema("int"), None)["id"],
        avro.io.DatumReader(plain).read(avro.io.BinaryDecoder(io.BytesIO(written)))["id"],
    ]
    cases = [
        (f"{write.__name__.removeprefix('with_')} under {name}", tried(write, kind, number) is None)
        for write in (with_fastavro, with_confluent, with_avro)
        for name, kind in (("int", "int"), ("null or int", ["null", "int"]))
    ]
    refused = ", ".join(case for case, is_refused in cases if is_refused) or "by none"
    print(written.hex(), f"{number}, refused: {refused}", f"Python reads {read}", sep="\t")
PYTHON
cat >"$WORK/Show.java" <<'JAVA'
import java.io.*;
import java.util.HexFormat;
import org.apache.avro.*;
import org.apache.avro.generic.*;
import org.apache.avro.io.DecoderFactory;

public class Show {
    public static void main(String[] args) throws IOException {
        Schema schema = SchemaBuilder.record("Order").fields().requiredInt("id").endRecord();
        System.out.println(args[0]);
        for (String line : new BufferedReader(new InputStreamReader(System.in)).lines().toList()) {
            String[] parts = line.split("\t");
            var decoder = DecoderFactory.get().binaryDecoder(HexFormat.of().parseHex(parts[0]), null);
            Object read = new GenericDatumReader<GenericRecord>(schema).read(null, decoder).get("id");
            System.out.println(parts[1] + "\n  " + parts[2] + ", Java reads " + read);
        }
    }
}
JAVA
"$PY" "$WORK/show.py" >"$WORK/written.tsv" 2>"$WORK/show.log"
java -cp "$WORK/jars/*" "$WORK/Show.java" "$(tail -n 1 "$WORK/show.log"), $(cd "$WORK/jars" && ls avro-*.jar)" \
    <"$WORK/written.tsv" >"$WORK/seen" 2>"$WORK/java.log"

cat >"$WORK/expected" <<'EXPECTED'
fastavro 1.13.1 confluent-kafka 2.16.1 avro 1.12.1, avro-1.12.1.jar
2147483647, refused: by none
  Python reads [2147483647, 2147483647], Java reads 2147483647
2147483648, refused: fastavro under null or int, confluent under null or int, avro under int, avro under null or int
  Python reads [2147483648, 2147483648], Java reads 0
4294967303, refused: fastavro under null or int, confluent under null or int, avro under int, avro under null or int
  Python reads [4294967303, 4294967303], Java reads 7
3000000000, refused: fastavro under null or int, confluent under null or int, avro under int, avro under null or int
  Python reads [3000000000, 3000000000], Java reads 852516352
-2147483649, refused: fastavro under null or int, confluent under null or int, avro under int, avro under null or int
  Python reads [-2147483649, -2147483649], Java reads -1
EXPECTED
what="fastavro writes a number of more than 32 bits under int, and Java reads another number"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
