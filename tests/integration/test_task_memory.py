"""How much of an executor's heap a part takes, by the number of partitions that it writes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.broker import create_topic
from testkit.fixtures import StartDriver, make_bench
from testkit.stream import Job

#: Of a part, in bytes of values: more than a buffer takes.
ROWS, SIZE = 50_000, 1_000

#: Kafka's buffer.memory of each producer, of which the two task slots have one each; and what else one keeps: of each
#: partition its sequence numbers, its leader, its queue.
BUFFER_MIB, BESIDE_MIB = 32, 24


@pytest.mark.long
@pytest.mark.parametrize("partitions", [4, 64, 256, 1024])
def test_a_part_takes_its_buffer_of_the_heap_and_little_more_whatever_the_number_of_partitions(
    partitions: int, own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, driver: StartDriver
) -> None:
    """Guards against executors that are killed for their memory once a topic has many partitions, and against a heap
    that grows with the size of a batch.
    """
    servers = own_broker().bootstrap_servers
    made = make_bench(Connection.from_options({"kafka.bootstrap.servers": servers}), tmp_path)
    topic = create_topic(servers, partitions=partitions)
    columns = ["cast(n as string) key", f"rpad(cast(n as string), {SIZE}, '.') value"]
    job = Job(**{**vars(made.job), "select": [f"explode(sequence(1, {ROWS})) n"]}).having(topic=topic)
    job = replace(job, transform="testkit.transforms:selected", arguments={"columns": columns})
    writing = driver()
    made.input.add_rows([[("a", "1")], [("b", "2")]])
    run = writing.start(job.until_stopped())
    run.await_commit(0)
    run.stop()()
    before = writing.ask("heap")
    peaks = []
    for batch in (1, 2):
        made.input.add_rows([[("a", "1")], [("b", "2")]])
        run = writing.start(job.until_stopped())
        writing.arm("after-flush", "wait")
        run.await_true("after-flush", lambda: writing.has_reached("after-flush"))
        peaks.append(writing.ask("heap"))
        writing.release("after-flush")
        run.await_commit(batch)
        run.stop()()
    print(f"{partitions} partitions: {before:.0f} MiB behind a batch, {peaks[0]:.0f} and {peaks[1]:.0f} in one")
    assert max(peaks) < before + 2 * (BUFFER_MIB + BESIDE_MIB)
    assert before < 400, "of the driver's 512 MiB"
