#!/usr/bin/env bash
# At most one field of a oneof can be set: the Protobuf guide says that to set one clears the others, and that of several in the
# data the last one counts. betterproto2 does neither. Who reads a message and sets another field of its oneof has both, and its
# bytes have both, in the order of the field numbers: each reader takes the one with the higher number. A payment by invoice (field
# 2) that is changed to card (field 1) is still by invoice for the reader, where the change from card to invoice arrives. Of data
# in which the same oneof comes twice, as when one message is appended to another to merge them, betterproto2 keeps both, and what
# it writes has them in the other order, so that the next reader takes the value that had been replaced. Nothing raises an error
# but which_one_of(), if somebody calls it. Google's package keeps the last value.
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
message Payment {
  oneof by {
    string card = 1;
    string invoice = 2;
  }
  int64 amount = 3;
}
PROTO
mkdir "$WORK/better"
PATH=$WORK/venv/bin:$PATH "$PY" -m grpc_tools.protoc -I "$WORK" --python_out="$WORK" --python_betterproto2_out="$WORK/better" \
    "$WORK/shop.proto" >"$WORK/protoc.log" 2>&1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import betterproto2
import shop_pb2
from better import shop

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("betterproto2", "protobuf")))


def reader(data):
    """Return which field of the oneof a reader with Google's package finds in the data, and its value."""
    message = shop_pb2.Payment.FromString(data)
    field = message.WhichOneof("by")
    return f"{field} {getattr(message, field)}"


def asked(message):
    """Return what which_one_of() of betterproto2 does with a message."""
    try:
        return betterproto2.which_one_of(message, "by")
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


for old, new in (("card", "invoice"), ("invoice", "card")):
    print(f"a payment by {old} is read, and changed to {new}:")
    data = shop_pb2.Payment(**{old: "old", "amount": 5}).SerializeToString()
    google = shop_pb2.Payment.FromString(data)
    setattr(google, new, "new")
    print("  by Google's package: its reader gets", reader(google.SerializeToString()))
    message = shop.Payment.parse(data)
    setattr(message, new, "new")
    print("  by betterproto2: its reader gets", reader(bytes(message)))
    print("    the message is", message, "JSON", message.to_json())
    print("    betterproto2 reads it as", shop.Payment.parse(bytes(message)))
    print("    which_one_of():", asked(message))
print("data with invoice first and card last:")
data = shop_pb2.Payment(invoice="old").SerializeToString() + shop_pb2.Payment(card="new").SerializeToString()
print("  Google's package reads", reader(data), "and passes on", reader(shop_pb2.Payment.FromString(data).SerializeToString()))
print("  betterproto2 reads", shop.Payment.parse(data), "and passes on", reader(bytes(shop.Payment.parse(data))))
PYTHON
(cd "$WORK" && "$PY" show.py) >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
betterproto2 0.10.0 protobuf 7.36.2
a payment by card is read, and changed to invoice:
  by Google's package: its reader gets invoice new
  by betterproto2: its reader gets invoice new
    the message is Payment(card='old', invoice='new', amount=5) JSON {"card": "old", "invoice": "new", "amount": "5"}
    betterproto2 reads it as Payment(card='old', invoice='new', amount=5)
    which_one_of(): RuntimeError: more than one field set in oneof: card and invoice
a payment by invoice is read, and changed to card:
  by Google's package: its reader gets card new
  by betterproto2: its reader gets invoice old
    the message is Payment(card='new', invoice='old', amount=5) JSON {"card": "new", "invoice": "old", "amount": "5"}
    betterproto2 reads it as Payment(card='new', invoice='old', amount=5)
    which_one_of(): RuntimeError: more than one field set in oneof: card and invoice
data with invoice first and card last:
  Google's package reads card new and passes on card new
  betterproto2 reads Payment(card='new', invoice='old') and passes on invoice old
EXPECTED
what="with betterproto2 a oneof that is set anew reaches its reader as the old value"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
