"""Measure what a run of a Spark Declarative Pipeline takes that has one small file to write, with each of two sinks.

``python -m benchmarks.pipelines --rounds 5``

A pipeline of each sink has a topic of its own. The first run of each makes its checkpoint; then come the rounds, in
which the sinks take turns: from the start of ``spark-pipelines run`` to the end of its last process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import processes
from testkit.broker import create_topic, fresh_name
from testkit.driverless import spark_pipeline
from testkit.processes import until

#: Format -> its options beside topic and brokers.
SINKS = {"kafka_exactly_once": {"sink.id": "orders"}, "kafka": {}}

#: Rows of a file.
ROWS = 1_000

#: For one run, on a busy machine.
LIMIT_S = 300.0

FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("out", {format!r}, {options!r})


@dp.append_flow(target="out", name="orders")
def orders():
    return spark.readStream.schema("key STRING, value STRING").json({data!r})
"""


class Pipeline:
    """A pipeline from a folder of files to a topic."""

    def __init__(self, folder: Path, sink: str, servers: str):
        self.folder, self.runs = folder, 0
        (folder / "transformations").mkdir(parents=True)
        (folder / "data").mkdir()
        spec = f"name: shop\nstorage: {(folder / 'storage').as_uri()}\nlibraries:\n  - glob:\n"
        (folder / "pipeline.yml").write_text(f"{spec}      include: transformations/**\n")
        topic = create_topic(servers, fresh_name("out"), partitions=2)
        options = {"topic": topic, "kafka.bootstrap.servers": servers, **SINKS[sink]}
        flows = FLOWS.format(format=sink, options=options, data=str(folder / "data"))
        (folder / "transformations" / "flows.py").write_text(flows)

    def run(self) -> float:
        """Add a file, and run; return the seconds that the run took."""
        self.runs += 1
        rows = "".join(f'{{"key": "k{n % 7}", "value": "v{self.runs}-{n}"}}\n' for n in range(ROWS))
        (self.folder / "data" / f"{self.runs}.json").write_text(rows)
        folder, began = self.folder / f"run-{self.runs}", time.monotonic()
        started = spark_pipeline(["--spec", str(self.folder / "pipeline.yml")], folder)
        if started.wait(LIMIT_S) != 0:
            raise SystemExit((folder / "log").read_text(errors="replace")[-4000:])
        until("the end of the sink's Python", lambda: not processes.of_session(started.pid), LIMIT_S)
        return time.monotonic() - began


def main() -> None:
    """Run, and print the median with the least and the most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name) / "broker") as broker:
        pipelines = {sink: Pipeline(Path(name) / sink, sink, broker.bootstrap_servers) for sink in SINKS}
        for sink, pipeline in pipelines.items():
            print(f"{sink}, first run: {pipeline.run():.1f} s", flush=True)
        took = [{sink: pipeline.run() for sink, pipeline in pipelines.items()} for _ in range(rounds)]
    for sink in SINKS:
        seconds = [one[sink] for one in took]
        print(f"{sink}: {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")


if __name__ == "__main__":
    main()
