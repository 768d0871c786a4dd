"""Files of a checkpoint that no repair rebuilds: the state of a query, and what its source has noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dagster_exactly_once.resources.spark import LOCAL_CHECKPOINTS
from dagster_exactly_once.runs.failures import diagnose
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.state import STORES, TRANSFORM, settings_of
from testkit.fixtures import Bench, KafkaInput
from testkit.stream import Job, SparkDriver

pytestmark = pytest.mark.long

#: No snapshots: each version of the state is in one file.
NO_SNAPSHOTS = {"spark.sql.streaming.stateStore.maintenanceInterval": "1h"}

BATCHES, ROWS = 3, 20

DAMAGES = ("cut off", "empty", "deleted", "older")


@pytest.fixture(params=STORES)
def stateful(request: pytest.FixtureRequest, warm: SparkDriver) -> Iterator[tuple[str, SparkDriver]]:
    """Each state store, and the driver that stays: each of its queries loads the state from the files."""
    settings = {**settings_of(request.param), **NO_SNAPSHOTS}
    with warm.having(settings):
        yield request.param, warm
    for name, value in LOCAL_CHECKPOINTS.items():  # which the driver began with
        warm.ask("conf", name=name, value=value)


def add_batch(bench: Bench) -> None:
    """Add a batch: new rows, and those that the batch before it had as new ones."""
    number = len(bench.input.batches)
    before = bench.input.batches[-1] if number else [[], []]
    new = [[(f"k{p}.{i % 7}", f"b{number}-p{p}-{i}") for i in range(ROWS)] for p in range(2)]
    bench.input.add_rows([[*old[-ROWS:], *fresh] for old, fresh in zip(before, new, strict=True)])


def spoil(files: CheckpointFiles, damage: str) -> None:
    """Damage the newest state of the first partition."""
    name, before = (next(n for n in files.state(v) if n.startswith("state/0/0/")) for v in (BATCHES, BATCHES - 1))
    content = files.read(name)
    if damage == "deleted":
        files.delete(name)
        return
    left = {"cut off": content[: len(content) // 2], "empty": b"", "older": files.read(before)}[damage]
    files.write(name, left)


@pytest.mark.parametrize("damage", DAMAGES)
def test_state_that_is_damaged_stops_the_stream_and_a_copy_of_the_checkpoint_brings_it_back(
    damage: str, stateful: tuple[str, SparkDriver], bench: Bench
) -> None:
    """Guards against an error without a way out, and against a stream that goes on with wrong state: it writes again
    what it no longer knows.

    One damage passes through Spark: a whole, older file in the store that keeps no checksums. This pins what
    docs/lab/faults.md says of it.
    """
    store, driver = stateful
    job = replace(bench.job, transform=TRANSFORM)
    for _ in range(BATCHES):
        add_batch(bench)
        driver.complete(job)
    files, kept = CheckpointFiles(bench.checkpoint), CheckpointFiles(bench.checkpoint.with_name("kept"))
    kept.replace(files)
    spoil(files, damage)
    add_batch(bench)

    ended = driver.run(job)
    if (store, damage) == (STORES[0], "older"):
        assert ended.failure is None
        twice = {value for (_, value), n in Counter(bench.visible()).items() if n > 1}
        assert twice and all(value.startswith(f"b{BATCHES - 1}-") for value in twice)
        return
    assert ended.failure is not None
    found = diagnose(RuntimeError(ended.failure))
    assert (found.code, found.heals) == ("SPARK-STATE-UNREADABLE", False), ended.failure
    files.replace(kept)
    driver.complete(job)
    assert sorted(bench.visible()) == sorted(set(bench.input.expected()))
    bench.assert_settled()


@pytest.mark.parametrize("point", ["all-prepared", "decided"])
@pytest.mark.parametrize("damage", ["cut off", "empty", "zeros"])
def test_the_torn_first_offsets_of_a_kafka_source_are_looked_up_again_once_their_file_is_deleted(
    damage: str, point: str, warm: SparkDriver, bench: Bench, kafka_input: KafkaInput
) -> None:
    """Guards against an error without a way out, and against a first batch that is lost or written twice by it."""
    kafka_input.fill(batches=2, rows=40)
    select = ["cast(key as string) key", "cast(value as string) value"]
    job = replace(bench.job, source=kafka_input.source(per_batch=400), select=select)
    warm.arm(point, "raise")
    assert f"failpoint {point}" in (warm.run(job).failure or "")
    files = CheckpointFiles(bench.checkpoint)
    content = files.read("sources/0/0")
    left = {"cut off": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content))}[damage]
    files.write("sources/0/0", left)

    expected = (
        "SPARK-SOURCE-OFFSETS" if damage == "empty" else "SPARK-CHECKPOINT-TORN"
    )  # this file manager looks at the checksum
    assert code_of(warm, job) == expected
    files.delete("sources/0/.0.crc")
    assert code_of(warm, job) == "SPARK-SOURCE-OFFSETS"
    assert not bench.visible() or point == "decided"
    files.delete("sources/0/0")
    warm.complete(job)
    assert sorted(bench.visible()) == sorted(kafka_input.sent)
    bench.assert_settled()


def code_of(driver: SparkDriver, job: Job) -> str:
    """Run a job that must fail, and return the code of its failure."""
    failure = driver.run(job).failure
    assert failure is not None
    return diagnose(RuntimeError(failure)).code
