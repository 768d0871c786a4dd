"""Measures what it costs that the sink encodes the values: ``python -m benchmarks.formats``.

Batch writes of equal rows in turn: encoded by Spark's ``to_json`` before the sink, or by ``value.format``.
"""

from __future__ import annotations

import argparse
import time
import uuid
from pathlib import Path

from benchmarks.common import OURS_PRODUCER, Bench, bench, median, ratio
from testkit import registry as registries

#: Without the sink's help: the base of the ratios.
TO_JSON = "to_json"
FORMATS = (TO_JSON, "json", "avro", "protobuf")

#: An order of a shop, some 150 bytes as JSON.
ROW = """named_struct(
    'id', id, 'customer', concat('customer-', id % 100000), 'amount', id / 7.0D, 'paid', id % 3 = 0,
    'at', timestamp_micros(1700000000000000L + id), 'items', array(id % 17, id % 23), 'note', if(id % 2 = 0, null, 'x')
)"""


def main() -> None:
    """Write the rows in each format, round by round; print records a second, and their ratio to ``to_json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path(".run/formats"))
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in FORMATS}
    folder = args.folder.absolute()
    with bench(folder, "local[2]") as b, registries.running(folder / "registry") as registry:
        for name in FORMATS:  # the JIT's part, and the registry's
            write(b, registry.url, name, args.records // 10)
        for _ in range(args.rounds):
            for name in FORMATS:
                found[name].append(args.records / write(b, registry.url, name, args.records))
    for name, rates in found.items():
        print(f"{name:9} {median(rates):10,.0f} records/s; ratio to {TO_JSON} {ratio(rates, found[TO_JSON])}")


def write(b: Bench, url: str, name: str, records: int) -> float:
    """Write ``records`` rows to a fresh topic; return the seconds."""
    rows = b.spark.range(records, numPartitions=4).selectExpr("cast(id as string) key", f"{ROW} value")
    if name == TO_JSON:
        rows = rows.selectExpr("key", "to_json(value) value")
    run = uuid.uuid4().hex[:8]
    options = {"topic": b.topic("bench-formats", 4), "sink.id": f"bench-{run}", "write.id": run, **OURS_PRODUCER}
    if name != TO_JSON:
        options |= {"schema.registry.url": url, "value.format": name, "value.schema.register": "true"}
    began = time.monotonic()
    rows.write.format("kafka_exactly_once").mode("append").options(**b.connection.spark(), **options).save()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
