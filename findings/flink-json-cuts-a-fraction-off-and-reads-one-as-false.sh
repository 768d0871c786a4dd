#!/usr/bin/env bash
# Flink's json format under a column of another type than the value's, with its default json.ignore-parse-errors=false, which
# fails a record that cannot be read: 7.9 under INT, BIGINT or inside an ARRAY is 7; the number 1 and each text but "true" are
# false as a BOOLEAN; a DECIMAL that is too large for its column is null; 1e300 under FLOAT is infinity. No error. The same 7.9
# under SMALLINT and "7.9" under INT do fail the job.
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

cat >"$WORK/Show.java" <<'JAVA'
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

public class Show {
    /** Read a file of one record, in which each column has one of the values. */
    static void show(TableEnvironment flink, Path folder, String... columns) throws Exception {
        StringBuilder types = new StringBuilder(), record = new StringBuilder("{");
        for (int i = 0; i < columns.length; i += 2) {
            types.append(i == 0 ? "" : ", ").append("c" + i + " " + columns[i]);
            record.append(i == 0 ? "" : ", ").append("\"c" + i + "\": " + columns[i + 1]);
        }
        Files.createDirectories(folder);
        Files.writeString(folder.resolve("row.json"), record + "}\n");
        String table = folder.getFileName().toString();
        flink.executeSql("CREATE TABLE " + table + " (" + types + ") WITH ('connector' = 'filesystem', 'format' = 'json', 'path' = '"
            + folder.toUri() + "')");
        try (var rows = flink.executeSql("SELECT * FROM " + table).collect()) {
            var row = rows.next();
            for (int i = 0; i < columns.length; i += 2) {
                System.out.println(columns[i + 1] + " as " + columns[i] + ": "
                    + (row.getField(i / 2) instanceof Object[] array ? array[0] : row.getField(i / 2)));
            }
        } catch (RuntimeException error) {
            System.out.println(columns[1] + " as " + columns[0] + ": the job fails");
        }
    }

    public static void main(String[] args) throws Exception {
        var flink = TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().build());
        flink.getConfig().set("parallelism.default", "1");
        Path input = Path.of(args[0]);
        show(flink, input.resolve("mixed"), "INT", "7.9", "BIGINT", "-7.9", "ARRAY<INT>", "[7.9]", "BOOLEAN", "1", "BOOLEAN", "\"yes\"",
            "BOOLEAN", "\"1\"", "BOOLEAN", "\"true\"", "DECIMAL(10, 2)", "1.239", "DECIMAL(10, 2)", "12345678901.5", "FLOAT", "1e300");
        show(flink, input.resolve("smaller"), "SMALLINT", "7.9");
        show(flink, input.resolve("text"), "INT", "\"7.9\"");
        show(flink, input.resolve("larger"), "INT", "4294967297");
    }
}
JAVA
(cd "$WORK/jars" && ls flink-json*.jar) >"$WORK/seen"
java -Xmx1g --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED \
    -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/input" >>"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
flink-json-2.3.0.jar
7.9 as INT: 7
-7.9 as BIGINT: -7
[7.9] as ARRAY<INT>: 7
1 as BOOLEAN: false
"yes" as BOOLEAN: false
"1" as BOOLEAN: false
"true" as BOOLEAN: true
1.239 as DECIMAL(10, 2): 1.24
12345678901.5 as DECIMAL(10, 2): null
1e300 as FLOAT: Infinity
7.9 as SMALLINT: the job fails
"7.9" as INT: the job fails
4294967297 as INT: the job fails
EXPECTED
what="Flink's json format cuts a fraction off, reads 1 as false, and makes a DECIMAL that is too large null"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
