#!/usr/bin/env bash
# River's Rolling and TimeRolling take the value that leaves the window out of a statistic by arithmetic, and do not
# compute the statistic of what is left. One NaN makes a rolling mean, sum or variance NaN for good, and one infinity
# does so too, long after it has left the window. After one large outlier the variance of a window of 3, 4, 5 and so
# on is not 1, and with a larger one it is less than 0. No error; Polars' rolling functions are over it as soon as the
# value has left.
# Releases: river 0.26.1, polars 2.1.0, numpy 2.4.6. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check river==0.26.1 polars==2.1.0 numpy==2.4.6

cat >"$WORK/show.py" <<'PYTHON'
import datetime
import importlib.metadata
import math

import polars as pl
from river import stats, utils

START = datetime.datetime(2026, 1, 1)
DAY = datetime.timedelta(days=1)


def words(values):
    return ", ".join("less than 0" if value < 0 else f"{value:.4g}" for value in values)


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("river", "polars")))
for outlier in (6.0, 1e9, 1e17, math.inf, math.nan):
    series = [1.0, 2.0, outlier, *map(float, range(3, 11))]
    print(f"1, 2, {outlier:g}, then 3 to 10; windows of three, the last two of them")
    for name, statistic, polars in (
        ("mean", stats.Mean, pl.Series(series).rolling_mean(3)),
        ("sum", stats.Sum, pl.Series(series).rolling_sum(3)),
        ("variance", stats.Var, pl.Series(series).rolling_var(3)),
    ):
        rolling, time_rolling = utils.Rolling(statistic(), 3), utils.TimeRolling(statistic(), 3 * DAY)
        seen, in_time = [], []
        for day, value in enumerate(series):
            rolling.update(value)
            time_rolling.update(value, t=START + day * DAY)
            seen.append(rolling.get())
            in_time.append(time_rolling.get())
        print(f"  {name}: Rolling {words(seen[-2:])}; TimeRolling {words(in_time[-2:])}; Polars {words(polars[-2:])}")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
river 0.26.1 polars 2.1.0
1, 2, 6, then 3 to 10; windows of three, the last two of them
  mean: Rolling 8, 9; TimeRolling 8, 9; Polars 8, 9
  sum: Rolling 24, 27; TimeRolling 24, 27; Polars 24, 27
  variance: Rolling 1, 1; TimeRolling 1, 1; Polars 1, 1
1, 2, 1e+09, then 3 to 10; windows of three, the last two of them
  mean: Rolling 8, 9; TimeRolling 8, 9; Polars 8, 9
  sum: Rolling 24, 27; TimeRolling 24, 27; Polars 24, 27
  variance: Rolling 128.7, 128.7; TimeRolling 64, 64; Polars 1, 1
1, 2, 1e+17, then 3 to 10; windows of three, the last two of them
  mean: Rolling 8.333, 9.333; TimeRolling 4, 5; Polars 8, 9
  sum: Rolling 17, 20; TimeRolling 12, 15; Polars 24, 27
  variance: Rolling less than 0, less than 0; TimeRolling less than 0, less than 0; Polars 1, 1
1, 2, inf, then 3 to 10; windows of three, the last two of them
  mean: Rolling nan, nan; TimeRolling nan, nan; Polars 8, 9
  sum: Rolling nan, nan; TimeRolling nan, nan; Polars 24, 27
  variance: Rolling nan, nan; TimeRolling nan, nan; Polars 1, 1
1, 2, nan, then 3 to 10; windows of three, the last two of them
  mean: Rolling nan, nan; TimeRolling nan, nan; Polars 8, 9
  sum: Rolling nan, nan; TimeRolling nan, nan; Polars 24, 27
  variance: Rolling nan, nan; TimeRolling nan, nan; Polars 1, 1
EXPECTED
what="River's rolling statistics keep an outlier that has left their window"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
