#!/usr/bin/env bash
# A field of a list, a map or a set that has a default in the Thrift file. thriftpy2 gives each message the same
# object for it: a service that reads an order without tags and appends one to it has changed the default, and each
# order without tags that it reads or makes afterwards, in one batch as well, comes with the tag of the first and is
# written with it. A field of a structure does the same, and a constant of the file changes, too. A new process begins
# anew, so that a restart seems to repair it. A message whose data has the field is its own. No error.
# Release: thriftpy2 0.7.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check thriftpy2==0.7.1

cat >"$WORK/order.thrift" <<'THRIFT'
const list<string> CHANNELS = ["web"]
struct Address { 1: optional string country = "DE" }
struct Order {
  1: i32 id,
  2: optional list<string> tags = ["new"],
  3: optional map<string, i32> counts = {"items": 1},
  4: optional list<string> channels = CHANNELS,
  5: optional Address address = {"country": "DE"}
}
struct Batch { 1: list<Order> orders }
struct OldOrder { 1: i32 id }
struct OldBatch { 1: list<OldOrder> orders }
THRIFT
cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import thriftpy2
from thriftpy2 import protocol
from thriftpy2.utils import deserialize, serialize

m = thriftpy2.load(sys.argv[1] + "/order.thrift", "order_thrift")
FACTORIES = {"binary": protocol.TBinaryProtocolFactory, "compact": protocol.TCompactProtocolFactory}
FACTORIES["JSON"] = protocol.TJSONProtocolFactory


def show(words, order):
    print(f"  {words}: {order.id} {order.tags} {order.counts} {order.channels} {order.address.country}")


print("thriftpy2", importlib.metadata.version("thriftpy2"))
factory = FACTORIES[sys.argv[2]]()
print(f"{sys.argv[2]}, data of a writer that has the id alone:")
first = deserialize(m.Order(), serialize(m.OldOrder(id=1), factory), factory)
show("read", first)
first.tags.append("fraud")
first.counts["items"] += 1
first.channels.append("phone")
first.address.country = "FR"
print("  the first is changed, and then")
later = deserialize(m.Order(), serialize(m.OldOrder(id=2), factory), factory)
show("read", later)
batch = deserialize(m.Batch(), serialize(m.OldBatch(orders=[m.OldOrder(id=3), m.OldOrder(id=4)]), factory), factory)
for order in batch.orders:
    show("read in a batch", order)
show("made", m.Order(id=5))
own = deserialize(m.Order(), serialize(m.Order(id=6, tags=["own"]), factory), factory)
own.tags.append("more")
show("read, and its own tags are changed", own)
show("made", m.Order(id=7))
print("  the constant:", m.CHANNELS, "- written:", b"fraud" in serialize(m.Order(id=8), factory))
PYTHON
for name in binary compact JSON; do "$PY" "$WORK/show.py" "$WORK" "$name" >>"$WORK/seen" 2>>"$WORK/show.log"; done

cat >"$WORK/expected" <<'EXPECTED'
thriftpy2 0.7.1
binary, data of a writer that has the id alone:
  read: 1 ['new'] {'items': 1} ['web'] DE
  the first is changed, and then
  read: 2 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read in a batch: 3 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read in a batch: 4 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  made: 5 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read, and its own tags are changed: 6 ['own', 'more'] {'items': 2} ['web', 'phone'] FR
  made: 7 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  the constant: ['web', 'phone'] - written: True
thriftpy2 0.7.1
compact, data of a writer that has the id alone:
  read: 1 ['new'] {'items': 1} ['web'] DE
  the first is changed, and then
  read: 2 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read in a batch: 3 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read in a batch: 4 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  made: 5 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read, and its own tags are changed: 6 ['own', 'more'] {'items': 2} ['web', 'phone'] FR
  made: 7 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  the constant: ['web', 'phone'] - written: True
thriftpy2 0.7.1
JSON, data of a writer that has the id alone:
  read: 1 ['new'] {'items': 1} ['web'] DE
  the first is changed, and then
  read: 2 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read in a batch: 3 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read in a batch: 4 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  made: 5 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  read, and its own tags are changed: 6 ['own', 'more'] {'items': 2} ['web', 'phone'] FR
  made: 7 ['new', 'fraud'] {'items': 2} ['web', 'phone'] FR
  the constant: ['web', 'phone'] - written: True
EXPECTED
what="a message of thriftpy2 that is changed changes the default of every later one"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
