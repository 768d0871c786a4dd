#!/usr/bin/env bash
# Spark's XML reader takes the beginning of a text as a number under double and float: `12 kg` is 12.0, `2024-01-01` is 2024.0,
# `10:30` is 10.0, `1 000` is 1.0. Neither null nor the column of corrupt records nor the mode FAILFAST says so. Under decimal,
# bigint and int the same texts are null, and under double in CSV, too. A decimal comma, `1,5`, is 15.0 here, and under decimal
# 15.000 in both formats.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import from_csv, from_xml, lit

WORK = sys.argv[1]
settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.session.timeZone": "UTC"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
one = spark.range(1)


def under(kind, text):
    """Return what XML and CSV give for a text under a type."""
    xml = from_xml(lit(f"<r><a>{text}</a></r>"), f"a {kind}")
    csv = from_csv(lit(text), f"a {kind}", {"sep": ";"})
    return " ".join(str(struct[0]) for struct in one.select(xml, csv).first())


print("PySpark", spark.version, "(from XML and from CSV)")
for text in ("1.5", "12 kg", "2024-01-01", "10:30", "1 000", "1.5.2", "5%", "1,5", "kg"):
    print(f"{text!r} under", ", ".join(f"{kind}: {under(kind, text)}" for kind in ("double", "decimal(12,3)", "int")))

with open(f"{WORK}/x.xml", "w") as out:
    out.write("<rs><r><a>12 kg</a></r><r><a>2024-01-01</a></r><r><a>kg</a></r></rs>\n")
with open(f"{WORK}/x.csv", "w") as out:
    out.write("12 kg\n2024-01-01\nkg\n")
for kind, reader in (("xml", spark.read.format("xml").option("rowTag", "r")), ("csv", spark.read.format("csv"))):
    rows = reader.schema("a double, _corrupt_record string").load(f"{WORK}/x.{kind}").cache().collect()
    print(f"a file of {kind}:", [(row.a, row._corrupt_record is not None) for row in rows])
for text in ("12 kg", "kg"):
    try:
        xml = from_xml(lit(f"<r><a>{text}</a></r>"), "a double", {"mode": "FAILFAST"})
        print(f"FAILFAST, {text!r}:", one.select(xml).first()[0])
    except Exception as error:
        print(f"FAILFAST, {text!r}:", "MALFORMED_RECORD_IN_PARSING" if "MALFORMED_RECORD_IN_PARSING" in str(error) else error)
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0 (from XML and from CSV)
'1.5' under double: 1.5 1.5, decimal(12,3): 1.500 1.500, int: None None
'12 kg' under double: 12.0 None, decimal(12,3): None None, int: None None
'2024-01-01' under double: 2024.0 None, decimal(12,3): None None, int: None None
'10:30' under double: 10.0 None, decimal(12,3): None None, int: None None
'1 000' under double: 1.0 None, decimal(12,3): None None, int: None None
'1.5.2' under double: 1.5 None, decimal(12,3): None None, int: None None
'5%' under double: 5.0 None, decimal(12,3): None None, int: None None
'1,5' under double: 15.0 None, decimal(12,3): 15.000 15.000, int: None None
'kg' under double: None None, decimal(12,3): None None, int: None None
a file of xml: [(12.0, False), (2024.0, False), (None, True)]
a file of csv: [(None, True), (None, True), (None, True)]
FAILFAST, '12 kg': Row(a=12.0)
FAILFAST, 'kg': MALFORMED_RECORD_IN_PARSING
EXPECTED
what="Spark's XML reader takes the beginning of a text as a double, where CSV gives null"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
