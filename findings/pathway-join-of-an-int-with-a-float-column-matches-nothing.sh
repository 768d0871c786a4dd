#!/usr/bin/env bash
# Pathway checks the types of a join's two columns: it refuses an int with a str or with a bool, and accepts an int with a float.
# Such a join never matches: join(), interval_join() and asof_now_join() return no row, and join_left() and join_right() return each
# row as if it had no partner; no error or warning says so. The other parts of Pathway take 1 and 1.0 as equal: asof_join() with
# the same condition matches, a filter of all pairs by the same condition finds them, and groupby() behind a concat() counts them as
# one key. Once the int column is cast to float, join() matches, too. DuckDB and pandas match the columns as they are.
# Releases: pathway 0.33.0; duckdb 2.0.1 and pandas 2.3.3 for comparison. Needs: bash, Python 3.11 or later with pip. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pathway==0.33.0 duckdb==2.0.1 pandas==2.3.3
for id in 1 2; do
    echo "{\"customer\": $id, \"at\": 10, \"amount\": ${id}00}" >>"$WORK/orders.jsonl"
    echo "{\"number\": $id, \"at\": 9, \"name\": \"name $id\"}" >>"$WORK/customers.jsonl"
done

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import duckdb
import pandas
import pathway as pw

WORK = sys.argv[1]


class Order(pw.Schema):
    customer: int
    at: int
    amount: int


class Customer(pw.Schema):
    number: float
    at: int
    name: str


def rows(table):
    """Run Pathway, and return the rows of a table in order."""
    keys, columns = pw.debug.table_to_dicts(table)
    return sorted((tuple(column[key] for column in columns.values()) for key in keys), key=str)


def refusal(other):
    """Return what Pathway says of a join of the orders with a column of another type."""
    right = customers.select(number=pw.cast(other, pw.this.number))
    try:
        orders.join(right, orders.customer == right.number)
    except TypeError as error:
        return str(error).splitlines()[0]
    return "accepted"


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pathway", "duckdb", "pandas")))
orders = pw.io.jsonlines.read(f"{WORK}/orders.jsonl", schema=Order, mode="static")
customers = pw.io.jsonlines.read(f"{WORK}/customers.jsonl", schema=Customer, mode="static")
print("orders:", rows(orders), "customers:", rows(customers))
same = orders.customer == customers.number
result = (orders.customer, customers.name)
near = pw.temporal.interval(-5, 5)
print("join:", rows(orders.join(customers, same).select(*result)))
print("join_left:", rows(orders.join_left(customers, same).select(*result)))
print("join_right:", rows(orders.join_right(customers, same).select(*result)))
print("interval_join:", rows(orders.interval_join(customers, orders.at, customers.at, near, same).select(*result)))
print("asof_now_join:", rows(orders.asof_now_join(customers, same).select(*result)))
asof = orders.asof_join(customers, orders.at, customers.at, same, how=pw.JoinMode.LEFT)
print("asof_join:", rows(asof.select(*result)))
pairs = orders.join(customers).select(orders.customer, customers.number, customers.name)
print("all pairs, filtered by the same condition:", rows(pairs.filter(pw.this.customer == pw.this.number)))
keys = pw.Table.concat_reindex(orders.select(key=orders.customer), customers.select(key=customers.number))
print("concat and groupby:", rows(keys.groupby(pw.this.key).reduce(pw.this.key, n=pw.reducers.count())))
cast = orders.with_columns(customer=pw.cast(float, pw.this.customer))
print("join after a cast:", rows(cast.join(customers, cast.customer == customers.number).select(cast.customer, customers.name)))
print("a join with str:", refusal(str))
print("a join with bool:", refusal(bool))
orders_frame = pandas.DataFrame({"customer": [1, 2]})
customers_frame = pandas.DataFrame({"number": [1.0, 2.0], "name": ["name 1", "name 2"]})
merged = orders_frame.merge(customers_frame, left_on="customer", right_on="number")
print("pandas:", list(zip(merged.customer.tolist(), merged.name.tolist())))
query = "select customer, name from orders_frame join customers_frame on customer = number order by all"
print("duckdb:", duckdb.sql(query).fetchall())
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pathway 0.33.0 duckdb 2.0.1 pandas 2.3.3
orders: [(1, 10, 100), (2, 10, 200)] customers: [(1.0, 9, 'name 1'), (2.0, 9, 'name 2')]
join: []
join_left: [(1, None), (2, None)]
join_right: [(None, 'name 1'), (None, 'name 2')]
interval_join: []
asof_now_join: []
asof_join: [(1, 'name 1'), (2, 'name 2')]
all pairs, filtered by the same condition: [(1, 1.0, 'name 1'), (2, 2.0, 'name 2')]
concat and groupby: [(1.0, 2), (2.0, 2)]
join after a cast: [(1.0, 'name 1'), (2.0, 'name 2')]
a join with str: Incompatible types in a join condition.
a join with bool: Incompatible types in a join condition.
pandas: [(1, 'name 1'), (2, 'name 2')]
duckdb: [(1, 'name 1'), (2, 'name 2')]
EXPECTED
what="Pathway's join of an int with a float column matches nothing"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
