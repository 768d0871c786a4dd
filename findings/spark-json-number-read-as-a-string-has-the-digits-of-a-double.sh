#!/usr/bin/env bash
# A field that is declared as a string keeps the text of its JSON, one would think, and takes that for amounts and ids. Of a
# number with a point Spark makes a double first: 1.10 comes as 1.1, 12345678901.123456789 as 1.2345678901123457E10. So do
# get_json_object and json_tuple, also for each number within an object that is kept as a string. An integer of any length
# stays. Only a decimal of the schema, or a variant, has the digits.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


def show(name, expression):
    print(f"{name}: {spark.sql(f'select {expression} as it').first().it}")


print("PySpark", spark.version)
amount = """'{"a": 12345678901.123456789}'"""
show("from_json as a string", f"from_json({amount}, 'a string').a")
show("get_json_object", f"get_json_object({amount}, '$.a')")
show("json_tuple", f"(select c0 from (select json_tuple({amount}, 'a')))")
show("from_json as a decimal", f"from_json({amount}, 'a decimal(38,9)').a")
show("variant as a string", f"variant_get(parse_json({amount}), '$.a', 'string')")
show("1.10 as a string", """from_json('{"a": 1.10}', 'a string').a""")
show("1e2 as a string", """from_json('{"a": 1e2}', 'a string').a""")
show("an integer of thirty digits", """from_json('{"a": 123456789012345678901234567890}', 'a string').a""")
show("an object as a string", """from_json('{"a": {"b": 12345678901.123456789}}', 'a string').a""")
show("an object by get_json_object", """get_json_object('{"a": {"b": 12345678901.123456789}}', '$.a')""")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
from_json as a string: 1.2345678901123457E10
get_json_object: 1.2345678901123457E10
json_tuple: 1.2345678901123457E10
from_json as a decimal: 12345678901.123456789
variant as a string: 12345678901.123456789
1.10 as a string: 1.1
1e2 as a string: 100.0
an integer of thirty digits: 123456789012345678901234567890
an object as a string: {"b":1.2345678901123457E10}
an object by get_json_object: {"b":1.2345678901123457E10}
EXPECTED
what="Spark gives a JSON number that is read as a string the digits of a double"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
