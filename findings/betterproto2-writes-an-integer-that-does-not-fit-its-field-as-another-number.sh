#!/usr/bin/env bash
# betterproto2 does not compare an integer with the range of its field. It writes more bits than the field has, or less than all of
# the number, and each reader finds another number: under int32 4294967303 arrives as 7, under uint32 -1 as 4294967295, under
# sint32 2147483648 as 0, under int64 2^63 as -2^63, in a repeated field and in a map as well, whose keys can become one. The
# writer's own message goes on to show the number that it was given, and its JSON has that number, so that the JSON and the bytes
# of one message differ. from_json() takes such a number too, and cuts 2.7 to 2. Nothing raises an error, while a fixed32 or a
# fixed64 that does not fit is refused. Google's package refuses each of them when the field is set, and in JSON.
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
cat >"$WORK/shop.proto" <<'PROTO'
syntax = "proto3";
package shop;
message Item {
  int32 i32 = 1;
  uint32 u32 = 2;
  sint32 s32 = 3;
  int64 i64 = 4;
  uint64 u64 = 5;
  sint64 s64 = 6;
  fixed32 f32 = 7;
  repeated int32 many = 8;
  map<int32, int32> pairs = 9;
}
PROTO
mkdir "$WORK/better"
PATH=$WORK/venv/bin:$PATH "$PY" -m grpc_tools.protoc -I "$WORK" --python_out="$WORK" --python_betterproto2_out="$WORK/better" \
    "$WORK/shop.proto" >"$WORK/protoc.log" 2>&1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import struct

import shop_pb2
from better import shop
from google.protobuf import json_format

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("betterproto2", "protobuf")))


def written(item, field, value):
    """Return what Google's package and betterproto2 read in the bytes that betterproto2 writes of a message."""
    try:
        data = bytes(item)
    except struct.error:
        return "struct.error"
    google = getattr(shop_pb2.Item.FromString(data), field)
    google = dict(google) if field == "pairs" else list(google) if field == "many" else google
    assert getattr(item, field) == value and getattr(shop.Item.parse(data), field) == google
    return google


def refused(call, *arguments, **fields):
    """Return what Google's package does with the same value."""
    try:
        call(*arguments, **fields)
    except (ValueError, json_format.ParseError) as error:
        return type(error).__name__
    return "takes it"


print("given to betterproto2, read from its bytes, its JSON; Google's package:")
for field, value in (
    ("i32", 2**31 - 1), ("i32", 2**32 + 7), ("i32", 2**31), ("u32", -1), ("u32", 2**32), ("s32", 2**31), ("s32", 2**32 + 7),
    ("i64", 2**63), ("u64", -1), ("u64", 2**64 + 7), ("s64", 2**63), ("f32", 2**32 + 7),
    ("many", [2**32 + 7, 8]), ("pairs", {7: 1, 2**32 + 7: 2}),
):
    item = shop.Item(**{field: value})
    print(f"{field} {value}: {written(item, field, value)}, {item.to_json()};", refused(shop_pb2.Item, **{field: value}))
print("JSON that betterproto2 reads, and writes as bytes; Google's package:")
for text in ('{"i32": 4294967303}', '{"i32": 2.7}', '{"u64": "-1"}'):
    item = shop.Item.from_json(text)
    print(f"{text}: {item}, {shop.Item.parse(bytes(item))};", refused(json_format.Parse, text, shop_pb2.Item()))
PYTHON
(cd "$WORK" && "$PY" show.py) >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
betterproto2 0.10.0 protobuf 7.36.2
given to betterproto2, read from its bytes, its JSON; Google's package:
i32 2147483647: 2147483647, {"i32": 2147483647}; takes it
i32 4294967303: 7, {"i32": 4294967303}; ValueError
i32 2147483648: -2147483648, {"i32": 2147483648}; ValueError
u32 -1: 4294967295, {"u32": -1}; ValueError
u32 4294967296: 0, {"u32": 4294967296}; ValueError
s32 2147483648: 0, {"s32": 2147483648}; ValueError
s32 4294967303: 7, {"s32": 4294967303}; ValueError
i64 9223372036854775808: -9223372036854775808, {"i64": "9223372036854775808"}; ValueError
u64 -1: 18446744073709551615, {"u64": "-1"}; ValueError
u64 18446744073709551623: 7, {"u64": "18446744073709551623"}; ValueError
s64 9223372036854775808: 0, {"s64": "9223372036854775808"}; ValueError
f32 4294967303: struct.error, {"f32": 4294967303}; ValueError
many [4294967303, 8]: [7, 8], {"many": [4294967303, 8]}; ValueError
pairs {7: 1, 4294967303: 2}: {7: 2}, {"pairs": {"7": 1, "4294967303": 2}}; ValueError
JSON that betterproto2 reads, and writes as bytes; Google's package:
{"i32": 4294967303}: Item(i32=4294967303), Item(i32=7); ParseError
{"i32": 2.7}: Item(i32=2), Item(i32=2); ParseError
{"u64": "-1"}: Item(u64=-1), Item(u64=18446744073709551615); ParseError
EXPECTED
what="betterproto2 writes an integer that does not fit its field as another number"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
