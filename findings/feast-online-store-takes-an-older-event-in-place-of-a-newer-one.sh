#!/usr/bin/env bash
# Feast's online store is said to hold the latest values of each entity. With the local store, SQLite, the last write wins, and
# the time of the event is stored but not compared: an event that comes late, pushed by a stream, replaces a newer one, and of one
# batch the last row is kept, not the newest. A materialization, which takes the newest row of the batch source, replaces a value
# of a later event that was pushed meanwhile. get_online_features returns the older values without an error. The same rows in the
# offline store give the newest by get_historical_features.
# Release: feast 0.67.0. Needs: bash, Python 3.11 or later with pip. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check feast==0.67.0 pandas==2.3.3 pyarrow==26.0.1 dask==2026.8.0

cat >"$WORK/show.py" <<'PYTHON'
import contextlib
import importlib.metadata
import sys
from datetime import UTC, datetime

import pandas
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig, ValueType
from feast.data_source import PushMode
from feast.infra.online_stores.sqlite import SqliteOnlineStoreConfig
from feast.types import Int64

WORK = sys.argv[1]


def hour(number):
    """Return the time of an hour of the one day of this example."""
    return datetime(2026, 1, 1, number, tzinfo=UTC)


def events(*rows):
    """Return a frame of events of user 1: a balance and the hour of the event."""
    return pandas.DataFrame({"user": [1 for _ in rows], "balance": [row[0] for row in rows], "at": [hour(row[1]) for row in rows]})


events((100, 10), (90, 9)).to_parquet(f"{WORK}/events.parquet")
source = FileSource(name="events", path=f"{WORK}/events.parquet", timestamp_field="at")
stream = PushSource(name="stream", batch_source=source)
user = Entity(name="user", join_keys=["user"], value_type=ValueType.INT64)
view = FeatureView(name="account", entities=[user], schema=[Field(name="balance", dtype=Int64)], source=stream)
config = RepoConfig(
    project="shop", provider="local", registry=f"{WORK}/registry.db", entity_key_serialization_version=3,
    online_store=SqliteOnlineStoreConfig(path=f"{WORK}/online.db"), offline_store={"type": "dask"},
)
print("feast", importlib.metadata.version("feast"))
with contextlib.redirect_stdout(sys.stderr):
    store = FeatureStore(config=config)
    store.apply([user, stream, view])


def materialize():
    """Write the newest rows of the batch source to the online store."""
    with contextlib.redirect_stdout(sys.stderr):
        store.materialize(hour(0), hour(12))


def balance():
    """Return what the online store has."""
    return store.get_online_features(features=["account:balance"], entity_rows=[{"user": 1}]).to_dict()["balance"][0]


materialize()
print("materialized 90 of 09:00 and 100 of 10:00:", balance())
store.push("stream", events((200, 20)), to=PushMode.ONLINE)
print("pushed 200 of 20:00:", balance())
store.push("stream", events((20, 2)), to=PushMode.ONLINE)
print("pushed 20 of 02:00:", balance())
store.push("stream", events((220, 22), (210, 21)), to=PushMode.ONLINE)
print("pushed 220 of 22:00 and 210 of 21:00 in one frame:", balance())
materialize()
print("materialized until 12:00 again:", balance())
store.push("stream", events((200, 20), (20, 2), (220, 22), (210, 21)), to=PushMode.OFFLINE)
history = store.get_historical_features(
    entity_df=pandas.DataFrame({"user": [1], "event_timestamp": [hour(23)]}), features=["account:balance"]
)
print("the same rows in the offline store, at 23:00:", history.to_df()["balance"][0])
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
feast 0.67.0
materialized 90 of 09:00 and 100 of 10:00: 100
pushed 200 of 20:00: 200
pushed 20 of 02:00: 20
pushed 220 of 22:00 and 210 of 21:00 in one frame: 210
materialized until 12:00 again: 100
the same rows in the offline store, at 23:00: 220
EXPECTED
what="Feast's local online store takes an older event in place of a newer one"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
