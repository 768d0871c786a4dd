#!/usr/bin/env bash
# dlt takes a column's type from the first value that it sees, and describes that a value of another type goes to a column of
# its own beside it. A value that can be made to fit does not: behind 1.5 the id 9007199254740993 is stored as ...992 and a
# Decimal's digits are a double's, behind True a 7 is True, behind a date a datetime loses its hours. The order of the
# runs decides, and each succeeds.
# Releases: dlt 1.31.0, duckdb 2.0.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check 'dlt[duckdb]==1.31.0' duckdb==2.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys
from datetime import date, datetime, timezone
from decimal import Decimal

import dlt

BIG = 9007199254740993
CASES = [
    (1.5, BIG), (BIG, 1.5), (1.5, Decimal("12345678901234567.89")), (1.5, "7.10"), (True, 7), (7, True), (True, "no"),
    (date(2026, 1, 1), datetime(2026, 1, 1, 23, 30, tzinfo=timezone.utc)),
    (datetime(2026, 1, 1, 23, 30, tzinfo=timezone.utc), date(2026, 1, 1)),
    (Decimal("1.5"), Decimal("0.12345678905")), (7, 7.5), (7, "x"),
]


def words(value):
    return value.isoformat() if isinstance(value, date) else str(value)


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dlt", "duckdb")))
for number, pair in enumerate(CASES):
    name = f"case_{number}"
    pipeline = dlt.pipeline(
        name, destination=dlt.destinations.duckdb(f"{sys.argv[1]}/{name}.duckdb"), dataset_name="d", pipelines_dir=sys.argv[1]
    )
    for position, value in enumerate(pair):
        pipeline.run([{"position": position, "v": value}], table_name="t").raise_on_failed_jobs()
    columns = [column for column in pipeline.default_schema.get_table_columns("t") if column.startswith("v")]
    with pipeline.sql_client() as client:
        found = [
            ", ".join(f"{column} {words(value)}" for column, value in zip(columns, row) if value is not None)
            for row in client.execute_sql(f"select {', '.join(columns)} from t order by position")
        ]
    print(f"{words(pair[0])}, then {words(pair[1])}: stored as {found[0]}; {found[1]}")
PYTHON
(cd "$WORK" && TZ=UTC RUNTIME__DLTHUB_TELEMETRY=false DLT_DATA_DIR="$WORK/dlt" "$PY" "$WORK/show.py" "$WORK") \
    >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dlt 1.31.0 duckdb 2.0.1
1.5, then 9007199254740993: stored as v 1.5; v 9007199254740992.0
9007199254740993, then 1.5: stored as v 9007199254740993; v__v_double 1.5
1.5, then 12345678901234567.89: stored as v 1.5; v 1.2345678901234568e+16
1.5, then 7.10: stored as v 1.5; v 7.1
True, then 7: stored as v True; v True
7, then True: stored as v 7; v__v_bool True
True, then no: stored as v True; v False
2026-01-01, then 2026-01-01T23:30:00+00:00: stored as v 2026-01-01; v 2026-01-01
2026-01-01T23:30:00+00:00, then 2026-01-01: stored as v 2026-01-01T23:30:00+00:00; v 2026-01-01T00:00:00+00:00
1.5, then 0.12345678905: stored as v 1.500000000; v 0.123456789
7, then 7.5: stored as v 7; v__v_double 7.5
7, then x: stored as v 7; v__v_text x
EXPECTED
what="dlt makes a later value fit the type of the column's first, and loses what does not fit"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
