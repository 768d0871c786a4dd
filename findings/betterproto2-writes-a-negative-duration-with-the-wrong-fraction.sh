#!/usr/bin/env bash
# betterproto2 gives a google.protobuf.Duration as a timedelta. It splits a negative one into seconds that it cuts towards zero and
# a fraction that it counts from the second below, which it writes with a positive sign: -0.5 seconds is written as 0.5 seconds,
# -1.25 as -0.25, and -0.000001 as 0.999999. Its reader gives the number that was written, so that a service that reads a message
# and passes it on changes it as well, from -0.5 to 0.5. In JSON it writes -1.25 as -1.750s, a third number. None of this raises an
# error. A whole number of seconds, and each positive duration, is right. Google's package for Python writes and reads each of
# these as it was given.
# Releases: betterproto2 0.10.0 with its compiler 0.10.1; protobuf 7.36.2 for comparison. Needs: bash, Python 3.11 or later with
# pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check betterproto2==0.10.0 betterproto2_compiler==0.10.1 \
    grpcio-tools==1.85.1 protobuf==7.36.2
cat >"$WORK/clock.proto" <<'PROTO'
syntax = "proto3";
package clock;
import "google/protobuf/duration.proto";
message Lag { google.protobuf.Duration lag = 1; }
PROTO
mkdir "$WORK/better"
PATH=$WORK/venv/bin:$PATH "$PY" -m grpc_tools.protoc -I "$WORK" --python_out="$WORK" --python_betterproto2_out="$WORK/better" \
    "$WORK/clock.proto" >"$WORK/protoc.log" 2>&1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
from datetime import timedelta

import clock_pb2
from better import clock
from google.protobuf import json_format

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("betterproto2", "protobuf")))


def seconds(duration):
    """Return the seconds of a duration of Google's package, as its two fields say."""
    return (duration.seconds * 10**9 + duration.nanos) / 10**9


def google(delta):
    """Return a message of Google's package with a duration."""
    message = clock_pb2.Lag()
    message.lag.FromTimedelta(delta)
    return message


print("written by betterproto2:")
for given in (-3, 0.5, -0.5, -1.25, -0.000001, -86400.25):
    message = clock.Lag(lag=timedelta(seconds=given))
    data = bytes(message)
    read = clock_pb2.Lag.FromString(data).lag
    print(f"  {given} as {read.seconds} seconds and {read.nanos} nanos,", end=" ")
    print(f"which betterproto2 reads as {clock.Lag.parse(data).lag.total_seconds()},", "JSON", message.to_json())
print("written by Google's package, read and written again by betterproto2:")
for given in (-3, 0.5, -0.5, -1.25, -0.000001, -86400.25):
    delta = timedelta(seconds=given)
    read = clock.Lag.parse(google(delta).SerializeToString())
    assert read.lag == delta
    print(f"  {given} comes as {read.lag.total_seconds()} and goes as {seconds(clock_pb2.Lag.FromString(bytes(read)).lag)}")
print("written and read by Google's package:")
for given in (-0.5, -1.25):
    message = clock_pb2.Lag.FromString(google(timedelta(seconds=given)).SerializeToString())
    print(f"  {given} comes as {message.lag.ToTimedelta().total_seconds()}, JSON {json_format.MessageToJson(message, indent=None)}")
PYTHON
(cd "$WORK" && "$PY" show.py) >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
betterproto2 0.10.0 protobuf 7.36.2
written by betterproto2:
  -3 as -3 seconds and 0 nanos, which betterproto2 reads as -3.0, JSON {"lag": "-3s"}
  0.5 as 0 seconds and 500000000 nanos, which betterproto2 reads as 0.5, JSON {"lag": "0.500s"}
  -0.5 as 0 seconds and 500000000 nanos, which betterproto2 reads as 0.5, JSON {"lag": "0.500s"}
  -1.25 as -1 seconds and 750000000 nanos, which betterproto2 reads as -0.25, JSON {"lag": "-1.750s"}
  -1e-06 as 0 seconds and 999999000 nanos, which betterproto2 reads as 0.999999, JSON {"lag": "0.999999s"}
  -86400.25 as -86400 seconds and 750000000 nanos, which betterproto2 reads as -86399.25, JSON {"lag": "-86400.750s"}
written by Google's package, read and written again by betterproto2:
  -3 comes as -3.0 and goes as -3.0
  0.5 comes as 0.5 and goes as 0.5
  -0.5 comes as -0.5 and goes as 0.5
  -1.25 comes as -1.25 and goes as -0.25
  -1e-06 comes as -1e-06 and goes as 0.999999
  -86400.25 comes as -86400.25 and goes as -86399.25
written and read by Google's package:
  -0.5 comes as -0.5, JSON {"lag": "-0.500s"}
  -1.25 comes as -1.25, JSON {"lag": "-1.250s"}
EXPECTED
what="betterproto2 writes a negative duration with the wrong fraction"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
