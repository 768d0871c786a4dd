#!/usr/bin/env bash
# dlt's incremental cursor over a time that comes as a text, as each JSON API returns it: the column is stored as a timestamp,
# and the cursor is compared as a text. Java writes no fraction where it is zero, so that after "10:00:00Z" a row of
# "10:00:00.250Z" is smaller and is dropped: the run succeeds and no later run gets it. The same goes for a time of another
# offset from UTC. The same rows as datetime objects, or with digits of one length, are all loaded.
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
from datetime import datetime

import dlt

RUNS = {
    "a fraction where it is not zero": [
        ["2026-01-01T09:59:59.500Z", "2026-01-01T10:00:00Z"],
        ["2026-01-01T10:00:00.250Z", "2026-01-01T10:00:00.500Z"],
        ["2026-01-01T10:00:01.250Z"],
    ],
    "offsets from UTC": [["2026-03-29T01:30:00+01:00"], ["2026-03-29T00:45:00Z"], ["2026-03-29T03:30:00+02:00"]],
    "three digits always": [["2026-01-01T10:00:00.000Z"], ["2026-01-01T10:00:00.250Z"], ["2026-01-01T10:00:01.250Z"]],
}


def load(name, runs):
    pipeline = dlt.pipeline(
        name, destination=dlt.destinations.duckdb(f"{sys.argv[1]}/{name}.duckdb"), dataset_name="d", pipelines_dir=sys.argv[1]
    )
    for times in runs:

        @dlt.resource(name="events", primary_key="seen", write_disposition="append")
        def events(seen=dlt.sources.incremental("seen")):
            yield [{"seen": time} for time in times]

        info = pipeline.run(events())
        info.raise_on_failed_jobs()
    with pipeline.sql_client() as client:
        rows = client.execute_sql("select cast(epoch_ms(seen) as varchar), typeof(seen) from events order by seen")
    stamps = [int(row[0]) for row in rows]
    lost = [time for times in runs for time in times if stamp(time) not in stamps]
    print(f"  {name}: {len(runs)} runs succeeded, the column is a {rows[0][1]}, {len(rows)} rows are there, lost:")
    print("   ", *(lost or ["none"]))


def stamp(time):
    return round((datetime.fromisoformat(time) if isinstance(time, str) else time).timestamp() * 1000)


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dlt", "duckdb")))
for number, (words, runs) in enumerate(RUNS.items()):
    print(f"{words}: {sum(map(len, runs))} rows, each later than the one before")
    load(f"texts_{number}", runs)
    load(f"datetimes_{number}", [[datetime.fromisoformat(time) for time in times] for times in runs])
PYTHON
(cd "$WORK" && RUNTIME__DLTHUB_TELEMETRY=false DLT_DATA_DIR="$WORK/dlt" "$PY" "$WORK/show.py" "$WORK") \
    >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dlt 1.31.0 duckdb 2.0.1
a fraction where it is not zero: 5 rows, each later than the one before
  texts_0: 3 runs succeeded, the column is a TIMESTAMP WITH TIME ZONE, 3 rows are there, lost:
    2026-01-01T10:00:00.250Z 2026-01-01T10:00:00.500Z
  datetimes_0: 3 runs succeeded, the column is a TIMESTAMP WITH TIME ZONE, 5 rows are there, lost:
    none
offsets from UTC: 3 rows, each later than the one before
  texts_1: 3 runs succeeded, the column is a TIMESTAMP WITH TIME ZONE, 2 rows are there, lost:
    2026-03-29T00:45:00Z
  datetimes_1: 3 runs succeeded, the column is a TIMESTAMP WITH TIME ZONE, 3 rows are there, lost:
    none
three digits always: 3 rows, each later than the one before
  texts_2: 3 runs succeeded, the column is a TIMESTAMP WITH TIME ZONE, 3 rows are there, lost:
    none
  datetimes_2: 3 runs succeeded, the column is a TIMESTAMP WITH TIME ZONE, 3 rows are there, lost:
    none
EXPECTED
what="dlt compares the times of an incremental cursor as texts and drops rows that are later"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
