#!/usr/bin/env bash
# Flink's canal-json format and an UPDATE message of several rows, as Canal writes one for a statement that changes several rows.
# Canal's "old" has for each row only the columns that changed; Flink is to take the other columns of the row before from the row
# after. It asks whether any row of the message has the column in "old": if one row changed its price and another its name, the
# first row's name before is null, and the second row's price. The null is retracted in place of the old value, so each sum, count
# and group keeps what has been replaced, without an error. The same two changes in two messages give the right results.
# Release: Apache Flink 2.3.0. Needs: bash, Java (JDK), Maven. Minutes: 1.
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
    static final String ONE = "{\"id\": \"1\", \"name\": \"pen\", \"price\": \"11\"}";
    static final String TWO = "{\"id\": \"2\", \"name\": \"cup\", \"price\": \"20\"}";
    static final String INSERT = message("INSERT", ONE.replace("11", "10") + ", " + TWO.replace("cup", "mug"), "null");

    static String message(String type, String rows, String old) {
        return "{\"data\": [" + rows + "], \"old\": " + old + ", \"type\": \"" + type
            + "\", \"database\": \"shop\", \"table\": \"goods\", \"es\": 1, \"ts\": 2}\n";
    }

    /** Read the messages, and print the changes and the last row of each query over them. */
    static void show(TableEnvironment flink, Path folder, String messages) throws Exception {
        Files.createDirectories(folder);
        Files.writeString(folder.resolve("changes.json"), messages);
        String table = folder.getFileName().toString();
        flink.executeSql("CREATE TABLE " + table + " (id INT, name STRING, price INT) WITH ('connector' = 'filesystem', "
            + "'format' = 'canal-json', 'path' = '" + folder.toUri() + "')");
        System.out.println(table + ":");
        try (var rows = flink.executeSql("SELECT * FROM " + table).collect()) {
            rows.forEachRemaining(row -> System.out.println("  " + row));
        }
        for (String what : new String[] {"SUM(price)", "COUNT(price)"}) {
            String last = "";
            try (var rows = flink.executeSql("SELECT " + what + " FROM " + table).collect()) {
                while (rows.hasNext()) {
                    last = rows.next().getField(0).toString();
                }
            }
            System.out.println("  " + what + ": " + last);
        }
    }

    public static void main(String[] args) throws Exception {
        var flink = TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().build());
        flink.getConfig().set("parallelism.default", "1");
        Path input = Path.of(args[0]);
        show(flink, input.resolve("one_message"),
            INSERT + message("UPDATE", ONE + ", " + TWO, "[{\"price\": \"10\"}, {\"name\": \"mug\"}]"));
        show(flink, input.resolve("two_messages"),
            INSERT + message("UPDATE", ONE, "[{\"price\": \"10\"}]") + message("UPDATE", TWO, "[{\"name\": \"mug\"}]"));
    }
}
JAVA
(cd "$WORK/jars" && ls flink-json*.jar) >"$WORK/seen"
java -Xmx1g --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED \
    -cp "$WORK/jars/*" "$WORK/Show.java" "$WORK/input" >>"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
flink-json-2.3.0.jar
one_message:
  +I[1, pen, 10]
  +I[2, mug, 20]
  -U[1, null, 10]
  +U[1, pen, 11]
  -U[2, mug, null]
  +U[2, cup, 20]
  SUM(price): 51
  COUNT(price): 3
two_messages:
  +I[1, pen, 10]
  +I[2, mug, 20]
  -U[1, pen, 10]
  +U[1, pen, 11]
  -U[2, mug, 20]
  +U[2, cup, 20]
  SUM(price): 31
  COUNT(price): 2
EXPECTED
what="Flink's canal-json retracts null in place of the old value where an update has several rows"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
