"""Measures what options of the sink cost a batch write: ``python -m benchmarks.options``.

Batch writes of equal rows in turn. The base of a format is Spark's ``to_json`` before the sink; the base of any other
option is the same write without it.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import OURS_PRODUCER, Bench, bench, median, ratio
from testkit import registry as registries

#: Without the option.
PLAIN = "to_json"
OPTIONS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {},
    **{f"value.format={f}": {"value.format": f, "value.schema.register": "true"} for f in ("json", "avro", "protobuf")},
    "sink.batch.headers": {"sink.batch.headers": "true"},
    # no row is refused
    "sink.dead.letter.topic": {},
}

#: An order of a shop, some 150 bytes as JSON.
ROW = """named_struct(
    'id', id, 'customer', concat('customer-', id % 100000), 'amount', id / 7.0D, 'paid', id % 3 = 0,
    'at', timestamp_micros(1700000000000000L + id), 'items', array(id % 17, id % 23), 'note', if(id % 2 = 0, null, 'x')
)"""


def main() -> None:
    """Write the rows with each option, round by round; print records a second, and their ratio to the base."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path(".run/options"))
    parser.add_argument("--only", nargs="+", choices=[*OPTIONS][1:], default=[*OPTIONS][1:])
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in (PLAIN, *args.only)}
    folder = args.folder.absolute()
    with bench(folder, "local[2]") as b, registries.running(folder / "registry") as registry:
        for name in found:  # the JIT's part, and the registry's
            write(b, registry.url, name, args.records // 10)
        names = [*found]
        for number in range(args.rounds):
            first = number % len(names)  # another one each time: what is first in a round is slower
            for name in names[first:] + names[:first]:
                found[name].append(args.records / write(b, registry.url, name, args.records))
    for name, rates in found.items():
        print(f"{name:24} {median(rates):10,.0f} records/s; ratio to {PLAIN} {ratio(rates, found[PLAIN])}")


def write(b: Bench, url: str, name: str, records: int) -> float:
    """Write ``records`` rows to a fresh topic; return the seconds."""
    rows = b.spark.range(records, numPartitions=4).selectExpr("cast(id as string) key", f"{ROW} value")
    given = dict(OPTIONS[name])
    if "value.format" in given:
        given["schema.registry.url"] = url
    else:
        rows = rows.selectExpr("key", "to_json(value) value")
    if name == "sink.dead.letter.topic":
        given[name] = b.topic("bench-dead", 4)
    run = uuid.uuid4().hex[:8]
    options = {"topic": b.topic("bench-options", 4), "sink.id": f"bench-{run}", "write.id": run, **OURS_PRODUCER}
    began = time.monotonic()
    written = rows.write.format("kafka_exactly_once").mode("append")
    written.options(**b.connection.spark(), **options, **given).save()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
