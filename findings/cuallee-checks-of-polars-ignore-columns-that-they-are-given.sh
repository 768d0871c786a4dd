#!/usr/bin/env bash
# Two checks of cuallee do other work on a frame of Polars than is described, and say PASS or FAIL without an error. has_workflow()
# does not look at the column that gives the order of the events: it takes the rows as they lie, so that "closed" before "new"
# passes, and a right sequence whose rows lie in another order fails. is_daily() looks for the days of its column in the frame's
# first column: missing days pass behind a column that has them, complete ones fail behind a column that has them not, and a column
# of times, which the description names beside dates, always fails. The same rows in pandas get the verdicts that are described.
# Release: cuallee 0.15.4. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check \
    cuallee==0.15.4 polars==2.1.0 pandas==2.3.3 numpy==2.3.5 pyarrow==26.0.1 toolz==1.1.0

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
from datetime import datetime

import pandas
import polars
from cuallee import Check, CheckLevel

EDGES = [("new", "open"), ("open", "closed"), ("closed", None)]


def days(*numbers):
    """Return days of January 2026, of which 5 to 9 are a Monday to Friday."""
    return [datetime(2026, 1, number) for number in numbers]


def show(title, columns, check, times=False):
    """Print the verdict of a check on the same columns in Polars, with dates unless times are asked for, and in pandas."""
    print(f"{title}:")
    for library in (polars, pandas):
        frame = library.DataFrame(columns)
        if library is polars and not times:
            frame = frame.with_columns(polars.col(polars.Datetime).cast(polars.Date))
        found = check(Check(CheckLevel.ERROR, title)).validate(frame)
        print(f"  {library.__name__} {list(found['status'])[0]}, violations {list(found['violations'])[0]:.0f}")


def workflow(check):
    """Demand that the events of a ticket are new, open and closed by their day."""
    return check.has_workflow("ticket", "event", "day", EDGES)


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("cuallee", "polars", "pandas")))
events = ["new", "open", "closed"]
show("closed on the 5th, open on the 6th, new on the 7th", {"ticket": [1, 1, 1], "event": events, "day": days(7, 6, 5)}, workflow)
show("the right sequence, the rows from the last to the first", {"ticket": [1] * 3, "event": events[::-1], "day": days(7, 6, 5)}, workflow)
sent, come = days(5, 6, 7, 8, 9), days(5, 5, 5, 9, 9)
show("is_daily of come, without the 6th to the 8th, behind sent", {"sent": sent, "come": come}, lambda check: check.is_daily("come"))
show("is_daily of come alone", {"come": come}, lambda check: check.is_daily("come"))
show("is_daily of sent, with all days, behind come", {"come": come, "sent": sent}, lambda check: check.is_daily("sent"))
show("is_daily of sent alone", {"sent": sent}, lambda check: check.is_daily("sent"))
show("is_daily of sent alone, as times", {"sent": sent}, lambda check: check.is_daily("sent"), times=True)
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
cuallee 0.15.4 polars 2.1.0 pandas 2.3.3
closed on the 5th, open on the 6th, new on the 7th:
  polars PASS, violations 0
  pandas FAIL, violations 3
the right sequence, the rows from the last to the first:
  polars FAIL, violations 3
  pandas PASS, violations 0
is_daily of come, without the 6th to the 8th, behind sent:
  polars PASS, violations 0
  pandas FAIL, violations 3
is_daily of come alone:
  polars FAIL, violations 3
  pandas FAIL, violations 3
is_daily of sent, with all days, behind come:
  polars FAIL, violations 3
  pandas PASS, violations 0
is_daily of sent alone:
  polars PASS, violations 0
  pandas PASS, violations 0
is_daily of sent alone, as times:
  polars FAIL, violations 5
  pandas PASS, violations 0
EXPECTED
what="cuallee's checks of Polars ignore columns that they are given"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
