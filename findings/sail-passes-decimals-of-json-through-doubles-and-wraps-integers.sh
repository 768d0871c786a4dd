#!/usr/bin/env bash
# Sail, which runs programs of Spark without a JVM, makes a double of each decimal in from_json and to_json: 9007199254740993.00
# is written as 9007199254740994.0, 1.10 as 1.1, and 12345678901.123456789 read under decimal(30,9) ends with .123457000. In
# from_json 300 under tinyint is 44, and 3000000000 under int -1294967296. No error; Spark keeps all digits, and gives null for the
# integers.
# Releases: pysail 0.7.2 with pyspark-client 4.1.1, PySpark 4.3.0 to compare. Needs: Python 3.11 or later with pip, Java 17.
# Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
for name in sail spark; do python3 -m venv "$WORK/$name"; done
"$WORK/sail/bin/python" -m pip install --quiet --disable-pip-version-check \
    pysail==0.7.2 pyspark-client==4.1.1 pandas==2.3.3 pyarrow==25.0.1
"$WORK/spark/bin/python" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
if sys.argv[1] == "sail":
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    spark = SparkSession.builder.remote("sc://127.0.0.1:{}".format(server.listening_address[1])).getOrCreate()
else:
    settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
rows = spark.sql("SELECT CAST('9007199254740993.00' AS decimal(20,2)) AS a, CAST('1.10' AS decimal(5,2)) AS b")
print("  to_json:", rows.selectExpr("to_json(struct(a, b))").first()[0])
print("  and back:", *rows.selectExpr("from_json(to_json(struct(a, b)), 'a decimal(20,2), b decimal(5,2)') AS r").selectExpr("r.*").first())
for text, kind in (
    ("12345678901.123456789", "decimal(30,9)"),
    ("9007199254740993.00", "decimal(20,2)"),
    ("300", "tinyint"),
    ("70000", "smallint"),
    ("3000000000", "int"),
):
    rows = spark.createDataFrame([(f'{{"a":{text}}}',)], "value string")
    print(f"  from_json, {text} under {kind}:", rows.selectExpr(f"from_json(value, 'a {kind}').a").first()[0])
sys.stdout.flush()
os._exit(0)  # the server has no part in what is shown
PYTHON
for name in sail spark; do
    echo "$name" >>"$WORK/seen"
    "$WORK/$name/bin/python" "$WORK/show.py" "$name" >>"$WORK/seen" 2>"$WORK/$name.log"
done

cat >"$WORK/expected" <<'EXPECTED'
sail
  to_json: {"a":9007199254740994.0,"b":1.1}
  and back: 9007199254740994.00 1.10
  from_json, 12345678901.123456789 under decimal(30,9): 12345678901.123457000
  from_json, 9007199254740993.00 under decimal(20,2): 9007199254740994.00
  from_json, 300 under tinyint: 44
  from_json, 70000 under smallint: 4464
  from_json, 3000000000 under int: -1294967296
spark
  to_json: {"a":9007199254740993.00,"b":1.10}
  and back: 9007199254740993.00 1.10
  from_json, 12345678901.123456789 under decimal(30,9): 12345678901.123456789
  from_json, 9007199254740993.00 under decimal(20,2): 9007199254740993.00
  from_json, 300 under tinyint: None
  from_json, 70000 under smallint: None
  from_json, 3000000000 under int: None
EXPECTED
what="Sail's from_json and to_json make doubles of decimals, and from_json wraps integers"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
