#!/usr/bin/env bash
# Flink's json format stops to read a record when it has met as many fields as the table has columns. A key that comes twice
# counts twice, so the last column of the table that comes behind it is null, without an error: of {"id": 1, "id": 1,
# "amount": 5} the amount is lost. A query that needs fewer columns gets the first of the two values in place of the second. With
# json.decode.json-parser.enabled=false, which is described as slower, nothing is lost.
# Release: Apache Flink 2.3.0. Needs: bash, Java (JDK), Maven. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
{ echo '<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>'
for name in table-planner-loader table-runtime table-api-java-bridge clients connector-files json; do
    echo "<dependency><groupId>org.apache.flink</groupId><artifactId>flink-$name</artifactId><version>2.3.0</version></dependency>"
done
echo '</dependencies></project>'; } >"$WORK/pom.xml"
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

mkdir "$WORK/input"
cat >"$WORK/input/rows.json" <<'JSON'
{"id": 1, "status": "new", "amount": 5}
{"id": 2, "status": "new", "status": "paid", "amount": 5}
{"id": 3, "status": "new", "amount": 5, "status": "paid"}
{"id": 4, "id": 4, "status": "new", "amount": 5}
JSON
cat >"$WORK/Show.java" <<'JAVA'
import java.nio.file.Path;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

public class Show {
    public static void main(String[] args) throws Exception {
        var flink = TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().build());
        flink.getConfig().set("parallelism.default", "1");
        String input = "'connector' = 'filesystem', 'format' = 'json', 'path' = '" + Path.of(args[0]).toUri() + "'";
        flink.executeSql("CREATE TABLE t (id INT, status STRING, amount INT) WITH (" + input + ")");
        flink.executeSql("CREATE TABLE slower (id INT, status STRING, amount INT) WITH (" + input
            + ", 'json.decode.json-parser.enabled' = 'false')");
        for (String query : new String[] {"SELECT * FROM t", "SELECT id, status FROM t", "SELECT * FROM slower"}) {
            System.out.println(query);
            try (var rows = flink.executeSql(query).collect()) {
                while (rows.hasNext()) System.out.println("  " + rows.next());
            }
        }
    }
}
JAVA
(cd "$WORK/jars" && ls flink-json*.jar) >"$WORK/seen"
java -Xmx1g --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED \
    -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/input" >>"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
flink-json-2.3.0.jar
SELECT * FROM t
  +I[1, new, 5]
  +I[2, paid, null]
  +I[3, new, 5]
  +I[4, new, null]
SELECT id, status FROM t
  +I[1, new]
  +I[2, new]
  +I[3, new]
  +I[4, null]
SELECT * FROM slower
  +I[1, new, 5]
  +I[2, paid, 5]
  +I[3, paid, 5]
  +I[4, new, 5]
EXPECTED
what="Flink's json format makes the last field of a record null when a key before it comes twice"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
