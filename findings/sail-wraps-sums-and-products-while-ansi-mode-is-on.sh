#!/usr/bin/env bash
# Sail, which runs programs of Spark without a JVM, says that spark.sql.ansi.enabled is true, the mode in which an overflow is an
# error, and wraps all the same: the sum of 9223372036854775807 and 1 is negative, as are a product and an addition, and a sum
# of decimals has 39 digits where its own type allows 38. No error. Spark refuses each of these; a cast that does not fit is
# refused by both.
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
from decimal import Decimal

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
WORDS = ("OVERFLOW", "overflow", "OUT_OF_RANGE", "out of range", "cast")
print("  spark.sql.ansi.enabled:", spark.conf.get("spark.sql.ansi.enabled"))
rows = spark.createDataFrame(
    [(2**63 - 1, 2**31 - 1, 100, Decimal("9" * 38)), (1, 1, 100, Decimal(1))],
    "a bigint, b int, c tinyint, d decimal(38,0)",
)
for expression in ("sum(a)", "sum(d)", "min(a * 10)", "max(a + 1)", "min(b + 1)", "min(c + c)", "min(CAST(a AS int))"):
    try:
        print(f"  {expression}:", rows.selectExpr(expression).first()[0])
    except Exception as error:
        print(f"  {expression}:", "refused" if any(w in str(error) for w in WORDS) else error)
sys.stdout.flush()
os._exit(0)  # the server has no part in what is shown
PYTHON
for name in sail spark; do
    echo "$name" >>"$WORK/seen"
    "$WORK/$name/bin/python" "$WORK/show.py" "$name" >>"$WORK/seen" 2>"$WORK/$name.log"
done

cat >"$WORK/expected" <<'EXPECTED'
sail
  spark.sql.ansi.enabled: true
  sum(a): -9223372036854775808
  sum(d): 100000000000000000000000000000000000000
  min(a * 10): -10
  max(a + 1): 2
  min(b + 1): -2147483648
  min(c + c): -56
  min(CAST(a AS int)): refused
spark
  spark.sql.ansi.enabled: true
  sum(a): refused
  sum(d): refused
  min(a * 10): refused
  max(a + 1): refused
  min(b + 1): refused
  min(c + c): refused
  min(CAST(a AS int)): refused
EXPECTED
what="Sail wraps sums and products in ANSI mode"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
